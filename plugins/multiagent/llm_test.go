package multiagent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
	"a2e/plugins/multiagent/worker"
	"a2e/plugins/tools"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// modelStage returns a host that has the tools of a workspace, and workers that are models.
func modelStage(t *testing.T, workers ...worker.Worker) (*stage, *Plugin) {
	t.Helper()
	dir := t.TempDir()
	env := host.Env{Workspace: dir, Log: zerolog.Nop(), ToolBox: func(o host.ToolBoxOptions) (host.ToolBox, error) {
		return tools.New("box", tools.DefaultOptions(), host.Env{Workspace: o.Workspace})
	}}
	plain := must.Get(tools.New("tools", tools.DefaultOptions(), env))(t)
	s, agents := &stage{t: t, dir: dir}, newPlugin(t, dir, options(workers...), env)
	s.Pair = hosttest.New(t, host.Options{Plugins: []host.Plugin{plain, agents}})
	s.Handshake()
	return s, agents
}

// coder returns a worker whose model is behind a test server.
func coder(s *llm.Server) worker.Worker {
	return worker.Worker{Name: "coder", LLM: agent.LLM{URL: s.URL, Model: "test"}, Contract: new(bool), MaxTasks: 8}
}

// shown returns a result as a line for comparisons.
func shown(r *fleet.Result) string {
	text := fmt.Sprintf("%s %d", r.Status, r.TokensSpent)
	if r.TokensEstimated {
		text = string(r.Status) + " ~"
	}
	for _, part := range []string{r.Summary, r.Error, string(r.Remaining)} {
		if part != "" {
			text += " | " + part
		}
	}
	if r.BlockedReason != nil {
		text += " | " + *r.BlockedReason
	}
	return text
}

// TestModelResults: each way in which a model ends a task becomes the right result.
func TestModelResults(t *testing.T) {
	t.Parallel()
	write := llm.Reply{Text: []string{"so"}, Calls: []llm.Call{{
		Name:      "write_file",
		Arguments: `{"path":"a","content":"b"}`,
	}}, Input: 50, Output: 10}
	for name, c := range map[string]struct {
		script []llm.Reply
		worker func(*worker.Worker)
		task   func(*agent.WorkerTask)
		want   string
	}{
		"a text": {script: []llm.Reply{llm.Text("all", " done").Used(5, 2)}, want: "done 7 | all done"},
		"a result": {script: []llm.Reply{llm.Text("So:\n```json\n{\n \"status\": \"partial\",\n "+
			"\"summary\": \"half\", \"tokens_spent\": 1,\n \"remaining\": [1]\n}\n```").Used(5, 2)}, want: "partial 7 | half | [1]"},
		"a result in a talk": {
			script: []llm.Reply{llm.Text(`{"status":"done"}`).Used(5, 2)},
			task:   func(t *agent.WorkerTask) { t.Talk = &agent.Talk{} }, want: `done 7 | {"status":"done"}`,
		},
		"as JSON": {
			script: []llm.Reply{llm.Text("hi").Used(5, 2)},
			task:   func(t *agent.WorkerTask) { t.Task.ReplySchema = fleet.ReplyJSON }, want: `done 7 | {"text":"hi"}`,
		},
		"blocked": {script: []llm.Reply{llm.Text(`{"status":"blocked","blocked_reason":"no disk"}`).Used(5,
			2)}, want: "blocked 7 | no disk"},
		"with a tool": {script: []llm.Reply{write, llm.Text("done").Used(70, 5)}, want: "done 135 | done"},
		"at the model's limit": {
			script: []llm.Reply{{Text: []string{"so"}, Finish: "length", Input: 3, Output: 2}},
			want:   `partial 5 | so | {"reason":"max_tokens","detail":"the model came to a limit of its own before the end of its answer","calls_not_made":[]}`,
		},
		"no turns left": {
			script: []llm.Reply{write}, worker: func(w *worker.Worker) { w.MaxTurns = 1 },
			want: `partial 60 | so | {"reason":"max_turns","detail":"the model did not finish within 1 turn (max_turns)","calls_not_made":[]}`,
		},
		"worker's budget": {
			script: []llm.Reply{write}, worker: func(w *worker.Worker) { w.TokenBudget = 60 },
			task: func(t *agent.WorkerTask) { t.Task.TokenBudget = 1000 },
			want: `partial 60 | so | {"reason":"token_budget","detail":"the token budget of 60 is used up: 60 were spent","calls_not_made":["write_file"]}`,
		},
		"task's budget": {
			script: []llm.Reply{write}, worker: func(w *worker.Worker) { w.TokenBudget = 1000 },
			task: func(t *agent.WorkerTask) { t.Task.TokenBudget = 59 },
			want: `partial 60 | so | {"reason":"token_budget","detail":"the token budget of 59 is used up: 60 were spent","calls_not_made":["write_file"]}`,
		},
		"a runaway answer": {
			script: []llm.Reply{{Text: []string{strings.Repeat("x", 100), "y"}, Stall: true}},
			worker: func(w *worker.Worker) { w.TokenBudget = 20 }, want: `partial ~ | ` + strings.Repeat("x", 100) +
				` | {"reason":"token_budget","detail":"the token budget of 20 was used up while the model answered","calls_not_made":[]}`,
		},
		"a refusal": {
			script: []llm.Reply{{Refusal: "no", Input: 5, Output: 2}},
			want:   "error 7 | no | the model declined: no",
		},
		"no such model": {script: []llm.Reply{llm.Fail(404, "no model test")}, want: "error 0 | worker " +
			"coder: the model at URL: status 404 Not Found: no model test"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := llm.New(t, c.script...)
			w := coder(server)
			if c.worker != nil {
				c.worker(&w)
			}
			task := agent.WorkerTask{}
			task.Task.TaskID, task.Brief = "id", "do it"
			if c.task != nil {
				c.task(&task)
			}
			_, agents := modelStage(t, w)
			r := must.Get(agents.RunTask(agents.ctx, task))(t)
			assert.Equal(t, strings.ReplaceAll(shown(r), server.URL+"/chat/completions", "URL"), c.want)
		})
	}
}

