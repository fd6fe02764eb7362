package multiagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// waits is a script that runs until there is a file whose name is the task's instruction.
const waits = `read -r head; read -r none; read -r name; touch "begun-$name"; while ! test -e "$name"; do sleep 0.01; done; echo "did $name"`

func sub(id string) string { return fmt.Sprintf(`{"subagent_id":%q}`, id) }

// TestAwaitHoldsNoPlace: an await takes no place: with max_parallel 1, the request that ends the awaited task is still
// served.
func TestAwaitHoldsNoPlace(t *testing.T) {
	s := newStageWith(t, options(shell("w", waits)), Env{}, host.Options{MaxParallel: 1})
	id := s.spawn("ann", "", "")
	assert.Equal(t, s.delegate(id, "go"), protocol.SubagentRunning, "delegated")
	var all []string
	for range 3 {
		all = append(all, s.Go(protocol.TypeSubagentAwaitReq, sub(id)), s.Go(protocol.TypeAgentAwaitReq, sub(id)),
			s.Go(protocol.TypeSubagentMergeReq, fmt.Sprintf(`{"subagent_ids":[%q]}`, id)))
	}
	s.file("begun-go")
	if got := s.status(id); got != protocol.SubagentRunning { // the request is served although all others wait
		t.Errorf("at work: %s", got)
	}
	dropped := s.Go(protocol.TypeSubagentAwaitReq, sub(id))
	s.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, dropped))
	s.Answer(dropped).Has(t, "/code", string(protocol.CodeCancelled))
	accepted, status := s.try(id, "more")
	assert.That(t, !accepted && status == protocol.SubagentRunning, "a second task: %v %s", accepted, status)
	s.touch("go")
	for _, req := range all {
		m := s.Answer(req)
		assert.That(t, m.Code == "" && strings.Contains(string(m.Line), "did go"), "%s", m)
	}
	s.delegate(id, "go") // the child may have a second task
	got := s.await(id)
	assert.Equal(t, got.Status, protocol.SubagentCompleted, "the second task: %+v", got)
}

// TestWaiting: a task waits if its worker has no place, and the status of its child shows that.
func TestWaiting(t *testing.T) {
	w := shell("w", waits)
	w.MaxTasks = 1
	s := newStage(t, options(w))
	one, two := s.spawn("one", "", ""), s.spawn("two", "", "")
	a, b := s.delegate(one, "a"), s.delegate(two, "b")
	assert.That(t, a == protocol.SubagentRunning && b == protocol.SubagentWaiting, "%s %s", a, b)
	assert.Equal(t, s.status(two), protocol.SubagentWaiting, "it waits")
	s.touch("a")
	s.file("begun-b")
	assert.Equal(t, s.status(two), protocol.SubagentRunning, "it runs")
	got := ask[protocol.AgentTerminateResponse](s, protocol.TypeSubagentCancelReq, sub(two))
	assert.That(t, got.Success, "%+v", got)
}

// TestOutcomes: each way in which a task can end has its status and its error.
func TestOutcomes(t *testing.T) {
	s := newStage(t, options(
		shell("fails", "echo half; echo why >&2; exit 3"),
		shell("blocked", `echo '{"status":"blocked","blocked_reason":"no key"}'`),
		shell("partial", `echo '{"status":"partial","summary":"half","tokens_spent":5,"remaining":["rest"],"next_steps":["go on"],"artifacts":{"pr":"http://x","files_changed":["f"]}}'`),
		shell("slow", "sleep 1000"),
	))
	for _, c := range []struct {
		worker string
		status protocol.SubagentStatus
		err    string
		result string
	}{
		{"fails", protocol.SubagentFailed, "exit status 3", `"status":"error","summary":"half"`},
		{"blocked", protocol.SubagentFailed, "blocked: no key", `"blocked_reason":"no key"`},
		{
			"partial", protocol.SubagentCompleted, "",
			`"files_changed":["f"],"next_steps":["go on"],"pr":"http://x","remaining":["rest"],"status":"partial","summary":"half","tokens_spent":5`,
		},
		{"slow", protocol.SubagentFailed, "timeout_seconds of ", `"status":"error"`},
	} {
		seconds := 100 // only the slow worker takes that long
		if c.worker == "slow" {
			seconds = 1
		}
		var id string
		var m hosttest.Message
		for again := true; again; seconds *= 2 { // on a busy machine, a task may not begin within one second
			id = s.spawn(c.worker, "", fmt.Sprintf(`,"timeout_seconds":%d,"metadata":{"worker":%q}`, seconds, c.worker))
			s.delegate(id, "go")
			m = s.Call(protocol.TypeSubagentAwaitReq, sub(id))
			again = seconds < 30 && !strings.Contains(m.Get("/error"), c.err)
		}
		if m.Get("/status") != string(c.status) || !strings.Contains(m.Get("/error"), c.err) ||
			(c.err == "") != (m.Get("/error") == "") || !strings.Contains(m.Get("/result"), c.result) {
			t.Errorf("%s: %s", c.worker, m)
		}
		event := eventCompleted
		if c.status == protocol.SubagentFailed {
			event = eventFailed
		}
		e := s.event(id, event)
		assert.That(t, e.Get("/content/task") == "t" && strings.Contains(e.Get("/content/error"), c.err), "%s: %s",
			c.worker, e)
	}
}

