// What a client made with the TypeScript SDK makes of tools with odd schemas:
//   node schemas.mjs A2E|URL     in a folder with an MCP server `odd` in a2e.yaml, or of a host that has it
// It lists the tools, calls each that is odd's with the arguments that $ARGUMENTS has for it, and prints their names.
import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ToolSchema } from "@modelcontextprotocol/sdk/types.js";

const known = JSON.parse(process.env.ARGUMENTS);
const host = process.argv[2];
const client = new Client({ name: "ts", version: "1" });
await client.connect(host.startsWith("http") ? new StreamableHTTPClientTransport(new URL(host)) : new StdioClientTransport({ command: host, args: ["mcp", "serve"], env: process.env }));

let found = [];
for (const end = Date.now() + 60_000; found.length === 0; await pause(10)) {
  assert(Date.now() < end, "the tools never came");
  let cursor;
  do {
    const page = await client.listTools({ cursor });
    found.push(...page.tools.filter((tool) => tool.name.startsWith("odd__")));
    cursor = page.nextCursor;
  } while (cursor);
}
for (const tool of found) {
  ToolSchema.parse(tool);
  const result = await client.callTool({ name: tool.name, arguments: known[tool.name] ?? known[""] });
  assert(!result.isError, `${tool.name}: ${JSON.stringify(result)}`);
  console.log(tool.name);
}
await client.close();
