"""The tool `step` of the workflows: it takes 20 ms, and appends a line to the file in $STEPS."""
import json, os, sys, time


def step(key):
    with open(os.environ["STEPS"], "a") as log:
        log.write(key + "\n")
    time.sleep(0.02)
    if key == "flaky":
        raise RuntimeError("it is broken")
    return key


if __name__ == "__main__":
    for line in sys.stdin:
        m = json.loads(line)
        reply = {"a2e": "1.0", "version": "1.0", "type": m["type"].replace("/req", "/resp"), "id": "r", "ts": 1, "req_id": m["id"]}
        if m["type"] == "shutdown":
            break
        if m["type"] == "handshake/req":
            reply.update(ok=True, session_id="1", max_parallel=1, reason="", accepted_caps=[{"capability": "tools", "enabled": True, "metadata": {}}])
        elif m["type"] == "tool/list/req":
            reply["tools"] = [{"name": "step", "description": "A step", "input_parameters": [{"name": "key", "type": "string", "required": True}]}]
        elif m["type"] == "ping":
            reply.update(type="pong", uptime_seconds=1)
        elif m["type"] == "tool/call/req":
            try:
                data, error = {"key": step(m["arguments"]["key"])}, None
            except RuntimeError as e:
                data, error = None, str(e)
            reply.update(created_at=1, data={"success": error is None, "tool_name": "step", "data": data, "error": error, "summary": None, "duration_ms": 0, "events": []})
        print(json.dumps(reply), flush=True)
