// A client of JSON-RPC sessions, written from the protocol's description alone:
//   tsc rpc.ts && node rpc.js A2E     in a folder whose a2e.yaml has a worker with a scripted model
// When the model stalls, the line `! release` on stdout makes the test release it. Each answer and
// event is checked against its shape; members that a shape lacks are extensions of the host.
import assert from "node:assert/strict";
import { spawn, type ChildProcess } from "node:child_process";
import { createInterface } from "node:readline";

interface Attachment { path: string; mimeType: string; dataUrl: string; byteSize: number }
interface UiMessage { id: number; kind: "user" | "assistant" | "system"; text: string; images?: Attachment[] }
interface ChatMessage { role: "user" | "assistant"; text: string; images?: Attachment[] }
interface QueueItem { id: string; text: string; images: { path: string; mime_type?: string; data_url?: string }[]; enqueuedAt: string }
interface Breakdown { pinned_tokens: number; conversation_tokens: number; tool_schema_tokens: number; provider_overhead_tokens: number }
interface SessionState {
  id: string; createdAt: string; updatedAt: string; pending: boolean; statusLabel: string; messages: UiMessage[]; history: ChatMessage[];
  queue: QueueItem[]; pendingSteerCount: number; conversationProvider: string | null; activeSessionId: string | null;
  contextTokenEstimate: number; contextTokenSource: "history" | "compaction"; contextTokenProvider: string | null; contextTokenBreakdown: Breakdown;
}
interface Summary {
  id: string; title: string; provider: string; model: string; thinkingLevel: string; createdAt: string; updatedAt: string; messageCount: number; rolloutPath: string;
}
interface ModelOption { id: string; provider: string; label: string; description: string; supportedThinkingLevels?: string[]; defaultThinkingLevel?: string; contextWindowTokens?: number }
interface ModelList { providers: string[]; models: ModelOption[]; selected_model: string; selected_thinking: string; selected_openrouter_provider: string; selected_provider: string | null }
interface Methods {
  "rpc.handshake": [{ client_name?: string; protocol_version?: string; strict?: boolean }, { protocol_version: string; server_name: string; methods: string[]; capabilities: { events: boolean; command_execute: boolean; multi_session: boolean; image_inputs: string[] } }];
  "system.ping": [{}, { ok: true; time: string }];
  "system.shutdown": [{ reason?: string }, { accepted: true; reason?: string }];
  "session.create": [{ title?: string }, { session_id: string; state: SessionState }];
  "session.get": [{ session_id: string }, SessionState];
  "session.send": [{ session_id: string; text?: string; images?: object[]; enqueue?: boolean }, { session_id: string; turn_id: string; accepted: boolean; queued: boolean }];
  "session.steer": [{ session_id: string; text: string }, { session_id: string; accepted: boolean }];
  "session.interrupt": [{ session_id: string }, { session_id: string; interrupted: boolean }];
  "session.answer": [{ session_id: string; question_id: string; action: string; content?: object; reason?: string }, { session_id: string; accepted: boolean }];
  "session.queue.list": [{ session_id: string }, { session_id: string; queue: QueueItem[] }];
  "command.execute": [{ session_id: string; raw_command: string }, { handled: boolean; output?: any }];
  "history.list": [{ limit?: number; cursor?: number }, { total: number; cursor: number; limit: number; sessions: Summary[]; next_cursor: number | null }];
  "history.get": [{ id?: string; last?: boolean; rollout_path?: string }, Summary & { messages: ChatMessage[] }];
  "model.list": [{ provider?: string }, ModelList];
  "model.select": [{ model_id: string; provider: string; thinking_level: string }, { selected_model: string; selected_provider: string; selected_thinking: string; selected_openrouter_provider: string }];
  "auth.set.openrouter_key": [{ api_key: string }, { configured: boolean; model_count: number; source: string }];
  "tools.list": [{}, { tools: { name: string; description: string; input_schema?: object }[] }];
}
interface RpcEvent { type: string; timestamp: string; payload: any }

