// @ts-check
// A whole tool plugin for a2e: `type: exec`, `command: [node, hash_tools.mjs]`.
import { createHash, randomUUID } from "node:crypto";
import { createInterface } from "node:readline";

const text = { name: "text", type: "string", description: "Any text.", required: true };
const tools = [
  { name: "sha256", description: "The SHA-256 of a text, in hex.", tags: ["hash"], input_parameters: [text] },
  { name: "uuid", description: "A random UUID.", tags: ["random"], input_parameters: [] },
];

/** @type {(type: string, request: {id: string}, body: object) => void} */
const send = (type, request, body) =>
  console.log(JSON.stringify({ a2e: "1.0", type, req_id: request.id, ...body }));

/** @type {Record<string, (args: {text?: string}) => object>} */
const run = {
  sha256: (args) => ({ hex: createHash("sha256").update(args.text ?? "").digest("hex") }),
  uuid: () => ({ uuid: randomUUID() }),
};

/** @type {Record<string, (request: any) => void>} */
const answer = {
  "handshake/req": (r) =>
    send("handshake/resp", r, { ok: true, accepted_caps: [{ capability: "tools", enabled: true, metadata: {} }], max_parallel: 8 }),
  ping: (r) => send("pong", r, { uptime_seconds: process.uptime() }),
  "tool/list/req": (r) => send("tool/list/resp", r, { tools }),
  "tool/call/req": (r) => {
    const tool = Object.hasOwn(run, r.tool_name) ? run[r.tool_name] : null;
    if (!tool) return send("error", r, { code: "unknown_tool", message: `unknown tool ${r.tool_name}` });
    const data = { success: true, tool_name: r.tool_name, data: tool(r.arguments), summary: null, duration_ms: 0, events: [] };
    send("tool/call/resp", r, { data, created_at: Date.now() / 1000 });
  },
  shutdown: () => process.exit(0),
};

createInterface({ input: process.stdin }).on("line", (line) => {
  const request = JSON.parse(line);
  answer[request.type]?.(request);
});
