// A thin bridge from streamable HTTP to `a2e mcp serve`, one process for each session, so
// that a client that speaks only HTTP can test it:
//   node bridge.mjs A2E
// It prints "port N"; /mcp is the bridge. /fixture is the server that
// @modelcontextprotocol/conformance wants: the host has it as the MCP server `fixture`, so what
// the bridge changes is the names of its tools and prompts, which have fixture__ before them.
import { randomUUID } from "node:crypto";
import express from "express";
import { localhostHostValidation } from "@modelcontextprotocol/sdk/server/middleware/hostHeaderValidation.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { isInitializeRequest } from "@modelcontextprotocol/sdk/types.js";
import { fixture } from "./fixture.mjs";

const prefix = "fixture__";

// host connects a session to a process of its own.
async function host(web) {
  const pipe = new StdioClientTransport({ command: process.argv[2], args: ["mcp", "serve"], env: process.env, stderr: "inherit" });
  const calls = new Map(); // of tools, open: what comes meanwhile belongs to the newest
  web.onmessage = (message) => {
    if (message.method === "tools/call") calls.set(message.id);
    const named = message.params?.ref ?? message.params; // what has a name: a call, or what is to be completed
    if (/^(test|json)_/.test(named?.name)) named.name = prefix + named.name;
    pipe.send(message);
  };
  pipe.onmessage = (message) => {
    for (const one of message.result?.tools ?? message.result?.prompts ?? []) one.name = one.name.replace(prefix, "");
    const relatedRequestId = message.method && [...calls.keys()].at(-1);
    if (!message.method) calls.delete(message.id);
    web.send(message, { relatedRequestId }).catch(() => {}); // nobody listens any more
  };
  pipe.onclose = () => web.close();
  await Promise.all([pipe.start(), web.start()]);
  return () => pipe.close();
}

// serve gives each session of a path a server of its own.
function serve(app, path, connect) {
  const sessions = new Map();
  app.all(path, async (req, res) => {
    let web = sessions.get(req.headers["mcp-session-id"]);
    if (!web) {
      if (!isInitializeRequest(req.body)) return res.status(404).end();
      web = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID, onsessioninitialized: (id) => sessions.set(id, web) });
      const close = await connect(web);
      const before = web.onclose;
      web.onclose = () => {
        sessions.delete(web.sessionId);
        before?.();
        close?.();
      };
    }
    await web.handleRequest(req, res, req.body);
  });
}

const app = express().use(localhostHostValidation(), express.json());
serve(app, "/mcp", host);
serve(app, "/fixture", async (web) => {
  await fixture().connect(web);
});
const server = app.listen(0, "127.0.0.1", () => {
  process.env.FIXTURE_PORT = server.address().port;
  console.log(`port ${process.env.FIXTURE_PORT}`);
});
