"""A whole tool plugin for a2e: `type: exec`, `command: [python3, word_tools.py]`."""
import json
import sys
import time

TOOLS = [
    {"name": "word_count", "description": "Count the words of a text.", "tags": ["text"],
     "input_parameters": [{"name": "text", "type": "string", "description": "Any text.", "required": True}]},
    {"name": "shout", "description": "Give a text back in capitals, word by word.", "tags": ["text"], "streaming": True,
     "input_parameters": [{"name": "text", "type": "string", "description": "Any text.", "required": True}]},
]


def send(reply, request, **body):
    print(json.dumps({"a2e": "1.0", "type": reply, "req_id": request["id"], **body}), flush=True)


def call(request):
    name, words = request["tool_name"], request["arguments"].get("text", "").split()
    if name not in [tool["name"] for tool in TOOLS]:
        return send("error", request, code="unknown_tool", message=f"unknown tool {name!r}")
    if name == "word_count":
        data = {"words": len(words)}
    else:
        for i, word in enumerate(words):
            send("invoke/event", request, kind="progress", data={"pct": 100 * i // len(words), "message": word.upper()})
        data = {"text": " ".join(words).upper()}
    result = {"success": True, "tool_name": name, "data": data, "summary": None, "duration_ms": 0, "events": []}
    send("tool/call/resp", request, data=result, created_at=time.time())


for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "handshake/req":
        tools = {"capability": "tools", "enabled": True, "metadata": {}}
        send("handshake/resp", message, ok=True, session_id="1", accepted_caps=[tools], max_parallel=1, reason="")
    elif message["type"] == "ping":
        send("pong", message, uptime_seconds=time.monotonic())
    elif message["type"] == "tool/list/req":
        send("tool/list/resp", message, tools=TOOLS)
    elif message["type"] == "tool/call/req":
        call(message)
    elif message["type"] == "shutdown":
        break
