package multiagent

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// memories is a plugin that keeps the memory scopes of agents.
type memories struct {
	fail  bool
	asked []string
}

func (m *memories) Info() host.PluginInfo {
	return host.PluginInfo{
		Name: "memories", Capability: protocol.CapMemory,
		Also: []protocol.Capability{protocol.CapMCP},
	}
}

func (m *memories) Routes() []host.Route        { return nil }
func (m *memories) Close(context.Context) error { return nil }

func (m *memories) ScopeMemory(ctx context.Context, child string, scope protocol.MemoryScope) error {
	if m.fail {
		return protocol.Errorf(protocol.CodeMemoryFull, "no room")
	}
	m.asked = append(m.asked, fmt.Sprintf("%s %s %s", host.SessionFrom(ctx).AgentID, child, scope))
	return nil
}

// programs is a plugin that runs programs: its result tells what it was asked to run.
type programs struct{ memories }

func (programs) RunProc(_ context.Context, run child.ProcRun) (*child.ProcResult, error) {
	switch run.Cmd[len(run.Cmd)-1] {
	case "fail":
		return &child.ProcResult{ExitCode: 4, Stderr: "no luck\n"}, nil
	case "flood":
		return &child.ProcResult{Truncated: true}, nil
	}
	return &child.ProcResult{Stdout: fmt.Sprintf(`{"ran":%q,"bytes":%t}`, strings.Join(run.Cmd, " "),
		strings.Contains(run.Stdin, "hello"))}, nil
}

func (s *stage) tell(from, to, kind, content string) bool {
	s.t.Helper()
	return ask[protocol.SubagentMessageResponse](s, protocol.TypeSubagentMessageReq,
		fmt.Sprintf(`{"from_subagent_id":%q,"to_subagent_id":%q,"message":{"type":%q,"content":%s}}`, from, to, kind,
			content)).Delivered
}

// TestMailbox: messages are in the brief of the next task, once.
func TestMailbox(t *testing.T) {
	s := newStage(t, options(shell("w", "cat")))
	ann, bob := s.spawn("ann", "", ""), s.spawn("bob", "", "")
	must.That(t, s.tell(ann, bob, "finding", `{"n":1}`) && s.tell("", bob, "note", `"two"`) &&
		s.tell("agent", bob, "note", `null`),
		"not delivered")
	s.event(bob, eventMessage).Has(t, "/content/from", ann, "/content/to", "mailbox", "/content/delivered", "true")
	s.delegate(bob, "read")
	want := "Messages for you:\n- from ann (" + ann + "), finding: {\"n\":1}\n- from the agent that started you, " +
		"note: two\n- from the agent that started you, note: null\n\nTask: t\n\nread"
	got := s.await(bob).Result["summary"]
	assert.That(t, got == want, "got  %q\nwant %q", got, want)
	s.delegate(bob, "again")
	got = s.await(bob).Result["summary"]
	assert.That(t, got == "Task: t\n\nagain", "the second brief: %q", got)
}

// TestNotDelivered: a mailbox is bounded, and a terminated child has no mailbox.
func TestNotDelivered(t *testing.T) {
	s := newStage(t, options(shell("w", "cat")))
	id := s.spawn("ann", "", "")
	for i := range maxMail + 1 {
		must.Equal(t, s.tell("", id, "n", "1"), (i < maxMail), "message %d", i)
	}
	for path, message := range map[string]string{
		"/message/type":    `{"type":"` + strings.Repeat("x", maxTypeBytes+1) + `","content":1}`,
		"/message/content": `{"type":"t","content":"` + strings.Repeat("x", maxMailBytes) + `"}`,
	} {
		m := s.refused(protocol.CodeSchemaViolation, protocol.TypeSubagentMessageReq,
			fmt.Sprintf(`{"from_subagent_id":"","to_subagent_id":%q,"message":%s}`, id, message))
		assert.Equal(t, m.Problem(), path, "%s", m)
	}
	s.Call(protocol.TypeSubagentTerminateReq, sub(id))
	assert.That(t, !s.tell("", id, "n", "1"), "a terminated child got a message")
}