// TestModelTimeout: a model that does not end in time fails its task, and the result has the text so far.
func TestModelTimeout(t *testing.T) {
	t.Parallel()
	for timeout := time.Second; ; timeout *= 2 { // on a busy machine, the model may say nothing in the first second
		w := coder(llm.New(t, llm.Reply{Text: []string{"half"}, Stall: true}))
		w.Timeout = timeout
		_, agents := modelStage(t, w)
		task := agent.WorkerTask{}
		task.Task.TaskID, task.Brief = "id", "do it"
		got, want := shown(must.Get(agents.RunTask(agents.ctx, task))(t)), fmt.Sprintf("error ~ | half | timeout: "+
			"the worker may take %s for a task", timeout)
		if got == want {
			return
		}
		must.That(t, timeout < hosttest.Patience, "got %s, want %s", got, want)
	}
}

// TestChildWithAModel: a child agent can be a model: its text becomes events, a message reaches it with its next
// request, and a cancel ends its request at once.
func TestChildWithAModel(t *testing.T) {
	t.Parallel()
	server := llm.New(t, llm.Reply{Text: []string{"one\ntw", "o\nth"}, Stall: true, Then: []string{"ree"}},
		llm.Text("I heard."), llm.Reply{Text: []string{"never"}, Stall: true})
	s, _ := modelStage(t, coder(server))
	child := ask[protocol.AgentSpawnResponse](s, protocol.TypeAgentSpawnReq, `{"name":"a"}`).SubagentID
	ask[protocol.AgentDelegateResponse](s, protocol.TypeAgentDelegateReq,
		fmt.Sprintf(`{"subagent_id":%q,"task_name":"x","instruction":"do it"}`, child))
	server.AwaitStall(t)
	got := ask[protocol.SubagentMessageResponse](s, protocol.TypeSubagentMessageReq,
		fmt.Sprintf(`{"from_subagent_id":"","to_subagent_id":%q,"message":{"type":"note","content":"hurry"}}`, child))
	assert.That(t, got.Delivered, "the message was not delivered")
	server.Release()
	done := ask[protocol.AgentAwaitResponse](s, protocol.TypeAgentAwaitReq, fmt.Sprintf(`{"subagent_id":%q}`, child))
	assert.That(t, done.Status == protocol.SubagentCompleted && strings.Contains(fmt.Sprint(done.Result), "I heard."),
		"%+v", done)
	asked := server.Requests()
	last := asked[len(asked)-1].Last("user")
	assert.That(t, strings.Contains(last, "hurry") && len(asked) == 2, "the model was asked %d times, the last time "+
		"with %s", len(asked), last)
	var lines []string
	hosttest.Eventually(t, "four lines of output", func() bool {
		lines = nil
		for _, m := range s.Messages() {
			if m.Type == protocol.TypeSubagentEvent && m.Get("/content/stream") == "stdout" {
				lines = append(lines, m.Get("/content/text"))
			}
		}
		return len(lines) >= 4
	})
	assert.Diff(t, []string{"one", "two", "three", "I heard."}, lines)
	ask[protocol.AgentDelegateResponse](s, protocol.TypeAgentDelegateReq,
		fmt.Sprintf(`{"subagent_id":%q,"task_name":"x","instruction":"again"}`, child))
	server.AwaitStall(t)
	s.Call(protocol.TypeSubagentCancelReq, fmt.Sprintf(`{"subagent_id":%q}`, child))
	hosttest.Eventually(t, "the request ends", func() bool { return !server.Stalls() })
}

// TestModelElsewhere: if the model of one worker cannot be reached, another worker gets the task. The tools of a task
// with its own workspace work in that workspace.
func TestModelElsewhere(t *testing.T) {
	t.Parallel()
	server := llm.New(t, llm.Calls(llm.Call{Name: "write_file", Arguments: `{"path":"a","content":"b"}`},
		llm.Call{Name: "list_dir", Arguments: `{"path":"."}`}), llm.Text("ok"))
	away := llm.New(t, llm.Fail(401, "who?"))
	gone := coder(away)
	gone.Name = "gone"
	s, agents := modelStage(t, gone, coder(server))
	task := agent.WorkerTask{Workspace: t.TempDir()}
	task.Task.TaskID, task.Brief = "id", "do it"
	r, err := agents.RunTask(agents.ctx, task)
	must.That(t, err == nil && r.Status == fleet.StatusDone, "%+v, %v", r, err)
	if text, err := os.ReadFile(filepath.Join(task.Workspace, "a")); err != nil || string(text) != "b" {
		t.Errorf("%s, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the workspace of the host was changed: %v", err)
	}
	infos := agents.Workers()
	assert.That(t, len(away.Requests()) == 1 && infos[1].Mode == worker.ModeLLM && infos[1].Model == "test" &&
		infos[1].HostTools && strings.Join(infos[1].Extensions, " ") == "steer cancel", "%+v", infos)
}
