package multiagent

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/plugins/multiagent/worker"
	"a2e/protocol"
)

func TestContract(t *testing.T) {
	child := func(t testing.TB, p *hosttest.Pair) string {
		var resp protocol.AgentSpawnResponse
		p.Call(protocol.TypeAgentSpawnReq, `{"name":"n"}`).Decode(t, &resp)
		return resp.SubagentID
	}
	with := func(format string) func(testing.TB, *hosttest.Pair) string {
		return func(t testing.TB, p *hosttest.Pair) string {
			return strings.ReplaceAll(format, "ID", child(t, p))
		}
	}
	newOne := func(t testing.TB) host.Plugin {
		opts := options(shell("w", "cat"))
		opts.MaxSubagents = maxChildren
		return newPlugin(t, t.TempDir(), opts, Env{})
	}
	hosttest.Contract(t, newOne, []hosttest.Sample{
		{Type: protocol.TypeAgentSpawnReq, Fields: `{"name":"n","role":"r","model":"x","max_steps":3,"metadata":{"worker":"w"}}`},
		{
			Name: "unknown worker", Type: protocol.TypeAgentSpawnReq, Fields: `{"name":"n","metadata":{"worker":"x"}}`,
			Code: protocol.CodeSchemaViolation,
		},
		{Type: protocol.TypeAgentDelegateReq, Make: with(`{"subagent_id":"ID","task_name":"t","instruction":"i","success_criteria":["c"]}`)},
		{
			Name: "nothing to do", Type: protocol.TypeAgentDelegateReq,
			Make: with(`{"subagent_id":"ID","task_name":"t","instruction":""}`), Code: protocol.CodeSchemaViolation,
		},
		{Type: protocol.TypeAgentAwaitReq, Make: with(`{"subagent_id":"ID"}`)},
		{
			Name: "unknown", Type: protocol.TypeAgentAwaitReq, Fields: `{"subagent_id":"x"}`,
			Code: protocol.CodeUnknownSubagent,
		},
		{Type: protocol.TypeAgentListReq, Fields: `{}`},
		{Type: protocol.TypeAgentTerminateReq, Make: with(`{"subagent_id":"ID"}`)},
		{Type: protocol.TypeSubagentSpawnReq, Fields: `{"agent":{"name":"n","model":"m"},"parent_agent_id":null,"root_agent_id":null}`},
		{Type: protocol.TypeSubagentDelegateReq, Make: with(`{"subagent_id":"ID","task":{"name":"t","instruction":"i"}}`)},
		{Type: protocol.TypeSubagentAwaitReq, Make: with(`{"subagent_id":"ID"}`)},
		{Type: protocol.TypeSubagentListReq, Fields: `{}`},
		{Type: protocol.TypeSubagentMessageReq, Make: with(`{"from_subagent_id":"","to_subagent_id":"ID","message":{"type":"note","content":null}}`)},
		{Type: protocol.TypeSubagentMergeReq, Make: with(`{"subagent_ids":["ID"],"strategy":"voting"}`)},
		{
			Name: "nothing to merge", Type: protocol.TypeSubagentMergeReq, Fields: `{"subagent_ids":[]}`,
			Code: protocol.CodeSchemaViolation,
		},
		{Type: protocol.TypeSubagentCancelReq, Make: with(`{"subagent_id":"ID"}`)},
		{Type: protocol.TypeSubagentTerminateReq, Make: with(`{"subagent_id":"ID"}`)},
	})
}

func TestNewRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		opts Options
		want string
	}{
		"depth":   {Options{MaxDepth: -1}, "max_depth"},
		"number":  {Options{MaxSubagents: maxChildren + 1}, "max_subagents"},
		"command": {Options{MergeCommand: []string{""}}, "merge_command"},
		"worker":  {Options{Workers: []worker.Worker{{Name: "w"}}}, "neither a command nor an llm"},
	} {
		_, err := New("agents", c.opts, Env{})
		assert.That(t, err != nil && strings.Contains(err.Error(), c.want) && strings.Contains(err.Error(), `"agents"`),
			"%s: %v", name, err)
	}
}

