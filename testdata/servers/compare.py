"""Compares the tools that MCP servers list directly and behind the gateway:

    make servers                          all of them
    make servers SERVERS='time git'       these
    python3 compare.py A2E [NAME ...]     the same

Each server is started by npx or uvx at the version below, once by this program and once, in its
sandbox, by `a2e mcp serve`; keys are dummies. A tool is the same if its JSON is equal except for

- its name, which has the id of the server before it;
- `properties: {}`, which the gateway adds to the schema of an object without properties;
- members that are null, which mean nothing;
- `execution` that forbids tasks, and hints of `annotations` at MCP's defaults, which the gateway leaves out or
  writes; of a tool that only reads, MCP gives the hints about changes no meaning;
- the title, which the gateway writes into the annotations as well, for older clients.

It needs the network, npx, and uvx in PATH or in testdata/peers/venv, and some minutes. It prints a table
for a page, and ends with 1 if a server that starts lists other tools behind the gateway.
"""
import concurrent.futures
import json
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
UVX = HERE.parent / "peers" / "venv" / "bin" / "uvx"
UVX = str(UVX) if UVX.exists() else "uvx"
PATIENCE = 240  # seconds that an installation may take


def npx(package, *args, **env):
    return ["npx", "-y", package, *args], env


def uvx(package, *args, **env):
    return [UVX, package, *args], env


NOTION = json.dumps({"Authorization": "Bearer ntn_dummy", "Notion-Version": "2022-06-28"})
SERVERS = {
    "everything": npx("@modelcontextprotocol/server-everything@2026.8.31"),
    "filesystem": npx("@modelcontextprotocol/server-filesystem@2026.8.31", "."),
    "memory": npx("@modelcontextprotocol/server-memory@2026.8.31"),
    "time": uvx("mcp-server-time@2026.10.19"),
    "fetch": uvx("mcp-server-fetch@2026.10.24"),
    "git": uvx("mcp-server-git@2026.10.19"),
    "context7": npx("@upstash/context7-mcp@4.1.1"),
    "playwright": npx("@playwright/mcp@0.0.83", "--headless"),
    "notion": npx("@notionhq/notion-mcp-server@2.5.2", OPENAPI_MCP_HEADERS=NOTION),
    "firecrawl": npx("firecrawl-mcp@3.26.0", FIRECRAWL_API_KEY="fc-dummy"),
    "kubernetes": npx("mcp-server-kubernetes@4.1.7"),
    # the server does not pin the MCP SDK, and does not work with the newest one
    "sqlite": ([UVX, "--with", "mcp==1.30.0", "mcp-server-sqlite@2025.4.25", "--db-path", "data.db"], {}),
}


class Client:
    """An MCP client on the pipe of a process."""

    def __init__(self, command, folder, env):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **env}, text=True, encoding="utf-8",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()
        self.sent = 0

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def send(self, **message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def call(self, method, **params):
        self.sent += 1
        self.send(id=self.sent, method=method, params=params)
        until = time.monotonic() + PATIENCE
        while True:
            line = self.lines.get(timeout=max(until - time.monotonic(), 0.01))
            if line is None:
                raise RuntimeError(self.why())
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if "method" in message and "id" in message:
                self.send(id=message["id"], error={"code": -32601, "message": "not offered"})
            elif message.get("id") == self.sent:
                if "error" in message:
                    raise RuntimeError(message["error"]["message"])
                return message["result"]

    def why(self):
        self.process.wait(10)
        self.errors.seek(0)
        said = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        return f"exit status {self.process.returncode}: " + " ".join(said[-3:])[:200]

    def open(self):
        hello = self.call("initialize", protocolVersion="2025-11-25", capabilities={},
                          clientInfo={"name": "compare", "version": "1"})
        self.send(method="notifications/initialized")
        return hello

    def tools(self):
        found, params = [], {}
        while True:
            page = self.call("tools/list", **params)
            found += page["tools"]
            if not page.get("nextCursor"):
                return found
            params = {"cursor": page["nextCursor"]}

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()


def direct(command, env, folder):
    client = Client(command, folder, env)
    try:
        version = client.open()["serverInfo"].get("version", "")
        return version, client.tools()
    finally:
        client.close()


def behind(a2e, name, command, env, folder):
    config = {"mcpServers": {name: {"command": command[0], "args": command[1:], "env": env, "start_timeout": PATIENCE}},
              "plugins": {"tools": False}, "state_dir": str(folder / "state")}
    (folder / "c.yaml").write_text(json.dumps(config))
    client = Client([a2e, "mcp", "serve", "-c", "c.yaml"], folder, {"A2E_STATE": ""})
    try:
        client.open()
        until = time.monotonic() + PATIENCE
        while True:
            own = [t for t in client.tools() if t["name"].startswith(name + "__")]
            if own or time.monotonic() > until:
                return own
            time.sleep(1)
    finally:
        client.close()


def normal(value):
    """Returns a value as the gateway writes it, with the documented changes."""
    if isinstance(value, list):
        return [normal(v) for v in value]
    if not isinstance(value, dict):
        return value
    out = {k: normal(v) for k, v in value.items() if v is not None}
    if out.get("type") == "object":
        out.setdefault("properties", {})
    return out


HINTS = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}