// Shapes: the members of a value with their types; "?" = may be absent, "|null" = may be null.
type Shape = { [member: string]: string | Shape };
const snapshot: Shape = {
  auth: { enabledProviders: "array", hasOpenAiToken: "boolean", hasOpenRouterKey: "boolean", hasAntigravityToken: "boolean", antigravityProfile: "object|null" }, onboarding: { completed: "boolean" },
  model: { selectedModel: "string", selectedThinking: "string", selectedOpenRouterProvider: "string", selectedProvider: "string|null" }, sessions: { count: "number", ids: "array" }, skills: { count: "number", directories: "array" },
};
const breakdown: Shape = { pinned_tokens: "number", conversation_tokens: "number", tool_schema_tokens: "number", provider_overhead_tokens: "number" };
const state: Shape = {
  id: "string", createdAt: "string", updatedAt: "string", pending: "boolean", statusLabel: "string", messages: "array", history: "array", queue: "array",
  pendingSteerCount: "number", conversationProvider: "string|null", activeSessionId: "string|null",
  contextTokenEstimate: "number", contextTokenSource: "string", contextTokenProvider: "string|null", contextTokenBreakdown: breakdown,
};
const summary: Shape = { id: "string", title: "string", provider: "string", model: "string", thinkingLevel: "string", createdAt: "string", updatedAt: "string", messageCount: "number", rolloutPath: "string" };
const executed: Shape = { name: "string", ok: "boolean", input: "object" };
const shapes: Record<string, Shape> = {
  "rpc.handshake": { protocol_version: "string", server_name: "string", methods: "array", capabilities: { events: "boolean", command_execute: "boolean", multi_session: "boolean", image_inputs: "array" } },
  "system.ping": { ok: "boolean", time: "string" }, "system.shutdown": { accepted: "boolean" },
  "session.create": { session_id: "string", state }, "session.get": state, "session.send": { session_id: "string", turn_id: "string", accepted: "boolean", queued: "boolean" },
  "session.steer": { session_id: "string", accepted: "boolean" }, "session.interrupt": { session_id: "string", interrupted: "boolean" }, "session.answer": { session_id: "string", accepted: "boolean" }, "session.queue.list": { session_id: "string", queue: "array" },
  "command.execute": { handled: "boolean" }, "history.list": { total: "number", cursor: "number", limit: "number", sessions: "array", next_cursor: "number|null" }, "history.get": { ...summary, messages: "array" },
  "model.list": { providers: "array", models: "array", selected_model: "string", selected_thinking: "string", selected_openrouter_provider: "string", selected_provider: "string|null" },
  "model.select": { selected_model: "string", selected_provider: "string", selected_thinking: "string", selected_openrouter_provider: "string" },
  "auth.set.openrouter_key": { configured: "boolean", model_count: "number", source: "string" }, "tools.list": { tools: "array" },
  "event session.status": { session_id: "string", pending: "boolean", status_label: "string", turn_id: "string?" },
  "event session.message.appended": { session_id: "string", message: { id: "number", kind: "string", text: "string", images: "array?" } },
  "event session.stream.chunk": { session_id: "string", turn_id: "string", chunk: { thoughts: "array", answerText: "string", segments: "array?" } },
  "event session.tool.call.started": { session_id: "string", turn_id: "string", data: { toolRound: "number", call: { name: "string", input: "object", providerToolName: "string", callId: "string" } } },
  "event session.tool.call.completed": { session_id: "string", turn_id: "string", data: { toolRound: "number", executed } },
  "event session.tool.results": { session_id: "string", turn_id: "string", data: { toolRound: "number", executed: "array" } },
  "event session.completed": { session_id: "string", turn_id: "string", answer_length: "number" },
  "event session.interrupted": { session_id: "string", turn_id: "string", partial_output: "boolean" },
  "event session.error": { session_id: "string", turn_id: "string", message: "string" },
  "event session.context.estimate": { session_id: "string", provider: "string|null", source: "string", total_tokens_estimate: "number", breakdown },
  "event compaction.started": { session_id: "string", turn_id: "string?", reason: "string", anchor_event_index_before: "number", event_count: "number", context_window_tokens: "number" },
  "event compaction.anchor_selected": { session_id: "string", turn_id: "string?", reason: "string", anchor_event_index_before: "number", anchor_event_index_after: "number", delta_event_count: "number" },
  "event compaction.summary_merged": { session_id: "string", turn_id: "string?", summary_updated_at: "string", anchor_event_index_after: "number" },
  "event compaction.completed": { session_id: "string", turn_id: "string?", compressed: "boolean", reason: "string", estimated_tokens_before: "number", estimated_tokens_after: "number", model_context_window: "number", target_limit: "number", high_watermark_limit: "number", anchor_event_index_before: "number", anchor_event_index_after: "number" },
  "event compaction.failed": { session_id: "string", turn_id: "string?", reason: "string", message: "string" },
  "event state.changed": { reason: "string", snapshot },
};
const kind = (v: unknown) => (v === null ? "null" : Array.isArray(v) ? "array" : typeof v);
function check(what: string, value: any, shape: Shape | undefined): void {
  assert(shape, `${what} has no shape`);
  for (const [member, want] of Object.entries(shape)) {
    const is = value[member];
    if (typeof want !== "string") check(`${what}.${member}`, is, want);
    else if (!(want.endsWith("?") && is === undefined)) assert(want.replace("?", "").split("|").includes(kind(is)), `${what}.${member} should be ${want}: ${JSON.stringify(value)}`);
  }
}

