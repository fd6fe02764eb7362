// Tests a2e_client.ts, after it is compiled: node try.js A2E
import { strict as assert } from "node:assert";
import { Host, HostGone, type Message } from "./a2e_client.ts";

async function main() {
  const command = process.argv.slice(2);
  let host = await Host.start({ command });
  const numbers = Array.from({ length: 1000 }, (_, i) => String(i));
  assert.deepEqual((await Promise.all(numbers.map((text) => host.call("echo", { text })))).map((data) => data.text), numbers);
  for (const text of ["x".repeat(5_000_000), 'äß 日本 \u2028\0\u{1f600} "\\\n']) assert.equal((await host.call("echo", { text })).text, text);
  const events: Message[] = [];
  assert.equal((await host.call("run_command", { command: ["sh", "-c", "echo out"] }, { onEvent: (event) => void events.push(event) })).stdout, "out\n");
  assert.ok(events.length > 0 && events.every((event) => event.type === "invoke/event"));
  await assert.rejects(host.call("nothing"), { code: "unknown_tool" });
  await assert.rejects(host.call("run_command", { command: ["sh", "-c", "exit 3"] }), { code: "tool_error" });
  const sleep = { command: ["sleep", "600"] };
  await assert.rejects(host.call("run_command", sleep, { timeout: 50 }), /not answered within 50 ms/);
  const stop = new AbortController();
  const stopped = assert.rejects(host.call("run_command", sleep, { signal: stop.signal }), { name: "AbortError" });
  stop.abort();
  await stopped;
  await assert.rejects(host.request("memory/store/req", { entries: 1 }), { code: "schema_violation" });
  assert.equal(await host.close(), 0);
  await assert.rejects(host.request("ping"), HostGone);

  host = await Host.start({ command });
  const waiting = numbers.slice(0, 10).map(() => assert.rejects(host.call("run_command", sleep), HostGone));
  host.child.kill("SIGKILL");
  await Promise.all(waiting);
  await assert.rejects(host.request("ping"), HostGone);
  assert.equal(await host.close(), "SIGKILL");
  const model = { content: { type: "text", text: "the model says hi" }, model: "m" };
  const says = (message: Message) => (message.type === "mcp/sample/req" ? model : undefined);
  for (const [onMessage, said] of [[says, /says hi/], [undefined, /does not answer/]] as const) {
    host = await Host.start({ command: [...command, "--config", "asks.yaml"], onMessage });
    assert.match((await host.call("asks__ask")).content[0].text, said);
    await host.close();
  }
  await assert.rejects(Host.start({ command: [...command, "--config", "token.yaml"], token: "wrong" }), { code: "auth_failed" });
  await assert.rejects(Host.start({ command: ["./no-such-program"] }), HostGone);
  console.log("hello from typescript");
}

main();