// TestAgentOfATask: the process of a task is told for which agent it works, and within which limits.
func TestAgentOfATask(t *testing.T) {
	s := newStageWith(t, options(shell("w", `echo "$A2E_AGENT"`)), Env{Agent: &fleet.Agent{
		AgentID: "agent", RootAgentID: "boss", Depth: 1, ToolScope: protocol.ToolsRestricted,
		Capabilities: []string{"tools", "multi_agent"}, MaxSteps: 9,
	}}, host.Options{})
	top := s.spawn("top", "", `,"tool_scope":"shared","max_steps":40`)
	low := s.spawn("low", top, `,"capabilities":["read_file","proc","multi_agent"],"memory_scope":"isolated","max_steps":3`)
	for id, want := range map[string]string{
		top: `{"agent_id":"` + top + `","parent_agent_id":"agent","root_agent_id":"boss","depth":2,` +
			`"memory_scope":"shared","tool_scope":"restricted","capabilities":["tools","multi_agent"],"max_steps":9`,
		low: `{"agent_id":"` + low + `","parent_agent_id":"` + top +
			`","root_agent_id":"boss","depth":3,"memory_scope":"isolated","tool_scope":"restricted",` +
			`"capabilities":["read_file","multi_agent"],"max_steps":3`,
	} {
		s.delegate(id, "go")
		got, _ := s.await(id).Result["summary"].(string)
		var told fleet.Agent
		must.OK(t, json.Unmarshal([]byte(got), &told))
		assert.That(t, strings.HasPrefix(got, want+`,"agent_token":"`) && told.Proven(),
			"got  %v\nwant %s and a token that proves it", got, want)
	}
}

// TestDepth: children of children nest only as deep as max_depth allows, counted over all hosts.
func TestDepth(t *testing.T) {
	for base, deepest := range map[int]int{0: 2, 2: 2} {
		opts := options(shell("w", "cat"))
		opts.MaxDepth = 2
		env := Env{}
		if base > 0 {
			env.Agent = &fleet.Agent{AgentID: "agent", Depth: base, ToolScope: protocol.ToolsShared}
		}
		s := newStageWith(t, opts, env, host.Options{})
		parent := ""
		for range deepest - base + 1 {
			parent = s.spawn("n", parent, "")
		}
		m := s.refused(protocol.CodeSubagentLimit, protocol.TypeSubagentSpawnReq,
			fmt.Sprintf(`{"agent":{"name":"n","model":"m"},"parent_agent_id":%q}`, parent))
		assert.That(t, strings.Contains(m.Get("/message"), "max_depth") && m.Get("/retryable") == "false", "%s", m)
		infos := ask[protocol.SubagentListResponse](s, protocol.TypeSubagentListReq, `{}`).Subagents
		last := infos[len(infos)-1]
		assert.That(t, last.Depth == deepest && *last.RootAgentID == "agent", "%+v", last)
	}
}