class RpcError extends Error {
  constructor(readonly code: number, message: string, readonly data: any) { super(message); }
}

class Client {
  readonly events: RpcEvent[] = [];
  private readonly host: ChildProcess;
  private readonly open = new Map<number, { method: string; resolve: (v: any) => void; reject: (e: Error) => void }>();
  private readonly lookers = new Set<() => void>();
  private next = 0;
  private readonly exited: Promise<number | null>;

  constructor(program: string) {
    this.host = spawn(program, [], { stdio: ["pipe", "pipe", "inherit"] });
    this.exited = new Promise((resolve) => this.host.on("exit", (code) => resolve(code)));
    createInterface({ input: this.host.stdout!, crlfDelay: Infinity }).on("line", (line) => this.take(JSON.parse(line)));
  }

  private take(m: any): void {
    assert.equal(m.jsonrpc, "2.0");
    if (m.method === "event") {
      assert.match(m.params.timestamp, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
      check(`event ${m.params.type}`, m.params.payload, shapes[`event ${m.params.type}`]);
      this.events.push(m.params);
      for (const look of this.lookers) look();
      return;
    }
    const call = this.open.get(m.id);
    assert(call, `nobody asked: ${JSON.stringify(m)}`);
    this.open.delete(m.id);
    if (m.error) return call.reject(new RpcError(m.error.code, m.error.message, m.error.data));
    check(call.method, m.result, shapes[call.method]);
    this.events.push({ type: "answer", timestamp: "", payload: { session_id: m.result.session_id } });
    call.resolve(m.result);
  }

  call<M extends keyof Methods>(method: M, params: Methods[M][0]): Promise<Methods[M][1]> {
    const id = ++this.next;
    return new Promise((resolve, reject) => {
      this.open.set(id, { method, resolve, reject });
      this.host.stdin!.write(JSON.stringify({ jsonrpc: "2.0", id, method, params }) + "\n");
    });
  }

  // until waits for an event that matches, beginning with event number since.
  until(what: string, match: (e: RpcEvent) => boolean, since = 0): Promise<any> {
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error(`never: ${what}; there were ${JSON.stringify(this.events.slice(since))}`)), 60_000);
      const look = () => {
        const found = this.events.slice(since).find(match);
        if (!found) return;
        clearTimeout(late);
        this.lookers.delete(look);
        resolve(found.payload);
      };
      this.lookers.add(look);
      look();
    });
  }

  // idle waits until this number of turns of a session has ended.
  async idle(turns: number, since: number): Promise<void> {
    await this.until("the session is ready", () => this.events.slice(since).filter((e) => e.type === "session.status" && !e.payload.pending).length >= turns, since);
  }

  end(): Promise<number | null> {
    this.host.stdin!.end();
    return this.exited;
  }
}

