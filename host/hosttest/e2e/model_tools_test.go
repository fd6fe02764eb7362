//go:build linux

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
)

// TestHands: the tools that a model has beside the host's answer right and wrong calls, and leave no command running.
func TestHands(t *testing.T) {
	t.Parallel()
	steps := []struct{ tool, args, want string }{
		{"bash", `{"command":"echo a; echo b >&2; exit 3"}`, `error: exit status 3\n{"stdout":"a\\n","stderr":"b\\n"}`},
		{"bash", `{"command":"echo before; sleep 60","timeout":200}`, `(?s)error: timeout: .*"stdout":"before\\n"`},
		{"bash", `{"command":" "}`, `error: schema_violation: command should not be empty`},
		{"bash", `{"command":"true","timeout":600001}`, `timeout is 600001; it should be at most 600000 milliseconds here`},
		{"bash", `{"command":7}`, `error: schema_violation: the arguments do not fit`},
		{
			"bash", `{"command":"echo one; echo two; exec sleep 3061","run_in_background":true}`,
			`{"bash_id":"p1-proc","state":"running"}`,
		},
		{"bash_output", `{"bash_id":"p9"}`, `there is no command "p9" in the background; there are p1-proc`},
		{"bash_output", `{"bash_id":"p1-proc","filter":"("}`, `filter is not a regular expression`},
		{"bash", `{"command":"sleep 0.3"}`, `{"stdout":"","stderr":""}`},
		{"bash_output", `{"bash_id":"p1-proc","filter":"tw"}`, `{"output":"two\\n","state":"running"}`},
		{"kill_bash", `{"shell_id":"p1-proc"}`, `{"shell_id":"p1-proc","state":"killed"}`},
		{"kill_bash", `{"shell_id":"p2"}`, `there is no command "p2" in the background`},
		{"bash", `{"command":"exec sleep 3062","run_in_background":true}`, `{"bash_id":"p2-proc","state":"running"}`},
		{
			"todo_write", `{"todos":[{"content":"look","status":"completed"},{"content":"write","status":"in_progress"}]}`,
			`{"completed":1,"in_progress":1,"pending":0}`,
		},
		{
			"todo_write", `{"todos":[{"content":"look","status":"begun"}]}`,
			`the status of step 1 is "begun"; it should be`,
		},
		{"todo_write", `{"todos":[{"content":"look"},{"content":" look"}]}`, `the step "look" is there twice`},
		{"bash", `{"command":"touch planned; while [ ! -e go ]; do sleep 0.05; done"}`, `{"stdout":"","stderr":""}`},
		{
			"todo_write", `{"todos":[{"content":"write","status":"completed"}]}`,
			`{"completed":1,"in_progress":0,"pending":0}`,
		},
		{
			"memory_store", `{"key":"branch","content":"Deploys come from eu-west","tags":["ops"]}`,
			`{"stored":"branch"}`,
		},
		{"memory_store", `{"key":"","content":"x"}`, `key and content should not be empty`},
		{"memory_search", `{"query":"deploys"}`, `{"entries":\[{"key":{"name":"branch"},"content":"Deploys come from eu-west",` +
			`"tags":\["ops"\],"score":0\.\d+}\],"total":1}`},
		{"memory_search", `{"query":"deploys","tags":["other"]}`, `{"entries":\[\],"total":0}`},
		{"skill", `{"skill":"greet","arguments":{"name":"Ada"}}`, `Hello Ada`},
		{"skill", `{"skill":"none"}`, `error: `},
	}
	var script []llm.Reply
	for _, s := range steps {
		script = append(script, llm.Calls(llm.Call{Name: s.tool, Arguments: s.args}))
	}
	model := llm.New(t, append(script, llm.Text("done"))...)
	dir := workDir(t)
	modelConfig(t, dir, model, "", "")
	skill := filepath.Join(dir, "ws", ".a2e", "skills", "greet")
	must.OK(t, os.MkdirAll(skill, 0o755), os.WriteFile(filepath.Join(skill, "SKILL.md"), []byte("---\nname: greet\n"+
		"description: Greets somebody.\narguments: [name]\n---\nHello $name\n"), 0o600))
	chat := start(t, dir, "chat")
	chat.send("go")
	must.OK(t, chat.stdin.Close())
	poll.Eventually(t, "the model's list", func() bool {
		_, err := os.Stat(filepath.Join(dir, "ws", "planned"))
		return err == nil
	})
	board := run(t, dir, nil, "plan", "board").want(t, 0, "").stdout
	assert.That(t, strings.Contains(board, "todo of coder") && strings.Contains(board, "in_progress (1)\n- write"),
		"%s", board)
	must.OK(t, os.WriteFile(filepath.Join(dir, "ws", "go"), nil, 0o600))
	chat.exit()
	requests := model.Requests()
	for i, s := range steps {
		got := requests[i+1].Last("tool")
		assert.That(t, regexp.MustCompile(strings.ReplaceAll(s.want, `{"`, `\{"`)).MatchString(got),
			"%s %s:\n%s\nwant %s", s.tool, s.args, got, s.want)
	}
	left := run(t, dir, nil, "plan", "list").want(t, 0, "").stdout
	assert.That(t, !strings.Contains(left, "todo of"), "the list is left: %s", left)
	assert.Equal(t, processes(t, "sleep\x003061")+processes(t, "sleep\x003062"), 0, "commands left in the background")
}