// TestSharedStateOnAServer: a worker with share_state gets the address of the host's state on a server.
func TestSharedStateOnAServer(t *testing.T) {
	shares, apart := shell("shares", `printf %s "$A2E_STATE"`), shell("apart", `printf %s "${A2E_STATE-none}"`)
	shares.ShareState = true
	state := "postgres://127.0.0.1:1/a2e?schema=team"
	s := newStageWith(t, options(shares, apart), Env{StateDir: t.TempDir(), StateURL: state}, host.Options{})
	for name, want := range map[string]string{"shares": state, "apart": "none"} {
		id := ask[protocol.AgentSpawnResponse](s, protocol.TypeAgentSpawnReq,
			fmt.Sprintf(`{"name":"n","metadata":{"worker":%q}}`, name)).SubagentID
		ask[protocol.AgentDelegateResponse](s, protocol.TypeAgentDelegateReq,
			fmt.Sprintf(`{"subagent_id":%q,"task_name":"t","instruction":"i"}`, id))
		got := ask[protocol.AgentAwaitResponse](s, protocol.TypeAgentAwaitReq, fmt.Sprintf(`{"subagent_id":%q}`, id))
		assert.Equal(t, got.Result["summary"], any(want), "%s", name)
	}
}

// TestShortSpelling: a child can be spawned, used and terminated with the short form of the requests.
func TestShortSpelling(t *testing.T) {
	s := newStage(t, options(shell("w", "cat")))
	id := ask[protocol.AgentSpawnResponse](s, protocol.TypeAgentSpawnReq,
		`{"name":"ann","role":"poet","metadata":{"system_prompt":"Be brief.","memory_scope":"isolated","team":1}}`).SubagentID
	got := ask[protocol.AgentAwaitResponse](s, protocol.TypeAgentAwaitReq, fmt.Sprintf(`{"subagent_id":%q}`, id))
	assert.That(t, got.Status == protocol.SubagentReady && got.Result == nil && got.Error == nil,
		"before any task: %+v", got)
	d := ask[protocol.AgentDelegateResponse](s, protocol.TypeAgentDelegateReq,
		fmt.Sprintf(`{"subagent_id":%q,"task_name":"ode","instruction":"Write.","success_criteria":["it rhymes"]}`, id))
	assert.That(t, d.Accepted && d.Status == protocol.SubagentRunning, "%+v", d)
	a := ask[protocol.AgentAwaitResponse](s, protocol.TypeAgentAwaitReq, fmt.Sprintf(`{"subagent_id":%q}`, id))
	want := "You are ann. Your role: poet\n\nBe brief.\n\nTask: ode\n\nWrite.\n\nThe task is done when:\n- it rhymes"
	if a.Status != protocol.SubagentCompleted || a.SubagentID != id || a.Error != nil || a.Result["summary"] != want ||
		a.Result["status"] != "done" || a.Result["tokens_estimated"] != true {
		t.Errorf("%+v", a)
	}
	row := ask[protocol.AgentListResponse](s, protocol.TypeAgentListReq, `{}`).Subagents[0]
	assert.That(t, row["subagent_id"] == id && row["name"] == "ann" && row["status"] == "COMPLETED" &&
		row["depth"] == 0.0 && row["parent_agent_id"] == "agent", "%v", row)
	gone := ask[protocol.AgentTerminateResponse](s, protocol.TypeAgentTerminateReq,
		fmt.Sprintf(`{"subagent_id":%q}`, id))
	if !gone.Success || gone.SubagentID != id || s.status(id) != protocol.SubagentTerminated {
		t.Errorf("%+v, then %s", gone, s.status(id))
	}
	accepted, status := s.try(id, "more")
	assert.That(t, !accepted && status == protocol.SubagentTerminated, "a terminated child: %v %s", accepted, status)
	if got := s.await(id); got.Status != protocol.SubagentTerminated || got.Error == nil {
		t.Errorf("await of a terminated child: %+v", got)
	}
}

