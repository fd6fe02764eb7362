package e2e_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
	"a2e/protocol/fleet"
)

// TestWorker: the command line wins over the config, and its words are no variables of the config. Without any worker
// the command fails and says so.
func TestWorker(t *testing.T) {
	const line = `{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"t"},"brief":"work"}` + "\n"
	const configured = "fleet: {agent_id: a, model: m, max_tasks: 7}\nplugins:\n  - {name: x, type: multi_agent, " +
		"metadata: {workers: [{name: w, command: [echo, from the config]}]}}\n"
	for name, c := range map[string]struct {
		config, args  string
		agent, model  string // as announced
		summary, fail string
		code          int
	}{
		"a command": {
			args:  `worker --no-contract -- sh|-c|cat; echo " ${A2E_TASK_ID} $1"|x|${HOME}`,
			agent: "a2e", summary: "work t ${HOME}",
		},
		"a command over workers": {
			config: configured, args: "worker -- echo|from the line", agent: "a", model: "m",
			summary: "from the line",
		},
		"workers of the config": {
			config: configured, args: "worker --agent-id b --model n --max-tasks 2", agent: "b",
			model: "n", summary: "from the config",
		},
		"none": {args: "worker", code: 3, fail: "no worker is configured; give --llm URL --model " +
			"MODEL, a command as in"},
		"none in the config": {
			config: "plugins:\n  - {name: x, type: multi_agent}\n", args: "worker", code: 3,
			fail: "no worker is configured; give --llm URL --model MODEL, a command as in",
		},
		"wrong options": {
			config: "plugins:\n  - {name: x, type: multi_agent, metadata: {workers: 7}}\n",
			args:   "worker", code: 3, fail: "workers",
		},
		"only one": {config: strings.Replace(configured, "[{", "[{name: v, command: [echo, the "+
			"first]}, {", 1), args: "worker --only w", agent: "a", model: "m", summary: "from the config"},
		"only one that is not": {
			config: configured, args: "worker --only x", code: 3,
			fail: `there is no worker "x"`,
		},
		"two of them": {
			args: "worker --llm http://127.0.0.1:9/v1 --model m -- cat", code: 2,
			fail: "--llm: a command stands behind --",
		},
		"no isolation": {
			args: "worker --isolation some -- cat", code: 2,
			fail: `--isolation "some": should be worktree or none`,
		},
		"too many": {args: "worker --max-tasks 5000 -- cat", code: 2, fail: "between 1 and 1024"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := workDir(t)
			if c.config != "" {
				writeConfig(t, dir, c.config)
			}
			args := strings.Fields(c.args)
			if flags, words, ok := strings.Cut(c.args, "-- "); ok {
				args = append(append(strings.Fields(flags), "--"), strings.Split(words, "|")...)
			}
			h := start(t, dir, args...)
			if c.code == 0 {
				var a fleet.Announce
				var r fleet.Result
				h.send(strings.TrimSuffix(line, "\n"))
				for _, dst := range []any{&a, &r} {
					text, err := h.stdout.ReadBytes('\n')
					if err == nil {
						err = json.Unmarshal(text, dst)
					}
					if err != nil {
						t.Fatalf("%v: %s; stderr: %s", err, text, h.stderr.String())
					}
				}
				assert.That(t, a.Worker.AgentID == c.agent && a.Worker.Model == c.model && a.Session.SessionFresh &&
					r.Summary == c.summary,
					"announce %+v, result %+v", a, r)
			}
			h.stdin.Close()
			if code := h.exit(); code != c.code || !strings.Contains(h.stderr.String(), c.fail) {
				t.Errorf("exit status %d, stderr: %s", code, h.stderr.String())
			}
		})
	}
}

