package e2e_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
)

// modelConfig writes a config whose worker is the model of a server. worker has further members of the worker, more
// has the lines after it.
func modelConfig(t *testing.T, dir string, model *llm.Server, worker, more string) {
	t.Helper()
	writeConfig(t, dir, fmt.Sprintf("workspace: ws\nplugins:\n  multi_agent:\n    workers: [{name: coder, llm: "+
		"{url: %q, model: m}%s}]\n%s", model.URL, worker, more))
	must.OK(t, os.MkdirAll(filepath.Join(dir, "ws"), 0o755))
}

// sessions is a client of the JSON-RPC session protocol.
type sessions struct {
	*live
	sent   int
	events []map[string]any // params of the events that were read
}

// take reads one line, and keeps it if it is an event.
func (s *sessions) take() map[string]any {
	s.t.Helper()
	line, err := s.stdout.ReadBytes('\n')
	must.That(s.t, err == nil, "no further line: %v", err)
	var m map[string]any
	must.OK(s.t, json.Unmarshal(line, &m))
	if m["method"] == "event" {
		s.events = append(s.events, m["params"].(map[string]any))
	}
	return m
}

// ask sends a request and returns its answer.
func (s *sessions) ask(method, params string) map[string]any {
	s.t.Helper()
	s.sent++
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, s.sent, method, params))
	for {
		if m := s.take(); m["id"] == float64(s.sent) {
			return m
		}
	}
}

// turn plays one turn of a session, and returns the answer.
func (s *sessions) turn(session, text string) string {
	s.t.Helper()
	s.events = nil
	must.That(s.t, s.ask("session.send", fmt.Sprintf(`{"session_id":%q,"text":%q}`, session, text))["error"] == nil,
		"refused")
	for s.last("session.status")["pending"] != false {
		s.take()
	}
	answer := ""
	for _, e := range s.of("session.message.appended") {
		if m := e["message"].(map[string]any); m["kind"] == "assistant" {
			answer, _ = m["text"].(string)
		}
	}
	return answer
}

// of returns the payloads of the events of a type since the last turn began.
func (s *sessions) of(typ string) (all []map[string]any) {
	for _, e := range s.events {
		if e["type"] == typ {
			all = append(all, e["payload"].(map[string]any))
		}
	}
	return all
}