// TestSteer: a worker that takes texts gets a message while it works. The task of the worker has the settings of the
// child.
func TestSteer(t *testing.T) {
	s := newStage(t, options(fleetWorker(t, "f")))
	id := s.spawn("ann", "", `,"tool_scope":"isolated","metadata":{"priority":"high","token_budget":99}`)
	s.delegate(id, "listen")
	if d := s.file("dispatched"); !strings.Contains(d, `"agent_id":"`+id+`"`) ||
		!strings.Contains(d, `"tool_scope":"isolated"`) || !strings.Contains(d, `"priority":"high"`) ||
		!strings.Contains(d, `"token_budget":99`) {
		t.Errorf("%s", d)
	}
	assert.That(t, s.tell("", id, "note", `"hurry"`), "not delivered")
	got := s.await(id)
	assert.That(t, got.Result["summary"] == "heard: Message from the agent that started you, note: hurry" &&
		got.Result["tokens_spent"] == 7.0, "%+v", got)
	s.event(id, eventMessage).Has(t, "/content/to", "worker")
}

// TestMerge: each strategy merges results, and a child without a result does not prevent that.
func TestMerge(t *testing.T) {
	opts := options(shell("w", `tail -n 1`))
	opts.MergeCommand = []string{"join", "-x"}
	s := newStage(t, opts, &programs{})
	var ids []string
	for _, say := range []string{"hello", "hello", "bye"} {
		id := s.spawn(say+fmt.Sprint(len(ids)), "", "")
		s.delegate(id, say)
		ids = append(ids, id)
	}
	idle := s.spawn("idle", "", "")
	list := `["` + strings.Join(append(ids, idle, ids[0]), `","`) + `"]`
	for strategy, check := range map[string]func(m map[string]any) bool{
		"voting": func(m map[string]any) bool { return m["winner"] == "hello" },
		"custom": func(m map[string]any) bool { return m["ran"] == "join -x" && m["bytes"] == true },
		"":       func(m map[string]any) bool { return strings.Contains(fmt.Sprint(m["summary"]), "bye") },
	} {
		fields := fmt.Sprintf(`{"subagent_ids":%s,"strategy":%q}`, list, strategy)
		req := s.Go(protocol.TypeSubagentMergeReq, fields)
		if strategy == "" { // answers in place of the agent's model
			m := s.Wait("a prompt", func(m hosttest.Message) bool { return m.Type == protocol.TypeMCPSampleReq })
			s.Send(fmt.Sprintf(`{"a2e":"1.0","type":"mcp/sample/resp","req_id":%q,"content":{"type":"text","text":"all said bye"}}`, m.ID))
		}
		got := answered[protocol.SubagentMergeResponse](s, protocol.TypeSubagentMergeReq, req).MergedResult
		assert.That(t, check(got), "%s: %v", strategy, got)
	}
	m := s.refused(protocol.CodeSchemaViolation, protocol.TypeSubagentMergeReq,
		fmt.Sprintf(`{"subagent_ids":%s,"strategy":"x"}`, list))
	assert.Equal(t, m.Problem(), "/strategy", "%s", m)
}

// TestMessageForADeafWorker: if a working worker takes no texts, its messages wait for the next task.
func TestMessageForADeafWorker(t *testing.T) {
	s := newStage(t, options(shell("w", `cat >brief; touch begun; while ! test -e go; do sleep 0.01; done; cat brief`)))
	id := s.spawn("ann", "", "")
	s.delegate(id, "one")
	s.file("begun")
	assert.That(t, s.tell("", id, "note", `"later"`), "not delivered")
	s.event(id, eventMessage).Has(t, "/content/to", "mailbox")
	s.touch("go")
	got := s.await(id).Result["summary"]
	assert.That(t, got == "Task: t\n\none", "%q", got)
	s.delegate(id, "two")
	assert.Contains(t, fmt.Sprint(s.await(id).Result["summary"]), "note: later")
}

// TestMergeCommandFails: a failed merge command is the error of the merge.
func TestMergeCommandFails(t *testing.T) {
	for word, want := range map[string]string{"fail": "no luck", "flood": "too much"} {
		opts := options(shell("w", `echo hello`))
		opts.MergeCommand = []string{"join", word}
		s := newStage(t, opts, &programs{})
		id := s.spawn("ann", "", "")
		s.delegate(id, "go")
		m := s.Call(protocol.TypeSubagentMergeReq, fmt.Sprintf(`{"subagent_ids":[%q],"strategy":"custom"}`, id))
		assert.That(t, m.Code != "" && strings.Contains(m.Get("/message"), want), "%s: %s", word, m)
	}
	opts := options(shell("w", `echo hello`))
	opts.MergeCommand = []string{"join"}
	s := newStage(t, opts)
	m := s.Call(protocol.TypeSubagentMergeReq, fmt.Sprintf(`{"subagent_ids":[%q],"strategy":"custom"}`,
		s.spawn("ann", "", "")))
	assert.That(t, strings.Contains(m.Get("/message"), "proc"), "%s", m)
}

