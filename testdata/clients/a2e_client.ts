// A client of a2e in one file, to copy into your project: it needs only Node's own modules. Node 22.18 and
// newer runs it directly (node agent.ts), older versions with npx tsx agent.ts, or compiled by tsc.
//
//   const host = await Host.start({ command: ["./a2e"] });
//   console.log(await host.call("list_dir", { path: "." }));
//   await host.close();
import { spawn, type ChildProcess } from "node:child_process";

export type Message = { type: string; id: string; req_id?: string; [field: string]: any };
export type Listener = (message: Message) => object | void;
export type Limits = { timeout?: number; signal?: AbortSignal; onEvent?: Listener }; // timeout in milliseconds
type Call = { resolve: (answer: Message) => void; reject: (why: Error) => void; onEvent?: Listener };

/** An `error` of the host, or a tool that failed; `code` says which kind. */
export class A2EError extends Error {
  code: string;
  detail: any;
  retryable: boolean;
  constructor(code: string, message: string, detail: any = {}, retryable = false) {
    super(`${code}: ${message}`);
    this.name = "A2EError";
    this.code = code;
    this.detail = detail;
    this.retryable = retryable;
  }
}

/** The host has ended, and with it each request that it had not answered. */
export class HostGone extends Error {}

export type Options = {
  command?: string[]; agentId?: string; caps?: string[]; token?: string; cwd?: string; env?: NodeJS.ProcessEnv;
  /** Gets messages that belong to no waiting request, and requests of the host, for which it returns the answer. */
  onMessage?: Listener;
};

export class Host {
  child: ChildProcess;
  capabilities: string[] = [];
  private waiting = new Map<string, Call>();
  private sent = 0;
  private gone?: HostGone;
  private ended: Promise<number | NodeJS.Signals>;
  private onMessage: Listener;

  private constructor(o: Options) {
    const [program, ...args] = o.command ?? ["a2e"];
    this.onMessage = o.onMessage ?? (() => {});
    this.child = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"], cwd: o.cwd, env: o.env });
    this.child.stdin!.on("error", () => {}); // the event "close" follows
    let line: Buffer[] = [];
    this.child.stdout!.on("data", (chunk: Buffer) => {
      for (let end; (end = chunk.indexOf(10)) >= 0; chunk = chunk.subarray(end + 1)) {
        this.deliver(JSON.parse(Buffer.concat([...line, chunk.subarray(0, end)]).toString()));
        line = [];
      }
      line.push(chunk);
    });
    this.ended = new Promise((resolve) => {
      const end = (why: string, status: number | NodeJS.Signals) => {
        this.gone = new HostGone(why);
        for (const call of this.waiting.values()) call.reject(this.gone);
        this.waiting.clear();
        resolve(status);
      };
      this.child.on("error", (err) => end(`the host did not start: ${err.message}`, -1));
      this.child.on("close", (code, signal) => end(`the host has ended: ${code ?? signal}`, code ?? signal!));
    });
  }

  static async start(o: Options = {}): Promise<Host> {
    const host = new Host(o);
    try {
      const hello = await host.request("handshake/req", { agent_id: o.agentId ?? "node", agent_caps: o.caps ?? [], auth_token: o.token ?? "" });
      if (!hello.ok) throw new A2EError(hello.reason, "the host refused the session");
      host.capabilities = hello.accepted_caps.filter((row: any) => row.enabled).map((row: any) => row.capability);
      return host;
    } catch (err) {
      await host.close();
      throw err;
    }
  }

  /** Sends a request; a signal or the timeout stops it, and rejects with the signal's reason. */
  request(type: string, fields: object = {}, { timeout, signal, onEvent }: Limits = {}): Promise<Message> {
    if (this.gone) return Promise.reject(this.gone);
    const id = String(++this.sent);
    return new Promise<Message>((resolve, reject) => {
      const stop = (why: Error) => {
        const call = this.waiting.get(id);
        if (call && this.waiting.delete(id)) this.write("cancel", "", { req_id: id });
        call?.reject(why);
      };
      const timer = timeout ? setTimeout(() => stop(new Error(`${type} was not answered within ${timeout} ms`)), timeout) : undefined;
      const aborted = () => stop(signal!.reason);
      const settle = <T>(then: (value: T) => void) => (value: T) => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", aborted);
        then(value);
      };
      this.waiting.set(id, { resolve: settle(resolve), reject: settle(reject), onEvent });
      signal?.addEventListener("abort", aborted);
      this.write(type, id, fields);
      if (signal?.aborted) aborted();
    });
  }

  /** Returns the data of a tool's result. */
  async call(tool: string, args: object = {}, limits: Limits = {}): Promise<any> {
    const { data } = await this.request("tool/call/req", { tool_name: tool, arguments: args, streaming: !!limits.onEvent }, limits);
    if (!data.success) throw new A2EError(data.error_code ?? "tool_error", data.error ?? "it failed", data);
    return data.data;
  }

  /** Ends the host by closing its stdin, which lets running requests end. Resolves to the exit status or signal. */
  async close(timeout = 15_000): Promise<number | NodeJS.Signals> {
    this.child.stdin!.end();
    const timers = [setTimeout(() => this.child.kill(), timeout), setTimeout(() => this.child.kill("SIGKILL"), 2 * timeout)];
    return this.ended.finally(() => timers.forEach(clearTimeout));
  }

  private write(type: string, id: string, fields: object) {
    this.child.stdin!.write(JSON.stringify({ ...fields, a2e: "1.0", type, id }) + "\n");
  }

  private deliver(message: Message) {
    const { type, req_id = "" } = message;
    const call = this.waiting.get(req_id);
    if (type.endsWith("/req")) {
      const answer = this.onMessage(message) || { error: `this client does not answer ${type}` };
      const { server_id = "", mcp_request_id = "" } = message;
      this.write(type.slice(0, -3) + "resp", "", { server_id, mcp_request_id, ...answer, req_id: message.id });
    } else if (!call || type.endsWith("/event") || type.endsWith("/push")) {
      (call?.onEvent ?? this.onMessage)(message);
    } else {
      this.waiting.delete(req_id);
      if (type === "error") call.reject(new A2EError(message.code, message.message, message.detail, message.retryable));
      else call.resolve(message);
    }
  }
}