func (s *sessions) last(typ string) map[string]any {
	if all := s.of(typ); len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

// forgetful starts a model that knows only the text of a request: it answers 4711 if the key is in the text. It
// counts 3.3 bytes of the body as one token.
func forgetful(t *testing.T) *llm.Server {
	model := llm.New(t)
	model.Answer(func(r *llm.Request) llm.Reply {
		knows := strings.Contains(r.Body, "the key is 4711")
		used := func(reply llm.Reply) llm.Reply { return reply.Used(len(r.Body)*10/33, len(reply.Text[0])*10/33) }
		switch {
		case strings.HasPrefix(r.Messages[0].Text, "You sum up a conversation") && knows:
			return used(llm.Text("the key is 4711"))
		case strings.HasPrefix(r.Messages[0].Text, "You sum up a conversation"):
			return used(llm.Text("nothing is known"))
		case knows:
			return used(llm.Text("4711 " + strings.Repeat("and so on ", 100)))
		}
		return used(llm.Text("unknown"))
	})
	return model
}

// TestLongSessionsAreSummarised: a session of two hours, with a message each half minute, crosses the window of its
// model again and again, also after a restart. The model still knows the first message, and the estimates are within
// 10 % of the tokens that the model counts.
func TestLongSessionsAreSummarised(t *testing.T) {
	t.Parallel()
	dir, model := workDir(t), forgetful(t)
	modelConfig(t, dir, model, ", context_window: 8000", "")
	s := &sessions{live: start(t, dir)}
	session := s.ask("session.create", `{}`)["result"].(map[string]any)["session_id"].(string)
	s.turn(session, "remember: the key is 4711")
	completed, off := 0, 0.
	for i := range 240 {
		if i == 120 {
			must.OK(t, s.stdin.Close())
			s.exit()
			s = &sessions{live: start(t, dir)}
		}
		before := len(model.Requests())
		s.turn(session, strings.Repeat("something else ", 20)+fmt.Sprint(i))
		completed += len(s.of("compaction.completed"))
		if i%120 == 0 {
			continue // the model has counted nothing before
		}
		asked := model.Requests()
		counted := float64(len(asked[len(asked)-1].Body)) * 10 / 33
		estimated := s.of("session.context.estimate")[len(s.of("session.context.estimate"))-2]["total_tokens_estimate"].(float64)
		off = max(off, max(estimated/counted, counted/estimated)-1)
		assert.That(t, counted < 8000 && len(asked) > before, "turn %d: the model counts %.0f tokens", i, counted)
	}
	t.Logf("%d compactions; estimates are off by %.1f %% at most", completed, off*100)
	assert.That(t, completed >= 5 && off < 0.1, "%d compactions, estimates off by %.1f %%", completed, off*100)
	got := s.turn(session, "what is the key?")
	assert.That(t, strings.HasPrefix(got, "4711"), "the model says %.40q", got)

	state := s.ask("session.get", fmt.Sprintf(`{"session_id":%q}`, session))["result"].(map[string]any)
	parts := 0.
	for _, n := range state["contextTokenBreakdown"].(map[string]any) {
		parts += n.(float64)
	}
	assert.That(t, state["contextTokenSource"] == "compaction" && state["contextTokenProvider"] == "coder" &&
		state["contextTokenEstimate"] == parts, "%v", state["contextTokenBreakdown"])
	whole := s.ask("history.get", `{"last":true}`)["result"].(map[string]any)["messages"].([]any)
	assert.That(t, len(whole) == 2*242, "the history has %d messages", len(whole))
}

// TestCompaction: model.select and /compression sum up the conversation, and a session is told if the model gave no
// summary.
func TestCompaction(t *testing.T) {
	t.Parallel()
	dir, model := workDir(t), llm.New(t)
	summary := "the cat is grey"
	model.Answer(func(r *llm.Request) llm.Reply {
		if strings.HasPrefix(r.Messages[0].Text, "You sum up a conversation") {
			return llm.Text(summary)
		}
		return llm.Text(strings.Repeat("yes ", 2000))
	})
	writeConfig(t, dir, fmt.Sprintf("plugins:\n  multi_agent:\n    workers:\n    - {name: coder, llm: {url: %q, "+
		"model: m}, "+
		"context_window: 16000}\n    - {name: other, llm: {url: %[1]q, model: m2}}\n    - {name: program, command: "+
		"[cat]}\n", model.URL))
	s := &sessions{live: start(t, dir)}
	session := s.ask("session.create", `{}`)["result"].(map[string]any)["session_id"].(string)
	pick := func(model, provider string) map[string]any {
		r := s.ask("model.select", fmt.Sprintf(`{"model_id":%q,"provider":%q,"thinking_level":"OFF","session_id":%q,`+
			`"compress_immediately":true}`, model, provider, session))
		must.That(t, r["error"] == nil, "%v", r)
		return r["result"].(map[string]any)["compression"].(map[string]any)
	}
	command := func() map[string]any {
		r := s.ask("command.execute", fmt.Sprintf(`{"session_id":%q,"raw_command":"/compression"}`, session))
		if r["error"] != nil {
			return r["error"].(map[string]any)
		}
		return r["result"].(map[string]any)["output"].(map[string]any)
	}
	none := pick("m", "coder")
	assert.That(t, none["applied"] == false && none["reason"] == "none" && none["auto_limit"] == 12000. &&
		none["model_context_window"] == 16000., "with nothing said: %v", none)
	assert.Equal(t, command()["error"], any("there is nothing to sum up"), "/compression")
	s.turn(session, "the cat is grey")
	s.turn(session, "and old")
	s.events = nil
	switched := pick("m2", "other")
	assert.That(t, switched["applied"] == true && switched["reason"] == "provider_switch" &&
		switched["anchor_event_index_before"] == 0. &&
		switched["anchor_event_index_after"].(float64) > 0 &&
		switched["estimated_tokens_after"].(float64) < switched["estimated_tokens_before"].(float64), "%v", switched)
	var told []string
	for _, e := range s.events {
		if name, ours := strings.CutPrefix(e["type"].(string), "compaction."); ours {
			told = append(told, name)
		}
	}
	assert.Equal(t, strings.Join(told, " "), "started anchor_selected summary_merged completed", "the events")
	pick("m", "coder")
	s.turn(session, "who is grey?")
	last := model.Requests()[len(model.Requests())-1].Messages
	assert.That(t, strings.HasSuffix(last[1].Text, "\nthe cat is grey") && len(last) < 5,
		"the model gets %d messages: %.80q", len(last), last[1].Text)
	manual := command()
	assert.That(t, manual["compressed"] == true && manual["reason"] == "manual", "%v", manual)

	summary = " "
	s.turn(session, "again")
	refused := fmt.Sprint(command())
	assert.That(t, strings.Contains(refused, "the model gave no summary"), "%s", refused)
	s.turn(session, strings.Repeat("a long text ", 4000))
	failed := s.last("compaction.failed")
	got := s.last("session.completed")
	assert.That(t, failed != nil && failed["message"] == "the model gave no summary" && got != nil, "%v, %v", failed,
		got)
	assert.That(t, pick("program", "program")["applied"] == false, "a program sums up")
	assert.That(t, strings.Contains(fmt.Sprint(command()["error"]), "not a model"), "%v", command())

	must.OK(t, s.stdin.Close())
	s.exit()
	export := exported(t, dir)
	must.OK(t, os.WriteFile(filepath.Join(dir, "all.ndjson"), []byte(export), 0o600))
	other := workDir(t)
	run(t, other, bytes.Clone([]byte(export)), "state", "import", "-").want(t, 0, "")
	assert.Equal(t, strings.Count(exported(t, other), `"summed":true`), strings.Count(export, `"summed":true`), "moved")
	assert.That(t, strings.Contains(export, `"summed":true`) && strings.Contains(exported(t, other),
		`"summary":"[Summary of`), "%s", export)
}
