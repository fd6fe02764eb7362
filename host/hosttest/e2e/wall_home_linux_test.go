package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

const canary = "canary-81174"

// leftover is a file that a child leaves for other programs: plant creates it, and visit does what an ordinary
// program does that runs or reads it. A leftover that works appends its name and the secret to the file "stolen".
type leftover struct{ name, plant, visit string }

// in reports whether found has the leftover's name, with the secret or without.
func (l leftover) in(found string) bool {
	return strings.Contains(found, "\n"+l.name+"\n") || strings.Contains(found, "\n"+l.name+" ")
}

// leftovers returns shell commands for the workspace $W. steal returns the command that is planted.
func leftovers() []leftover {
	steal := func(name string) string { return `echo ` + name + ` $CANARY >> $W/stolen` }
	python := func(name string) string {
		return `import os; open('$W/stolen', 'a').write('` + name + ` ' + str(os.environ.get('CANARY')) + chr(10))`
	}
	site := `S=$(python3 -c 'import site; print(site.getusersitepackages())'); mkdir -p "$S"; `
	all := []leftover{
		{"usercustomize", site + `echo "` + python("usercustomize") + `" > $S/usercustomize.py`, `python3 -c pass`},
		{"pth", site + `echo "` + python("pth") + `" > $S/planted.pth`, ``},
		{"bashrc", `echo "` + steal("bashrc") + `" > ~/.bashrc`, `bash -ic : < /dev/null`},
		{"bash_profile", `echo "` + steal("bash_profile") + `" > ~/.bash_profile`, `bash -lc :`},
		{"profile", `echo "` + steal("profile") + `" > ~/.profile`, `sh -lc :`},
		{"gitconfig", `git config --global core.fsmonitor "sh \$HOME/planted.sh"; echo '` + steal("gitconfig") +
			`' > ~/planted.sh`, `git -C repo status`},
		{
			"git alias", `mkdir -p ~/.config/git; printf '[alias]\n visit = !sh ~/.config/planted.sh\n' > ~/.config/git/config; echo '` + steal("git alias") + `' > ~/.config/planted.sh`,
			`git -C repo visit`,
		},
	}
	for _, path := range []string{
		"~/.npmrc", "~/.netrc", "~/.ssh/config", "~/.config/pip/pip.conf", "~/.pip/pip.conf", "~/.local/bin/planted",
		"~/.node_modules/planted/index.js",
		"~/.cargo/config.toml", "~/.docker/config.json", "~/.cache/planted", "$TMPDIR/planted.py", "/tmp/planted.so",
		"/tmp/.X11-unix/planted", "/dev/shm/planted",
	} {
		all = append(all, leftover{
			path, `mkdir -p $(dirname ` + path + `); touch ` + path,
			`[ ! -e ` + path + ` ] || ` + steal("'"+path+"'"),
		})
	}
	return all
}

// homeStage makes a folder with a workspace, and a config with each kind of child.
func homeStage(t *testing.T) (dir, work string) {
	t.Helper()
	dir = workDir(t)
	work = filepath.Join(dir, "work")
	for _, name := range []string{work, filepath.Join(dir, "skills", "visit")} {
		must.OK(t, os.MkdirAll(name, 0o755))
	}
	w := "W=" + work + "; export W\ncd $W\n"
	plant, visit := w+"git init -q repo\n", w
	for _, l := range leftovers() {
		plant, visit = plant+l.plant+"\n", visit+l.visit+"\n"
	}
	writeFile(t, work, "plant.sh", plant+"echo planted\n")
	writeFile(t, work, "visit.sh", "exec > /dev/null 2>&1\n"+visit+"echo visited >> stolen\n")
	writeFile(t, work, "server.py", "import subprocess\n"+strings.Replace(tinyMCP, `open("description.txt").read()`,
		`"x"`, 1)+
		"    if method == 'tools/call': subprocess.run(['sh', 'visit.sh'], stdin=subprocess.DEVNULL)\n")
	writeFile(t, work, "plugin.py", visitingPlugin)
	writeFile(t, filepath.Join(dir, "skills", "visit"), "SKILL.md", "---\nname: visit\ndescription: x\nrun: "+
		"visit.sh\nnetwork: true\nwrite: true\n---\nx\n")
	writeFile(t, filepath.Join(dir, "skills", "visit"), "visit.sh", "exec sh visit.sh\n")
	writeFile(t, dir, "a2e.yaml", strings.ReplaceAll(homeConfig, "DIR", dir))
	return dir, work
}

// visitingPlugin speaks A2E, as a plugin and as an environment, and runs visit.sh at each request.
const visitingPlugin = `
import json, subprocess, sys
tool = {"name": "plugin_visit", "description": "x", "input_parameters": []}
for line in sys.stdin:
    m = json.loads(line)
    def send(kind, **body): print(json.dumps({"a2e": "1.0", "type": kind, "req_id": m["id"], **body}), flush=True)
    if m["type"] == "handshake/req":
        send("handshake/resp", ok=True, session_id="1", accepted_caps=[{"capability": "tools", "enabled": True, "metadata": {}}], max_parallel=1, reason="")
    elif m["type"] == "tool/list/req":
        send("tool/list/resp", tools=[tool])
    else:
        subprocess.run(["sh", "visit.sh"], stdin=subprocess.DEVNULL)
        send("error", code="runtime_error", message="visited")
`

