#!/usr/bin/env python3
"""Makes the fixture of TestStateOfTheVersionBefore: what a user of an older a2e has on the disk.

    python3 make.py OLD

OLD is the binary of the version before, here of commit 40e3b712 (`go build -o OLD .` in a work tree of it). The script
makes everything in PLACE, as the state names folders by their absolute paths, and writes state.tar.gz beside itself:

    home/          HOME: the state, the key of the audit log, the list of trusted files
    work/          the workspace: a2e.yaml, .a2e/skills, chains/, notes.py (an MCP server), files
    tasks/         a task of the environment "workspace"
    asked.ndjson   requests, and what the old binary answered: {"agent", "request", "answer"}
    export.ndjson  what the old `a2e state export` printed

The last host is killed, so the log of the store, an open chain and the journal of episodes are as a crash leaves them.
The export and the answers come after that. The times in the fixture are those of its
making, so nothing in it may end with time: claims have ended already, whatever else has an end has it in many years.
"""
import http.server, io, json, os, pathlib, shutil, signal, subprocess, sys, tarfile, threading, time

PLACE = pathlib.Path("/tmp/a2e-before")
HERE = pathlib.Path(__file__).resolve().parent
YEARS = 10 * 365 * 86400
OLD = os.path.abspath(sys.argv[1])
HOME, WORK, TASKS = PLACE / "home", PLACE / "work", PLACE / "tasks"

CONFIG = """\
host_id: dev
max_parallel: 4
events: invoke
audit:
  path: audit.jsonl
  rotate: {max_bytes: 8192, backup_count: 5}
  session_id_source: uuid
store: {synchronous: normal}
snapshot_store: {type: sqlite}
snapshot_mode: hybrid
checkpoints: {max_count: 50}
groups: {look: [list_dir, glob]}
sandbox: best_effort
fleet: {agent_id: w1, max_tasks: 2}
mcpServers:
  notes: {command: python3, args: [notes.py]}
  web: {url: "https://mcp.example.com/mcp", headers: {Authorization: "Bearer ${MCP_TOKEN:-none}"}, disabled: true}
plugins:
  tools:
    allowed_commands: [cat, python3, sh, sleep, touch, wc]
    commands:
      - name: word_count
        description: Count the words of a file
        command: [wc, -w, --, "{path}"]
        parameters: [{name: path, type: string, description: the file, required: true}]
  memory:
    versions: 5
    embeddings: {url: "${EMBEDDINGS_URL:-http://127.0.0.1:9/v1}", model: letters}
  learning:
    strategy: ucb1
    half_life: 720h
  chains: {max_parallel: 4}
  mcp: {pin: true}
  multi_agent:
    workers:
      - {name: counter, command: [sh, -c, "wc -w | tr -d ' '"], contract: false}
      - {name: brain, llm: {url: "http://127.0.0.1:9/v1", model: small-1}}
  maze: {type: env, env: gridworld, idle_timeout: 315360000, gridworld: {width: 5, height: 4}}
  count: {type: env, env: counter, idle_timeout: 315360000}
  task: {type: env, env: workspace, idle_timeout: 315360000, workspace: {tasks: ../tasks}}
"""

SKILL = """\
---
name: shout
version: "1.2"
description: Says a text in capitals
run: shout.sh
inputs: {text: {type: string, description: The text, required: true}}
outputs: {text: {type: string}}
---
# Shout

Give it a text. Grüße, 你好.
"""

NOTES = '''\
import json, pathlib, sys
tools = [
    {"name": "stay", "description": "Keeps its description", "inputSchema": {"type": "object"}},
    {"name": "vary", "description": pathlib.Path("notes.txt").read_text().strip(), "inputSchema": {"type": "object"}}]
for line in sys.stdin:
    message = json.loads(line)
    result = {"initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                             "serverInfo": {"name": "notes", "version": "1"}},
              "tools/list": {"tools": tools},
              "tools/call": {"content": [{"type": "text", "text": "noted"}]}}.get(message.get("method"), {})
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
'''

