"""A program for the tests of `exec`: a count that its actions change, and ways to misbehave."""
import json, os, sys, time

mode = sys.argv[1]
episodes, held = {}, []

def note(name, text):
    with open(name, "a") as file:
        file.write(text + "\n")

def say(**message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()

def obs(id, **more):
    return {"episode_id": id, "step_num": 0, "state": {"count": episodes[id], "long": 9007199254740993, "small": 1e-7}, **more}

def space(m):
    if mode == "mute":
        return
    if mode == "refuse":
        return say(type="error", req_id=m["id"], code="unknown_env", message="there is no such world")
    names = {"enum": ["add", "die", "hold", "release"]}
    say(type="env/space/resp", req_id=m["id"], action_space={"type": "object", "properties": {"type": names, "action_type": {"const": "add"}}},
        state_schema={"type": "object"})
    if mode == "deaf":
        time.sleep(1000)

def reset(m):
    how = m["options"].get("how")
    id = "e0" if how == "same" else f"e{len(episodes)}"
    episodes[id] = m["seed"] or 0
    answer = dict(type="env/reset/resp", req_id=m["id"], obs=obs(id))
    if how == "push":
        say(**answer)
        episodes[id] += 1
        return say(type="env/state/push", episode_id=id, step_id=0, event_type="tick", reason="time", delta={"count": 9007199254740993}, reward=0.5, terminal=True)
    if how == "hold":
        note("held", id)
        return held.append(answer)
    if how == "nameless":
        del answer["obs"]["episode_id"]
    say(**answer)

def step(m):
    id, action = m["episode_id"], m["action"]
    answer = dict(type="env/step/resp", req_id=m["id"])
    kind = action["type"]
    if kind == "add":
        episodes[id] += action["value"]
        return say(**answer, obs=obs(id, reward=0.25, done=episodes[id] >= 100, truncated=episodes[id] < 0, metadata={"seen": 12345678901234567890}))
    if kind == "hold":
        episodes[id] += 1
        held.append(dict(**answer, obs=obs(id, reward=1)))
        return note("held", id)
    if kind == "release":
        say(**answer, obs=obs(id))
        while held:
            say(**held.pop())
    if kind == "die":
        print("a last word", file=sys.stderr, flush=True)
        os._exit(3)
    if kind == "noise":
        for i in range(50):
            print("progress", i)
        print('{"count": 1}\n[1, 2]\n\n{"type": "env/step/resp", "req_id": "999999", "obs": {}}\n{"type": 5}')
        print("to stderr", file=sys.stderr, flush=True)
        return say(**answer, obs=obs(id))
    if kind == "huge":
        sys.stdout.write("x" * (17 << 20) + "\n")
        return say(**answer, obs=obs(id))
    if kind == "torn":
        for char in json.dumps(dict(**answer, obs=obs(id, reward=2))) + "\n":
            sys.stdout.write(char)
            sys.stdout.flush()
    if kind == "raw":
        return say(**{"req_id": m["id"], "type": "env/step/resp", **action["message"]})
    if kind == "nan":  # as Python's json writes it
        return say(**answer, obs=obs(id, reward=float(action["reward"])))
    if kind == "env":
        return say(**answer, obs={"state": {"value": os.environ.get(action["name"]), "cwd": os.getcwd(), "argv": sys.argv[0]}})
    if kind == "read":
        try:
            return say(**answer, obs={"state": {"value": open(action["path"]).read()}})
        except OSError as problem:
            return say(**answer, obs={"state": {"problem": type(problem).__name__}})

def observe(m):
    say(type="env/observe/resp", req_id=m["id"], obs=obs(m["episode_id"]))

def render(m):
    say(type="env/render/resp", req_id=m["id"], render={"mode": m["mode"], "text": str(episodes[m["episode_id"]])})

def close(m):
    note("closed", m["episode_id"])
    say(type="env/close/resp", req_id=m["id"], closed=True)

note("starts", sys.argv[-1])
if mode == "die":
    sys.exit("it cannot run")
for line in sys.stdin:
    message = json.loads(line)
    {"space": space, "reset": reset, "step": step, "observe": observe, "render": render, "close": close}[message["type"].split("/")[1]](message)
note("ended", "by itself")
if mode == "stubborn":
    time.sleep(1000)