const homeConfig = `
workspace: DIR/work
state_dir: DIR/state
plugins:
  - name: tools
    type: tools
    metadata:
      allowed_commands: [sh]
      commands:
        - {name: online, command: [sh, DIR/work/visit.sh], network: true}
  - {name: proc, type: proc, metadata: {network_disabled: false, allowed_commands: [sh]}}
  - name: mcp
    type: mcp
    metadata:
      mcpServers:
        online: {command: python3, args: [server.py], network: true, env: {CANARY: canary-81174}}
        offline: {command: python3, args: [server.py], env: {CANARY: canary-81174}}
        plain: {command: python3, args: [server.py]}
  - {name: words, type: exec, metadata: {command: [python3, plugin.py], capabilities: [tools], network: true, env: {CANARY: canary-81174}}}
  - name: agents
    type: multi_agent
    metadata:
      workers:
        - {name: online, command: [sh, visit.sh], network: true, env: {CANARY: canary-81174}}
        - {name: plain, command: [sh, visit.sh]}
  - {name: skills, type: skill, metadata: {skills_path: [DIR/skills], workspace_skills: false, network_disabled: false}}
  - {name: world, type: env, metadata: {env: exec, exec: {command: [python3, plugin.py], env: {CANARY: canary-81174}}}}
`

// TestWallHome: files that a child without network leaves behind are not run or read by any other kind of child,
// above all not by one with network or a secret.
func TestWallHome(t *testing.T) {
	t.Parallel()
	dir, work := homeStage(t)
	l := start(t, dir, "--config", "a2e.yaml")
	l.send(`{"type":"handshake/req","id":"h","agent_id":"test","agent_caps":["tools","proc","mcp","multi_agent","skill","env"]}`)
	l.answer("h")
	l.send(call("p", "run_command", `{"command":["sh","plant.sh"]}`))
	m := l.answer("p")
	must.That(t, strings.Contains(fmt.Sprint(m), "planted"), "nothing was planted: %v", m)
	// The control, which the README promises as well: the next child of the same kind finds the leftovers.
	found := visited(t, l, work, call("same", "run_command", `{"command":["sh","visit.sh"]}`), "same")
	for _, left := range leftovers() {
		if !left.in(found) && !strings.HasPrefix(left.name,
			"/") { // each child has its own /dev/shm; without mounts /tmp is out of reach
			t.Errorf("what is planted does not work: %s\n%s", left.name, found)
		}
	}
	visits := []struct{ name, line string }{
		{"tool with network", call("v", "online", `{}`)},
		{"process with network", `{"type":"proc/spawn/req","id":"v","cmd":["sh","visit.sh"]}`},
		{"MCP server with network", call("v", "online__add", `{"a":1,"b":2}`)},
		{"MCP server with a secret", call("v", "offline__add", `{"a":1,"b":2}`)},
		{"MCP server without either", call("v", "plain__add", `{"a":1,"b":2}`)},
		{"plugin", call("v", "plugin_visit", `{}`)},
		{"skill", `{"type":"skill/call/req","id":"v","name":"visit","arguments":{}}`},
		{"environment", `{"type":"env/reset/req","id":"v","env_name":"exec"}`},
		{"worker with network", `{"type":"multi_agent/spawn","id":"v","name":"a","metadata":{"worker":"online"}}` +
			"\n" +
			`{"type":"multi_agent/delegate","id":"d","subagent_id":"a","task_name":"x","instruction":"x"}`},
		{"worker without", `{"type":"multi_agent/spawn","id":"v","name":"b","metadata":{"worker":"plain"}}` + "\n" +
			`{"type":"multi_agent/delegate","id":"d","subagent_id":"b","task_name":"x","instruction":"x"}`},
	}
	for i, v := range visits {
		id := fmt.Sprintf("v%d", i)
		found := visited(t, l, work, strings.Replace(v.line, `"id":"v"`, `"id":"`+id+`"`, 1), id)
		assert.That(t, !strings.Contains(found, canary), "%s: the secret was seen: %s", v.name, found)
		for _, left := range leftovers() {
			t.Run(v.name+"/"+left.name, func(t *testing.T) {
				assert.That(t, !left.in(found), "it ran, or was found:\n%s", found)
			})
		}
	}
}

// visited sends a request whose child runs visit.sh, and returns what the leftovers wrote to "stolen".
func visited(t *testing.T, l *live, work, line, id string) (found string) {
	t.Helper()
	stolen := filepath.Join(work, "stolen")
	must.OK(t, os.RemoveAll(stolen))
	l.send(line)
	answer := l.answer(id)
	if strings.Contains(fmt.Sprint(answer["message"]), "the sandbox is required") {
		return "" // a skill on a machine without namespaces
	}
	hosttest.Eventually(t, fmt.Sprintf("the visit of %s, which answered %v", line, answer), func() bool {
		text, _ := os.ReadFile(stolen) // the file may not exist yet
		found = "\n" + string(text)
		return strings.HasSuffix(found, "visited\n")
	})
	return found
}
