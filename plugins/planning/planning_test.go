package planning

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.uber.org/goleak"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/protocol"
)

// openStore opens a store in a file. It is closed at the end of the test.
func openStore(t testing.TB, path string) store.Store { return stores.Open(t, path, Part()) }

// newFile returns the path of a store that does not exist yet.
func newFile(t testing.TB) string { return filepath.Join(t.TempDir(), store.FileName) }

// newPlugin makes a plugin on a store.
func newPlugin(t testing.TB, name string, s store.Store, now func() time.Time) *Plugin {
	t.Helper()
	return must.Get(New(name, Options{}, host.Env{
		Store: func(context.Context) (store.Store, error) { return s, nil },
		Now:   now,
	}))(t)
}

// stage is a host with a planning plugin and a session.
type stage struct {
	*hosttest.Pair
	t     testing.TB
	store store.Store
}

// newStage opens a host on the store in a file.
func newStage(t testing.TB, path string) *stage {
	t.Helper()
	s := &stage{t: t, store: openStore(t, path)}
	s.Pair = hosttest.New(t, host.Options{Plugins: []host.Plugin{newPlugin(t, "plans", s.store, nil)}})
	s.Handshake(protocol.CapPlanning)
	return s
}

// ask sends a request, expects its response and reads it.
func (s *stage) ask(typ protocol.Type, fields string, resp any) hosttest.Message {
	s.t.Helper()
	m := s.Call(typ, fields)
	must.That(s.t, m.Type == responseOf(typ), "%s %s was answered by %.1000s", typ, fields, m.Line)
	m.Decode(s.t, resp)
	return m
}

func responseOf(typ protocol.Type) protocol.Type {
	info, _ := protocol.Lookup(typ)
	return info.Response
}

// refused sends a request that must be a schema_violation, and returns its first path and its message.
func (s *stage) refused(typ protocol.Type, fields string) (path, message string) {
	s.t.Helper()
	m := s.Call(typ, fields)
	must.That(s.t, m.Code == protocol.CodeSchemaViolation && m.Get("/retryable") == "false",
		"%s %.200s was answered by %.1000s", typ, fields, m.Line)
	return m.Get("/detail/errors/0/path"), m.Get("/message")
}

// plan makes a plan, and returns its id.
func (s *stage) plan(more ...any) string {
	s.t.Helper()
	var resp protocol.PlanCreateResponse
	s.ask(protocol.TypePlanCreateReq, fields(s.t, more...), &resp)
	must.That(s.t, resp.Success && len(resp.PlanID) == idDigits, "no plan: %+v", resp)
	return resp.PlanID
}

// task makes a task, and returns its id.
func (s *stage) task(plan, title string, more ...any) string {
	s.t.Helper()
	var resp protocol.TaskAddResponse
	s.ask(protocol.TypeTaskAddReq, fields(s.t, append([]any{"plan_id", plan, "title", title}, more...)...), &resp)
	must.That(s.t, resp.Success && len(resp.TaskID) == idDigits && resp.Error == "", "no task: %+v", resp)
	return resp.TaskID
}

// update changes a task, which must succeed.
func (s *stage) update(plan, task string, more ...any) {
	s.t.Helper()
	var resp protocol.TaskUpdateResponse
	s.ask(protocol.TypeTaskUpdateReq, fields(s.t, append([]any{"plan_id", plan, "task_id", task}, more...)...), &resp)
	must.That(s.t, resp.Success && resp.TaskID == task && resp.Error == "", "not updated: %+v", resp)
}

// row is a task as answers show it.
type row struct {
	TaskID      string         `json:"task_id"`
	PlanID      string         `json:"plan_id"`
	Title       string         `json:"title"`
	Status      string         `json:"status"`
	Assignee    string         `json:"assignee"`
	Description string         `json:"description"`
	Deps        []string       `json:"deps"`
	Metadata    jsontext.Value `json:"metadata"`
	Priority    string         `json:"priority"`
	Due         string         `json:"due"`
	Estimate    string         `json:"estimate"`
	Comments    []comment      `json:"comments"`
	ClaimedBy   string         `json:"claimed_by"`
	Until       float64        `json:"claimed_until"`
	Version     int            `json:"version"`
	CreatedAt   float64        `json:"created_at"`
	UpdatedAt   float64        `json:"updated_at"`
}

// list returns the tasks that match a filter.
func (s *stage) list(more ...any) []row {
	s.t.Helper()
	var resp struct {
		Tasks []row `json:"tasks"`
	}
	s.ask(protocol.TypeTaskListReq, fields(s.t, more...), &resp)
	return resp.Tasks
}