// TestConfigIsChecked: invalid values in the config of a child are refused, and the error names their place.
func TestConfigIsChecked(t *testing.T) {
	s := newStage(t, options(shell("w", "cat")))
	for _, c := range []struct{ config, path string }{
		{`"name":" "`, "/agent/name"},
		{`"name":"n","max_steps":-1`, "/agent/max_steps"},
		{`"name":"n","timeout_seconds":-1`, "/agent/timeout_seconds"},
		{`"name":"n","timeout_seconds":99999999`, "/agent/timeout_seconds"},
		{`"name":"n","memory_scope":"x"`, "/agent/memory_scope"},
		{`"name":"n","tool_scope":"x"`, "/agent/tool_scope"},
		{`"name":"n","metadata":{"worker":"x"}`, "/agent/metadata/worker"},
		{`"name":"n","metadata":{"worker":7}`, "/agent/metadata/worker"},
		{`"name":"n","metadata":{"priority":"soon"}`, "/agent/metadata/priority"},
		{`"name":"n","metadata":{"reply_schema":"xml"}`, "/agent/metadata/reply_schema"},
		{`"name":"n","metadata":{"token_budget":-1}`, "/agent/metadata/token_budget"},
		{`"name":"n","system_prompt":"` + strings.Repeat("x", maxConfigBytes) + `"`, "/agent/system_prompt"},
	} {
		m := s.refused(protocol.CodeSchemaViolation, protocol.TypeSubagentSpawnReq,
			`{"agent":{"model":"m",`+c.config+`}}`)
		assert.Equal(t, m.Problem(), c.path, "%.80s is blamed on …: %.300s", c.config, m.Line)
	}
	for _, metadata := range []string{`{"timeout_seconds":-1}`, `{"memory_scope":"x"}`, `{"tool_scope":"x"}`} {
		if m := s.refused(protocol.CodeSchemaViolation, protocol.TypeAgentSpawnReq,
			`{"name":"n","metadata":`+metadata+`}`); !strings.HasPrefix(m.Problem(), "/metadata/") {
			t.Errorf("%s is blamed on %q", metadata, m.Problem())
		}
	}
	id := s.spawn("n", "", `,"max_steps":0,"timeout_seconds":0`)
	got := ask[protocol.SubagentListResponse](s, protocol.TypeSubagentListReq, `{}`).Subagents
	assert.That(t, len(got) == 1 && got[0].Config.TimeoutSeconds == 600, "%+v", got)
	for _, c := range []struct{ task, path string }{
		{`"instruction":""`, "/task/instruction"},
		{`"instruction":"` + strings.Repeat("x", maxTaskBytes+1) + `"`, "/task/instruction"},
		{`"instruction":"i","metadata":{"worker":"x"}`, "/task/metadata/worker"},
		{`"instruction":"i","metadata":{"priority":"x"}`, "/task/metadata/priority"},
	} {
		m := s.refused(protocol.CodeSchemaViolation, protocol.TypeSubagentDelegateReq,
			fmt.Sprintf(`{"subagent_id":%q,"task":{"name":"t",%s}}`, id, c.task))
		assert.Equal(t, m.Problem(), c.path, "%.80s is blamed on …: %.300s", c.task, m.Line)
	}
}

// TestUnknownChild: every request refuses an unknown id and lists the known ids.
func TestUnknownChild(t *testing.T) {
	s := newStage(t, options(shell("w", "cat")))
	s.refused(protocol.CodeUnknownSubagent, protocol.TypeAgentAwaitReq, `{"subagent_id":"x"}`).Has(t, "/detail/known",
		"")
	id := s.spawn("ann", "", "")
	gone := s.spawn("bob", "", "")
	s.Call(protocol.TypeAgentTerminateReq, fmt.Sprintf(`{"subagent_id":%q}`, gone))
	for typ, fields := range map[protocol.Type]string{
		protocol.TypeAgentAwaitReq:        `{"subagent_id":"x"}`,
		protocol.TypeSubagentAwaitReq:     `{"subagent_id":"x"}`,
		protocol.TypeAgentDelegateReq:     `{"subagent_id":"x","task_name":"t","instruction":"i"}`,
		protocol.TypeSubagentDelegateReq:  `{"subagent_id":"x","task":{"name":"t","instruction":"i"}}`,
		protocol.TypeAgentTerminateReq:    `{"subagent_id":"x"}`,
		protocol.TypeSubagentTerminateReq: `{"subagent_id":"x"}`,
		protocol.TypeSubagentCancelReq:    `{"subagent_id":"x"}`,
		protocol.TypeSubagentMergeReq:     fmt.Sprintf(`{"subagent_ids":[%q,"x"]}`, id),
		protocol.TypeSubagentMessageReq:   fmt.Sprintf(`{"from_subagent_id":"x","to_subagent_id":%q,"message":{"type":"t","content":1}}`, id),
	} {
		m := s.refused(protocol.CodeUnknownSubagent, typ, fields)
		assert.That(t, m.Get("/detail/known") == `["`+id+`"]` && strings.Contains(m.Get("/message"), id) &&
			m.Get("/retryable") == "false",
			"%s: %s", typ, m)
	}
}

// TestNameForAnID: a name can stand for an id if only one living child has the name.
func TestNameForAnID(t *testing.T) {
	s := newStage(t, options(shell("w", "cat")))
	id := s.spawn("ann", "", "")
	if got := s.await("ann"); got.SubagentID != id {
		t.Errorf("%+v", got)
	}
	s.spawn("ann", "", "")
	s.refused(protocol.CodeUnknownSubagent, protocol.TypeAgentAwaitReq, `{"subagent_id":"ann"}`)
	s.spawn("agent", "", "") // this child has the name of the session's agent, and the agent stays the parent
	s.spawn("low", "agent", "")
	s.spawn("lower", "low", "")
	var got []string
	for _, info := range ask[protocol.SubagentListResponse](s, protocol.TypeSubagentListReq, `{}`).Subagents {
		got = append(got, fmt.Sprint(info.Name, " ", info.Depth))
	}
	want := "ann 0,ann 0,agent 0,low 0,lower 1"
	assert.Equal(t, strings.Join(got, ","), want, "got %s", got)
}