// TestBackgroundOutput: a model reads the whole output of a command in the background, piece by piece. Its timeout ends
// the command. A task may have 32 of them; another one takes the place of the oldest that has ended.
func TestBackgroundOutput(t *testing.T) {
	t.Parallel()
	const lines = 12_000
	begin := func(command string) llm.Call {
		return llm.Call{Name: "bash", Arguments: fmt.Sprintf(`{"command":%q,"run_in_background":true}`, command)}
	}
	reads := 0 // each read differs, as a model that repeats itself is told so
	read := func(id string) llm.Reply {
		reads++
		return llm.Calls(llm.Call{Name: "bash", Arguments: fmt.Sprintf(`{"command":"sleep 0.1; : %d"}`, reads)},
			llm.Call{Name: "bash_output", Arguments: fmt.Sprintf(`{"bash_id":%q}`, id)})
	}
	type piece struct {
		Output string `json:"output"`
		State  string `json:"state"`
		Unread int    `json:"unread_bytes"`
	}
	last := func(r *llm.Request) (p piece) {
		err := json.Unmarshal([]byte(r.Last("tool")), &p)
		assert.That(t, err == nil, "%v: %.200s", err, r.Last("tool"))
		return p
	}
	var output strings.Builder
	var many, forgotten string
	step, sleeps := 0, 0
	model := llm.New(t)
	model.Answer(func(r *llm.Request) llm.Reply {
		switch step {
		case 0:
			step = 1
			return llm.Calls(begin(fmt.Sprintf("seq %d; printf end", lines)),
				llm.Call{Name: "bash", Arguments: `{"command":"exec sleep 3081","run_in_background":true,"timeout":1000}`},
				llm.Call{Name: "bash_output", Arguments: `{"bash_id":"p1-proc"}`})
		case 1:
			p := last(r)
			output.WriteString(p.Output)
			if p.State == "running" || p.Unread > 0 {
				return read("p1-proc")
			}
			step = 2
			return read("p2-proc")
		case 2:
			if last(r).State == "running" {
				return read("p2-proc")
			}
		case 4:
			forgotten = r.Last("tool")
			step++
			return llm.Calls(begin("exec sleep 3083"), begin("exec sleep 3084"))
		case 5:
			many = r.Last("tool")
			return llm.Text("done")
		}
		step++
		more := make([]llm.Call, 16) // the most that a round may have
		for i := range more {
			sleeps++
			more[i] = begin(fmt.Sprintf("exec sleep 3082.%d", sleeps))
		}
		if step == 4 {
			more[15] = llm.Call{Name: "bash_output", Arguments: `{"bash_id":"p1-proc"}`}
		}
		return llm.Calls(more...)
	})
	dir := workDir(t)
	modelConfig(t, dir, model, ", max_turns: 200", "  proc: {max_procs: 100}\n")
	chat := start(t, dir, "chat")
	chat.send("go")
	must.OK(t, chat.stdin.Close())
	chat.exit()
	var want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, i+1)
	}
	assert.Equal(t, output.String(), want.String()+"end", "the output")
	assert.That(t, strings.Contains(forgotten, `no command "p1-proc"`), "%s", forgotten)
	assert.That(t, strings.Contains(many, "32 commands run in the background already"), "%s", many)
	assert.Equal(t, processes(t, "sleep\x00308"), 0, "commands left in the background")
}

