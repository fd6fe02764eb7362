// Tools for a2e in TypeScript or JavaScript, with node alone: tool({…}) for each, and serve() at the end.
// a2e_plugin.d.mts has the types. What run returns is the result (an object as it is, anything else as {result}),
// what it throws is the error, what it prints with console goes to the host's log.
import { Console } from "node:console";
import { createInterface } from "node:readline";

const tools = new Map();
const calls = new Map(); // AbortControllers, by the ids of requests
const reminder = () => console.error("this plugin ends without serve()");
process.on("exit", reminder);
const write = process.stdout.write.bind(process.stdout);

/** Makes a tool. Each input is required unless it says optional: true. */
export function tool(definition) {
  tools.set(definition.name, definition);
}

/** Serves the tools until the host ends. */
export function serve({ maxParallel = 8 } = {}) {
  process.off("exit", reminder);
  if (process.stdin.isTTY) {
    console.error(`${process.argv[1]} is a plugin: a2e starts it. It has the tools: ${[...tools.keys()].join(", ")}`);
    process.exit(1);
  }
  globalThis.console = new Console(process.stderr, process.stderr);
  process.stdout.write = process.stderr.write.bind(process.stderr);
  const end = () => write("", () => process.exit(0)); // calls may still run
  const input = createInterface({ input: process.stdin });
  input.on("line", (line) => {
    const message = JSON.parse(line);
    if (message.type === "shutdown") return end();
    answer[message.type]?.(message, maxParallel) ?? refuse(message);
  });
  input.on("close", end);
}

// The first newline ends what a program that shares this stdout may have begun.
function send(type, request, body) {
  write("\n" + JSON.stringify({ a2e: "1.0", type, req_id: request.id, ...body }) + "\n");
  return true;
}

function refuse(request) {
  if (!request.type.endsWith("/req")) return;
  send("error", request, { code: "invalid_message", message: `this plugin does not have ${request.type}` });
}

const answer = {
  "handshake/req": (request, maxParallel) =>
    send("handshake/resp", request, {
      ok: true, session_id: "1", max_parallel: maxParallel, accepted_caps: [{ capability: "tools", enabled: true, metadata: {} }],
    }),
  ping: (request) => send("pong", request, { uptime_seconds: process.uptime() }),
  "tool/list/req": (request) => send("tool/list/resp", request, { tools: [...tools.values()].map(described) }),
  "tool/call/req": (request) => { call(request); return true; },
  cancel: (request) => { calls.get(request.req_id)?.abort(); return true; },
};

function described({ name, description, tags = [], input = {}, run }) {
  const parameters = Object.entries(input).map(([key, { type = "any", description = "", optional = false, enum: values }]) =>
    ({ name: key, type, description, required: !optional, ...(values && { enum: values }) }));
  return { name, description, tags, streaming: run.length > 1, input_parameters: parameters };
}

async function call(request) {
  const found = tools.get(request.tool_name);
  if (!found) return send("error", request, { code: "unknown_tool", message: `unknown tool ${request.tool_name}` });
  const stop = new AbortController(), begun = performance.now();
  const event = (kind, data) => send("invoke/event", request, { kind, data });
  calls.set(request.id, stop);
  try {
    let data = await found.run(request.arguments ?? {}, {
      signal: stop.signal,
      progress: (pct, message = "") => event("progress", { pct: Math.round(pct), message }),
      log: (message, level = "info") => event("log", { level, message: String(message) }),
    });
    if (data === null || typeof data !== "object" || Array.isArray(data)) data = { result: data ?? null };
    const result = { success: true, tool_name: found.name, data, summary: null, duration_ms: Math.round(performance.now() - begun), events: [] };
    send("tool/call/resp", request, { data: result, created_at: Date.now() / 1000 });
  } catch (error) {
    if (stop.signal.aborted) return send("error", request, { code: "cancelled", message: "the call was cancelled" });
    console.error(error);
    send("error", request, { code: "tool_error", message: String(error) });
  } finally {
    calls.delete(request.id);
  }
}
