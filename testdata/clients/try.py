"""Tests a2e_client.py: python3 try.py A2E"""
import asyncio, os, signal, sys
from a2e_client import A2EError, Host, HostGone


def fails(kind, code, do):
    try:
        do()
    except kind as err:
        assert code is None or err.code == code, err
        return
    raise AssertionError(f"it did not fail with {kind.__name__}")


async def main(command):
    host = Host(command)
    answers = [f.result()["data"]["data"]["text"] for f in
               [host.submit("tool/call/req", tool_name="echo", arguments={"text": str(i)}) for i in range(1000)]]
    assert answers == [str(i) for i in range(1000)]
    for text in ("x" * 5_000_000, "äß 日本 \u2028\u0000\U0001f600 \"\\\n"):
        assert host.call("echo", {"text": text}) == {"text": text}
    events = []
    assert host.call("run_command", {"command": ["sh", "-c", "echo out"]}, on_event=events.append)["stdout"] == "out\n"
    assert events and all(event["type"] == "invoke/event" for event in events), events
    fails(A2EError, "unknown_tool", lambda: host.call("nothing", {}))
    fails(A2EError, "tool_error", lambda: host.call("run_command", {"command": ["sh", "-c", "exit 3"]}))
    sleep = {"tool_name": "run_command", "arguments": {"command": ["sleep", "600"]}}
    fails(TimeoutError, None, lambda: host.request("tool/call/req", timeout=0.05, **sleep))
    stopped = host.submit("tool/call/req", **sleep)
    host.stop(stopped)
    fails(A2EError, "cancelled", stopped.result)
    task = asyncio.create_task(host.acall("run_command", {"command": ["sleep", "600"]}))
    await asyncio.sleep(0)
    task.cancel()
    assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
    assert (await asyncio.gather(*[host.acall("echo", {"text": str(i)}) for i in range(50)]))[49] == {"text": "49"}
    fails(A2EError, None, lambda: host.request("memory/store/req", entries=1))
    assert host.close() == 0
    fails(HostGone, None, lambda: host.request("ping"))

    host = Host(command)
    waiting = [host.submit("tool/call/req", **sleep) for _ in range(10)]
    os.kill(host._child.pid, signal.SIGKILL)
    for future in waiting:
        fails(HostGone, None, future.result)
    fails(HostGone, None, lambda: host.request("ping"))
    assert host.close() == -signal.SIGKILL
    model = {"content": {"type": "text", "text": "the model says hi"}, "model": "m"}
    for answer, said in (lambda message: model if message["type"] == "mcp/sample/req" else None, "says hi"), (None, "does not answer"):
        with Host(command + ["--config", "asks.yaml"], on_message=answer) as host:
            assert said in host.call("asks__ask", {})["content"][0]["text"]
    fails(A2EError, "auth_failed", lambda: Host(command + ["--config", "token.yaml"], token="wrong"))
    print("hello from python")


asyncio.run(main(sys.argv[1:]))