// TestWorkerOfOneCommand: one command without a config starts a worker: a model with the host's tools.
func TestWorkerOfOneCommand(t *testing.T) {
	dir := workDir(t)
	t.Setenv("A2E_LLM_API_KEY", "the-key-of-the-model")
	model := llm.New(t,
		llm.Calls(llm.Call{Name: "write_file", Arguments: `{"path":"notes.txt","content":"kept"}`}).Used(100, 10),
		llm.Text("I kept it.").Used(200, 5),
	)
	h := start(t, dir, "worker", "--llm", model.URL, "--model", "m-1", "--tools", "*_file,grep", "--max-turns", "5",
		"--thinking", "high")
	var a fleet.Announce
	var r fleet.Result
	for _, dst := range []any{&a, &r} {
		text, err := h.stdout.ReadBytes('\n')
		must.OK(t, err, json.Unmarshal(text, dst))
		h.send(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"t"},"requirements":{"required_capabilities":["write_file"]},"brief":"keep this"}`)
	}
	h.stdin.Close()
	if h.exit(); a.Worker.Model != "m-1" || !slices.Contains(a.Capabilities.Tools, "write_file") ||
		slices.Contains(a.Capabilities.Tools, "run_command") {
		t.Errorf("it announced %+v", a)
	}
	text, err := os.ReadFile(filepath.Join(dir, "notes.txt"))
	assert.That(t, r.Status == fleet.StatusDone && r.Summary == "I kept it." && r.TokensSpent == 315 &&
		!r.TokensEstimated && string(text) == "kept", "%+v, and the file has %q (%v)", r, text, err)
	req := model.Requests()[0]
	if req.Model != "m-1" || req.Effort != "high" || req.Header.Get("Authorization") != "Bearer the-key-of-the-model" ||
		!strings.Contains(req.Last("user"), "keep this") ||
		strings.Join(slices.Sorted(slices.Values(req.Tools)), " ") != "edit_file grep read_file write_file" {
		t.Errorf("the model was asked %+v", req)
	}
}

// guess is a program that serves an environment: an episode is done once its number is above 3.
const guess = `import json, sys
n = 0
for line in sys.stdin:
    m = json.loads(line)
    obs = lambda done: {"obs": {"episode_id": "e", "step_num": 0, "state": {"n": n}, "done": done, "reward": n, "created_at": 1, "metadata": {}}}
    if m["type"] == "env/space/req":
        body = {"action_space": {"type": "object"}, "state_schema": {"type": "object"}}
    elif m["type"] == "env/step/req":
        n += m["action"]["by"]
        body = obs(n > 3)
    else:
        n = 0 if m["type"] == "env/reset/req" else n
        body = {"closed": True} if m["type"] == "env/close/req" else {"render": None} if m["type"] == "env/render/req" else obs(False)
    print(json.dumps({"a2e": "1.0", "type": m["type"].replace("/req", "/resp"), "req_id": m["id"], **body}), flush=True)
`

// TestEnvByHand: an episode goes on from command to command if it can be kept. An episode of a program ends with its
// command, so that takes all actions.
func TestEnvByHand(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	writeFile(t, dir, "guess.py", guess)
	writeConfig(t, dir, "state_dir: state\nplugins:\n  maze: {type: env, env: gridworld, gridworld: {width: 3, "+
		"height: 3}}\n  count: {type: env}\n  guess: {type: env, env: exec, exec: {command: [python3, guess.py]}}\n")
	out := run(t, dir, nil, "env", "list").want(t, 0, "a config can have more")
	for _, row := range []string{"maze   gridworld    are kept ", "inc dec noop\n", "guess  exec         end with " +
		"the command "} {
		assert.Contains(t, out.stdout, row, "no …")
	}
	first := run(t, dir, nil, "env", "reset", "count", "--seed=-3").want(t, 0, "").stdout
	episode, rest, _ := strings.Cut(first, " ")
	assert.Equal(t, rest, " step 0  seed -3\n0 of 5\n")
	out = run(t, dir, nil, "env", "step", episode, "inc", "inc").want(t, 0, "")
	assert.Equal(t, out.stdout, episode+"  step 1  reward 0\n1 of 5\n"+episode+"  step 2  reward 0\n2 of 5\n")
	out = run(t, dir, nil, "env", "step", episode, `{"type":"inc"}`, "--json").want(t, 0, "")
	assert.That(t, strings.Contains(out.stdout, `"count": 3`), "%s", out.stdout)
	out = run(t, dir, nil, "env", "step", episode).want(t, 0, "")
	assert.Equal(t, out.stdout, episode+"  step 3  reward 0\n3 of 5\n", "to look changes nothing")
	run(t, dir, nil, "env", "close", episode).want(t, 0, "")
	for _, c := range []struct {
		args, says string
		code       int
	}{
		{"env step " + episode + " inc", "unknown episode", 1},
		{"env step x dcr by=1 a=2", "unknown episode", 1},
		{"env step x by=1", "comes before any action", 2},
		{"env reset maz", `did you mean "maze"?`, 1},
		{"env reset guess", "a2e env play guess", 1},
		{"env reset maze --option x=1", "--option x: is not known", 1},
		{"env reset count --seed x", "--seed", 2},
	} {
		run(t, dir, nil, strings.Fields(c.args)...).want(t, c.code, c.says)
	}
	out = run(t, dir, []byte("inc\nin\ninc\n"), "env", "play", "count").want(t, 1, `did you mean "inc"?`)
	assert.That(t, strings.HasSuffix(out.stdout, "1 of 5\n"), "in a pipe a wrong line ends it: %s", out.stdout)
	out = run(t, dir, []byte("{\"by\":1}\n/reset\n{\"by\":4}\n"), "env", "play", "guess").want(t, 0, "")
	assert.That(t, strings.Count(out.stdout, `{"n":0}`) == 2 && strings.HasSuffix(out.stdout,
		"reward 4  done\n{\"n\":4}\n"), "%s", out.stdout)
}

// TestMemoryAdd: agents find an entry that a person adds. It replaces an entry with the same key.
func TestMemoryAdd(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	out := run(t, dir, nil, "memory", "add", "deploy", "never on Fridays", "--tag", "ops", "--tag", "rule", "--ttl",
		"2h").want(t, 0, "")
	assert.Equal(t, out.stdout, "{\"id\":\"deploy\"}\n")
	out = run(t, dir, []byte("two\nlines\n"), "memory", "add", `{"topic":"x"}`, "-", "--tier", "episodic", "--agent",
		"w1", "--namespace", "n").want(t, 0, "")
	assert.Equal(t, out.stdout, "{\"topic\":\"x\"}\n")
	run(t, dir, nil, "memory", "add", "deploy", "never at night").want(t, 0, "")
	out = run(t, dir, nil, "memory", "history", `{"id":"deploy"}`).want(t, 0, "")
	assert.That(t, strings.Contains(out.stdout, "ops,rule  "+dir+"  never on Fridays\n") &&
		strings.Contains(out.stdout, "never at night\n"), "%s", out.stdout)
	out = run(t, dir, nil, "memory", "list", "--agent", "w1", "--namespace", "n", "--json").want(t, 0, "")
	assert.Contains(t, out.stdout, `"two\nlines"`)
	key := run(t, dir, nil, "memory", "add", "no key of mine").want(t, 0, "").stdout
	run(t, dir, nil, "memory", "forget", "--key", strings.TrimSpace(key)).want(t, 0, "")
	for says, args := range map[string][]string{
		"quote the text": {"a", "b", "c"}, "the text is empty": {" "}, "the key {a: ": {"{a", "x"},
		"--ttl": {"--ttl", "-1h", "x"}, `"semantic","episodic"`: {"--tier", "working", "x"},
	} {
		run(t, dir, nil, append([]string{"memory", "add"}, args...)...).want(t, 2, says)
	}
}

// TestAgentsList: the list has the workers of the config and what they may do, but none of their secrets.
func TestAgentsList(t *testing.T) {
	dir := workDir(t)
	t.Setenv("AGENT_KEY", "s3cret-key")
	run(t, dir, nil, "agents", "list").want(t, 0, "the config has no worker")
	must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"), []byte(`plugins:
  multi_agent:
    workers:
      - {name: writer, command: [agent, --key, "${AGENT_KEY}"], env: {TOKEN: hidden-token}, network: true, read: [docs], max_tasks: 3, model_tier: large}
      - {name: thinker, llm: {url: "http://127.0.0.1:9/v1", model: qwen3, api_key: other-secret}, tools: ["read_*", grep]}
`), 0o600))
	out := run(t, dir, nil, "-c", "c.yaml", "agents", "list").want(t, 0, "")
	for _, has := range []string{
		"writer   oneshot  large  3        network, read docs ",
		"thinker  llm      qwen3  1        tools read_* grep ", "http://127.0.0.1:9/v1\n",
	} {
		assert.Contains(t, out.stdout, has, "no …")
	}
	out.stdout += run(t, dir, nil, "-c", "c.yaml", "agents", "list", "--json").want(t, 0, "").stdout
	for _, secret := range []string{"s3cret-key", "hidden-token", "other-secret"} {
		assert.That(t, !strings.Contains(out.stdout, secret), "%s is shown: %s", secret, out.stdout)
	}
	assert.Contains(t, out.stdout, `"default": true`)
}
