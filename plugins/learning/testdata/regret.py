"""What it costs to learn which tool is the best: `make regret`.

The host plays groups of tools that succeed with known probabilities: each round is one
tool/call of a group over the pipe, and the host chooses the tool. Plain numpy plays the same.
Regret is how much less a run could expect from its choices than from the best tool each time.
Usage: regret.py A2E README; without README the table is only printed.
"""
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile

ARMS = [0.8, 0.6, 0.5, 0.4, 0.3]
RUNS = {400: 200, 4000: 10}  # of the host, by rounds
REFERENCE = 2000             # runs of numpy
STRATEGIES = ["ppo", "ucb1", "epsilon_greedy", "softmax", "thompson", "thompson, gaussian"]


def child():
    """The tools: a plugin of type exec. Tool rR_aA is arm A of the group rR."""
    runs, chance = int(sys.argv[2]), random.Random(1)
    tools = [{"name": f"r{r}_a{a}", "description": "An arm.", "task": f"r{r}", "input_parameters": []} for r in range(runs) for a in range(len(ARMS))]

    def send(reply, request, **body):
        sys.stdout.write(json.dumps({"a2e": "1.0", "type": reply, "req_id": request["id"], **body}) + "\n")
        sys.stdout.flush()

    for line in sys.stdin:
        m = json.loads(line)
        if m["type"] == "handshake/req":
            send("handshake/resp", m, ok=True, session_id="1", accepted_caps=[{"capability": "tools", "enabled": True, "metadata": {}}], max_parallel=64, reason="")
        elif m["type"] == "ping":
            send("pong", m, uptime_seconds=1.0)
        elif m["type"] == "tool/list/req":
            send("tool/list/resp", m, tools=tools)
        elif m["type"] == "tool/call/req" and "_a" not in m["tool_name"]:
            send("error", m, code="unknown_tool", message="that is not a tool")  # the host asks before it has listed the tools
        elif m["type"] == "tool/call/req":
            won = chance.random() < ARMS[int(m["tool_name"].split("_a")[1])]
            result = {"success": won, "tool_name": m["tool_name"], "data": None, "summary": None, "duration_ms": 0, "events": [],
                      "error": None if won else "bad luck", "error_code": None if won else "tool_error"}
            send("tool/call/resp", m, data=result, created_at=1.0)
        elif m["type"] == "shutdown":
            break


