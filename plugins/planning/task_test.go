package planning

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"a2e/protocol"
)

// absent is an id that nothing has.
const absent = "ffffffffffff"

func TestAdd(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan()
	before := s.task(plan, "before")
	const metadata = `{"n":12345678901234567890,"x":1.50,"":[null,{"a":"\u0000"}]}`
	id := s.task(plan, "title \x00 😀", "status", "done", "description", "d", "assignee", "me",
		"deps", []string{before, before}, "metadata", jsontext.Value(metadata))
	rows := s.list("plan_id", plan)
	if len(rows) != 2 {
		t.Fatalf("%d tasks", len(rows))
	}
	got := rows[1]
	if got.CreatedAt < rows[0].CreatedAt || got.CreatedAt != got.UpdatedAt || got.CreatedAt < 1e9 {
		t.Errorf("times %f and %f after %f", got.CreatedAt, got.UpdatedAt, rows[0].CreatedAt)
	}
	want := row{
		TaskID: id, PlanID: plan, Title: "title \x00 😀", Status: "done", Assignee: "me", Description: "d",
		Deps: []string{before}, Metadata: jsontext.Value(metadata), CreatedAt: got.CreatedAt, UpdatedAt: got.UpdatedAt,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if m := s.Call(protocol.TypeTaskListReq, `{}`); m.Get("/tasks/0/deps") != "[]" || m.Get("/tasks/0/metadata") != "{}" {
		t.Errorf("a task with nothing but a title: %s", m.Line)
	}
}

// A task that names no column begins in "backlog", or where the plan begins.
func TestFirstColumn(t *testing.T) {
	s := newStage(t, newFile(t))
	for _, tc := range []struct {
		columns []string
		want    string
	}{
		{nil, "backlog"},
		{[]string{"first", "backlog"}, "backlog"},
		{[]string{"first", "second"}, "first"},
	} {
		plan := s.plan("columns", tc.columns)
		for _, more := range []string{``, `,"status":""`, `,"status":null`, `,"status":"backlog"`} {
			var resp protocol.TaskAddResponse
			s.ask(protocol.TypeTaskAddReq, fmt.Sprintf(`{"plan_id":%q,"title":"t"%s}`, plan, more), &resp)
			if !resp.Success || resp.Status != tc.want {
				t.Errorf("columns %q, %s: %+v", tc.columns, more, resp)
			}
		}
	}
}

func TestAddRefuses(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan("columns", []string{"open", "closed"})
	there := s.task(plan, "there")
	elsewhere := s.task(s.plan(), "elsewhere")
	big := jsontext.Value(`{"a":"` + strings.Repeat("x", maxMetadata) + `"}`)
	for name, tc := range map[string]struct {
		more []any
		path string
		says []string
	}{
		"status":           {[]any{"status", "doing"}, "/status", []string{`"doing"`, "open, closed"}},
		"no title":         {[]any{"title", " \n"}, "/title", []string{"empty"}},
		"long title":       {[]any{"title", strings.Repeat("x", maxName+1)}, "/title", []string{"at most 1000"}},
		"long assignee":    {[]any{"assignee", strings.Repeat("x", maxName+1)}, "/assignee", []string{"at most 1000"}},
		"long description": {[]any{"description", strings.Repeat("x", maxDescription+1)}, "/description", []string{"at most 100000"}},
		"metadata":         {[]any{"metadata", big}, "/metadata", []string{"at most 65536"}},
		"unknown dep":      {[]any{"deps", []string{there, absent}}, "/deps/1", []string{absent, plan}},
		"empty dep":        {[]any{"deps", []string{""}}, "/deps/0", []string{`""`}},
		"dep and NUL":      {[]any{"deps", []string{there + "\x00"}}, "/deps/0", []string{`\x00`}},
		"dep of another":   {[]any{"deps", []string{elsewhere}}, "/deps/0", []string{elsewhere, plan}},
		"many deps":        {[]any{"deps", make([]string, maxDeps+1)}, "/deps", []string{"at most 1000"}},
	} {
		t.Run(name, func(t *testing.T) {
			path, message := s.refused(protocol.TypeTaskAddReq, fields(t, append([]any{"plan_id", plan, "title", "t"}, tc.more...)...))
			if path != tc.path {
				t.Errorf("%q is blamed: %s", path, message)
			}
			for _, word := range tc.says {
				if !strings.Contains(message, word) {
					t.Errorf("%q is not in %s", word, message)
				}
			}
		})
	}
	if got := s.titles("plan_id", plan); got != "[there]" {
		t.Errorf("a refused task was kept: %s", got)
	}
}

func TestUnknownPlanAndTask(t *testing.T) {
	s := newStage(t, newFile(t))
	plan, other := s.plan(), s.plan()
	task := s.task(other, "t")
	var added protocol.TaskAddResponse
	for _, id := range []string{"", absent, "x\x00"} {
		s.ask(protocol.TypeTaskAddReq, fields(t, "plan_id", id, "title", "t"), &added)
		if added.Success || added.TaskID != "" || !strings.Contains(added.Error, fmt.Sprintf("%q", id)) || !strings.Contains(added.Error, "planning/plan/create") {
			t.Errorf("%q: %+v", id, added)
		}
	}
	for _, tc := range []struct{ plan, task, says string }{
		{absent, task, "no plan"}, {"", "", "no plan"}, {plan, absent, "no task"}, {plan, "", "no task"}, {plan, task, other},
	} {
		var resp protocol.TaskUpdateResponse
		s.ask(protocol.TypeTaskUpdateReq, fields(t, "plan_id", tc.plan, "task_id", tc.task, "status", "done"), &resp)
		if resp.Success || resp.TaskID != tc.task || !strings.Contains(resp.Error, tc.says) {
			t.Errorf("%+v: %+v", tc, resp)
		}
	}
	if got := s.titles("status", "backlog"); got != "[t]" {
		t.Errorf("the task was changed: %s", got)
	}
	if m := s.Call(protocol.TypeTaskUpdateReq, fields(t, "plan_id", other, "task_id", task)); m.Get("/error") != "" || m.Get("/success") != "true" {
		t.Errorf("an error is named beside a success: %s", m.Line)
	}
}

// What an update does not give stays, and what it gives takes the place of the old.
func TestUpdate(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan()
	a, b := s.task(plan, "a"), s.task(plan, "b")
	id := s.task(plan, "t", "description", "d", "assignee", "me", "deps", []string{a}, "metadata", jsontext.Value(`{"k":1}`))
	want := s.list()[2]
	for _, tc := range []struct {
		name string
		more []any
		do   func(*row)
	}{
		{"nothing", nil, nil},
		{"empty fields", []any{"status", "", "assignee", "", "deps", []string{}}, nil},
		{"the same", []any{"status", "backlog", "assignee", "me", "deps", []string{a}}, nil},
		{"status", []any{"status", "done"}, func(r *row) { r.Status = "done" }},
		{"assignee", []any{"assignee", "you"}, func(r *row) { r.Assignee = "you" }},
		{"deps", []any{"deps", []string{b, a, b}}, func(r *row) { r.Deps = []string{b, a} }},
		{"all", []any{"status", "todo", "assignee", "we", "deps", []string{b}}, func(r *row) { r.Status, r.Assignee, r.Deps = "todo", "we", []string{b} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.update(plan, id, tc.more...)
			got := s.list()[2]
			if tc.do != nil {
				tc.do(&want)
				if got.UpdatedAt <= want.UpdatedAt {
					t.Errorf("updated_at is %f, as before", got.UpdatedAt)
				}
				want.UpdatedAt = got.UpdatedAt
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestUpdateRefuses(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan()
	a := s.task(plan, "a")
	b := s.task(plan, "b", "deps", []string{a})
	c := s.task(plan, "c", "deps", []string{b})
	free := s.task(plan, "free")
	for name, tc := range map[string]struct {
		task string
		more []any
		path string
		says string
	}{
		"status":      {a, []any{"status", "x", "assignee", "me"}, "/status", "backlog, todo, in_progress, done"},
		"assignee":    {a, []any{"assignee", strings.Repeat("x", maxName+1)}, "/assignee", "at most"},
		"unknown dep": {a, []any{"status", "done", "deps", []string{free, absent}}, "/deps/1", absent},
		"many deps":   {a, []any{"deps", make([]string, maxDeps+1)}, "/deps", "at most"},
		"itself":      {free, []any{"deps", []string{a, free}}, "/deps/1", free + " → " + free},
		"two":         {a, []any{"deps", []string{free, b}}, "/deps/1", a + " → " + b + " → " + a},
		"three":       {a, []any{"deps", []string{c}}, "/deps/0", a + " → " + c + " → " + b + " → " + a},
	} {
		t.Run(name, func(t *testing.T) {
			path, message := s.refused(protocol.TypeTaskUpdateReq, fields(t, append([]any{"plan_id", plan, "task_id", tc.task}, tc.more...)...))
			if path != tc.path || !strings.Contains(message, tc.says) {
				t.Errorf("%q: %s", path, message)
			}
		})
	}
	for _, r := range s.list() {
		if r.Status != "backlog" || r.Assignee != "" || r.UpdatedAt != r.CreatedAt {
			t.Errorf("a refused update was kept: %+v", r)
		}
	}
}

func TestFilters(t *testing.T) {
	s := newStage(t, newFile(t))
	one, two := s.plan(), s.plan()
	s.task(one, "a", "status", "todo")
	s.task(two, "b", "status", "todo")
	s.task(one, "c", "status", "done")
	s.task(two, "d")
	s.update(one, s.task(one, "e"), "status", "todo")
	for _, tc := range []struct {
		plan, status, want string
	}{
		{"", "", "[a b c d e]"}, {one, "", "[a c e]"}, {"", "todo", "[a b e]"}, {one, "todo", "[a e]"}, {two, "done", "[]"},
		{absent, "", "[]"}, {absent, "todo", "[]"}, {"", "x", "[]"}, {one, "TODO", "[]"}, {one, "' OR 1=1 --", "[]"},
	} {
		if got := s.titles("plan_id", tc.plan, "status", tc.status); got != tc.want {
			t.Errorf("plan %q, status %q: %s, should be %s", tc.plan, tc.status, got, tc.want)
		}
	}
	if m := s.Call(protocol.TypeTaskListReq, fields(t, "plan_id", absent)); m.Get("/tasks") != "[]" {
		t.Errorf("no tasks: %s", m.Line)
	}
}
