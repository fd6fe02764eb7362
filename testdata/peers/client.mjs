// What a client made with the TypeScript SDK sees of `a2e mcp serve`:
//   node client.mjs A2E     in a folder with note.md, skills/greet and server-everything in a2e.yaml
import assert from "node:assert/strict";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import {
  CallToolResultSchema, CreateMessageRequestSchema, ElicitRequestSchema, ListRootsRequestSchema, LoggingMessageNotificationSchema,
  ResourceUpdatedNotificationSchema,
} from "@modelcontextprotocol/sdk/types.js";

const capabilities = { sampling: {}, elicitation: {}, roots: {} };
const client = new Client({ name: "ts", version: "1" }, { capabilities });
const logs = [];
client.setRequestHandler(CreateMessageRequestSchema, ({ params }) => ({
  role: "assistant", model: "m", stopReason: "endTurn", content: { type: "text", text: `heard: ${params.messages[0].content.text}` },
}));
client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
  assert.equal(params.requestedSchema.properties.name.type, "string");
  return { action: "accept", content: { name: "Ada" } };
});
client.setRequestHandler(ListRootsRequestSchema, () => ({ roots: [{ uri: "file:///of/the/client", name: "mine" }] }));
client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => logs.push(params));

// all follows the cursors of a list.
async function all(list, key) {
  const found = [];
  let cursor;
  do {
    const page = await list({ cursor });
    found.push(...page[key]);
    cursor = page.nextCursor;
  } while (cursor);
  return found;
}
const call = (name, args, options) => client.callTool({ name, arguments: args }, undefined, options);
const text = (result) => result.content.map((c) => c.text ?? "").join("");
async function until(what, ok) {
  for (const end = Date.now() + 60_000; !(await ok()); await pause(5)) assert(Date.now() < end, `never: ${what}`);
}

async function begin() {
  assert.equal(client.getServerVersion().name, "a2e");
  for (const has of ["tools", "resources", "prompts", "logging"]) assert(client.getServerCapabilities()[has], has);
  assert.match(client.getInstructions(), /workspace/);
  await client.ping();
  await client.setLoggingLevel("debug");
}

async function tools() {
  let known;
  await until("the tools of the server behind the host", async () => {
    known = Object.fromEntries((await all((p) => client.listTools(p), "tools")).map((t) => [t.name, t]));
    return known.all__echo;
  });
  const read = known.read_file;
  assert.equal(read.inputSchema.properties.path.type, "string");
  assert(read.inputSchema.required.includes("path") && read.description);
  assert.equal(read.annotations.readOnlyHint, true);
  assert.equal(known.run_command.annotations.readOnlyHint, false);
  const weather = known["all__get-structured-content"]; // a tool of an MCP server behind the host, as that describes it
  assert.equal(weather.outputSchema.properties.humidity.type, "number");
  assert.deepEqual(weather.inputSchema.properties.location.enum, ["New York", "Chicago", "Los Angeles"]);
  assert.equal(weather.annotations.openWorldHint, false);

  const found = await call("grep", { pattern: "note" }); // the SDK holds the result against the output schema
  assert(!found.isError && JSON.stringify(found.structuredContent).includes("note.md"));
  assert.deepEqual((await call("all__get-structured-content", { location: "Chicago" })).structuredContent,
    { temperature: 36, conditions: "Light rain / drizzle", humidity: 82 });
  assert.equal((await call("all__get-tiny-image", {})).content[1].mimeType, "image/png");
}

// logging: what a command writes comes while it runs.
async function logging() {
  await call("run_command", { command: ["sh", "-c", "echo first; sleep 0.1; echo second"] });
  await until("its output as log messages", () => logs.some((l) => l.logger.startsWith("run_command") && l.data.includes("second")));
}

async function errors() {
  const missing = await call("read_file", { path: "none.txt" });
  assert(missing.isError && text(missing).includes("none.txt"), text(missing));
  const wrong = await call("read_file", { path: 3 });
  assert(wrong.isError && text(wrong).includes("path"), text(wrong));
  const failed = await call("all__get-resource-reference", { resourceType: "Text", resourceId: -1 });
  assert(failed.isError && text(failed).includes("Invalid resourceId"), text(failed));
  await assert.rejects(call("no_such_tool", {}), { code: -32602 });
  await assert.rejects(client.request({ method: "no/such" }, { parse: (x) => x }), { code: -32601 });
}

async function progressAndCancel() {
  const told = [];
  await call("all__trigger-long-running-operation", { duration: 0.1, steps: 4 }, { onprogress: (p) => told.push(p.progress) });
  assert.deepEqual(told.slice(0, 3), [1, 2, 3]);

  // What a command writes is progress; the SDK drops what comes together with the result.
  const waits = "echo first; until [ -e heard ]; do sleep 0.01; done";
  const hear = (p) => writeFileSync("heard", p.message);
  assert(!(await call("run_command", { command: ["sh", "-c", waits] }, { onprogress: hear })).isError);
  assert.equal(readFileSync("heard", "utf8"), "first");

  const stop = new AbortController();
  const running = call("run_command", { command: ["sh", "-c", "echo $$ > ready; exec sleep 60"] }, { signal: stop.signal });
  await until("the command runs", () => existsSync("ready"));
  stop.abort("enough");
  await assert.rejects(running, /enough/);
  await until("the command is gone", async () => {
    const { stdout } = (await call("run_command", { command: ["sh", "-c", "kill -0 $(cat ready) 2>&1 || echo gone"] })).structuredContent;
    return stdout.includes("gone");
  });
}

