package planning

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/protocol"
)

func TestCreate(t *testing.T) {
	s := newStage(t, newFile(t))
	usual := []string{"backlog", "todo", "in_progress", "done"}
	long := strings.Repeat("é", maxColumn)
	for name, tc := range map[string]struct {
		fields string
		name   string
		want   []string
	}{
		"nothing given":   {`{}`, "default", usual},
		"empty":           {`{"name":"","columns":[],"description":""}`, "default", usual},
		"null":            {`{"name":null,"columns":null}`, "default", usual},
		"columns":         {`{"name":"n","columns":["z","a"," b "]}`, "n", []string{"z", "a", " b "}},
		"longest column":  {fields(t, "columns", []string{long}), "default", []string{long}},
		"strange columns": {`{"columns":["\u0000","\"","😀"]}`, "default", []string{"\x00", `"`, "😀"}},
	} {
		t.Run(name, func(t *testing.T) {
			var resp protocol.PlanCreateResponse
			s.ask(protocol.TypePlanCreateReq, tc.fields, &resp)
			assert.That(t, resp.Success && slices.Equal(resp.Columns, tc.want) &&
				strings.Trim(resp.PlanID, "0123456789abcdef") == "",
				"%+v", resp)
			var boards []map[string]any
			err := json.Unmarshal([]byte(s.boards(resp.PlanID)), &boards)
			assert.That(t, err == nil && len(boards) == 1 && boards[0]["name"] == tc.name, "the board is %v, %v",
				boards, err)
		})
	}
}

func TestList(t *testing.T) {
	s := newStage(t, newFile(t))
	s.Call(protocol.TypePlanListReq, `{}`).Has(t, "/plans", "[]")
	before := float64(time.Now().UnixMicro()) / 1e6
	first := s.plan("name", "same", "description", "d")
	second := s.plan("name", "same", "columns", []string{"x"})
	s.task(first, "a")
	s.task(first, "b")
	var list struct {
		Plans []map[string]any `json:"plans"`
	}
	s.ask(protocol.TypePlanListReq, `{}`, &list)
	must.That(t, len(list.Plans) == 2 && first != second, "%v", list.Plans)
	after := float64(time.Now().UnixMicro()) / 1e6
	at := list.Plans[0]["created_at"].(float64)
	assert.That(t, !(at < before) && !(at > after), "created_at is %f, should be from %f to %f", at, before, after)
	for _, p := range list.Plans {
		delete(p, "created_at")
		delete(p, "folder")
	}
	want := fmt.Sprintf(`[map[columns:[backlog todo in_progress done] description:d done:0 done_column:done name:same plan_id:%s tasks:2] map[columns:[x] description: done:0 done_column:x name:same plan_id:%s tasks:0]]`, first, second)
	assert.Equal(t, fmt.Sprint(list.Plans), want, "plans")
}

func TestBoard(t *testing.T) {
	s := newStage(t, newFile(t))
	assert.Equal(t, s.boards(""), "[]", "boards of no plan")
	plan := s.plan("name", "n", "description", "d", "columns", []string{"z", "a", "m"})
	other := s.plan()
	second, third := s.task(plan, "second", "status", "m"), s.task(plan, "third", "status", "m")
	s.update(plan, second, "assignee", "me")
	var boards []struct {
		PlanID string           `json:"plan_id"`
		Tasks  map[string][]row `json:"tasks"`
	}
	text := s.boards(plan)
	err := json.Unmarshal([]byte(text), &boards)
	must.That(t, err == nil && len(boards) == 1, "%v in %s", err, text)
	tasks := boards[0].Tasks
	assert.That(t, len(tasks) == 3 && tasks["z"] != nil && tasks["a"] != nil && len(tasks["m"]) == 2 &&
		tasks["m"][0].TaskID == second && tasks["m"][1].TaskID == third, "the tasks are %v", tasks)
	assert.Equal(t, tasks["m"][0].Assignee, "me", "the changed task is %+v", tasks["m"][0])
	if !strings.Contains(text, `"columns":["z","a","m"],"description":"d","name":"n"`) ||
		!strings.Contains(text, `"tasks":{"z":[],"a":[],"m":[{`) {
		t.Errorf("the columns are not in their order: %s", text)
	}
	assert.Equal(t, s.boards("x"), "[]", "boards of an unknown plan")
	boards = nil
	err = json.Unmarshal([]byte(s.boards("")), &boards)
	assert.That(t, err == nil && len(boards) == 2 && boards[0].PlanID == plan && boards[1].PlanID == other,
		"all boards: %v, %v", boards, err)
}

