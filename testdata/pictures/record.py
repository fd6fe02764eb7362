"""Records the pictures of the README: record.py A2E FOLDER writes demo.svg, a terminal with real commands and
their output, and inspect.png, the page of `a2e inspect` with a recorded session."""
import html, json, os, subprocess, sys, tempfile, time
from pathlib import Path

A2E, OUT = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
STEPS = [  # the commands
    """echo '{"type":"ping","id":"1"}' | a2e""",
    "a2e tools call write_file path=todo.txt content='TODO: ship it'",
    "a2e tools call grep pattern=TODO",
    """a2e tools call run_command command='["cat", "/etc/shadow"]'""",
    "a2e tools list | head -n 5",
]
COLUMNS, ROW, CHAR = 110, 19, 8.4
SECONDS = 30


def run(command, folder):
    env = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "HOME": str(folder / "home"), "TERM": "dumb"}
    done = subprocess.run(["sh", "-c", command], cwd=folder / "work", env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60)
    return done.stdout.rstrip("\n").split("\n")


def cut(line):
    return line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…"


def demo(folder):
    rows, at = [], []  # the lines, and the second at which each appears
    for n, step in enumerate(STEPS):
        second = n * SECONDS / len(STEPS)
        rows.append(("$ " + step, "#7ee787")), at.append(second)
        for line in run(step, folder)[:7]:
            rows.append((line, "#c9d1d9")), at.append(second + 1.5)
        rows.append(("", "")), at.append(second)
    width, height = COLUMNS * CHAR + 32, len(rows) * ROW + 32
    text = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" font-family="monospace" '
            f'font-size="14"><title>five commands of a2e and what they print</title>'
            f'<style>text{{opacity:0;animation:show .2s forwards}}@keyframes show{{to{{opacity:1}}}}</style>'
            f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>']
    for i, ((line, colour), second) in enumerate(zip(rows, at)):
        if line:
            text.append(f'<text x="16" y="{i * ROW + 28}" fill="{colour}" xml:space="preserve" '
                        f'style="animation-delay:{second:.1f}s">{html.escape(cut(line))}</text>')
    (OUT / "demo.svg").write_text("\n".join(text + ["</svg>", ""]), encoding="utf-8")


def inspect(folder):
    lines = [{"type": "handshake/req", "id": "1", "agent_id": "demo", "agent_caps": ["tools", "memory", "planning"]}]
    calls = [("list_dir", {}), ("write_file", {"path": "notes.md", "content": "# Notes\n"}),
             ("read_file", {"path": "notes.md"}), ("run_command", {"command": ["ls", "-l"]}),
             ("read_file", {"path": "../secret"}), ("grep", {"pattern": "Notes"})]
    lines += [{"type": "tool/call/req", "id": str(n + 2), "tool_name": name, "arguments": args}
              for n, (name, args) in enumerate(calls)]
    record = "session.ndjson"
    env = {"PATH": os.environ["PATH"], "HOME": str(folder / "home")}
    subprocess.run([A2E, "serve", "--record", record], input="\n".join(map(json.dumps, lines)) + "\n", text=True,
                   cwd=folder / "work", env=env, stdout=subprocess.PIPE, check=True, timeout=60)
    page = subprocess.Popen([A2E, "inspect", record], cwd=folder / "work", env=env, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)
    try:
        address = next(word for line in page.stdout for word in line.split() if word.startswith("http://127.0.0.1"))
        subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                        f"--user-data-dir={folder}/chromium", "--window-size=1280,500", "--virtual-time-budget=8000",
                        f"--screenshot={(OUT / 'inspect.png').resolve()}", address],
                       stderr=subprocess.DEVNULL, check=True, timeout=120)
    finally:
        page.terminate()
        page.wait()


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    for sub in ("work", "home", "bin"):
        (folder / sub).mkdir()
    (folder / "bin" / "a2e").symlink_to(A2E)
    demo(folder)
    inspect(folder)