const short = (e: RpcEvent) => e.type.replace("session.", "") + (e.payload.status_label ? ` ${e.payload.status_label}` : "") + (e.payload.message?.kind ? ` ${e.payload.message.kind}` : "");
const answer = (events: RpcEvent[], turn: string) => events.filter((e) => e.type === "session.stream.chunk" && e.payload.turn_id === turn).map((e) => e.payload.chunk.answerText).join("");
const release = () => console.log("! release");

async function talk(c: Client): Promise<string> {
  const hello = await c.call("rpc.handshake", { client_name: "typescript", protocol_version: "1.0.0", strict: true });
  assert.deepEqual(hello.methods, [...hello.methods].sort());
  assert((["session.send", "auth.set.openrouter_key"] as const).every((m) => hello.methods.includes(m)) && !hello.methods.includes("auth.connect.openai"));
  const models = await c.call("model.list", {});
  const option = models.models[0]!;
  assert.equal((await c.call("model.select", { model_id: option.id, provider: option.provider, thinking_level: "HIGH" })).selected_thinking, "HIGH");
  assert.equal((await c.call("auth.set.openrouter_key", { api_key: "sk-of-the-typescript-client" })).configured, true);
  const { session_id, state: fresh } = await c.call("session.create", {});
  assert.deepEqual([fresh.pending, fresh.history, fresh.activeSessionId], [false, [], null]);

  // A turn with a text and an image is answered by thoughts, pieces of text and a tool call.
  let since = c.events.length;
  const sent = await c.call("session.send", { session_id, text: "look", images: [{ path: "pixel.png", dataUrl: "data:image/png;base64,cGl4ZWw=", mimeType: "image/png" }] });
  assert.deepEqual([sent.accepted, sent.queued], [true, false]);
  await c.idle(1, since);
  const told = c.events.slice(since);
  assert.deepEqual(told.map(short), [
    "answer", "status thinking...", "context.estimate", "message.appended user", "status thinking: reasoning", "stream.chunk", "status thinking: look closely", "stream.chunk",
    "status drafting response...", "stream.chunk", "stream.chunk", "tool.call.started", "tool.call.completed", "tool.results", "stream.chunk", "message.appended assistant", "completed", "context.estimate", "status ready",
  ]);
  const [, user] = told.filter((e) => e.type === "session.message.appended" || e.type === "answer").map((e) => e.payload.message as UiMessage);
  assert.deepEqual([user!.text, user!.images![0]!.path, user!.images![0]!.byteSize], ["look [Image 1]", "pixel.png", 5]);
  const done = told.find((e) => e.type === "session.tool.call.completed")!.payload.data;
  assert.deepEqual([done.toolRound, done.executed.name, done.executed.ok, done.executed.input, done.executed.result], [1, "echo", true, { text: "seen" }, { text: "seen" }]);
  assert.equal(answer(told, sent.turn_id), "I see \n\nit.");
  assert.equal(told.find((e) => e.payload.message?.kind === "assistant")!.payload.message.text, "I see \n\nit.");
  assert.equal(told.find((e) => e.type === "session.completed")!.payload.answer_length, "I see \n\nit.".length);

  // A text steers the current turn.
  assert.equal((await c.call("session.steer", { session_id, text: "nobody listens" })).accepted, false);
  assert.equal((await c.call("session.answer", { session_id, question_id: "nobody asks", action: "accept" })).accepted, false);
  since = c.events.length;
  await c.call("session.send", { session_id, text: "steer me" });
  await c.until("the model speaks", (e) => e.type === "session.stream.chunk", since);
  assert.equal((await c.call("session.steer", { session_id, text: "to the left" })).accepted, true);
  release();
  await c.idle(1, since);
  const steered = c.events.slice(since).map(short).join(",");
  assert.match(steered, /stream\.chunk,.*message\.appended user,status steer applied; continuing\.\.\.,.*stream\.chunk,message\.appended assistant,completed,context\.estimate,status ready$/);

  // Two turns wait in the queue, and the first is interrupted.
  since = c.events.length;
  const one = await c.call("session.send", { session_id, text: "one" });
  const busy: RpcError = await c.call("session.send", { session_id, text: "too soon" }).then(() => assert.fail("it is busy"), (e) => e);
  assert.deepEqual([busy.code, busy.data.field], [-32602, "enqueue"]);
  const waiting = [await c.call("session.send", { session_id, text: "two", enqueue: true }), await c.call("session.send", { session_id, text: "three", enqueue: true })];
  assert.deepEqual(waiting.map((w) => w.queued), [true, true]);
  assert.deepEqual((await c.call("session.queue.list", { session_id })).queue.map((q) => q.id), waiting.map((w) => w.turn_id));
  await c.until("the model speaks", (e) => e.type === "session.stream.chunk", since);
  assert.equal((await c.call("session.interrupt", { session_id })).interrupted, true);
  await c.idle(3, since);
  const ended = c.events.slice(since).filter((e) => e.type === "session.interrupted" || e.type === "session.completed");
  assert.deepEqual(ended.map((e) => [e.type, e.payload.turn_id]), [["session.interrupted", one.turn_id], ...waiting.map((w) => ["session.completed", w.turn_id])]);
  assert.equal(ended[0]!.payload.partial_output, true);

  assert.equal((await c.call("command.execute", { session_id, raw_command: "/echo text=hi" })).output.data.text, "hi");
  assert.equal((await c.call("command.execute", { session_id, raw_command: "no command" })).handled, false);
  assert.equal((await c.call("tools.list", {})).tools.some((t) => t.name === "echo" && t.input_schema), true);
  assert.equal((await c.call("system.ping", {})).ok, true);
  return session_id;
}

