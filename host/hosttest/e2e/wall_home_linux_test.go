package e2e_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

// Bounds of the real host during the attacks: of its memory, and of its address space. A host that allocates
// terabytes, or too much for many requests together, fails at the second bound.
const (
	peakBytes    = 1536 << 20
	addressBytes = 6 << 30
)

// TestWallMemory: no request makes the host allocate without a bound. Each is sent four times at once to the real
// program, whose address space is limited; the host answers all of them, and a ping afterwards.
func TestWallMemory(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for name, text := range map[string]string{
		"a.txt":     strings.Repeat("a", 1<<20),
		"deep.json": strings.Repeat("[", 1<<20), "lines": strings.Repeat("x\n", 500_000),
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	cmd := command(t, dir, "./a2e")
	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	must.OK(t, unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_AS, &unix.Rlimit{Cur: addressBytes, Max: addressBytes}, nil))
	answers := make(chan string, 1000)
	go func() {
		defer close(answers)
		lines := bufio.NewReaderSize(out, 1<<20)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			head := line[:min(len(line), 300)] // parsing 14 MiB as JSON takes seconds with the race detector
			if m := answered.FindSubmatch(head); m != nil && !bytes.Contains(head, []byte(`/event"`)) {
				answers <- string(m[1])
			}
		}
	}()
	ask := func(id string, times int, request string) {
		t.Helper()
		for i := range times {
			must.Get(fmt.Fprintf(in, `{"id":"%s-%d",%s}`+"\n", id, i, request))(t)
		}
		for got := 0; got < times; {
			select {
			case a, ok := <-answers:
				must.That(t, ok, "the host ended")
				if strings.HasPrefix(a, id+"-") {
					got++
				}
			case <-time.After(3 * time.Minute):
				t.Fatal("no answer")
			}
		}
	}
	ask("hello", 1, `"type":"handshake/req","agent_id":"x","agent_caps":["tools","chains","memory","proc"]`)
	for _, attack := range memoryAttacks() {
		t.Run(attack[0], func(t *testing.T) {
			ask(strings.ReplaceAll(attack[0], " ", "_"), 4, attack[1])
			ask("ping", 1, `"type":"ping"`)
			peak := peakOf(t, cmd.Process.Pid)
			assert.That(t, peak <= peakBytes, "the host took %d MiB", peak>>20)
		})
	}
	t.Logf("peak of the host: %d MiB", peakOf(t, cmd.Process.Pid)>>20)
	must.OK(t, in.Close())
	for range answers {
	}
	assert.OK(t, cmd.Wait())
}

var answered = regexp.MustCompile(`"req_id":"([^"]+)"`)

// peakOf returns the largest memory of a process so far, in bytes.
func peakOf(t *testing.T, pid int) int64 {
	t.Helper()
	status := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	kib := must.Get(strconv.ParseInt(strings.Fields(after)[0], 10, 64))(t)
	return kib << 10
}

// memoryAttacks returns pairs of a name and a request.
func memoryAttacks() [][2]string {
	big := strings.Repeat("x", 2<<20)
	list := "[" + strings.Repeat("0,", 47) + "0]"
	tool := func(name, args string) string {
		return fmt.Sprintf(`"type":"tool/call/req","timeout":20,"tool_name":%q,"arguments":%s`, name, args)
	}
	chain := func(nodes string) string {
		return fmt.Sprintf(`"type":"chain/req","timeout":60,"chain_id":"c","entry_node":"a","nodes":[%s],"initial_input":{"l":%s,"t":%q}`, nodes, list, big)
	}
	each := func(expr, more string) string {
		return chain(`{"node_id":"a","kind":"map","items_path":"input.l","map_node":"e"},{"node_id":"e","kind":"tool","name":"echo","input_map":{` + expr + `}` + more + `}`)
	}
	seven := `join('',[` + strings.TrimSuffix(strings.Repeat("input.t,", 7), ",") + `])`
	var row []string
	for i := range 200 {
		row = append(row, fmt.Sprintf(`{"node_id":"a%d","kind":"tool","name":"echo","input_map":{"text":"join('',[input.t,input.t,input.t,input.t])"}}`, i))
	}
	return [][2]string{
		{"edit all", tool("edit_file", `{"path":"a.txt","old":"a","new":"`+strings.Repeat("n",
			10<<20)+`","all":true}`)},
		{"edit all lines", tool("edit_file", `{"path":"lines","old":"\n","new":"`+strings.Repeat("n",
			1<<20)+`","all":true}`)},
		{"grep repeats", tool("grep", `{"pattern":"`+strings.Repeat("(a{1000})", 450)+`b"}`)},
		{"grep ranges", tool("grep", `{"pattern":"`+strings.Repeat(`\\PL`, 1300)+`"}`)},
		{"grep optional", tool("grep", `{"pattern":"`+strings.Repeat("([ab]{0,1000})", 200)+`[cd]"}`)},
		{"glob braces", tool("glob", `{"pattern":"`+strings.Repeat("{*,*a}", 600)+`"}`)},
		{"glob wide", tool("glob", `{"pattern":"{`+strings.Repeat("*,", 1500)+`}","limit":100000}`)},
		{"read all", tool("read_file", `{"path":"a.txt","limit":1000000000}`)},
		{"echo large", tool("echo", `{"text":"`+strings.Repeat("y", 14<<20)+`"}`)},
		{"echo escapes", tool("echo", `{"text":"`+strings.Repeat(`\u0001`, 2<<20)+`"}`)},
		{"write large", tool("write_file", `{"path":"w","content":"`+strings.Repeat("y", 14<<20)+`"}`)},
		{"stdin large", tool("run_command", `{"command":["cat"],"stdin":"`+strings.Repeat("y", 12<<20)+`"}`)},
		{"output large", tool("run_command", `{"command":["head","-c","300000000","/dev/zero"]}`)},
		{"map of large calls", each(`"text":"`+seven+`"`, "")},
		{"map of failing calls", each(`"nope":"`+seven+`"`, `,"on_error":"skip"`)},
		{"map of maps", chain(`{"node_id":"a","kind":"map","items_path":"input.l","map_node":"m"},{"node_id":"m","kind":"map","items_path":"input.l","map_node":"e"},` +
			`{"node_id":"e","kind":"tool","name":"echo","input_map":{"text":"input.t"}}`)},
		{"row of calls", strings.Replace(chain(strings.Join(row, ",")), `"entry_node":"a"`, `"entry_node":"a0"`, 1)},
		{"to_string", each(`"text":"to_string([input,input,input,input,input,input,input])"`, "")},
		{"doubling", each(`"text":"to_string(input`+strings.Repeat(" | [@,@]", 60)+`)"`, "")},
		{"replace", each(`"text":"replace(input.t, 'x', input.t)"`, "")},
		{"pad", each("\"text\":\"pad_left('', `1000000000000`)\"", "")},
		{"repeated join", each(`"text":"join(input.t, split(input.t, ''))"`, "")},
		{"search", fmt.Sprintf(`"type":"tool/search/req","query":%q,"limit":1000000`,
			strings.Repeat("read file ", 1<<20))},
		{"line of brackets", `"type":"tool/call/req","tool_name":"echo","arguments":{"text":` +
			strings.Repeat("[", 900) + strings.Repeat("]", 900) + `}`},
	}
}