// TestQuota: a session may have max_subagents children at once. A terminated child makes room, and is remembered only
// for a while.
func TestQuota(t *testing.T) {
	opts := options(shell("w", "cat"))
	opts.MaxSubagents = 2
	s := newStage(t, opts)
	s.spawn("a", "", "")
	for i := range maxRemembered + 5 {
		id := s.spawn(fmt.Sprint("b", i), "", "")
		m := s.refused(protocol.CodeSubagentLimit, protocol.TypeAgentSpawnReq, `{"name":"c"}`)
		must.That(t, strings.Contains(m.Get("/message"), "max_subagents"), "%s", m)
		s.Call(protocol.TypeAgentTerminateReq, sub(id))
	}
	n := len(ask[protocol.AgentListResponse](s, protocol.TypeAgentListReq, `{}`).Subagents)
	assert.Equal(t, n, maxRemembered+1, "… children are listed")
}

// TestMemoryScope: the memory scope of a child is set up from that of its parent. If this fails, there is no child.
func TestMemoryScope(t *testing.T) {
	scoper := &memories{}
	s := newStage(t, options(shell("w", "cat")), scoper)
	top := s.spawn("top", "", `,"memory_scope":"snapshot"`)
	low := s.spawn("low", top, "")
	scoper.fail = true
	s.refused(protocol.CodeMemoryFull, protocol.TypeAgentSpawnReq, `{"name":"c"}`)
	got, want := strings.Join(scoper.asked, "; "), fmt.Sprintf("agent %s snapshot; %s %s shared", top, top, low)
	assert.Equal(t, got, want)
	assert.Equal(t, len(ask[protocol.AgentListResponse](s, protocol.TypeAgentListReq, `{}`).Subagents), 2, "… children")
}

// TestSessionEnd: the end of a session ends its children, and a new session has none.
func TestSessionEnd(t *testing.T) {
	s := newStage(t, options(shell("w", waits)))
	id := s.spawn("ann", "", "")
	s.delegate(id, "go")
	s.file("begun-go")
	wait := s.Go(protocol.TypeAgentAwaitReq, sub(id))
	s.Handshake()
	s.Answer(wait).Has(t, "/code", string(protocol.CodeCancelled))
	rows := ask[protocol.AgentListResponse](s, protocol.TypeAgentListReq, `{}`).Subagents
	assert.Equal(t, len(rows), 0, "%v", rows)
	seen := len(s.Messages())
	s.refused(protocol.CodeUnknownSubagent, protocol.TypeAgentAwaitReq, sub(id))
	again := s.spawn("bob", "", "")
	s.delegate(again, "go")
	s.CloseInput()
	assert.OK(t, s.WaitEnd())
	for _, m := range s.Messages()[seen:] {
		assert.That(t, m.Type != protocol.TypeSubagentEvent || m.Get("/subagent_id") != id, "after its session: %s", m)
	}
}

// TestEvents: events have the id of the request that they belong to and come after its answer. Many lines of output
// become few events.
func TestEvents(t *testing.T) {
	s := newStage(t, options(shell("w", `echo one; echo two >&2; while ! test -e more; do sleep 0.01; done; i=0; while test $i -lt 1000; do echo "line $i"; i=$((i+1)); done; head -c 9000 /dev/zero | tr '\0' x; echo; while ! test -e go; do sleep 0.01; done`)))
	req := s.Go(protocol.TypeAgentSpawnReq, `{"name":"ann","role":"poet"}`)
	id := answered[protocol.AgentSpawnResponse](s, protocol.TypeAgentSpawnReq, req).SubagentID
	e := s.event(id, eventSpawned)
	assert.That(t, e.ReqID == req && e.Get("/content/name") == "ann" && e.Get("/content/role") == "poet", "%s", e)
	task := s.Go(protocol.TypeAgentDelegateReq, fmt.Sprintf(`{"subagent_id":%q,"task_name":"ode","instruction":"i"}`,
		id))
	e = s.event(id, eventStarted)
	assert.That(t, e.ReqID == task && e.Get("/content/worker") == "w" && e.Get("/content/task") == "ode", "%s", e)
	for _, text := range []string{"one", "two"} {
		s.Wait(text, func(m hosttest.Message) bool {
			return m.ReqID == task && m.Get("/event") == eventOutput && m.Get("/content/text") == text
		})
	}
	s.touch("more")
	s.touch("go")
	e = s.event(id, eventCompleted)
	assert.That(t, e.ReqID == task && e.Get("/content/tokens_spent") != "" &&
		len(e.Get("/content/summary")) <= maxShown, "%.500s", e)
	lines, dropped := 0, 0
	order := ""
	for _, m := range s.Messages() {
		if m.Type == protocol.TypeSubagentEvent && len(order) < 16 {
			order += m.Get("/event") + " "
		}
		if n, err := strconv.Atoi(m.Get("/content/dropped_lines")); err == nil {
			dropped += n
		}
		if m.Get("/event") == eventOutput {
			lines++
			assert.That(t, len(m.Get("/content/text")) <= maxShown, "a line of %d bytes", len(m.Get("/content/text")))
		}
	}
	assert.Equal(t, order, "spawned started ", "first came")
	assert.That(t, lines <= 3*maxPerSecond && lines+dropped == 1003, "%d lines were told, %d dropped", lines, dropped)
	s.Call(protocol.TypeAgentTerminateReq, sub(id))
	e = s.event(id, eventTerminated)
	assert.Equal(t, e.ReqID, req, "%s", e)
}

