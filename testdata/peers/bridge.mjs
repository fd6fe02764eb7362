// Runs `a2e serve --http` for @modelcontextprotocol/conformance:
//   node bridge.mjs A2E
// It prints "port N"; /mcp there is the host's own, but for names: /fixture is the server that the
// suite wants, the host has it as the MCP server `fixture`, and puts fixture__ before the names of
// its tools and prompts, which is taken off again here.
import { randomUUID } from "node:crypto";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import http from "node:http";
import express from "express";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { isInitializeRequest } from "@modelcontextprotocol/sdk/types.js";
import { fixture } from "./fixture.mjs";

const sessions = new Map();

async function serveFixture(req, res) {
  let web = sessions.get(req.headers["mcp-session-id"]);
  if (!web) {
    if (!isInitializeRequest(req.body)) return res.status(404).end();
    web = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID, onsessioninitialized: (id) => sessions.set(id, web) });
    web.onclose = () => sessions.delete(web.sessionId);
    await fixture().connect(web);
  }
  await web.handleRequest(req, res, req.body);
}

// named puts the prefix before what the fixture has: a call's name, or what is to be completed.
function named(body) {
  const message = body && JSON.parse(body);
  const what = message?.params?.ref ?? message?.params;
  if (!/^(test|json)_/.test(what?.name)) return body;
  what.name = "fixture__" + what.name;
  return JSON.stringify(message);
}

let host; // its port

async function pass(req, res) {
  let body = "";
  for await (const chunk of req.setEncoding("utf8")) body += chunk;
  body = named(body);
  const headers = { ...req.headers };
  if (body) headers["content-length"] = Buffer.byteLength(body);
  const on = http.request({ host: "127.0.0.1", port: host, path: "/mcp", method: req.method, headers }, (got) => {
    delete got.headers["content-length"];
    res.writeHead(got.statusCode, got.headers).flushHeaders();
    const lines = createInterface({ input: got }).on("line", (line) => res.write(line.replaceAll('"fixture__', '"') + "\n")).on("close", () => res.end());
    lines.on("error", () => res.destroy()); // the client has gone
  });
  on.on("error", () => res.destroy());
  res.on("close", () => on.destroy());
  on.end(body);
}

const app = express().all("/mcp", pass).use(express.json()).all("/fixture", serveFixture);
const server = app.listen(0, "127.0.0.1", () => {
  process.env.FIXTURE_PORT = server.address().port;
  const a2e = spawn(process.argv[2], ["serve", "--http", "127.0.0.1:0"], { stdio: ["ignore", "inherit", "pipe"] });
  process.on("SIGTERM", () => a2e.kill());
  a2e.on("exit", () => process.exit());
  createInterface({ input: a2e.stderr }).on("line", (line) => {
    const found = /listens on http:\/\/127\.0\.0\.1:(\d+)/.exec(line);
    if (!found) return console.error(line);
    host = found[1];
    console.log(`port ${process.env.FIXTURE_PORT}`);
  });
});
