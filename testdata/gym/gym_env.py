"""Serves a Gymnasium environment: env/* messages, one JSON object per line, on stdin and stdout.

usage: gym_env.py ENVIRONMENT_ID [JSON OBJECT OF ARGUMENTS FOR gymnasium.make]
"""
import base64, itertools, json, os, struct, sys, time, traceback, zlib
import gymnasium, numpy as np
from gymnasium import spaces

class Refused(Exception):
    """Refused(code, message) becomes the error that answers the request."""

def box(low, high, kind):
    """The JSON Schema of nested lists of numbers within bounds."""
    if low.ndim == 0:
        return {"type": kind} | {key: bound.item() for key, bound in (("minimum", low), ("maximum", high)) if np.isfinite(bound)}
    size = {"type": "array", "minItems": len(low), "maxItems": len(low)}
    if len(low) and (low == low[0]).all() and (high == high[0]).all():
        return size | {"items": box(low[0], high[0], kind)}
    return size | {"prefixItems": [box(*bounds, kind) for bounds in zip(low, high)]}

def schema(space):
    match space:
        case spaces.Discrete():
            return {"type": "integer", "minimum": int(space.start), "maximum": int(space.start + space.n - 1)}
        case spaces.Box():
            return box(space.low, space.high, "number" if space.dtype.kind == "f" else "integer")
        case spaces.MultiDiscrete():
            return box(space.start, space.start + space.nvec - 1, "integer")
        case spaces.MultiBinary():
            return box(np.zeros(space.shape, int), np.ones(space.shape, int), "integer")
        case spaces.Dict():
            return {"type": "object", "properties": {key: schema(part) for key, part in space.items()}, "required": list(space)}
        case spaces.Tuple():
            parts = [schema(part) for part in space]
            return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
        case spaces.Text():
            return {"type": "string", "minLength": space.min_length, "maxLength": space.max_length}
    return {}  # the environment itself checks the value

def sample(space, value):
    """Converts a value of JSON to one of the space, or raises ValueError if it does not fit."""
    match space:
        case spaces.Discrete() if value == int(value) and 0 <= value - space.start < space.n:
            return int(value)
        case spaces.Dict():
            return {key: sample(part, value[key]) for key, part in space.items()}
        case spaces.Tuple():
            return tuple(sample(part, item) for part, item in zip(space, value, strict=True))
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            value = np.asarray(value, space.dtype)
    if not space.contains(value):
        raise ValueError("it does not fit")
    return value

def png(pixels):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, {1: 0, 3: 2, 4: 6}[pixels.shape[2]], 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype(np.uint8))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")

def find(request):
    if request["episode_id"] not in episodes:
        raise Refused("unknown_episode", f"unknown episode {request['episode_id']}; env/reset/req begins one")
    return episodes[request["episode_id"]]

def saw(id, env, steps, seen, reward, done, truncated, info):
    episodes[id] = env, {"episode_id": id, "step_num": steps, "state": {"observation": seen}, "reward": reward, "done": done,
                         "truncated": truncated, "created_at": time.time(), "metadata": info or None}
    return observe({"episode_id": id})

def space(request):
    act, value = {"const": "act"}, schema(model.action_space)
    payload = {"type": "object", "properties": {"value": value}, "required": ["value"]}
    short = {"properties": {"type": act, "value": value}, "required": ["type", "value"]}
    long = {"properties": {"action_type": act, "payload": payload}, "required": ["action_type", "payload"]}
    state = {"type": "object", "properties": {"observation": schema(model.observation_space)}, "required": ["observation"]}
    return {"action_space": {"type": "object", "anyOf": [short, long]}, "state_schema": state}

def reset(request):
    env = idle.pop() if idle else gymnasium.make(name, **arguments)
    try:
        seen, info = env.reset(seed=request.get("seed"), options=request.get("options") or None)
    except Exception as problem:
        raise Refused("reset_denied", f"{type(problem).__name__}: {problem}") from problem
    return saw(f"gym-{next(numbers)}", env, 0, seen, None, False, False, info)

def step(request):
    (env, last), action = find(request), request["action"]
    if last["done"] or last["truncated"]:
        raise Refused("episode_done", "the episode has ended; start another with env/reset/req")
    try:
        value = sample(model.action_space, action.get("payload", action)["value"])
    except (KeyError, TypeError, ValueError, OverflowError) as problem:
        text = f'/action/value: should fit {model.action_space}; send {{"type":"act","value":VALUE}}'
        raise Refused("schema_violation", text) from problem
    seen, reward, done, truncated, info = env.step(value)
    if not np.isfinite(reward):
        raise ValueError(f"the step gave the reward {reward}; should be a finite number")
    return saw(last["episode_id"], env, last["step_num"] + 1, seen, float(reward), bool(done), bool(truncated), info)

def observe(request):
    return {"obs": find(request)[1]}

def render(request):
    env, last = find(request)
    drawn = env.render() if env.render_mode == "ansi" or env.render_mode and request.get("mode") != "text" else None
    if isinstance(drawn, np.ndarray):
        return {"render": {"mode": "screenshot", "mime": "image/png", "data": base64.b64encode(png(drawn)).decode()}}
    return {"render": {"mode": "text", "text": drawn if isinstance(drawn, str) else str(last["state"]["observation"])}}

def close(request):
    idle.append(find(request)[0])  # for another episode, which begins with a reset
    return {"closed": bool(episodes.pop(request["episode_id"]))}

def plain(thing):
    return thing.tolist() if hasattr(thing, "tolist") else str(thing)

def answer(line):
    request = {}
    try:
        request = json.loads(line)
        kind = request["type"]
        reply = {"type": kind.removesuffix("req") + "resp", "req_id": request["id"]} | handlers[kind](request)
        try:
            return encode(reply)
        except ValueError:  # infinities and NaN, which JSON lacks, become null
            return encode(json.loads(json.dumps(reply, default=plain), parse_constant=lambda _: None))
    except Refused as refusal:
        code, message = refusal.args
    except Exception as problem:
        traceback.print_exc()
        code, message = "runtime_error", f"{type(problem).__name__}: {problem}"
    return encode({"type": "error", "req_id": request.get("id", ""), "code": code, "message": message})

out = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # text that a library prints must not be among the messages
name, arguments = sys.argv[1], json.loads("".join(sys.argv[2:3]) or "{}")
model = gymnasium.make(name, **arguments)
modes = model.metadata.get("render_modes") or []
arguments.setdefault("render_mode", next((mode for mode in ("rgb_array", "ansi") if mode in modes), None))
episodes, idle, numbers = {}, [], itertools.count(1)
handlers = {f"env/{handler.__name__}/req": handler for handler in (space, reset, step, observe, render, close)}
encode = json.JSONEncoder(default=plain, allow_nan=False, skipkeys=True, separators=(",", ":")).encode
rest = b""
while data := os.read(0, 1 << 20):  # answers all lines that have arrived at once
    *lines, rest = (rest + data).split(b"\n")
    out.write("".join(answer(line) + "\n" for line in lines if line.strip()).encode())
    out.flush()