async function resources() {
  const files = await all((p) => client.listResources(p), "resources");
  const note = files.find((r) => r.name === "note.md");
  const { contents } = await client.readResource({ uri: note.uri });
  assert.deepEqual([contents[0].uri, contents[0].text], [note.uri, "# note\n"]);
  const { resourceTemplates } = await client.listResourceTemplates();
  assert(resourceTemplates.some((t) => t.uriTemplate.startsWith("file:///")));
  await assert.rejects(client.readResource({ uri: note.uri + ".none" }), { code: -32002 });
  await assert.rejects(client.readResource({ uri: "file:///etc/passwd" }), { code: -32002 });
}

async function prompts() {
  const greet = (await all((p) => client.listPrompts(p), "prompts")).find((p) => p.name === "greet");
  assert(greet.arguments.some((a) => a.name === "who"));
  const { messages } = await client.getPrompt({ name: "greet", arguments: { who: "Ada" } });
  assert.deepEqual(messages, [{ role: "user", content: { type: "text", text: "Say hello to Ada, in one line." } }]);
  await assert.rejects(client.getPrompt({ name: "none" }), { code: -32602 });
}

// gateway: resources, prompts, completion and subscriptions are those of the server behind.
async function gateway() {
  const static1 = (await all((p) => client.listResources(p), "resources")).find((r) => r.uri.startsWith("demo://resource/static/"));
  const { contents } = await client.readResource({ uri: static1.uri });
  assert(contents[0].uri === static1.uri && contents[0].text.length > 0);
  const templates = await all((p) => client.listResourceTemplates(p), "resourceTemplates");
  assert(templates.some((t) => t.uriTemplate === "demo://resource/dynamic/text/{resourceId}"));
  const blob = await client.readResource({ uri: "demo://resource/dynamic/blob/2" });
  assert(blob.contents[0].blob.length > 0 && blob.contents[0].text === undefined);

  const args = { city: "Paris", state: "TX" };
  const { messages } = await client.getPrompt({ name: "all__args-prompt", arguments: args });
  assert.match(messages[0].content.text, /Paris, TX/);
  const ref = { type: "ref/prompt", name: "all__completable-prompt" };
  const { completion } = await client.complete({ ref, argument: { name: "department", value: "E" } });
  assert.deepEqual(completion.values, ["Engineering"]);
  await assert.rejects(client.complete({ ref: { ...ref, name: "greet" }, argument: { name: "who", value: "" } }), { code: -32602 });

  const updated = [];
  client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => updated.push(params.uri));
  await client.subscribeResource({ uri: static1.uri });
  await call("all__toggle-subscriber-updates", {}); // tells of an update at once
  await until("the update", () => updated.includes(static1.uri));
  await client.unsubscribeResource({ uri: static1.uri });
}

// tasks: a tool that is a task of its server is one here too, and waited for where nobody asks for one.
async function tasks() {
  const name = "all__simulate-research-query";
  const { tools } = await client.listTools();
  assert.equal(tools.find((t) => t.name === name).execution.taskSupport, "optional");
  const args = { topic: "stars", ambiguous: false };
  const waited = client.request({ method: "tools/call", params: { name, arguments: args } }, CallToolResultSchema);
  const seen = [];
  for await (const step of client.experimental.tasks.callToolStream({ name, arguments: args }, CallToolResultSchema, { task: { ttl: 60_000 } })) seen.push(step);
  assert.equal(seen[0].type, "taskCreated");
  assert.match(text(seen.at(-1).result), /stars/);
  const { taskId } = seen[0].task;
  assert(taskId.startsWith("all__"));
  assert((await client.experimental.tasks.listTasks()).tasks.some((t) => t.taskId === taskId));
  assert.equal((await client.experimental.tasks.getTask(taskId)).status, "completed");
  await assert.rejects(client.experimental.tasks.getTask("all__none"));
  assert.match(text(await waited), /stars/);
}

// asked: what a server behind the host asks, the client answers.
async function asked() {
  assert.match(text(await call("all__trigger-sampling-request", { prompt: "hi" })), /heard: .*hi/);
  assert.match(text(await call("all__trigger-elicitation-request", {})), /- Name: Ada/);
  await until("the roots are the client's", async () => text(await call("all__get-roots-list", {})).includes("file:///of/the/client"));
}

await client.connect(new StdioClientTransport({ command: process.argv[2], args: ["mcp", "serve"], env: process.env }));
for (const part of [begin, tools, logging, errors, progressAndCancel, resources, prompts, gateway, tasks, asked]) {
  try {
    await part();
  } catch (err) {
    console.error(part.name, err);
    process.exitCode = 1;
  }
  console.log(part.name);
}
await client.close();