// TestTooManyWait: the number of waiting requests is bounded, so that an agent that sends awaits without end does not
// fill the host.
func TestTooManyWait(t *testing.T) {
	plugin := newPlugin(t, t.TempDir(), options(shell("w", "sleep 60")), Env{})
	s := &stage{t: t, Pair: hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})}
	s.Handshake()
	id := s.spawn("ann", "", "")
	s.delegate(id, "go")
	plugin.mu.Lock()
	for _, g := range plugin.groups {
		g.waits = maxWaits
	}
	plugin.mu.Unlock()
	for _, typ := range []protocol.Type{protocol.TypeAgentAwaitReq, protocol.TypeSubagentAwaitReq} {
		s.refused(protocol.CodeOverloaded, typ, sub(id)).Has(t, "/retryable", "true")
	}
}

// TestHandshakeNamesTheWorkers: the handshake lists the workers, never as null.
func TestHandshakeNamesTheWorkers(t *testing.T) {
	for want, workers := range map[string][]worker.Worker{
		`["a","b"]`: {shell("a", "cat"), shell("b", "cat")},
		`[]`:        nil,
	} {
		s := newStage(t, options(workers...))
		m := s.Handshake(protocol.CapMultiAgent)
		assert.Equal(t, m.Get("/accepted_caps/0/metadata/workers"), want, "%s", m)
	}
}

// TestNoWorker: without a worker no task can be delegated, and the error says what to do.
func TestNoWorker(t *testing.T) {
	s := newStage(t, options())
	id := s.spawn("ann", "", "")
	m := s.refused(protocol.CodeCapabilityMissing, protocol.TypeAgentDelegateReq,
		fmt.Sprintf(`{"subagent_id":%q,"task_name":"t","instruction":"i"}`, id))
	assert.Contains(t, m.Get("/message"), "workers", "%s", m)
}

// TestTwoPlugins: with several plugins of this kind, each has its own workers and children, and a list has the children
// of all.
func TestTwoPlugins(t *testing.T) {
	second := newPlugin(t, t.TempDir(), options(shell("other", "echo second")), Env{})
	second.name = "more"
	s := newStage(t, options(shell("w", "echo first")), second)
	var ids []string
	for _, name := range []string{"w", "other"} {
		id := s.spawn("on "+name, "", `,"metadata":{"worker":"`+name+`"}`)
		s.delegate(id, "go")
		got := s.await(id).Result["summary"]
		assert.That(t, got == map[string]string{"w": "first", "other": "second"}[name], "worker %s said %v", name, got)
		ids = append(ids, id)
	}
	rows := ask[protocol.AgentListResponse](s, protocol.TypeAgentListReq, `{}`).Subagents
	infos := ask[protocol.SubagentListResponse](s, protocol.TypeSubagentListReq, `{}`).Subagents
	assert.That(t, len(rows) == 2 && len(infos) == 2, "%v, %v", rows, infos)
	m := s.refused(protocol.CodeUnknownSubagent, protocol.TypeAgentAwaitReq, `{"subagent_id":"x"}`)
	slices.Sort(ids)
	assert.Equal(t, m.Get("/detail/known"), `["`+ids[0]+`","`+ids[1]+`"]`, "%s", m)
}