async function afterRestart(c: Client, session_id: string): Promise<void> {
  const texts = ["look [Image 1]", "I see \n\nit.", "steer me", "to the left", "half\n\nleft then", "one", "par", "two", "two!", "three", "three!"];
  const live = await c.call("session.get", { session_id });
  assert.deepEqual(live.history.map((m) => m.text), texts);
  const page = await c.call("history.list", { limit: 1, cursor: 0 });
  assert.deepEqual([page.total, page.next_cursor, page.sessions[0]!.id, page.sessions[0]!.title, page.sessions[0]!.thinkingLevel], [1, null, live.activeSessionId, "three", "HIGH"]);
  check("summary", page.sessions[0], summary);
  for (const by of [{ last: true }, { id: page.sessions[0]!.id.slice(0, 8).toUpperCase() }, { rollout_path: page.sessions[0]!.rolloutPath }]) {
    assert.deepEqual((await c.call("history.get", by)).messages.map((m) => m.text), texts);
  }
  const models = await c.call("model.list", {});
  assert.deepEqual([models.selected_provider, models.selected_thinking], ["brain", "HIGH"]);
  assert.equal((await c.call("system.shutdown", { reason: "done" })).reason, "done");
}

const program = process.argv[2]!;
const first = new Client(program);
const session = await talk(first);
assert.equal(await first.end(), 0);
const second = new Client(program);
await afterRestart(second, session);
assert.equal(await second.end(), 0);
console.log("done");