// absent is an id that no plan and no task has.
const absent = "ffffffffffff"

func TestAdd(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan()
	before := s.task(plan, "before")
	const metadata = `{"n":12345678901234567890,"x":1.50,"":[null,{"a":"\u0000"}]}`
	id := s.task(plan, "title \x00 😀", "status", "done", "description", "d", "assignee", "me",
		"deps", []string{before, before}, "metadata", jsontext.Value(metadata), "force", true)
	rows := s.list("plan_id", plan)
	must.Equal(t, len(rows), 2, "… tasks")
	got := rows[1]
	assert.That(t, !(got.CreatedAt < rows[0].CreatedAt) && got.CreatedAt == got.UpdatedAt && !(got.CreatedAt < 1e9),
		"times %f and %f after %f", got.CreatedAt, got.UpdatedAt, rows[0].CreatedAt)
	want := row{
		TaskID: id, PlanID: plan, Title: "title \x00 😀", Status: "done", Assignee: "me", Description: "d",
		Deps: []string{before}, Metadata: jsontext.Value(metadata), Priority: "normal", Comments: []comment{},
		Version:   1,
		CreatedAt: got.CreatedAt, UpdatedAt: got.UpdatedAt,
	}
	assert.Diff(t, want, got)
	s.Call(protocol.TypeTaskListReq, `{}`).Has(t, "/tasks/0/deps", "[]", "/tasks/0/metadata", "{}")
}

// TestFirstColumn: a task without a column begins in "backlog", or in the first column of a plan
// without "backlog".
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
			assert.That(t, resp.Success && resp.Status == tc.want, "columns %q, %s: %+v", tc.columns, more, resp)
		}
	}
}

func TestUnknownPlanAndTask(t *testing.T) {
	s := newStage(t, newFile(t))
	plan, other := s.plan(), s.plan()
	task := s.task(other, "t")
	var added protocol.TaskAddResponse
	for _, id := range []string{"", absent, "x\x00"} {
		s.ask(protocol.TypeTaskAddReq, fields(t, "plan_id", id, "title", "t"), &added)
		assert.That(t, !added.Success && added.TaskID == "" && strings.Contains(added.Error, fmt.Sprintf("%q", id)) &&
			strings.Contains(added.Error, "planning/plan/create"), "%q: %+v", id, added)
	}
	for _, tc := range []struct{ plan, task, says string }{
		{absent, task, "no plan"},
		{"", "", "no plan"},
		{plan, absent, "no task"},
		{plan, "", "no task"},
		{plan, task, other},
	} {
		var resp protocol.TaskUpdateResponse
		s.ask(protocol.TypeTaskUpdateReq, fields(t, "plan_id", tc.plan, "task_id", tc.task, "status", "done"), &resp)
		assert.That(t, !resp.Success && resp.TaskID == tc.task && strings.Contains(resp.Error, tc.says), "%+v: %+v", tc,
			resp)
	}
	assert.Equal(t, s.titles("status", "backlog"), "[t]", "the task was changed")
	s.Call(protocol.TypeTaskUpdateReq, fields(t, "plan_id", other, "task_id", task)).Has(t, "/error", "", "/success",
		"true")
}