def tools_of(listed, prefix=""):
    """Returns tools by their names without the prefix, each as the gateway writes it."""
    found = {}
    for tool in map(normal, listed):
        tool["annotations"] = {**HINTS, **tool.get("annotations", {})}
        if tool["annotations"]["readOnlyHint"]:
            tool["annotations"].update(destructiveHint=False, idempotentHint=True)
        tool["title"] = tool.get("title") or tool["annotations"].get("title", "")
        tool["annotations"].pop("title", None)
        if tool.get("execution", {}).get("taskSupport") == "forbidden":
            del tool["execution"]
        found[tool.pop("name").removeprefix(prefix)] = tool
    return found


def differences(a, b, path=""):
    """Yields the places at which two values differ. 1 and 1.0 differ, and so do 1 and true."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            if key not in a or key not in b:
                yield f"{path}/{key} is only {'behind' if key in b else 'direct'}"
            else:
                yield from differences(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b)):
            yield from differences(x, y, f"{path}/{i}")
    elif type(a) is not type(b) or a != b:
        yield f"{path}: {json.dumps(a)[:40]} is {json.dumps(b)[:40]}"


def compare(a2e, name):
    command, env = SERVERS[name]
    version = next(word for word in command[1:] if "@" in word[1:]).rpartition("@")[2]
    row = {"server": name, "version": version, "direct": "-", "behind": "-", "equal": "-", "what": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        folder = pathlib.Path(folder)
        subprocess.run(["git", "init", "-q", folder], check=True)
        work = folder / "work"
        work.mkdir()
        try:
            _, theirs = direct(command, env, work)
        except (RuntimeError, queue.Empty, OSError) as err:
            return {**row, "what": [f"does not start directly: {err or 'no answer in time'}"]}
        row["direct"] = len(theirs)
        try:
            ours = behind(a2e, name, command, env, work)
        except (RuntimeError, queue.Empty, OSError) as err:
            return {**row, "equal": "no", "what": [f"does not start behind the gateway: {err or 'no answer in time'}"]}
    row["behind"] = len(ours)
    a, b = tools_of(theirs), tools_of(ours, name + "__")
    schemas = ("inputSchema", "outputSchema")
    what = list(differences(a, b))
    same = a.keys() == b.keys() and not any(f"/{schema}" in w for w in what for schema in schemas)
    return {**row, "equal": "yes" if same else "no", "what": what}


def main():
    a2e, names = os.path.abspath(sys.argv[1]), sys.argv[2:] or list(SERVERS)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(lambda name: compare(a2e, name), names))
    print("| server | version | tools direct | tools behind | schemas equal | differences |\n|---|---|---|---|---|---|")
    for row in rows:
        what = "; ".join(row["what"][:4]) + (f"; {len(row['what']) - 4} more" if len(row["what"]) > 4 else "")
        print("| " + " | ".join(str(row[k]) for k in ("server", "version", "direct", "behind", "equal")), "|", what or "none", "|")
    sys.exit(any(row["equal"] == "no" or row["what"] and row["direct"] != "-" for row in rows))


if __name__ == "__main__":
    main()
