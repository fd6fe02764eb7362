package planning

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/store"
	"a2e/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	made := func(t testing.TB, p *hosttest.Pair) (plan, task string) {
		var created protocol.PlanCreateResponse
		p.Call(protocol.TypePlanCreateReq, `{}`).Decode(t, &created)
		var added protocol.TaskAddResponse
		p.Call(protocol.TypeTaskAddReq, fmt.Sprintf(`{"plan_id":%q,"title":"t"}`, created.PlanID)).Decode(t, &added)
		return created.PlanID, added.TaskID
	}
	with := func(format string) func(testing.TB, *hosttest.Pair) string {
		return func(t testing.TB, p *hosttest.Pair) string {
			plan, task := made(t, p)
			return strings.NewReplacer("PLAN", plan, "TASK", task).Replace(format)
		}
	}
	newOne := func(t testing.TB) host.Plugin { return newPlugin(t, "plans", openStore(t, newFile(t)), nil) }
	hosttest.Contract(t, newOne, []hosttest.Sample{
		{Type: protocol.TypePlanCreateReq, Fields: `{"name":"n","columns":["a","b"],"description":"d"}`},
		{Name: "double column", Type: protocol.TypePlanCreateReq, Fields: `{"columns":["a","a"]}`, Code: protocol.CodeSchemaViolation},
		{Type: protocol.TypePlanListReq, Fields: `{}`},
		{Type: protocol.TypeTaskAddReq, Make: with(`{"plan_id":"PLAN","title":"t","status":"todo","description":"d","assignee":"me","deps":["TASK"],"metadata":{"a":null}}`)},
		{Name: "unknown plan", Type: protocol.TypeTaskAddReq, Fields: `{"plan_id":"x","title":"t"}`},
		{Name: "unknown status", Type: protocol.TypeTaskAddReq, Make: with(`{"plan_id":"PLAN","title":"t","status":"x"}`), Code: protocol.CodeSchemaViolation},
		{Type: protocol.TypeTaskUpdateReq, Make: with(`{"plan_id":"PLAN","task_id":"TASK","status":"done","assignee":"me"}`)},
		{Name: "unknown task", Type: protocol.TypeTaskUpdateReq, Make: with(`{"plan_id":"PLAN","task_id":"x"}`)},
		{Name: "itself", Type: protocol.TypeTaskUpdateReq, Make: with(`{"plan_id":"PLAN","task_id":"TASK","deps":["TASK"]}`), Code: protocol.CodeSchemaViolation},
		{Type: protocol.TypeTaskListReq, Make: with(`{"plan_id":"PLAN","status":"backlog"}`)},
		{Type: protocol.TypePlanBoardReq, Make: with(`{"plan_id":"PLAN"}`)},
	})
}

func TestNewNeedsAStore(t *testing.T) {
	if _, err := New("plans", Options{}, Env{}); err == nil || !strings.Contains(err.Error(), `"plans"`) {
		t.Errorf("without a store: %v", err)
	}
}

// What is wrong with the store is the answer to the request that needed it, and the
// next one may find it well.
func TestStoreThatFails(t *testing.T) {
	s := openStore(t, newFile(t))
	broken := true
	plugin, err := New("plans", Options{}, Env{Store: func(context.Context) (store.Store, error) {
		if broken {
			return nil, errors.New("no such disk")
		}
		return s, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})
	p.Handshake(protocol.CapPlanning)
	for _, typ := range []protocol.Type{protocol.TypePlanCreateReq, protocol.TypePlanListReq} {
		if m := p.Call(typ, `{}`); m.Code != protocol.CodeRuntimeError || !strings.Contains(m.Get("/message"), "no such disk") {
			t.Errorf("%s was answered by %s", typ, m.Line)
		}
	}
	broken = false // the host reads it after the next request came in
	if m := p.Call(protocol.TypePlanCreateReq, `{}`); m.Type != protocol.TypePlanCreateResp {
		t.Errorf("after that: %s", m.Line)
	}
}

// Two plugins of one host on one store have the same plans, which stand once in each list.
func TestTwoPluginsOnOneStore(t *testing.T) {
	s := &stage{t: t, store: openStore(t, newFile(t))}
	s.Pair = hosttest.New(t, host.Options{Plugins: []host.Plugin{
		newPlugin(t, "one", s.store, nil), newPlugin(t, "two", s.store, nil),
	}})
	s.Handshake(protocol.CapPlanning)
	s.task(s.plan(), "t")
	if got := s.titles(); got != "[t]" {
		t.Errorf("tasks %s", got)
	}
	if n := strings.Count(s.boards(""), `"plan_id"`); n != 2 { // of the board and of its task
		t.Errorf("boards %s", s.boards(""))
	}
	var list protocol.PlanListResponse
	if s.ask(protocol.TypePlanListReq, `{}`, &list); len(list.Plans) != 1 {
		t.Errorf("plans %v", list.Plans)
	}
}

// With several stores a request goes to the plugin that has the plan, and lists
// are those of all.
func TestTwoStores(t *testing.T) {
	first, second := openStore(t, newFile(t)), openStore(t, newFile(t))
	behind := &stage{t: t, Pair: hosttest.New(t, host.Options{Plugins: []host.Plugin{newPlugin(t, "two", second, nil)}})}
	behind.Handshake(protocol.CapPlanning)
	theirs := behind.plan("name", "theirs")
	s := &stage{t: t, Pair: hosttest.New(t, host.Options{Plugins: []host.Plugin{newPlugin(t, "one", first, nil), newPlugin(t, "two", second, nil)}})}
	s.Handshake(protocol.CapPlanning)
	ours := s.plan("name", "ours")
	s.task(ours, "of ours")
	task := s.task(theirs, "of theirs")
	s.update(theirs, task, "status", "done")
	if got := s.titles(); got != "[of ours of theirs]" {
		t.Errorf("tasks of both: %s", got)
	}
	if got := behind.titles("status", "done"); got != "[of theirs]" {
		t.Errorf("tasks of the second: %s", got)
	}
	var refusal protocol.TaskUpdateResponse
	s.ask(protocol.TypeTaskUpdateReq, fields(t, "plan_id", theirs, "task_id", "x"), &refusal)
	if refusal.Success || !strings.Contains(refusal.Error, "no task") {
		t.Errorf("an unknown task of the second's plan: %+v", refusal)
	}
}