FILES = {
    "work/a2e.yaml": CONFIG,
    "work/.a2e/skills/shout/SKILL.md": SKILL,
    "work/.a2e/skills/shout/shout.sh": "#!/bin/sh\ntr a-z A-Z\n",
    "work/notes.py": NOTES,
    "work/notes.txt": "Says what it says\n",
    "work/readme.txt": "first line\n",
    "work/chains/saved.yaml": "nodes:\n  - {node_id: say, kind: tool, name: echo, input_map: {text: input.text}}\n",
    "tasks/one/task.yaml": "description: Write 4 into answer.txt\n"
                           "cases: [{run: [cat, answer.txt], stdout: \"4\\n\"}]\n",
    "tasks/one/files/question.txt": "2 + 2 = ?\n",
}


class Embeddings(http.server.BaseHTTPRequestHandler):
    """The embeddings server of the test: how often a text has each letter. The test has the same one."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = [{"index": i, "embedding": [1 + text.lower().count(chr(97 + n)) for n in range(26)]}
                for i, text in enumerate(asked["input"])]
        body = json.dumps({"object": "list", "model": asked["model"], "data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def environment():
    return {"PATH": os.environ["PATH"], "HOME": str(HOME), "LANG": "C.UTF-8", "EMBEDDINGS_URL": embeddings_url}


def a2e(*args, code=0, stdin=""):
    done = subprocess.run([OLD, *args], cwd=WORK, env=environment(), input=stdin, capture_output=True, text=True)
    if done.returncode != code:
        sys.exit(f"a2e {' '.join(args)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Host:
    """A host that serves one agent."""

    def __init__(self, agent):
        self.agent, self.sent, self.passed = agent, 0, {}
        self.process = subprocess.Popen([OLD], cwd=WORK, env=environment(), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.ask("handshake/req", agent_id=agent, agent_caps=[])
        while not any(s["server_id"] == "notes" and s["status"] == "ready"
                      for s in self.ask("mcp/server/list/req")["servers"]):
            time.sleep(0.05)

    def send(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def read(self, wanted):
        """Reads messages up to the first one for which wanted is true."""
        for line in self.process.stdout:
            message = json.loads(line)
            if wanted(message):
                return message
        sys.exit(f"the host has ended: {self.process.stderr.read()}")

    def begin(self, type, **fields):
        self.sent += 1
        self.send({"type": type, "id": f"q{self.sent}", **fields})
        return f"q{self.sent}"

    def answer(self, id):
        return self.read(lambda m: m.get("req_id") == id and not m["type"].endswith("/event"))

    def ask(self, type, may_fail=False, **fields):
        answer = self.answer(self.begin(type, **fields))
        if answer["type"] == "error" and not may_fail:
            sys.exit(f"{type} {fields}: {answer}")
        return answer

    def tool(self, name, correlation_id="", **arguments):
        return self.ask("tool/call/req", may_fail=True, tool_name=name, arguments=arguments,
                        correlation_id=correlation_id)

    def rpc(self, method, **params):
        self.sent += 1
        self.send({"jsonrpc": "2.0", "id": self.sent, "method": method, "params": params})
        message = self.read(lambda m: m.get("id") == self.sent and "method" not in m)
        if "error" in message:
            sys.exit(f"{method} {params}: {message}")
        return message["result"]

    def close(self):
        self.process.stdin.close()
        self.process.stdout.read()
        if self.process.wait():
            sys.exit(self.process.stderr.read())


def memories(host, other):
    def entry(key, tier, content, **more):
        return {"key": {"id": key}, "tier": tier, "content": content, **more}
    memory = host.ask("memory/init/req")["memory_id"]
    host.ask("memory/store/req", memory_id=memory, entries=[
        entry("river", "semantic", "The river runs to the sea", tags=["water", "geo"], source="atlas", score=0.75),
        entry("grüße", "semantic", "Grüße aus München: straße, Ärger, naïve café", tags=["straße"]),
        entry("你好", "semantic", {"text": "河流入海", "n": 12345678901234567890}, tags=["水"]),
        entry("bidi", "semantic", "emoji \U0001f600 nul \0 bidi \u202egnp\u202c last \U0010fffe", tags=["odd \0 tag"]),
        entry("kept", "semantic", "ends in many years", ttl=YEARS),
        entry("met", "episodic", {"user": {"name": "Grace", "age": 36}, "prefers": ["tea", "Tuesday"]},
              tags=["people"]),
        entry("gone", "episodic", "is forgotten"),
        entry("now", "working", "what the session does")])
    for text in "The river runs into the sea", "The river runs into the North Sea":
        host.ask("memory/store/req", memory_id=memory, entries=[entry("river", "semantic", text, tags=["water"])])
    host.ask("memory/store/req", memory_id=memory, entries=[
        {"key": {"id": "met"}, "tier": "episodic", "content": {"user": {"age": 37}}, "merge": True}])
    host.ask("memory/forget/req", memory_id=memory, keys=[{"id": "gone"}], tier="episodic")
    deep = host.ask("memory/init/req", namespace="users/7", scope={"project": "x"})["memory_id"]
    host.ask("memory/store/req", memory_id=deep, entries=[entry(f"n{i}", "semantic", f"note number {i} of many")
                                                          for i in range(300)])
    other.ask("memory/store/req", memory_id=memory, entries=[entry("own", "episodic", "only bob knows this")])
    return memory, deep


def plans(host):
    release = host.ask("planning/plan/create", name="release ✓", columns=["todo", "doing", "done"],
                       description="What is left")["plan_id"]
    ids = []
    for title, fields in {
        "write the notes": {"priority": "high", "due": "2030-12-31", "estimate": "1h30m"},
        "tag the commit": {"metadata": {"branch": "main", "n": [1, 2.5, None]}, "description": "über alles"},
        "tell the world": {"assignee": "bob"},
    }.items():
        ids.append(host.ask("planning/task/add", plan_id=release, title=title, deps=ids[-1:], **fields)["task_id"])
    host.ask("planning/task/update", plan_id=release, task_id=ids[0], status="done", comment="done in time")
    host.ask("planning/task/update", plan_id=release, task_id=ids[1], action="claim", owner="ada", lease=1)
    host.ask("planning/plan/create", name="later")
    deleted = host.ask("planning/plan/create", name="deleted")["plan_id"]
    host.ask("planning/plan/create", name="", plan_id=deleted, delete=True)
    return release, ids


def learning(host):
    host.tool("list_dir", "c1", path=".")
    host.tool("glob", "c2", pattern="*.txt")
    host.tool("grep", pattern="line")
    host.tool("read_file", "c3", path="missing.txt")
    for _ in range(4):
        host.tool("look", pattern="*.md")
    host.ask("learn/feedback/req", feedbacks=[
        {"feedback_id": "f1", "correlation_id": "c1", "rated_turn": None, "polarity": "positive", "score": 0.5,
         "comment": "schön"},
        {"feedback_id": "f2", "correlation_id": "c2", "rated_turn": None, "polarity": "negative", "score": -0.25,
         "confidence": 0.5, "dimension": "tone"},
        {"feedback_id": "f3", "correlation_id": "", "polarity": "corrective", "score": -0.5, "correction": "say it so",
         "rated_turn": {"prompt": "p", "response": "r", "model": "gpt-x", "version": None}}])
    host.ask("learn/experience/req", experiences=[
        {"experience_id": "x1", "action": {"component_name": "glob"}, "reward": 0.25, "state": {"a": 1}},
        {"experience_id": "x2", "action": {"model": "gpt-x"}, "reward": -1, "done": True, "episode_id": "e",
         "step": 3}])
    host.ask("learn/adapt/req")
    host.ask("learn/adapt/req", strategy="ppo")
    def proposal(name, *edits):
        answer = host.ask("learn/refinement/apply/req", proposal={"proposal_id": name, "edits": list(edits)})
        return answer["refinement_id"] or sys.exit(answer["error"])
    kept = proposal("kept", {"target": "setting", "component": "grep", "name": "timeout", "to": 77},
                    {"target": "text", "component": "glob", "name": "description", "to": "Finds files, refined"})
    back = proposal("back", {"target": "setting", "component": "grep", "name": "deferred", "to": True})
    host.ask("learn/refinement/rollback/req", refinement_id=back)
    return kept


def episodes(host):
    def begin(name, seed, *actions):
        episode = host.ask("env/reset/req", env_name=name, seed=seed)["obs"]["episode_id"]
        for action in actions:
            host.ask("env/step/req", episode_id=episode, action=action)
        return episode
    closed = begin("maze", 3, {"type": "up"})
    host.ask("env/close/req", episode_id=closed)
    return {"maze": begin("maze", 7, {"type": "down"}, {"type": "right"}), "count": begin("count", 1, {"type": "inc"}),
            "task": begin("task", 1, {"type": "write_file", "path": "answer.txt", "content": "5\n"})}


def chains(host):
    node = lambda id, name, kind="tool", **more: {"node_id": id, "kind": kind, "name": name, **more}
    host.ask("chain/req", chain_id="whole", journal=True, initial_input={"who": "ada"}, nodes=[
        node("say", "echo", input_map={"text": "join(' ', ['hello', input.who])"},
             cache={"ttl": YEARS, "key": "input.who"}),
        node("again", "saved", kind="chain", input_map={"text": "say.text"})])
    failed = host.ask("chain/req", chain_id="failed", journal=True, nodes=[
        node("first", "echo", input={"text": "kept"}),
        node("read", "read_file", input={"path": "later.txt"}, deps=["first"])])
    assert failed["success"] is False, failed
    host.ask("chain/req", chain_id="waits", journal=True, timeout=1, nodes=[
        node("go", "", kind="approve", message="Publish?"),
        node("publish", "echo", input={"text": "published"}, deps=["go"])])


def killed_chain(host):
    """Begins a chain and returns while its second node runs."""
    host.begin("chain/req", chain_id="killed", journal=True, initial_input={"n": 1}, nodes=[
        {"node_id": "made", "kind": "tool", "name": "write_file", "input": {"path": "made.txt", "content": "once\n"}},
        {"node_id": "under-way", "kind": "proc", "name": "sh", "deps": ["made"],
         "input": {"cmd": "sh", "args": ["-c", "touch begun; exec sleep 300"]}},
        {"node_id": "end", "kind": "tool", "name": "echo", "input_map": {"text": "made.path"}, "deps": ["under-way"]}])
    while not (WORK / "begun").exists():
        time.sleep(0.01)


def talks(host):
    session = host.rpc("session.create", title="über Wörter", model=None)["session_id"]
    for text in "how many words are these", "你好 \U0001f600", "and three words":
        host.rpc("session.send", session_id=session, text=text)
        host.read(lambda m: m.get("method") == "event" and m["params"]["payload"].get("pending") is False)
    host.rpc("command.execute", session_id=session, raw_command="/echo text='a tool of the host'")
    host.rpc("model.select", model_id="small-1", provider="brain", thinking_level="LOW")
    host.rpc("auth.set.openrouter_key", api_key="no-real-key-000")
    host.rpc("model.select", model_id="counter", provider="counter", thinking_level="OFF")
    [talk] = host.rpc("history.list")["sessions"]
    return session, talk["id"]


def fleet(host):
    host.send({"type": "TASK_DISPATCH", "protocol_version": "2.0", "task": {"task_id": "t1"},
               "brief": "count these four words"})
    return host.read(lambda m: m["type"] == "TASK_RESULT")


def questions(memory, deep, release, episodes):
    """The requests whose answers the fixture keeps, by agent. They change nothing."""
    ada = [("memory/retrieve/req", {"memory_id": memory, "limit": 50, "tier": tier})
           for tier in ("semantic", "episodic")]
    ada += [("memory/retrieve/req", {"memory_id": memory, "limit": 5, "query": query})
            for query in ("rivers sea", "Strasse Munchen", "河流", "emoji", "prefers tea")]
    ada += [("memory/retrieve/req", {"memory_id": memory, "limit": 5, **fields}) for fields in (
        {"tags": ["water"]}, {"tags": ["odd \0 tag"]}, {"keys": [{"id": "river"}, {"id": "none"}]},
        {"keys": [{"id": "river"}, {"id": "met"}], "history": True}, {"filter": {"user.age": {"gt": 36}}},
        {"list_namespaces": True})]
    ada += [("memory/retrieve/req", {"memory_id": deep, "limit": 7, "query": "note number 42"}),
            ("planning/plan/list", {}), ("planning/plan/board", {}),
            ("planning/plan/board", {"plan_id": release, "format": "markdown"}),
            ("planning/task/list", {"plan_id": release}), ("planning/task/list", {"plan_id": release, "ready": True}),
            ("learn/stats/req", {"history": True}), ("learn/refinement/history/req", {}),
            ("env/exp/list/req", {"limit": 1000}),
            ("skill/discover/req", {}), ("tool/list/req", {"include_deferred": True})]
    ada += [("env/observe/req", {"episode_id": id}) for id in episodes.values()]
    bob = [("memory/retrieve/req", {"memory_id": memory, "limit": 50, "tier": "episodic"}),
           ("memory/retrieve/req", {"memory_id": memory, "limit": 5, "query": "what only bob knows"})]
    return {"ada": ada, "bob": bob}


def rpc_questions(session, rollout):
    return [("session.get", {"session_id": session}), ("history.list", {}),
            ("history.get", {"id": rollout}), ("history.get", {"last": True}),
            ("auth.status", {}), ("model.list", {}), ("skills.list", {})]


def ask_all(memory, deep, release, open_episodes, talk):
    """Asks all questions, each agent in a session of its own, and returns the lines of asked.ndjson."""
    lines = []
    for agent, asked in questions(memory, deep, release, open_episodes).items():
        host = Host(agent)
        for type, fields in asked:
            lines.append({"agent": agent, "request": {"type": type, **fields}, "answer": host.ask(type, **fields)})
        if agent == "ada":
            for method, params in rpc_questions(*talk):
                lines.append({"agent": agent, "request": {"method": method, "params": params},
                              "answer": host.rpc(method, **params)})
        host.close()
    for args in ["list"], ["show", "whole"], ["show", "failed"], ["show", "killed"]:
        args = ["chain", *args, "--json"]
        lines.append({"command": args, "answer": json.loads(a2e(*args))})
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755 if path.suffix == ".sh" else 0o644)


def add(archive, name, data, mode=0o644):
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    archive.addfile(info, io.BytesIO(data))


def pack(archive):
    for path in sorted(PLACE.rglob("*")):
        name = str(path.relative_to(PLACE))
        if path.is_dir():
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, path.stat().st_mode & 0o777
            archive.addfile(info)
        elif path.is_file() and not path.is_symlink() and not name.endswith("-shm"):
            add(archive, name, path.read_bytes(), path.stat().st_mode & 0o777)


def main():
    os.umask(0o022)
    for name, text in FILES.items():
        write(PLACE / name, text)
    HOME.mkdir(mode=0o700)
    a2e("trust")
    ada, bob = Host("ada"), Host("bob")
    memory, deep = memories(ada, bob)
    release, _ = plans(ada)
    ada.tool("write_file", path="readme.txt", content="second line\n")
    ada.tool("write_file", path="more/new.txt", content="new\n")
    ada.ask("skill/call/req", name="shout", arguments={"text": "quiet"})
    ada.tool("notes__vary")
    learning(ada)
    chains(ada)
    talk = talks(ada)
    result = fleet(ada)
    assert result["status"] == "done" and result["summary"] == "4", result
    ada.close()
    bob.close()
    a2e("snapshot", "save", "monday")
    write(WORK / "notes.txt", "Says something else now\n")
    last = Host("ada")
    open_episodes = episodes(last)
    killed_chain(last)
    last.ask("env/step/req", episode_id=open_episodes["count"], action={"type": "inc"})
    last.process.send_signal(signal.SIGKILL)
    last.process.wait()
    with tarfile.open(HERE / "state.tar.gz", "w:gz", compresslevel=9) as archive:
        pack(archive)
        add(archive, "export.ndjson", a2e("state", "export").encode())
        add(archive, "asked.ndjson", ask_all(memory, deep, release, open_episodes, talk).encode())
        add(archive, "task_result.json", json.dumps(result).encode())


if PLACE.exists():
    sys.exit(f"{PLACE} exists already")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Embeddings)
embeddings_url = f"http://127.0.0.1:{server.server_port}/v1"
threading.Thread(target=server.serve_forever, daemon=True).start()
try:
    main()
finally:
    shutil.rmtree(PLACE, ignore_errors=True)