def host(a2e, strategy, rounds, runs):
    """The regret of each run of the host."""
    name, _, posterior = strategy.partition(", ")
    with tempfile.TemporaryDirectory() as folder:
        config = {"workspace": folder, "state_dir": folder + "/state", "plugins": [
            {"name": "bed", "type": "exec", "metadata": {"command": [sys.executable, os.path.abspath(__file__), "child", str(runs)], "read": [os.path.dirname(os.path.abspath(__file__)), sys.prefix]}},
            {"name": "learning", "type": "learning", "metadata": {"strategy": name, "thompson": {"posterior": posterior or "auto"}}}]}
        with open(folder + "/a2e.yaml", "w") as f:
            json.dump(config, f)
        pipe = subprocess.Popen([a2e, "--config", folder + "/a2e.yaml"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
        regret = [0.0] * runs

        def ask(requests):
            pipe.stdin.write("".join(json.dumps(r) + "\n" for r in requests))
            pipe.stdin.flush()
            return [json.loads(pipe.stdout.readline()) for _ in requests]

        ask([{"type": "handshake/req", "id": "h", "agent_caps": ["tools", "learning"]}])
        for _ in range(rounds):
            for m in ask([{"type": "tool/call/req", "id": str(r), "tool_name": f"r{r}", "arguments": {}} for r in range(runs)]):
                if m["type"] != "tool/call/resp" or m["group"] != "r" + m["req_id"]:
                    sys.exit(f"{strategy}: {m}")
                regret[int(m["req_id"])] += max(ARMS) - ARMS[int(m["data"]["tool_name"].split("_a")[1])]
        pipe.stdin.close()
        pipe.wait()
    return regret


class Reference:
    """The strategies in plain numpy, many runs at once, by their definitions."""

    def __init__(self, np, strategy, runs):
        self.np, self.rng, self.strategy = np, np.random.default_rng(2), strategy
        self.pulls, self.wins = np.zeros((runs, len(ARMS))), np.zeros((runs, len(ARMS)))
        self.weights = np.ones((runs, len(ARMS)))
        self.seen = np.zeros((2, runs, len(ARMS)))

    def choose(self, t):
        np, rng, n = self.np, self.rng, self.pulls
        runs, k = n.shape
        if t < k:  # each arm once, in any order
            return np.where(n == 0, rng.random(n.shape), -1).argmax(1)
        mean, tie = self.wins / n, rng.random(n.shape) * 1e-9
        if self.strategy == "ucb1":
            return (mean + np.sqrt(2 * math.log(t) / n) + tie).argmax(1)
        if self.strategy == "epsilon_greedy":
            any_arm = rng.random(runs) < min(1, 0.15 * k / (0.3 ** 2 * (t + 1)))
            return np.where(any_arm, rng.integers(k, size=runs), (mean + tie).argmax(1))
        if self.strategy == "softmax":
            return (mean + 0.5 / np.sqrt(n) * rng.gumbel(size=n.shape)).argmax(1)
        if self.strategy == "thompson":
            return rng.beta(1 + self.wins, 1 + n - self.wins).argmax(1)
        if self.strategy == "thompson, gaussian":
            return rng.normal((self.wins + 0.5) / (n + 1), 0.5 / np.sqrt(n + 1)).argmax(1)
        if t % 10 == 0:
            self.ppo()
        policy = self.weights / self.weights.sum(1, keepdims=True)
        return (policy.cumsum(1) > rng.random((runs, 1))).argmax(1)

    def ppo(self):
        """One update by the clipped objective, on what happened since the last."""
        np, k = self.np, len(ARMS)
        fresh, won = self.pulls - self.seen[0], self.wins - self.seen[1]
        self.seen = np.array([self.pulls, self.wins])
        mean = np.where(fresh > 0, won / np.maximum(fresh, 1), self.wins / self.pulls)
        old = np.maximum(self.weights, 0.05)
        old = old / old.sum(1, keepdims=True)
        gain = old * (mean - (old * mean).sum(1, keepdims=True))

        def value(p):
            r = p / old
            return (np.minimum(gain * r, gain * np.clip(r, 0.8, 1.2))).sum(1) - 0.01 * (p * np.log(p)).sum(1)

        now, high = old, value(old)
        going = np.ones(len(old), bool)
        for _ in range(8):
            r = now / old
            g = np.where((gain > 0) & (r < 1.2) | (gain < 0) & (r > 0.8), gain * r, 0)
            entropy = -(now * np.log(now)).sum(1, keepdims=True)
            g = g - now * (g.sum(1, keepdims=True) + 0.01 * (np.log(now) + entropy))
            rate, found = 0.1 * k, ~going
            while rate > 0.1 * k / 1e6 and not found.all():
                p = now * np.exp(rate * g)
                p /= p.sum(1, keepdims=True)
                v = value(p)
                fits = ~found & (np.abs(p / old - 1) <= 0.2).all(1) & (v >= high)
                now, high = np.where(fits[:, None], p, now), np.where(fits, v, high)
                found, rate = found | fits, rate / 2
            going &= found
        self.weights = now * k

    def play(self, rounds):
        """The regret of each run."""
        np, regret, each = self.np, 0, self.np.arange(len(self.pulls))
        odds = np.array(ARMS)
        for t in range(rounds):
            arm = self.choose(t)
            self.pulls[each, arm] += 1
            self.wins[each, arm] += self.rng.random(len(each)) < odds[arm]
            regret = regret + odds.max() - odds[arm]
        return regret


def main():
    import numpy as np

    def of(values):
        return np.mean(values), np.std(values, ddof=1) / math.sqrt(len(values))

    rows = ["| strategy | " + " | ".join(f"host, {n} rounds | numpy | ratio" for n in RUNS) + " |", "|---|" + "---|" * 3 * len(RUNS)]
    for strategy in STRATEGIES:
        row = f"| `{strategy.partition(',')[0]}`{strategy.partition(',')[1]}{strategy.partition(',')[2]} |"
        for rounds, runs in RUNS.items():
            ours, error = of(host(sys.argv[1], strategy, rounds, runs))
            plain, noise = of(Reference(np, strategy, REFERENCE if rounds < 1000 else REFERENCE // 10).play(rounds))
            ratio = ours / plain
            spread = ratio * math.hypot(error / ours, noise / plain)
            row += f" {ours:.1f} | {plain:.1f} | {ratio:.2f} ± {spread:.2f} |"
        rows.append(row)
        print(row, flush=True)
    lost = max(ARMS) - sum(ARMS) / len(ARMS)
    rows.append("| any tool, by chance |" + "".join(f" – | {n * lost:.1f} | – |" for n in RUNS))
    if len(sys.argv) > 2:
        with open(sys.argv[2], encoding="utf-8") as f:
            page = f.read()
        table = "<!-- regret: made by `make regret` -->\n" + "\n".join(rows) + "\n<!-- end of regret -->"
        page, places = re.subn(r"<!-- regret: .*?<!-- end of regret -->", lambda _: table, page, flags=re.S)
        if places != 1:
            sys.exit(f"{sys.argv[2]} has no place for the table")
        with open(sys.argv[2], "w", encoding="utf-8") as f:
            f.write(page)


if len(sys.argv) > 1 and sys.argv[1] == "child":
    child()
else:
    main()