// TestModels: a model or tier that no worker has is refused when the child is spawned, unless the request allows a
// fallback. The model "default" means any worker.
func TestModels(t *testing.T) {
	small := shell("small", "cat >/dev/null; echo hi")
	small.Model = "s1"
	s := newStage(t, options(small, shell("dies", "kill -9 $$")))
	for fields, want := range map[string]string{
		`"model":"x"`: `no worker has the model "x": small has the model "s1", dies has no model that it tells`,
		`"model":"s1","metadata":{"model_tier":"top"}`: `no worker has the model "s1" of tier "top"`,
		`"model":"s1","metadata":{"retries":101}`:      "/agent/metadata/retries",
		`"model":"s1","metadata":{"fallback":1}`:       "/agent/metadata/fallback",
	} {
		m := s.refused(protocol.CodeSchemaViolation, protocol.TypeSubagentSpawnReq, `{"agent":{"name":"n",`+fields+`}}`)
		assert.That(t, strings.Contains(string(m.Line), strings.ReplaceAll(want, `"`, `\"`)), "%s: %s", fields, m.Line)
	}
	for fields, want := range map[string]string{
		`,"model":"s1"`: "[]", `,"model":"default"`: "[]",
		`,"model":"x","metadata":{"fallback":true}`: "[no worker with the model \"x\" was available: worker " +
			"small got the task instead, which has the model \"s1\"]",
	} {
		id := ask[protocol.SubagentSpawnResponse](s, protocol.TypeSubagentSpawnReq,
			`{"agent":{"name":"n"`+fields+`}}`).SubagentID
		s.delegate(id, "go")
		got := s.await(id)
		assert.That(t, fmt.Sprint(got.Result["next_steps"]) == want && got.Result["summary"] == "hi", "%s: %+v", fields,
			got)
	}
	id := s.spawn("n", "", `,"metadata":{"worker":"dies","retries":0}`)
	s.delegate(id, "go")
	got := s.await(id)
	assert.That(t, got.Status == protocol.SubagentFailed && got.Error != nil && *got.Error == "the worker ended: "+
		"signal: killed", "%+v", got)
}

// TestStorm: each request has exactly one answer, whatever the requests and their order, and at the end nothing is
// left.
func TestStorm(t *testing.T) {
	opts := options(shell("quick", "cat"), shell("slow", "sleep 60"))
	opts.MaxSubagents = 12
	plugin := newPlugin(t, t.TempDir(), opts, Env{})
	s := &stage{t: t, Pair: hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})}
	s.Handshake()
	var ids []string
	for i := range 8 {
		parent := ""
		if i%2 == 1 {
			parent = ids[i-1]
		}
		ids = append(ids, s.spawn(fmt.Sprint("n", i), parent, ""))
	}
	var mu sync.Mutex
	var sent []string
	var all sync.WaitGroup
	for part := range 4 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(part), 7))
			for range 60 {
				typ, fields := stormRequest(random, ids)
				id := s.Go(typ, fields)
				mu.Lock()
				sent = append(sent, id)
				mu.Unlock()
				if random.IntN(8) == 0 {
					s.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id))
				}
			}
		})
	}
	all.Wait()
	for _, id := range ids {
		sent = append(sent, s.Go(protocol.TypeSubagentTerminateReq, sub(id))) // ends the awaits
	}
	may := []protocol.ErrorCode{
		"", protocol.CodeCancelled, protocol.CodeUnknownSubagent, protocol.CodeSubagentLimit,
		protocol.CodeOverloaded,
	}
	for _, id := range sent {
		m := s.Answer(id)
		assert.That(t, slices.Contains(may, m.Code), "%s", m)
	}
	plugin.mu.Lock()
	for _, g := range plugin.groups {
		n := len(g.idsLocked())
		assert.That(t, n == g.alive && n == plugin.alive && g.waits == 0, "%d children are alive, counted as %d and "+
			"%d; %d wait", n, g.alive, plugin.alive, g.waits)
	}
	plugin.mu.Unlock()
	s.Close()
	assert.That(t, plugin.alive == 0 && len(plugin.groups) == 0, "%d children of %d sessions are left", plugin.alive,
		len(plugin.groups))
}

func stormRequest(random *rand.Rand, ids []string) (protocol.Type, string) {
	id, other := ids[random.IntN(len(ids))], ids[random.IntN(len(ids))]
	switch random.IntN(10) {
	case 0:
		return protocol.TypeSubagentSpawnReq, fmt.Sprintf(`{"agent":{"name":"n","model":"m"},"parent_agent_id":%q}`, id)
	case 1:
		return protocol.TypeSubagentMessageReq, fmt.Sprintf(`{"from_subagent_id":%q,"to_subagent_id":%q,"message":{"type":"t","content":1}}`, other, id)
	case 2:
		return protocol.TypeSubagentCancelReq, sub(id)
	case 3:
		return protocol.TypeSubagentListReq, `{}`
	case 4:
		return protocol.TypeSubagentMergeReq, `{"subagent_ids":["` + strings.Join(ids, `","`) + `"]}`
	case 5, 6:
		return protocol.TypeAgentAwaitReq, sub(id)
	case 7:
		if random.IntN(10) == 0 {
			return protocol.TypeAgentTerminateReq, sub(id)
		}
	}
	worker := []string{"quick", "quick", "slow"}[random.IntN(3)]
	return protocol.TypeSubagentDelegateReq, fmt.Sprintf(`{"subagent_id":%q,"task":{"name":"t","instruction":"i","metadata":{"worker":%q}}}`, id, worker)
}
