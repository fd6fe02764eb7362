// What a client made with vscode-jsonrpc sees of `a2e`:
//   node rpc.mjs A2E     in a folder whose a2e.yaml has a worker `upper` and a worker `slow`
// The library speaks with headers (Content-Length) as language servers do; Lines and
// LineWriter have it speak one message per line.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import {
  AbstractMessageReader, AbstractMessageWriter, createMessageConnection, NotificationType, RequestType, RequestType0, ResponseError,
} from "vscode-jsonrpc/node";

// Lines reads one message per line.
class Lines extends AbstractMessageReader {
  constructor(stream) {
    super();
    this.stream = stream;
  }

  listen(callback) {
    const lines = createInterface({ input: this.stream, crlfDelay: Infinity });
    lines.on("line", (line) => {
      try {
        callback(JSON.parse(line));
      } catch (err) {
        this.fireError(err);
      }
    });
    lines.on("close", () => this.fireClose());
    return { dispose: () => lines.close() };
  }
}

// LineWriter writes one message per line.
class LineWriter extends AbstractMessageWriter {
  constructor(stream) {
    super();
    this.stream = stream;
  }

  write(message) {
    return new Promise((resolve, reject) => {
      this.stream.write(JSON.stringify(message) + "\n", (err) => (err ? reject(err) : resolve()));
    });
  }

  end() {
    this.stream.end();
  }
}

const host = spawn(process.argv[2], [], { stdio: ["pipe", "pipe", "inherit"] });
const exited = new Promise((resolve) => host.on("exit", (code, signal) => resolve(code ?? signal)));
const connection = createMessageConnection(new Lines(host.stdout), new LineWriter(host.stdin));
connection.onError(([err]) => {
  throw err;
});
connection.onUnhandledNotification((n) => assert.fail(`a notification that nobody expects: ${n.method}`));

// Events come as one notification; until waits for those that match, past or to come.
const events = [];
const waiting = new Set();
connection.onNotification(new NotificationType("event"), (event) => {
  assert.match(event.timestamp, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d/);
  events.push(event);
  for (const look of waiting) look();
});
function until(what, match) {
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`never: ${what}; there were ${JSON.stringify(events)}`)), 30_000);
    const look = () => {
      const found = events.find(match);
      if (!found) return;
      clearTimeout(late);
      waiting.delete(look);
      resolve(found.payload);
    };
    waiting.add(look);
    look();
  });
}
const of = (session, type) => (e) => e.type === type && e.payload.session_id === session;
const typesOf = (session) => events.filter((e) => e.payload.session_id === session).map((e) => e.type.replace("session.", ""));

const send = new RequestType("session.send");
const create = async (params) => (await connection.sendRequest("session.create", params)).session_id;

async function handshake() {
  const result = await connection.sendRequest("rpc.handshake", { client_name: "vscode", protocol_version: "1.0.0", strict: true });
  assert.equal(result.protocol_version, "1.0.0");
  assert.equal(result.server_name, "a2e");
  assert.deepEqual(result.capabilities, { events: true, command_execute: true, multi_session: true, image_inputs: ["path", "data_url"] });
  assert.equal(result.methods.length, 24);
  assert.deepEqual(result.methods, [...result.methods].sort());
  assert.equal((await connection.sendRequest(new RequestType0("system.ping"))).ok, true);
  await connection.sendNotification("system.ping"); // gets no answer, which the library would not expect
}

async function errors() {
  const refused = async (method, params) => {
    const err = await connection.sendRequest(method, params).then(() => assert.fail(`${method} was not refused`), (err) => err);
    assert(err instanceof ResponseError, err);
    return [err.code, err.data];
  };
  assert.deepEqual(await refused("no.such.method"), [-32601, { reason: "method_not_found", method: "no.such.method" }]);
  assert.deepEqual(await refused("rpc.handshake", { protocol_version: "7", strict: true }),
    [-32602, { reason: "unsupported_protocol_version", supported: "1.0.0" }]);
  const [code, data] = await refused("session.get", { session_id: 5 });
  assert.deepEqual([code, data.reason, data.field], [-32602, "invalid_params", "session_id"]);
}

// session: a worker's output comes as it works, and the history has both sides.
async function session() {
  const id = await create({ title: "from vscode", model: "upper" });
  assert.equal((await connection.sendRequest(send, { session_id: id, text: "hello" })).status, "started");
  const done = await until("the worker is done", of(id, "session.completed"));
  assert.deepEqual([done.status, done.summary], ["done", "HELLO"]);
  await until("it is idle", (e) => of(id, "session.status")(e) && e.payload.status === "idle");
  assert.deepEqual(typesOf(id),
    ["status", "message.appended", "stream.chunk", "message.appended", "completed", "status"]);
  const history = await connection.sendRequest("history.get", { session_id: id });
  assert.deepEqual(history.messages.map((m) => [m.role, m.text]), [["user", "hello"], ["assistant", "HELLO"]]);
  assert.equal(history.title, "from vscode");
}

async function command() {
  const id = await create({});
  const result = await connection.sendRequest("command.execute", { session_id: id, raw_command: '/echo {"text":"hi there"}' });
  assert.equal(result.success, true);
  assert.deepEqual(result.result.data, { text: "hi there" });
  const started = await until("the tool began", of(id, "session.tool.call.started"));
  assert.deepEqual([started.tool_name, started.arguments, started.tool_call_id], ["echo", { text: "hi there" }, result.tool_call_id]);
  assert.equal((await until("the tool ended", of(id, "session.tool.call.completed"))).success, true);
}

// interrupt: two sessions work at once; one is stopped, the other goes on.
async function interrupt() {
  const [one, other] = [await create({ model: "slow" }), await create({ model: "slow" })];
  for (const id of [one, other]) {
    await connection.sendRequest(send, { session_id: id, text: "work" });
    await until("it works", of(id, "session.stream.chunk"));
  }
  assert.equal((await connection.sendRequest(send, { session_id: one, text: "later", enqueue: true })).status, "queued");
  assert.equal((await connection.sendRequest("session.steer", { session_id: one, text: "sooner" })).position, 1);
  const { queue } = await connection.sendRequest("session.queue.list", { session_id: one });
  assert.deepEqual(queue.map((m) => m.text), ["sooner", "later"]);
  const told = await connection.sendRequest("session.interrupt", { session_id: one, clear_queue: true });
  assert.deepEqual([told.interrupted, told.cleared], [true, 2]);
  await until("it was interrupted", of(one, "session.interrupted"));
  assert.equal((await connection.sendRequest("session.get", { session_id: other })).status, "running");
  await connection.sendRequest("session.interrupt", { session_id: other });
  await until("the other one was, too", of(other, "session.interrupted"));
}

// manyAtOnce: each of many requests has its own answer.
async function manyAtOnce() {
  const id = await create({});
  const texts = Array.from({ length: 200 }, (_, i) => `t${i}`);
  const results = await Promise.all(texts.map((text) =>
    connection.sendRequest("command.execute", { session_id: id, raw_command: `/echo text=${text}` })));
  assert.deepEqual(results.map((r) => r.result.data.text), texts);
}

async function shutdown() {
  assert.equal((await connection.sendRequest("system.shutdown", { timeout: 5 })).ok, true);
  assert.equal(await exited, 0);
}

connection.listen();
for (const part of [handshake, errors, session, command, interrupt, manyAtOnce, shutdown]) {
  try {
    await part();
  } catch (err) {
    console.error(part.name, err);
    host.kill("SIGKILL");
    process.exit(1);
  }
  console.log(part.name);
}
connection.dispose();