// TestMergeWithoutAModel: an agent that cannot ask its model is asked once only, and gets the digest instead.
func TestMergeWithoutAModel(t *testing.T) {
	s := newStage(t, options(shell("w", `echo hello`)), &programs{})
	id := s.spawn("ann", "", "")
	s.delegate(id, "go")
	for i := range 2 {
		req := s.Go(protocol.TypeSubagentMergeReq, fmt.Sprintf(`{"subagent_ids":[%q]}`, id))
		if i == 0 {
			m := s.Wait("a prompt", func(m hosttest.Message) bool { return m.Type == protocol.TypeMCPSampleReq })
			s.Send(fmt.Sprintf(`{"a2e":"1.0","type":"mcp/sample/resp","req_id":%q,"error":"I have none"}`, m.ID))
		}
		got := answered[protocol.SubagentMergeResponse](s, protocol.TypeSubagentMergeReq, req).MergedResult
		assert.That(t, got["summarized_by"] == "digest" && strings.Contains(fmt.Sprint(got["summary"]), "hello"), "%v",
			got)
	}
}

// slowRunner is a plugin whose programs end when the test says so.
type slowRunner struct{ begun, end chan struct{} }

func (r slowRunner) Info() host.PluginInfo {
	return host.PluginInfo{Name: "runner", Capability: protocol.CapProc}
}
func (r slowRunner) Routes() []host.Route        { return nil }
func (r slowRunner) Close(context.Context) error { return nil }

func (r slowRunner) RunProc(ctx context.Context, _ child.ProcRun) (*child.ProcResult, error) {
	r.begun <- struct{}{}
	select {
	case <-r.end:
		return &child.ProcResult{Stdout: "{}"}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// TestTooManyMerges: merges do not count towards max_parallel while they wait, so they have a limit of their own.
func TestTooManyMerges(t *testing.T) {
	r := slowRunner{make(chan struct{}, 1000), make(chan struct{})}
	opts := options(shell("w", "echo x"))
	opts.MergeCommand = []string{"merge"}
	s, _ := openStage(t, opts, Env{}, r)
	req := fmt.Sprintf(`{"subagent_ids":[%q],"strategy":"custom"}`, s.spawn("a", "", ""))
	var all []string
	for range maxMerges {
		all = append(all, s.Go(protocol.TypeSubagentMergeReq, req))
		<-r.begun
	}
	m := s.refused(protocol.CodeOverloaded, protocol.TypeSubagentMergeReq, req)
	assert.That(t, m.Get("/retryable") == "true" && strings.Contains(m.Get("/message"), "merges"), "%s", m)
	close(r.end)
	for _, id := range all {
		answered[protocol.SubagentMergeResponse](s, protocol.TypeSubagentMergeReq, id)
	}
	ask[protocol.SubagentMergeResponse](s, protocol.TypeSubagentMergeReq, req)
}

// TestStopsDoNotPileUp: the answer to a cancel waits for the end of the task, unless too many answers wait already.
func TestStopsDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plugin, g, tasks := new(Plugin), &group{waits: maxWaits}, []*job{{done: make(chan struct{})}}
		start := time.Now()
		plugin.settled(t.Context(), g, tasks)
		if waited := time.Since(start); waited != 0 || g.waits != maxWaits {
			t.Errorf("beside others it waits for %s; %d wait", waited, g.waits)
		}
		g.waits--
		plugin.settled(t.Context(), g, tasks)
		if waited := time.Since(start); waited != stopWait || g.waits != maxWaits-1 {
			t.Errorf("it waits for %s; %d wait", waited, g.waits)
		}
	})
}

// openStage is newStage that also returns the plugin.
func openStage(t *testing.T, opts Options, env Env, more ...host.Plugin) (*stage, *Plugin) {
	t.Helper()
	dir := t.TempDir()
	plugin := newPlugin(t, dir, opts, env)
	s := &stage{t: t, dir: dir, Pair: hosttest.New(t, host.Options{Plugins: append(more, plugin)})}
	s.Handshake()
	return s, plugin
}

// childOf returns a child of any session by its id.
func (p *Plugin) childOf(t *testing.T, id string) *subagent {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.groups {
		if c := g.children[id]; c != nil {
			return c
		}
	}
	t.Fatalf("no child %s", id)
	return nil
}
