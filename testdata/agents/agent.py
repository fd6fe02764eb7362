#!/usr/bin/env python3
# Stands in for the command-line agent of its own name: it prints the events that the public pages of that agent
# describe, and keeps its sessions where that agent does. It counts the prompts of a session, and ignores options.
import json, os, pathlib, sys

name, args, here = pathlib.Path(sys.argv[0]).name, sys.argv[1:], os.getcwd()
home = {"claude": "CLAUDE_CONFIG_DIR", "codex": "CODEX_HOME", "opencode": "HOME", "gemini": "HOME"}[name]
flag = {"claude": "--resume", "codex": "resume", "opencode": "--session", "gemini": "--resume"}[name]
folder = pathlib.Path(os.environ[home]) / "standin"
folder.mkdir(parents=True, exist_ok=True)
prompt = sys.stdin.read()
if flag in args:
    session = args[args.index(flag) + 1]
    if not (folder / session).exists():
        sys.exit(f"No conversation found with session ID: {session}")
else:
    session = f"{name}-{len(list(folder.iterdir())) + 1}"
with open(folder / session, "a") as turns:
    turns.write("x")
count = (folder / session).stat().st_size
file = os.path.join(here, f"{name}.txt")
pathlib.Path(file).write_text(prompt)
text = f"turn {count} of {session}: see https://github.com/acme/app/pull/{count}"


def say(**event):
    print(json.dumps(event), flush=True)


if "fail" in prompt.splitlines()[-1]:
    text = "rate limit reached"
failed = text == "rate limit reached"
if name == "claude":
    say(type="system", subtype="init", cwd=here, session_id=session, tools=["Bash", "Write"], model="claude-x", permissionMode="acceptEdits")
    say(type="assistant", session_id=session, message={"role": "assistant", "content": [
        {"type": "tool_use", "id": "t1", "name": "Write", "input": {"file_path": file, "content": prompt}}], "usage": {"input_tokens": 3, "output_tokens": 5}})
    say(type="user", session_id=session, message={"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]})
    say(type="assistant", session_id=session, message={"role": "assistant", "content": [{"type": "text", "text": text}]})
    say(type="result", subtype="success", is_error=failed, result=text, session_id=session, num_turns=2, total_cost_usd=0.01,
        usage={"input_tokens": 10, "cache_creation_input_tokens": 200, "cache_read_input_tokens": 3000, "output_tokens": 40})
elif name == "codex":
    say(type="thread.started", thread_id=session)
    say(type="turn.started")
    say(type="item.completed", item={"id": "item_0", "type": "file_change", "changes": [{"path": file, "kind": "add"}], "status": "completed"})
    if failed:
        say(type="turn.failed", error={"message": text})
        sys.exit(1)
    say(type="item.completed", item={"id": "item_1", "type": "agent_message", "text": text})
    say(type="turn.completed", usage={"input_tokens": 3210, "cached_input_tokens": 3000, "output_tokens": 40})
elif name == "opencode":
    part = {"messageID": "msg_1", "sessionID": session}
    say(type="step_start", timestamp=1, sessionID=session, part={**part, "id": "prt_1", "type": "step-start"})
    say(type="tool_use", timestamp=2, sessionID=session, part={**part, "id": "prt_2", "type": "tool", "callID": "c1", "tool": "write",
        "state": {"status": "completed", "input": {"filePath": file, "content": prompt}, "output": ""}})
    if failed:
        say(type="error", timestamp=3, sessionID=session, error={"name": "APIError", "data": {"message": text}})
        sys.exit(1)
    say(type="text", timestamp=3, sessionID=session, part={**part, "id": "prt_3", "type": "text", "text": text})
    say(type="step_finish", timestamp=4, sessionID=session, part={**part, "id": "prt_4", "type": "step-finish", "reason": "stop",
        "cost": 0.01, "tokens": {"input": 10, "output": 30, "reasoning": 10, "cache": {"read": 3000, "write": 200}}})
elif name == "gemini":
    say(type="init", timestamp="2026-11-28T10:00:00Z", session_id=session, model="gemini-x")
    say(type="message", timestamp="2026-11-28T10:00:00Z", role="user", content=prompt)
    say(type="tool_use", timestamp="2026-11-28T10:00:01Z", tool_name="write_file", tool_id="t1", parameters={"file_path": file, "content": prompt})
    say(type="tool_result", timestamp="2026-11-28T10:00:01Z", tool_id="t1", status="success", output="")
    if failed:
        say(type="result", timestamp="2026-11-28T10:00:02Z", status="error", error={"type": "Error", "message": text})
        sys.exit(1)
    for piece in (text[:6], text[6:]):
        say(type="message", timestamp="2026-11-28T10:00:02Z", role="assistant", content=piece, delta=True)
    say(type="result", timestamp="2026-11-28T10:00:02Z", status="success",
        stats={"total_tokens": 3250, "input_tokens": 3210, "output_tokens": 40, "duration_ms": 2000, "tool_calls": 1})
