package cli_test

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

// TestWorker: the command line counts for more than the config, also where it looks like a
// variable of one; without any worker it says so.
func TestWorker(t *testing.T) {
	const line = `{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"t"},"brief":"work"}` + "\n"
	const configured = "fleet: {agent_id: a, model: m, max_tasks: 7}\nplugins:\n  - {name: x, type: multi_agent, metadata: {workers: [{name: w, command: [echo, from the config]}]}}\n"
	for name, c := range map[string]struct {
		config, args  string
		agent, model  string // as announced
		summary, fail string
		code          int
	}{
		"a command":              {args: `worker --no-contract -- sh|-c|cat; echo " ${A2E_TASK_ID} $1"|x|${HOME}`, agent: "a2e", summary: "work t ${HOME}"},
		"a command over workers": {config: configured, args: "worker -- echo|from the line", agent: "a", model: "m", summary: "from the line"},
		"workers of the config":  {config: configured, args: "worker --agent-id b --model n --max-tasks 2", agent: "b", model: "n", summary: "from the config"},
		"none":                   {args: "worker", code: 3, fail: "no worker is configured; give --llm URL --model MODEL, a command as in"},
		"none in the config":     {config: "plugins:\n  - {name: x, type: multi_agent}\n", args: "worker", code: 3, fail: "no worker is configured; give --llm URL --model MODEL, a command as in"},
		"wrong options":          {config: "plugins:\n  - {name: x, type: multi_agent, metadata: {workers: 7}}\n", args: "worker", code: 3, fail: "workers"},
		"only one":               {config: strings.Replace(configured, "[{", "[{name: v, command: [echo, the first]}, {", 1), args: "worker --only w", agent: "a", model: "m", summary: "from the config"},
		"only one that is not":   {config: configured, args: "worker --only x", code: 3, fail: `there is no worker "x"`},
		"two of them":            {args: "worker --llm http://127.0.0.1:9/v1 --model m -- cat", code: 2, fail: "--llm: a command stands behind --"},
		"no isolation":           {args: "worker --isolation some -- cat", code: 2, fail: `--isolation "some": should be worktree or none`},
		"too many":               {args: "worker --max-tasks 5000 -- cat", code: 2, fail: "between 1 and 1024"},
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
				assert.That(t, a.Worker.AgentID == c.agent && a.Worker.Model == c.model && a.Session.SessionFresh && r.Summary == c.summary,
					"announce %+v, result %+v", a, r)
			}
			h.stdin.Close()
			if code := h.exit(); code != c.code || !strings.Contains(h.stderr.String(), c.fail) {
				t.Errorf("exit status %d, stderr: %s", code, h.stderr.String())
			}
		})
	}
}

// A whole worker in one command: a model with the host's tools, and no config.
func TestWorkerOfOneCommand(t *testing.T) {
	dir := workDir(t)
	t.Setenv("A2E_LLM_API_KEY", "the-key-of-the-model")
	model := llm.New(t,
		llm.Calls(llm.Call{Name: "write_file", Arguments: `{"path":"notes.txt","content":"kept"}`}).Used(100, 10),
		llm.Text("I kept it.").Used(200, 5),
	)
	h := start(t, dir, "worker", "--llm", model.URL, "--model", "m-1", "--tools", "*_file,grep", "--max-turns", "5", "--thinking", "high")
	var a fleet.Announce
	var r fleet.Result
	for _, dst := range []any{&a, &r} {
		text, err := h.stdout.ReadBytes('\n')
		must.OK(t, err, json.Unmarshal(text, dst))
		h.send(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"t"},"requirements":{"required_capabilities":["write_file"]},"brief":"keep this"}`)
	}
	h.stdin.Close()
	if h.exit(); a.Worker.Model != "m-1" || !slices.Contains(a.Capabilities.Tools, "write_file") || slices.Contains(a.Capabilities.Tools, "run_command") {
		t.Errorf("it announced %+v", a)
	}
	text, err := os.ReadFile(filepath.Join(dir, "notes.txt"))
	if r.Status != fleet.StatusDone || r.Summary != "I kept it." || r.TokensSpent != 315 || r.TokensEstimated || string(text) != "kept" {
		t.Errorf("%+v, and the file has %q (%v)", r, text, err)
	}
	req := model.Requests()[0]
	if req.Model != "m-1" || req.Effort != "high" || req.Header.Get("Authorization") != "Bearer the-key-of-the-model" || !strings.Contains(req.Last("user"), "keep this") ||
		strings.Join(slices.Sorted(slices.Values(req.Tools)), " ") != "edit_file grep read_file write_file" {
		t.Errorf("the model was asked %+v", req)
	}
}