// TestUpdate: an update replaces the fields that it has, and keeps the others.
func TestUpdate(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan()
	a, b := s.task(plan, "a"), s.task(plan, "b")
	id := s.task(plan, "t", "description", "d", "assignee", "me", "deps", []string{a}, "metadata",
		jsontext.Value(`{"k":1}`))
	want := s.list()[2]
	for _, tc := range []struct {
		name string
		more []any
		do   func(*row)
	}{
		{"nothing", nil, nil},
		{"empty fields", []any{"status", "", "assignee", "", "deps", []string{}}, nil},
		{"the same", []any{"status", "backlog", "assignee", "me", "deps", []string{a}}, nil},
		{"status", []any{"status", "done", "force", true}, func(r *row) { r.Status = "done" }},
		{"assignee", []any{"assignee", "you"}, func(r *row) { r.Assignee = "you" }},
		{"deps", []any{"deps", []string{b, a, b}}, func(r *row) { r.Deps = []string{b, a} }},
		{
			"others",
			[]any{"status", "todo", "assignee", "we", "deps", []string{b}},
			func(r *row) { r.Status, r.Assignee, r.Deps = "todo", "we", []string{b} },
		},
		{"all", []any{
			"title", "t2", "description", "d2", "metadata", jsontext.Value(`{"l":[]}`), "priority", "urgent",
			"due", "2031-02-03T04:05:06+01:00", "estimate", "1h30m",
		}, func(r *row) {
			r.Title, r.Description, r.Metadata, r.Priority, r.Due, r.Estimate = "t2", "d2", jsontext.Value(`{"l":[]}`),
				"urgent", "2031-02-03T03:05:06Z", "1h30m"
		}},
		{"clear", []any{
			"clear",
			[]string{"assignee", "deps", "description", "due", "estimate", "metadata"},
			"priority",
			"normal",
		}, func(r *row) {
			r.Assignee, r.Deps, r.Description, r.Due, r.Estimate, r.Metadata, r.Priority = "", []string{}, "", "", "",
				jsontext.Value(`{}`), "normal"
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.update(plan, id, tc.more...)
			got := s.list()[2]
			if tc.do != nil {
				tc.do(&want)
				assert.That(t, !(got.UpdatedAt <= want.UpdatedAt), "updated_at is %f, as before", got.UpdatedAt)
				want.UpdatedAt = got.UpdatedAt
				want.Version++
			}
			assert.Diff(t, want, got)
		})
	}
}

