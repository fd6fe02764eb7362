"""A client of a2e in one file, to copy into your project: it needs only Python 3.9 or newer.

    with Host(["./a2e"]) as host:
        print(host.call("list_dir", {"path": "."})["entries"])    # waits
        futures = [host.submit("ping") for _ in range(10)]          # side by side
        print(await host.acall("list_dir", {"path": "."}))          # within asyncio
"""
import asyncio, json, subprocess, threading
from concurrent.futures import Future, TimeoutError as FutureTimeout


class A2EError(Exception):
    """An `error` of the host, or a tool that failed; `code` says which kind."""

    def __init__(self, code, message, detail=None, retryable=False):
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.detail, self.retryable = code, message, detail or {}, retryable


class HostGone(ConnectionError):
    """The host has ended, and with it each request that it had not answered."""


class Host:
    """A host as a child process; its methods may be called from several threads. on_message gets messages that
    belong to no waiting request: output of processes, pushes, and requests of the host, for which it returns
    the answer as a dict. on_message and on_event run on the reading thread, so they must not wait."""

    def __init__(self, command=("a2e",), agent_id="python", caps=(), token="", on_message=None, **popen):
        self._lock, self._writing, self._sent, self._waiting, self._gone = threading.Lock(), threading.Lock(), 0, {}, None
        self._on_message = on_message or (lambda message: None)
        self._child = subprocess.Popen(list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, **popen)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            hello = self.request("handshake/req", agent_id=agent_id, agent_caps=list(caps), auth_token=token)
            if not hello["ok"]:
                raise A2EError(hello["reason"], "the host refused the session")
        except BaseException:
            self.close()
            raise
        self.capabilities = [row["capability"] for row in hello["accepted_caps"] if row["enabled"]]

    def submit(self, type, on_event=None, **fields):
        """Sends a request and returns the Future of its answer; its cancel() stops the request."""
        future = Future()
        with self._lock:
            if self._gone:
                raise self._gone
            self._sent += 1
            future.req_id = str(self._sent)
            self._waiting[future.req_id] = future, on_event
        future.add_done_callback(lambda f: f.cancelled() and self.stop(f))
        try:
            self._write(type, future.req_id, fields)
        except HostGone:
            self._waiting.pop(future.req_id, None)
            raise
        return future

    def stop(self, future):
        """Lets the host stop a request, which then ends with the error `cancelled`."""
        try:
            self._write("cancel", "", {"req_id": future.req_id})
        except HostGone:
            pass  # the request has ended with the host

    def request(self, type, timeout=None, on_event=None, **fields):
        """Returns the answer to a request. After timeout seconds it stops the request: TimeoutError."""
        future = self.submit(type, on_event, **fields)
        try:
            return future.result(timeout)
        except BaseException as err:
            if future.cancel() and isinstance(err, FutureTimeout):
                raise TimeoutError(f"{type} was not answered within {timeout} s") from None
            raise

    async def arequest(self, type, timeout=None, on_event=None, **fields):
        """Is request for asyncio: the end of a cancelled task stops the request."""
        return await asyncio.wait_for(asyncio.wrap_future(self.submit(type, on_event, **fields)), timeout)

    def call(self, tool, arguments, timeout=None, on_event=None):
        """Returns the data of a tool's result."""
        return _data(self.request("tool/call/req", timeout, on_event, tool_name=tool, arguments=arguments, streaming=bool(on_event)))

    async def acall(self, tool, arguments, timeout=None, on_event=None):
        return _data(await self.arequest("tool/call/req", timeout, on_event, tool_name=tool, arguments=arguments, streaming=bool(on_event)))

    def close(self, timeout=15):
        """Ends the host by closing its stdin, which lets running requests end. Returns the exit status."""
        try:
            self._child.stdin.close()
        except OSError:
            pass  # the host has ended
        for end in (self._child.terminate, self._child.kill):
            try:
                self._child.wait(timeout)
            except subprocess.TimeoutExpired:
                end()
        self._reader.join()
        return self._child.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _write(self, type, id, fields):
        line = json.dumps({**fields, "a2e": "1.0", "type": type, "id": id}).encode() + b"\n"
        try:
            with self._writing:
                self._child.stdin.write(line)
                self._child.stdin.flush()
        except (OSError, ValueError) as err:  # the pipe is broken, or closed
            raise HostGone(f"the host has ended: {err}") from err

    def _read(self):
        try:
            with self._child.stdout as lines:
                for line in lines:
                    self._deliver(json.loads(line))
        finally:
            with self._lock:
                self._gone = HostGone("the host has ended")
            for future, _ in list(self._waiting.values()):
                if future.set_running_or_notify_cancel():
                    future.set_exception(self._gone)

    def _deliver(self, message):
        type, id = message["type"], message.get("req_id", "")
        future, on_event = self._waiting.get(id, (None, None))
        if type.endswith("/req"):
            answer = self._on_message(message) or {"error": "this client does not answer " + type}
            known = {key: message.get(key, "") for key in ("server_id", "mcp_request_id")}
            self._write(type[:-3] + "resp", "", {**known, **answer, "req_id": message["id"]})
        elif future is None or type.endswith(("/event", "/push")):
            (on_event or self._on_message)(message)
        elif self._waiting.pop(id, None) and future.set_running_or_notify_cancel():
            if type == "error":
                future.set_exception(A2EError(message["code"], message["message"], message["detail"], message["retryable"]))
            else:
                future.set_result(message)


def _data(answer):
    result = answer["data"]
    if not result["success"]:
        raise A2EError(result["error_code"] or "tool_error", result["error"] or "it failed", result)
    return result["data"]
