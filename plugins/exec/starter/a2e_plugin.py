"""Tools for a2e in Python, with the standard library alone: `@tool` on a function, and `serve()` at the end.

    from a2e_plugin import serve, tool

    @tool
    def word_count(text: str) -> dict:
        \"\"\"Count the words of a text.

        Args:
            text: Any text.
        \"\"\"
        return {"words": len(text.split())}

    serve()

Type hints become the parameters: str, int, float, bool, list, dict, Literal["a", "b"], Optional. The first paragraph
of the docstring is the description of the tool, `Args:` or `:param text:` describe the parameters. A dict that the
function returns is the result, anything else becomes {"result": …}; what it raises is the error. What it prints goes
to the host's log. Calls run side by side in threads, a coroutine in a loop of its own. A parameter annotated with
`Call` is the call itself: call.progress(50, "half"), call.log("…"), call.cancelled.
"""
import asyncio
import atexit
import inspect
import json
import os
import queue
import re
import sys
import threading
import time
import traceback
import typing

MAX_PARALLEL = 8  # calls at once
_tools = {}
_reminder = atexit.register(lambda: print("this plugin ends without serve()", file=sys.stderr))


class Call:
    """One call of a tool. `cancelled` is an Event that is set when nobody waits for the result any more."""

    def __init__(self, request, send):
        self.cancelled = threading.Event()
        self._request, self._send, self._task = request, send, None

    def progress(self, pct, message=""):
        self._event("progress", {"pct": int(pct), "message": message})

    def log(self, message, level="info"):
        self._event("log", {"level": level, "message": str(message)})

    def _event(self, kind, data):
        self._send("invoke/event", self._request, kind=kind, data=data)

    def _cancel(self):
        self.cancelled.set()
        if self._task:
            loop, task = self._task
            loop.call_soon_threadsafe(task.cancel)

    def _run(self, fn, arguments):
        if not inspect.iscoroutinefunction(fn):
            return fn(**arguments)

        async def run():
            self._task = asyncio.get_running_loop(), asyncio.current_task()
            return await fn(**arguments)

        return asyncio.run(run())


def tool(fn=None, *, name=None, description=None, tags=()):
    """Makes a function a tool: `@tool`, or `@tool(name="…", tags=["…"])`."""
    if fn is None:
        return lambda fn: tool(fn, name=name, description=description, tags=tags)
    hints, doc = typing.get_type_hints(fn), inspect.getdoc(fn) or ""
    parameters, call_name = [], None
    for p in inspect.signature(fn).parameters.values():
        if hints.get(p.name) is Call:
            call_name = p.name
        elif p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            parameters.append({
                "name": p.name, "description": _describes(doc, p.name), "required": p.default is p.empty,
                **_type(hints.get(p.name, typing.Any)),
            })
    about = re.split(r"\n\s*\n|\n\s*(?:Args|Arguments|Parameters):|\n\s*:param", doc.strip())[0]
    name = name or fn.__name__
    _tools[name] = fn, call_name, {
        "name": name, "description": description or " ".join(about.split()) or name, "tags": list(tags),
        "streaming": call_name is not None, "input_parameters": parameters,
    }
    return fn


def _type(hint):
    """The type of a parameter in the words of the protocol."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal and all(isinstance(a, str) for a in args):
        return {"type": "string", "enum": list(args)}
    if type(None) in args and len(args) == 2:  # Optional
        return _type(args[0] if args[1] is type(None) else args[1])
    base = origin or hint
    known = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object",
             list: "array", tuple: "array", set: "array"}
    return {"type": known.get(base, "any")}


def _describes(doc, name):
    """What a docstring says of a parameter, in the styles of Google and of Sphinx."""
    found = re.search(rf"^\s*(?::param\s+(?:\w+\s+)?{name}:|{name}\s*(?:\([^)]*\))?:)\s*(.+)$", doc, re.M)
    return found.group(1).strip() if found else ""


def serve(max_parallel=MAX_PARALLEL):
    """Serves the tools until the host ends; it does not return before."""
    atexit.unregister(_reminder)
    if sys.stdin.isatty():
        sys.exit(f"{sys.argv[0]} is a plugin: a2e starts it. It has the tools: {', '.join(_tools)}")
    sys.stdout.flush()
    lines, wire = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # whatever prints, also in C or in a program that a tool starts, prints to the log
    sys.stdout = sys.stderr
    lock, calls, waiting = threading.Lock(), {}, queue.Queue()

    def send(reply, request, **body):
        text = json.dumps({"a2e": "1.0", "type": reply, "req_id": request["id"], **body}, allow_nan=False, default=str)
        with lock:
            wire.write(text + "\n")
            wire.flush()

    def work():
        while True:
            request, call = waiting.get()
            try:
                answer(request, call)
            finally:
                calls.pop(request["id"], None)

    def answer(request, call):
        fn, call_name, _ = _tools[request["tool_name"]]
        arguments, begun = dict(request.get("arguments") or {}), time.monotonic()
        if call_name:
            arguments[call_name] = call
        try:
            inspect.signature(fn).bind(**arguments)
        except TypeError as error:
            return send("error", request, code="schema_violation", message=str(error))
        try:
            data = call._run(fn, arguments)
            data = data if isinstance(data, dict) else {"result": data}
            result = {"success": True, "tool_name": request["tool_name"], "data": data, "summary": None,
                      "duration_ms": int((time.monotonic() - begun) * 1000), "events": []}
            send("tool/call/resp", request, data=result, created_at=time.time())
        except BaseException as error:  # also SystemExit and what asyncio raises for a cancel
            if call.cancelled.is_set():
                return send("error", request, code="cancelled", message="the call was cancelled")
            traceback.print_exc()
            send("error", request, code="tool_error", message=f"{type(error).__name__}: {error}")

    for _ in range(max_parallel):
        threading.Thread(target=work, daemon=True).start()
    wire.write("\n")  # ends a line that was printed before
    for line in lines:
        message = json.loads(line)
        kind = message["type"]
        if kind == "handshake/req":
            tools = {"capability": "tools", "enabled": True, "metadata": {}}
            send("handshake/resp", message, ok=True, session_id="1", accepted_caps=[tools], max_parallel=max_parallel)
        elif kind == "ping":
            send("pong", message, uptime_seconds=time.monotonic())
        elif kind == "tool/list/req":
            send("tool/list/resp", message, tools=[definition for _, _, definition in _tools.values()])
        elif kind == "tool/call/req" and message["tool_name"] in _tools:
            calls[message["id"]] = call = Call(message, send)
            waiting.put((message, call))
        elif kind == "cancel" and message["req_id"] in calls:
            calls[message["req_id"]]._cancel()
        elif kind == "shutdown":
            break
        elif kind.endswith("/req"):
            send("error", message, code="unknown_tool" if kind == "tool/call/req" else "invalid_message",
                 message=f"this plugin does not have {message.get('tool_name', kind)}")
    os._exit(0)  # calls may still run