// TestRefusals: a refused request names the path of the wrong field, and changes nothing.
func TestRefusals(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan("columns", []string{"open", "closed"})
	a := s.task(plan, "a")
	b := s.task(plan, "b", "deps", []string{a})
	c := s.task(plan, "c", "deps", []string{b})
	elsewhere := s.task(s.plan(), "elsewhere")
	before, notIn := s.boards(""), `", which is not a task of the plan `+plan
	text := func(n int) string { return strings.Repeat("é", n) }
	many := strings.Split(strings.Repeat("x", maxColumns+1), "")
	big := jsontext.Value(`{"a":"` + strings.Repeat("x", maxMetadata) + `"}`)
	create, add, update := protocol.TypePlanCreateReq, protocol.TypeTaskAddReq, protocol.TypeTaskUpdateReq
	for name, tc := range map[string]struct {
		typ  protocol.Type
		more []any
		path string
		says string
	}{
		"empty column":     {create, []any{"columns", []string{"a", ""}}, "/columns/1", "empty"},
		"blank column":     {create, []any{"columns", []string{" \t"}}, "/columns/0", "empty"},
		"double column":    {create, []any{"columns", []string{"a", "b", "a"}}, "/columns/2", "/columns/0"},
		"long column":      {create, []any{"columns", []string{text(maxColumn + 1)}}, "/columns/0", "at most 100"},
		"many columns":     {create, []any{"columns", many}, "/columns", "at most 50"},
		"long name":        {create, []any{"name", text(maxName + 1)}, "/name", "at most 1000"},
		"long description": {create, []any{"description", text(maxDescription + 1)}, "/description", "at most 100000"},
		"status":           {add, []any{"status", "doing"}, "/status", plan + "; its columns are: open, closed"},
		"no title":         {add, []any{"title", " \n"}, "/title", "empty"},
		"long title":       {add, []any{"title", text(maxName + 1)}, "/title", "at most 1000"},
		"long assignee":    {add, []any{"assignee", text(maxName + 1)}, "/assignee", "at most 1000"},
		"long task":        {add, []any{"description", text(maxDescription + 1)}, "/description", "at most 100000"},
		"metadata":         {add, []any{"metadata", big}, "/metadata", "at most 65536"},
		"unknown dep":      {add, []any{"deps", []string{a, absent}}, "/deps/1", absent + notIn},
		"empty dep":        {add, []any{"deps", []string{""}}, "/deps/0", `""`},
		"dep and NUL":      {add, []any{"deps", []string{a + "\x00"}}, "/deps/0", `\x00`},
		"dep of another":   {add, []any{"deps", []string{elsewhere}}, "/deps/0", elsewhere + notIn},
		"many deps":        {add, []any{"deps", make([]string, maxDeps+1)}, "/deps", "at most 1000"},
		"new status":       {update, []any{"status", "x", "assignee", "me"}, "/status", `"x", which is not a column`},
		"new assignee":     {update, []any{"assignee", text(maxName + 1)}, "/assignee", "at most"},
		"new unknown dep":  {update, []any{"status", "closed", "deps", []string{absent}}, "/deps/0", absent},
		"new many deps":    {update, []any{"deps", make([]string, maxDeps+1)}, "/deps", "at most"},
		"unknown field":    {update, []any{"titel", "x"}, "/titel", "title"},
		"field of add":     {add, []any{"prio", "high"}, "/prio", "no such field"},
		"priority":         {add, []any{"priority", "p1"}, "/priority", "urgent, high, normal, low"},
		"due":              {update, []any{"due", "tomorrow"}, "/due", "2030-12-31"},
		"estimate":         {update, []any{"estimate", "2d"}, "/estimate", "1h30m"},
		"minus estimate":   {update, []any{"estimate", "-2h"}, "/estimate", "1h30m"},
		"action":           {update, []any{"action", "grab"}, "/action", "claim, renew, release, delete"},
		"long lease":       {update, []any{"action", "claim", "lease", 604801}, "/lease", "1 to 604800"},
		"negative lease":   {update, []any{"action", "claim", "lease", -1}, "/lease", "1 to 604800"},
		"lease of nothing": {update, []any{"lease", 5}, "/lease", "claim and renew"},
		"long owner":       {update, []any{"action", "claim", "owner", text(101)}, "/owner", "at most 200"},
		"version":          {update, []any{"if_version", -1}, "/if_version", "from 1"},
		"long comment":     {update, []any{"comment", text(maxComment + 1)}, "/comment", "at most 10000"},
		"clear":            {update, []any{"clear", []string{"due", "title"}}, "/clear/1", "assignee"},
		"blank title":      {update, []any{"title", " "}, "/title", "empty"},
		"done column":      {create, []any{"columns", []string{"a"}, "done_column", "b"}, "/done_column", "columns: a"},
		"waits for itself": {update, []any{"deps", []string{a}}, "/deps/0", a + " → " + a},
		"circle of two":    {update, []any{"deps", []string{b}}, "/deps/0", a + " → " + b + " → " + a},
		"circle of three":  {update, []any{"deps", []string{c}}, "/deps/0", a + " → " + c + " → " + b + " → " + a},
	} {
		t.Run(name, func(t *testing.T) {
			more := map[protocol.Type][]any{
				add:    {"plan_id", plan, "title", "t"},
				update: {"plan_id", plan, "task_id", a},
			}[tc.typ]
			path, message := s.refused(tc.typ, fields(t, append(more, tc.more...)...))
			assert.Equal(t, path, tc.path, "… is blamed: %s", message)
			assert.Contains(t, message, tc.says)
		})
	}
	assert.Equal(t, s.boards(""), before, "something was kept")
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
		{"", "", "[a b c d e]"},
		{one, "", "[a c e]"},
		{"", "todo", "[a b e]"},
		{one, "todo", "[a e]"},
		{two, "done", "[]"},
		{absent, "", "[]"},
		{absent, "todo", "[]"},
		{"", "x", "[]"},
		{one, "TODO", "[]"},
		{one, "' OR 1=1 --", "[]"},
	} {
		assert.Equal(t, s.titles("plan_id", tc.plan, "status", tc.status), tc.want, "plan %q, status %q", tc.plan,
			tc.status)
	}
	s.Call(protocol.TypeTaskListReq, fields(t, "plan_id", absent)).Has(t, "/tasks", "[]")
}

