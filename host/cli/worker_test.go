package cli_test

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

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
		"a command":              {args: `worker -- sh|-c|cat; echo " ${A2E_TASK_ID} $1"|x|${HOME}`, agent: "a2e", summary: "work t ${HOME}"},
		"a command over workers": {config: configured, args: "worker -- echo|from the line", agent: "a", model: "m", summary: "from the line"},
		"workers of the config":  {config: configured, args: "worker --agent-id b --model n --max-tasks 2", agent: "b", model: "n", summary: "from the config"},
		"none":                   {args: "worker", code: 3, fail: "there is no worker: give a command"},
		"none in the config":     {config: "plugins:\n  - {name: x, type: multi_agent}\n", args: "worker", code: 3, fail: "there is no worker: give a command"},
		"wrong options":          {config: "plugins:\n  - {name: x, type: multi_agent, metadata: {workers: 7}}\n", args: "worker", code: 3, fail: "workers"},
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
				if a.Worker.AgentID != c.agent || a.Worker.Model != c.model || !a.Session.SessionFresh || r.Summary != c.summary {
					t.Errorf("announce %+v, result %+v", a, r)
				}
			}
			h.stdin.Close()
			if code := h.exit(); code != c.code || !strings.Contains(h.stderr.String(), c.fail) {
				t.Errorf("exit status %d, stderr: %s", code, h.stderr.String())
			}
		})
	}
}