// TestKeptResultIsBounded: the stored result of a task is bounded, however much a worker writes.
func TestKeptResultIsBounded(t *testing.T) {
	plugin := newPlugin(t, t.TempDir(), options(shell("w", "cat")), Env{})
	res := fleet.NewResult("t", fleet.StatusDone)
	res.Summary = strings.Repeat("s", 8<<20)
	for range 2000 {
		res.NextSteps = append(res.NextSteps, strings.Repeat("n", 8<<10))
		res.Artifacts.FilesChanged = append(res.Artifacts.FilesChanged, strings.Repeat("f", 8<<10))
	}
	kept := plugin.resultOf(res)
	for _, key := range []string{"next_steps", "files_changed"} {
		list := kept[key].([]string)
		size := len(strings.Join(list, ""))
		assert.That(t, size <= maxList && len(list) >= maxList/maxEntry/2, "%s: %d entries of %d bytes", key, len(list),
			size)
	}
	size := len(text(kept, keySummary))
	assert.That(t, size <= defaultMaxOutput, "the summary has %d bytes", size)
}

// TestTerminatedWhileItsTaskEnds: a child that is terminated while its cancelled task ends gets an event for each, and
// is terminated at the end.
func TestTerminatedWhileItsTaskEnds(t *testing.T) {
	s, plugin := openStage(t, options(fleetWorker(t, "f")), Env{})
	id := s.spawn("ann", "", "")
	s.delegate(id, "listen")
	s.file("dispatched")
	c := plugin.childOf(t, id)
	plugin.mu.Lock() // both happen before the task has ended
	c.job.stopLocked(protocol.SubagentCancelled, errCancelled)
	plugin.terminateLocked(c)
	plugin.mu.Unlock()
	s.event(id, eventCancelled)
	s.event(id, eventTerminated)
	got := s.await(id)
	assert.Equal(t, got.Status, protocol.SubagentTerminated, "%+v", got)
	s.Call(protocol.TypePing, `{}`)
	told := map[string]int{}
	for _, m := range s.Messages() {
		if m.Type == protocol.TypeSubagentEvent {
			told[m.Get("/event")]++
		}
	}
	want := "map[cancelled:1 spawned:1 started:1 terminated:1]"
	assert.Equal(t, fmt.Sprint(told), want, "got %v", told)
}

// TestNoChildForAStoppedRequest: a stopped request starts no child, because its session may be over.
func TestNoChildForAStoppedRequest(t *testing.T) {
	plugin := newPlugin(t, t.TempDir(), options(shell("w", "cat")), Env{})
	ctx, cancel := context.WithCancel(host.InSession(t.Context(), &host.Session{}))
	cancel()
	_, err := plugin.groupOf(ctx)
	assert.That(t, errors.Is(err, context.Canceled) && len(plugin.groups) == 0, "%v, %d groups", err,
		len(plugin.groups))
}