// graph is a model of the dependencies: graph[a][b] means that task a waits for task b.
type graph [][]bool

// circular reports whether a task waits for itself, directly or through others.
func (g graph) circular() bool {
	reach := make(graph, len(g))
	for i := range g {
		reach[i] = append([]bool(nil), g[i]...)
	}
	for k := range g {
		for i := range g {
			for j := range g {
				reach[i][j] = reach[i][j] || reach[i][k] && reach[k][j]
			}
		}
	}
	for i := range g {
		if reach[i][i] {
			return true
		}
	}
	return false
}

// TestOnlyCyclesAreRefused: in any order of updates, an update is refused if and only if a task would
// then wait for itself. A refused update changes nothing.
func TestOnlyCyclesAreRefused(t *testing.T) {
	s := newStage(t, newFile(t))
	hosttest.Checks(t, 30)
	property.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(rt, "tasks")
		plan := s.plan()
		g := make(graph, n)
		ids := make([]string, n)
		for i := range n {
			g[i] = make([]bool, n)
			ids[i] = s.task(plan, fmt.Sprint(i))
		}
		for range rapid.IntRange(1, 12).Draw(rt, "updates") {
			at := rapid.IntRange(0, n-1).Draw(rt, "task")
			deps := rapid.SliceOfN(rapid.IntRange(0, n-1), 1, 4).Draw(rt, "deps")
			row, names := make([]bool, n), []string{}
			for _, d := range deps {
				row[d] = true
				names = append(names, ids[d])
			}
			old := g[at]
			g[at] = row
			circular := g.circular()
			m := s.Call(protocol.TypeTaskUpdateReq, fields(t, "plan_id", plan, "task_id", ids[at], "deps", names))
			switch refused := m.Code == protocol.CodeSchemaViolation; {
			case refused != circular || !refused && m.Get("/success") != "true":
				rt.Fatalf("circular: %t, but the answer is %s", circular, m.Line)
			case refused:
				g[at] = old
			}
		}
		for i, r := range s.list("plan_id", plan) {
			got := make([]bool, n)
			for _, d := range r.Deps {
				for j, id := range ids {
					got[j] = got[j] || id == d
				}
			}
			must.Equal(rt, fmt.Sprint(got), fmt.Sprint(g[i]), "task %d waits for %v, should be %v", i, got, g[i])
		}
	})
	consistent(t, s.store)
}

// TestLongCycle: a circle through many tasks is found, and the message names only a few of them.
func TestLongCycle(t *testing.T) {
	const length = 500
	s := newStage(t, newFile(t))
	plan := s.plan()
	put(t, s.store, `WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < $1)
		INSERT INTO planning_tasks (id, plan_id, created_at, place, updated_at, status, assignee, title, deps,
		description, metadata) SELECT printf('%012x', i), $2, i, 0, i, 'done', '', 't',
		CASE i WHEN 0 THEN '[]' ELSE printf('["%012x"]', i - 1) END, '', '{}' FROM n`, length-1, plan)
	first, last := fmt.Sprintf("%012x", 0), fmt.Sprintf("%012x", length-1)
	path, message := s.refused(protocol.TypeTaskUpdateReq, fields(t, "plan_id", plan, "task_id", first, "deps",
		[]string{last}))
	if path != "/deps/0" || len(message) > 1000 || !strings.Contains(message, first+" → "+last+" → ") ||
		!strings.Contains(message, "more) → ") || !strings.Contains(message, " → "+first+";") {
		t.Errorf("%q: %s", path, message)
	}
	s.update(plan, last, "deps", []string{first})
}