// titles returns the titles of the tasks that match a filter.
func (s *stage) titles(more ...any) string {
	s.t.Helper()
	all := []string{}
	for _, r := range s.list(more...) {
		all = append(all, r.Title)
	}
	return fmt.Sprint(all)
}

// boards returns the JSON of the boards of a plan, or of all.
func (s *stage) boards(plan string) string {
	s.t.Helper()
	var resp struct {
		Boards jsontext.Value `json:"boards"`
	}
	s.ask(protocol.TypePlanBoardReq, fields(s.t, "plan_id", plan), &resp)
	return string(resp.Boards)
}

// fields makes a JSON object of names and values in turn.
func fields(t testing.TB, pairs ...any) string {
	t.Helper()
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	b := must.Get(json.Marshal(m))(t)
	return string(b)
}

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
		{
			Name: "double column", Type: protocol.TypePlanCreateReq, Fields: `{"columns":["a","a"]}`,
			Code: protocol.CodeSchemaViolation,
		},
		{Type: protocol.TypePlanListReq, Fields: `{}`},
		{Type: protocol.TypeTaskAddReq, Make: with(`{"plan_id":"PLAN","title":"t","status":"todo","description":"d","assignee":"me","deps":["TASK"],"metadata":{"a":null}}`)},
		{Name: "unknown plan", Type: protocol.TypeTaskAddReq, Fields: `{"plan_id":"x","title":"t"}`},
		{
			Name: "unknown status", Type: protocol.TypeTaskAddReq,
			Make: with(`{"plan_id":"PLAN","title":"t","status":"x"}`), Code: protocol.CodeSchemaViolation,
		},
		{Type: protocol.TypeTaskUpdateReq, Make: with(`{"plan_id":"PLAN","task_id":"TASK","status":"done","assignee":"me"}`)},
		{Name: "unknown task", Type: protocol.TypeTaskUpdateReq, Make: with(`{"plan_id":"PLAN","task_id":"x"}`)},
		{
			Name: "itself", Type: protocol.TypeTaskUpdateReq,
			Make: with(`{"plan_id":"PLAN","task_id":"TASK","deps":["TASK"]}`), Code: protocol.CodeSchemaViolation,
		},
		{Type: protocol.TypeTaskListReq, Make: with(`{"plan_id":"PLAN","status":"backlog"}`)},
		{Type: protocol.TypePlanBoardReq, Make: with(`{"plan_id":"PLAN"}`)},
	})
}

// TestStoreThatFails: an error of the store is the answer to the request that needed the store, and the
// next request tries again.
func TestStoreThatFails(t *testing.T) {
	s := openStore(t, newFile(t))
	broken := true
	plugin := must.Get(New("plans", Options{}, host.Env{Store: func(context.Context) (store.Store, error) {
		if broken {
			return nil, errors.New("no such disk")
		}
		return s, nil
	}}))(t)
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})
	p.Handshake(protocol.CapPlanning)
	for _, typ := range []protocol.Type{protocol.TypePlanCreateReq, protocol.TypePlanListReq} {
		p.Refused(typ, `{}`, protocol.CodeRuntimeError, "no such disk")
	}
	broken = false // the host reads it only after the next request
	m := p.Call(protocol.TypePlanCreateReq, `{}`)
	assert.Equal(t, m.Type, protocol.TypePlanCreateResp, "after that: %s", m.Line)
}

// TestTwoStores: with several stores, a request is passed to the plugin that has the plan, and a list
// has the entries of all stores, each once.
func TestTwoStores(t *testing.T) {
	first, second := openStore(t, newFile(t)), openStore(t, newFile(t))
	behind := &stage{t: t, Pair: hosttest.New(t, host.Options{Plugins: []host.Plugin{newPlugin(t, "two", second,
		nil)}})}
	behind.Handshake(protocol.CapPlanning)
	theirs := behind.plan("name", "theirs")
	s := &stage{t: t, Pair: hosttest.New(t, host.Options{Plugins: []host.Plugin{
		newPlugin(t, "one", first, nil),
		newPlugin(t, "two", second, nil), newPlugin(t, "again", second, nil),
	}})}
	s.Handshake(protocol.CapPlanning)
	ours := s.plan("name", "ours")
	s.task(ours, "of ours")
	task := s.task(theirs, "of theirs")
	s.update(theirs, task, "status", "done")
	assert.Equal(t, s.titles(), "[of ours of theirs]", "tasks of both")
	assert.Equal(t, behind.titles("status", "done"), "[of theirs]", "tasks of the second")
	var refusal protocol.TaskUpdateResponse
	s.ask(protocol.TypeTaskUpdateReq, fields(t, "plan_id", theirs, "task_id", "x"), &refusal)
	assert.That(t, !refusal.Success && strings.Contains(refusal.Error, "no task"), "an unknown task of the second's "+
		"plan: %+v", refusal)
}
