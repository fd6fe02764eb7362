"""Compares chains of a2e with LangGraph and plain Python: the lines to write, the time of a node, and the steps that
run again after kill -9. Writes its table into PAGE, between the marks.

    compare.py A2E [PAGE]
"""
import inspect, json, os, re, signal, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = ["row", "side by side", "for each", "loop", "fallback"]
MANY = 1000
CONFIG = """state_dir: state
plugins:
  - {{name: chains, type: chains}}
  - {{name: tools, type: tools}}
  - {{name: step, type: exec, metadata: {{command: [python3, step.py], env: {{STEPS: "{steps}"}}, capabilities: [tools]}}}}
"""


def lines(text):
    return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def best(run, rounds=5):
    """Returns the microseconds of the fastest round."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return min(times) * 1e6


def echo(i, more=""):
    return json.loads('{"node_id":"n%d","kind":"tool","name":"echo","input":{"text":"x"}%s}' % (i, more))


def chain(name):
    """Returns the nodes of a workflow with many steps."""
    if name == "row":
        return [echo(i, ',"deps":["n%d"]' % (i - 1) if i else "") for i in range(MANY)]
    if name == "side by side":
        return [echo(i, ',"next_node":"n%d"' % MANY) for i in range(MANY)] + [echo(MANY)]
    if name == "for each":
        return [{"node_id": "m", "kind": "map", "items_path": "input.list", "map_node": "n0"}, echo(0)]
    return [{"node_id": "l", "kind": "while", "condition": "index < `%d`" % MANY, "max_iterations": MANY, "nodes": [echo(0)]}]


class Host:
    def __init__(self, a2e, folder):
        self.proc = subprocess.Popen([a2e], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask({"type": "handshake/req", "agent_id": "compare", "agent_caps": ["chains", "tools"]})

    def ask(self, request):
        self.proc.stdin.write(json.dumps({"id": "1", **request}) + "\n")
        self.proc.stdin.flush()
        return json.loads(self.proc.stdout.readline())

    def run(self, nodes, **more):
        resp = self.ask({"type": "chain/req", "nodes": nodes, "streaming": False, "initial_input": {"list": ["x"] * MANY}, **more})
        assert resp.get("success"), resp


def costs(a2e, folder):
    """Returns the microseconds of a step by workflow: a2e, with a journal, LangGraph, with its checkpoints, plain."""
    import graphs, plain
    from langgraph.checkpoint.sqlite import SqliteSaver
    host, table, run = Host(a2e, folder), {}, 0
    config = {"recursion_limit": 10 * MANY, "max_concurrency": 16}
    for name in NAMES[:4]:
        nodes, call = chain(name), name.replace(" ", "_")
        args = (MANY,) if name == "loop" else ([f"n{i}" for i in range(MANY)],)
        nothing = lambda key: key

        def journal():
            nonlocal run
            run += 1
            host.run(nodes, chain_id=f"{name} {run}", journal=True)

        def graph(saver=None):
            nonlocal run
            run += 1
            g, state = getattr(graphs, call)(*args, step=nothing)
            g.compile(checkpointer=saver).invoke(state, {**config, "configurable": {"thread_id": f"{name} {run}"}})

        with SqliteSaver.from_conn_string(os.path.join(folder, "graphs.db")) as saver:
            table[name] = [best(lambda: host.run(nodes)), best(journal), best(graph), best(lambda: graph(saver), 1),
                           best(lambda: getattr(plain, call)(*args, step=nothing))]
    host.proc.stdin.close()
    host.proc.wait()
    return {name: [us / MANY for us in row] for name, row in table.items()}


def same(a2e, folder, docs):
    """Checks that each workflow runs the same steps in all three forms."""
    import graphs, plain
    steps = os.environ["STEPS"] = os.path.join(folder, "steps")

    def ran(run):
        open(steps, "w").close()
        run()
        return sorted(open(steps).read().split())

    for name, doc in zip(NAMES, docs):
        def by_a2e():
            subprocess.run([a2e, "chain", "run", "-q", "-", 'list:=["x","y","z"]'], cwd=folder, input=doc, text=True, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def by_graph():
            g, state = getattr(graphs, name.replace(" ", "_"))()
            g.compile().invoke(state)

        want = ran(getattr(plain, name.replace(" ", "_")))
        assert want == ran(by_a2e) == ran(by_graph), (name, want, ran(by_a2e), ran(by_graph))


KEYS = [f"s{i}" for i in range(20)]


def child(kind, folder):
    """Runs or continues the row of 20 steps, in a process that is killed."""
    import graphs, plain
    from langgraph.checkpoint.sqlite import SqliteSaver
    if kind == "plain":
        return plain.row(KEYS)
    with SqliteSaver.from_conn_string(os.path.join(folder, "graphs.db")) as saver:
        g, state = graphs.row(KEYS)
        config = {"configurable": {"thread_id": "1"}, "recursion_limit": 100}
        app = g.compile(checkpointer=saver)
        app.invoke(None if app.get_state(config).values else state, config)


def killed(a2e, kind, folder):
    """Kills a row of 20 steps five times. Returns how many steps ran in all, and how many were unknown after a kill."""
    steps = os.path.join(folder, "steps")
    open(steps, "w").close()
    env = {**os.environ, "STEPS": steps, "PYTHONPATH": HERE}
    with open(os.path.join(folder, "row.yaml"), "w") as f:
        json.dump({"nodes": [{"node_id": k, "kind": "tool", "name": "step", "input": {"key": k}, "deps": KEYS[max(0, i - 1):i]} for i, k in enumerate(KEYS)]}, f)
    command = [sys.executable, __file__, "child", kind, folder]
    if kind == "a2e":
        command = [a2e, "chain", "run", "row.yaml", "--id", "row", "-q"]
    asked = 0
    for stop in (True, True, True, True, True, False):
        goal = len(open(steps).read().split()) + 3
        proc = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while stop and proc.poll() is None and len(open(steps).read().split()) < goal:
            time.sleep(0.001)
        if stop:
            proc.send_signal(signal.SIGKILL)
        proc.wait()
        if kind == "a2e" and stop:  # looks up whether the step under way has run, as a person would
            journals = json.loads(subprocess.run([a2e, "chain", "list", "--json"], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout)
            command = [a2e, "chain", "resume", "row", "-q"]
            for key in next(j for j in journals if j["chain_id"] == "row")["unknown"]:
                asked += 1
                command += ["--resolve", f"{key}={json.dumps({'key': key}) if key in open(steps).read().split() else 'run'}"]
    ran = open(steps).read().split()
    assert set(ran) == set(KEYS), (kind, ran)
    return len(ran), asked


def main(a2e, page=None):
    a2e = os.path.abspath(a2e)
    sys.path.insert(0, HERE)
    os.environ["STEPS"] = os.devnull
    import graphs, plain
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "a2e.yaml"), "w") as f:
            f.write(CONFIG.format(steps=os.path.join(folder, "steps")))
        with open(os.path.join(HERE, "step.py")) as src, open(os.path.join(folder, "step.py"), "w") as dst:
            dst.write(src.read())
        os.environ["A2E_CONFIG"] = os.path.join(folder, "a2e.yaml")
        docs = open(os.path.join(HERE, "workflows.yaml")).read().split("---\n")
        same(a2e, folder, docs)
        cost = costs(a2e, folder)
        written = {name: [lines(doc)] for name, doc in zip(NAMES, docs)}
        for name in NAMES:
            for module in (graphs, plain):
                written[name].append(lines(inspect.getsource(getattr(module, name.replace(" ", "_")))))
        out = ["| workflow | lines: a2e · LangGraph · plain | µs a step: a2e · with a journal | LangGraph · with checkpoints | plain |", "|---|---|---|---|---|"]
        for name in NAMES:
            us = [f"{x:.0f}" if x >= 10 else f"{x:.2f}" for x in cost.get(name, [])] or ["–"] * 5
            out.append(f"| {name} | {' · '.join(map(str, written[name]))} | {us[0]} · {us[1]} | {us[2]} · {us[3]} | {us[4]} |")
        runs = {kind: killed(a2e, kind, folder) for kind in ("a2e", "langgraph", "plain")}
    out += ["", f"Killed with SIGKILL five times, each time in a step, and started again, a row of 20 steps runs {runs['a2e'][0]} steps with a2e ({runs['a2e'][1]} times it asks what became "
            f"of the step under way, which was looked up), {runs['langgraph'][0]} with LangGraph and its SQLite checkpoints (the step under way runs once more), and {runs['plain'][0]} in plain Python, which begins anew."]
    text = "\n".join(out)
    print(text)
    if page:
        body = open(page).read()
        open(page, "w").write(re.sub(r"(<!-- workflows -->\n).*?\n?(<!-- /workflows -->)", lambda m: m[1] + text + "\n" + m[2], body, flags=re.S))


if __name__ == "__main__":
    child(*sys.argv[2:]) if sys.argv[1] == "child" else main(*sys.argv[1:])