// TestHandsAllowed: a model gets those of these tools that its worker lists, its agent may use and the host serves.
func TestHandsAllowed(t *testing.T) {
	t.Parallel()
	const all = "bash bash_output kill_bash todo_write memory_search memory_store"
	for name, c := range map[string]struct{ worker, config, child, want string }{
		"all":    {child: `"tool_scope":"shared"`, want: all},
		"listed": {worker: `, tools: [read_file, bash, "memory_*"]`, want: "bash memory_search memory_store"},
		"none":   {worker: `, tools: [read_file]`},
		"off": {
			config: "  proc: {enabled: false}\n  planning: {enabled: false}\n",
			want:   "bash memory_search memory_store",
		},
		"no command": {config: "  tools: {deny: [run_command]}\n", want: strings.TrimPrefix(all, "bash ")},
		"restricted": {child: `"capabilities":["read_file","planning"]`, want: "todo_write memory_search memory_store"},
		"by name":    {child: `"capabilities":["bash"]`, want: "bash memory_search memory_store"},
		"isolated":   {child: `"tool_scope":"isolated"`, want: "memory_search memory_store"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model := llm.New(t, llm.Text("done"))
			dir := workDir(t)
			modelConfig(t, dir, model, c.worker, c.config)
			l := start(t, dir)
			l.send(`{"type":"handshake/req","id":"h","a2e":"1.0","agent_id":"test","agent_caps":["multi_agent"]}`,
				`{"type":"multi_agent/spawn","id":"s","name":"kid","metadata":{`+c.child+`}}`,
				`{"type":"multi_agent/delegate","id":"d","subagent_id":"kid","task_name":"x","instruction":"x"}`,
				`{"type":"multi_agent/await","id":"a","subagent_id":"kid"}`)
			l.answer("a")
			var got []string
			for _, name := range model.Requests()[0].Tools {
				if strings.Contains(all, name) {
					got = append(got, name)
				}
			}
			assert.Equal(t, strings.Join(got, " "), c.want, "the tools")
		})
	}
}

// TestHandsOfAChild: a child with isolated memory has a memory of its own, also for the tools of its model. In a
// worktree of its own a task's commands run there, and none in the background.
func TestHandsOfAChild(t *testing.T) {
	t.Parallel()
	model := llm.New(t)
	model.Answer(func(r *llm.Request) llm.Reply {
		args := strings.SplitN(r.Last("user")[strings.LastIndex(r.Last("user"), "DO ")+3:], " ", 2)
		if r.Rounds() == 0 {
			return llm.Calls(llm.Call{Name: args[0], Arguments: args[1]})
		}
		return llm.Text(r.Last("tool"))
	})
	dir := workDir(t)
	modelConfig(t, dir, model, ", max_tasks: 4", "fleet: {isolation: worktree}\n")
	ws := filepath.Join(dir, "ws")
	wallGit(t, ws, "init", "-q", "-b", "trunk")
	must.OK(t, os.WriteFile(filepath.Join(ws, "in-trunk"), nil, 0o600))
	wallGit(t, ws, "add", ".")
	wallGit(t, ws, "commit", "-q", "-m", "x")
	l := start(t, dir)
	l.send(`{"type":"handshake/req","id":"h","a2e":"1.0","agent_id":"test","agent_caps":["multi_agent","memory"]}`)
	spawn := func(name, scope string) {
		l.send(fmt.Sprintf(`{"type":"multi_agent/spawn","id":%q,"name":%[1]q,"metadata":{"memory_scope":%q}}`, name,
			scope))
		l.answer(name)
	}
	do := func(child, what string) string {
		l.send(fmt.Sprintf(`{"type":"multi_agent/delegate","id":"d","subagent_id":%q,"task_name":"x","instruction":%q}`,
			child, "DO "+what), fmt.Sprintf(`{"type":"multi_agent/await","id":"a","subagent_id":%q}`, child))
		return fmt.Sprint(l.answer("a"))
	}
	spawn("own", "isolated")
	spawn("same", "shared")
	spawn("other", "isolated")
	do("own", `memory_store {"key":"k","content":"the cat is grey"}`)
	do("same", `memory_store {"key":"k","content":"the cat is black"}`)
	for child, want := range map[string]string{"own": "grey", "same": "black", "other": `"total":0`} {
		got := do(child, `memory_search {"query":"cat"}`)
		assert.That(t, strings.Contains(got, want) && (want != "grey" || !strings.Contains(got, "black")), "%s: %s",
			child, got)
	}
	task := `{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"t"},"brief":"DO bash {\"command\":\"touch made; ls\"}"}`
	told := run(t, dir, []byte(task), "worker").want(t, 0, "").stdout
	_, err := os.Stat(filepath.Join(ws, "made"))
	assert.That(t, os.IsNotExist(err) && strings.Contains(told, "in-trunk"), "%v, %s", err, told)
	tools := model.Requests()[len(model.Requests())-1].Tools
	assert.That(t, !strings.Contains(fmt.Sprint(tools), "bash_output"), "%v", tools)
}