// TestWantsOfATaskAreItsOwn: the requirements of one task do not apply to the child's next task.
func TestWantsOfATaskAreItsOwn(t *testing.T) {
	w := shell("w", "cat")
	w.Capabilities = []string{"a", "b", "x"}
	s, plugin := openStage(t, options(w), Env{})
	id := s.spawn("ann", "", `,"metadata":{"required_capabilities":["a","b"],"required_mcp":["a","b"]}`)
	ask[protocol.SubagentDelegateResponse](s, protocol.TypeSubagentDelegateReq,
		fmt.Sprintf(`{"subagent_id":%q,"task":{"name":"t","instruction":"go","metadata":{"required_capabilities":["x"],"required_mcp":["x"]}}}`, id))
	got := s.await(id)
	assert.Equal(t, got.Status, protocol.SubagentCompleted, "%+v", got)
	c := plugin.childOf(t, id)
	assert.That(t, slices.Equal(c.asks.Capabilities, []string{"a", "b"}) && slices.Equal(c.asks.MCP,
		[]string{"a", "b"}), "its next task wants %v of %v", c.asks.Capabilities, c.asks.MCP)
}

// TestLongNamesAndLists: names and lists in requests about children and tasks are bounded.
func TestLongNamesAndLists(t *testing.T) {
	s := newStage(t, options(shell("w", "cat")))
	id := s.spawn("ann", "", "")
	long, many := strings.Repeat("x", maxNameBytes+1), `["a"`+strings.Repeat(`,"a"`, 1024)+`]`
	task := func(rest string) string {
		return fmt.Sprintf(`{"subagent_id":%q,"task":{"name":"t","instruction":"go"%s}}`, id, rest)
	}
	for _, c := range []struct {
		typ          protocol.Type
		fields, path string
	}{
		{
			protocol.TypeSubagentSpawnReq, `{"agent":{"name":"n","model":"m"},"parent_agent_id":"` + long + `"}`,
			"/parent_agent_id",
		},
		{
			protocol.TypeSubagentSpawnReq, `{"agent":{"name":"n","model":"m"},"root_agent_id":"` + long + `"}`,
			"/root_agent_id",
		},
		{
			protocol.TypeAgentSpawnReq, `{"name":"n","metadata":{"root_agent_id":"` + long + `"}}`,
			"/metadata/root_agent_id",
		},
		{
			protocol.TypeSubagentSpawnReq, `{"agent":{"name":"n","model":"m","metadata":{"required_mcp":` + many + `}}}`,
			"/agent/metadata/required_mcp",
		},
		{
			protocol.TypeSubagentDelegateReq, task(`,"metadata":{"required_capabilities":` + many + `}`),
			"/task/metadata/required_capabilities",
		},
		{
			protocol.TypeSubagentDelegateReq, task(`,"metadata":{"x":"` + strings.Repeat("x", maxTaskBytes) + `"}`),
			"/task/instruction",
		},
		{protocol.TypeSubagentDelegateReq, task(`,"success_criteria":[""` + strings.Repeat(`,""`, maxTaskBytes/2) +
			`]`), "/task/instruction"},
	} {
		m := s.refused(protocol.CodeSchemaViolation, c.typ, c.fields)
		assert.Equal(t, m.Problem(), c.path, "%.300s", m.Line)
	}
}

// TestDepthOfATaskWithoutAChild: a task that comes through another protocol nests like a child: each host on its way
// adds one level, and max_depth ends it.
func TestDepthOfATaskWithoutAChild(t *testing.T) {
	for depth, ok := range map[int]bool{1: true, 3: true, 4: false, 9: false} {
		plugin := newPlugin(t, t.TempDir(), options(shell("w", `echo "$A2E_AGENT"`)),
			Env{Agent: &fleet.Agent{AgentID: "me", Depth: depth, ToolScope: protocol.ToolsShared}})
		for _, as := range []*fleet.Agent{nil, {AgentID: "other", ToolScope: protocol.ToolsShared}} {
			var task agent.WorkerTask
			task.Task.TaskID, task.Brief, task.Agent = "t", "go", as
			res, err := plugin.RunTask(t.Context(), task)
			assert.Equal(t, (err == nil), ok, "at depth %d: %v", depth, err)
			if err == nil {
				assert.Contains(t, res.Summary, fmt.Sprintf(`"depth":%d`, depth+1))
			}
		}
	}
}
