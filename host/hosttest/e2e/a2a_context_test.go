package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
)

// standIns puts programs that stand in for command-line agents into a folder.
func standIns(t *testing.T, dir string, names ...string) {
	t.Helper()
	script := must.Get(os.ReadFile(filepath.Join(root, "testdata/agents/agent.py")))(t)
	for _, name := range names {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), script, 0o755))
	}
}

// resultIn returns the TASK_RESULT in the artifact of an answer to message/send.
func resultIn(answer map[string]any) map[string]any {
	parts, _ := at(answer, "result/artifacts/0/parts").([]any)
	if len(parts) < 2 {
		return nil
	}
	result, _ := at(parts[1], "data").(map[string]any)
	return result
}

// TestCommandLineAgents: a task in a context goes to the session that the agent has for the context, also after a
// restart of the host. The result has the text, pull request, files and tokens that the agent printed, although the
// agent does not answer in the form that the host asks for.
func TestCommandLineAgents(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"claude", "codex", "opencode", "gemini"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := workDir(t)
			standIns(t, dir, name)
			must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"), []byte(fmt.Sprintf(
				"fleet: {agent_id: w1}\nplugins: {multi_agent: {workers: [{name: w, cli: %s, command: [./%s]}]}}\n",
				name, name)), 0o600))
			begin := func() *web { return listening(t, dir, "worker", "--http", "127.0.0.1:0", "--config", "c.yaml") }
			ask := func(w *web, context, text string) map[string]any {
				t.Helper()
				return w.rpc("message/send", `{"message":{"contextId":"`+context+`","parts":[{"kind":"text","text":"`+text+`"}]}}`)
			}
			w := begin()
			for i, context := range []string{"c1", "c1", "c2", "c1"} {
				if i == 3 {
					w.stop()
					w = begin()
				}
				turn, session := []int{1, 2, 1, 3}[i], name+map[string]string{"c1": "-1", "c2": "-2"}[context]
				answer := ask(w, context, "do it")
				result := resultIn(answer)
				want := fmt.Sprintf("turn %d of %s: see https://github.com/acme/app/pull/%d", turn, session, turn)
				if result == nil || result["summary"] != want || result["tokens_spent"] != 3250.0 ||
					result["tokens_estimated"] != nil ||
					at(result, "artifacts/pr") != fmt.Sprintf("https://github.com/acme/app/pull/%d", turn) ||
					fmt.Sprint(at(result, "artifacts/files_changed")) != "["+name+".txt]" {
					t.Errorf("task %d is answered %v", i+1, answer)
				}
			}
			failed := ask(w, "c3", "fail")
			text, _ := at(failed, "result/status/message/parts/0/text").(string)
			assert.That(t, at(failed, "result/status/state") == "failed" && strings.Contains(text,
				`"error":"rate limit reached`), "a task that fails: %v", failed)
		})
	}
}

// TestSessionsOfPrograms: a program gets the context and the session that it named before. Without a session the flag
// is left out.
func TestSessionsOfPrograms(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	w := listening(t, dir, "worker", "--http", "127.0.0.1:0", "--no-contract", "--", "sh", "-c",
		`printf '{"status":"done","summary":"%s","session_id":"s-%s"}' "$* $A2E_SESSION_ID" "$A2E_CONTEXT_ID"`, "prog",
		"--resume", "{session}", "--about={context}")
	for _, want := range []string{"--about=c1 ", "--resume s-c1 --about=c1 s-c1"} {
		answer := w.rpc("message/send", `{"message":{"contextId":"c1","parts":[{"kind":"text","text":"x"}]}}`)
		assert.Equal(t, resultIn(answer)["summary"], any(want), "the program is told")
	}
}

// TestContextsOfModels: a model gets the messages of its context and of no other, also after a restart of the host.
func TestContextsOfModels(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	model := llm.New(t)
	model.Answer(func(r *llm.Request) llm.Reply {
		var said []string
		for _, m := range r.Messages {
			if m.Role != "system" {
				said = append(said, m.Role+" "+m.Text)
			}
		}
		return llm.Text(fmt.Sprintf("%d messages, the first %q", len(said), said[0][:min(len(said[0]), 12)]))
	})
	must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"), []byte("fleet: {agent_id: w1}\nplugins: {multi_agent: "+
		"{workers: [{name: w, llm: {url: '"+model.URL+
		"', model: m}, contract: false}]}}\n"), 0o600))
	begin := func() *web { return listening(t, dir, "worker", "--http", "127.0.0.1:0", "--config", "c.yaml") }
	w := begin()
	for i, want := range []string{
		"1 messages, the first \"user alpha\"", "3 messages, the first \"user alpha\"",
		"1 messages, the first \"user gamma\"", "5 messages, the first \"user alpha\"",
	} {
		if i == 3 {
			w.stop()
			w = begin()
		}
		context, text := []string{"c1", "c1", "c2", "c1"}[i], []string{"alpha", "beta", "gamma", "delta"}[i]
		answer := w.rpc("message/send", `{"message":{"contextId":"`+context+`","parts":[{"kind":"text","text":"`+text+`"}]}}`)
		assert.Equal(t, resultIn(answer)["summary"], any(want), "message %d", i+1)
	}
}

// TestLongContextsAreSummarised: a long conversation crosses the window of its model again and again. The model still
// knows the first message, as older messages are summed up.
func TestLongContextsAreSummarised(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	model := llm.New(t)
	var summaries atomic.Int64
	largest := new(atomic.Int64)
	model.Answer(func(r *llm.Request) llm.Reply {
		all, size := "", int64(0)
		for _, m := range r.Messages {
			all, size = all+m.Text+"\n", size+int64(len(m.Text))
		}
		largest.Store(max(largest.Load(), size))
		if strings.HasPrefix(r.Messages[0].Text, "You sum up a conversation") {
			summaries.Add(1)
			if strings.Contains(all, "the key is 4711") {
				return llm.Text("the key is 4711")
			}
			return llm.Text("nothing is known")
		}
		if strings.Contains(all, "the key is 4711") {
			return llm.Text("4711 " + strings.Repeat("and so on ", 60))
		}
		return llm.Text("unknown")
	})
	must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"), []byte("fleet: {agent_id: w1}\nplugins: {multi_agent: "+
		"{workers: [{name: w, llm: {url: '"+model.URL+
		"', model: m}, contract: false, context_window: 2000, tools: []}]}}\n"), 0o600))
	w := listening(t, dir, "worker", "--http", "127.0.0.1:0", "--config", "c.yaml")
	ask := func(text string) string {
		answer := w.rpc("message/send", `{"message":{"contextId":"long","parts":[{"kind":"text","text":"`+text+`"}]}}`)
		summary, _ := resultIn(answer)["summary"].(string)
		return summary
	}
	ask("remember: the key is 4711")
	for range 40 {
		ask(strings.Repeat("something else ", 60))
	}
	got := ask("what is the key?")
	assert.That(t, strings.HasPrefix(got, "4711") && summaries.Load() >= 5, "after %d summaries the model says %.40q",
		summaries.Load(), got)
	assert.That(t, largest.Load() < 2000*4, "a request has %d bytes", largest.Load())
}
