package planning

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/store"
	"a2e/protocol"
)

func exported(t testing.TB, s *store.SQLite) string {
	t.Helper()
	var out bytes.Buffer
	if err := s.Export(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func imported(t testing.TB, s *store.SQLite, text string, how store.How) store.Counts {
	t.Helper()
	counts, err := s.Import(t.Context(), strings.NewReader(text), how)
	if err != nil {
		t.Fatal(err)
	}
	consistent(t, s)
	return counts
}

// An export makes the same boards elsewhere; taken once more it changes nothing.
func TestExportAndImport(t *testing.T) {
	s := newStage(t, newFile(t))
	fill(s)
	s.plan("name", "empty")
	want, text := s.boards(""), exported(t, s.store)
	copied := newStage(t, newFile(t))
	for _, how := range []store.How{store.Merge, store.Merge, store.Replace} {
		counts := imported(t, copied.store, text, how)
		if counts[kindPlan] != 2 || counts[kindTask] != 4 {
			t.Errorf("taken were %v", counts)
		}
		if got := copied.boards(""); got != want {
			t.Errorf("the copy is\n%s\nshould be\n%s", got, want)
		}
		if again := exported(t, copied.store); again != text {
			t.Errorf("the copy exports\n%s\nnot\n%s", again, text)
		}
	}
	if got := copied.titles("status", "shut"); got != "[second third \x00 😀]" {
		t.Errorf("by status: %q", got)
	}
}

// Tasks of one moment keep their order, which is not the one they are exported in.
func TestImportKeepsOrder(t *testing.T) {
	s := &stage{t: t, store: openStore(t, newFile(t))}
	moment := func() time.Time { return time.Unix(1767225600, 0) }
	s.Pair = hosttest.New(t, host.Options{Plugins: []host.Plugin{newPlugin(t, "plans", s.store, moment)}})
	s.Handshake(protocol.CapPlanning)
	plan := s.plan()
	var ids []string
	for i := range 20 {
		ids = append(ids, s.task(plan, fmt.Sprint(i)))
	}
	for i := range 19 { // each waits for the next
		s.update(plan, ids[i], "deps", ids[i+1:i+2])
	}
	want := s.boards("")
	copied := newStage(t, newFile(t))
	imported(t, copied.store, exported(t, s.store), store.Merge)
	if got := copied.boards(""); got != want {
		t.Errorf("the copy is\n%s\nshould be\n%s", got, want)
	}
}

// A merge keeps what is there, replaces what is in both, and lets tasks that are
// only here go on waiting for those that came.
func TestMerge(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan()
	a, b := s.task(plan, "a"), s.task(plan, "b")
	s.update(plan, a, "deps", []string{b})
	saved := exported(t, s.store)
	own := s.plan("name", "own")
	s.task(own, "of own")
	later := s.task(plan, "later", "deps", []string{a})
	s.update(plan, b, "status", "done", "assignee", "me")
	imported(t, s.store, saved, store.Merge)
	if got := s.titles(); got != "[a b of own later]" {
		t.Errorf("there are %s", got)
	}
	rows := s.list("plan_id", plan)
	if rows[1].Status != "backlog" || rows[1].Assignee != "" || rows[2].Deps[0] != a {
		t.Errorf("the tasks are %+v", rows)
	}
	path, _ := s.refused(protocol.TypeTaskUpdateReq, fields(t, "plan_id", plan, "task_id", b, "deps", []string{later}))
	if path != "/deps/0" {
		t.Errorf("a circle over what came and what was there: %q", path)
	}
	imported(t, s.store, saved, store.Replace)
	if got := s.titles(); got != "[a b]" {
		t.Errorf("after a replacement there are %s", got)
	}
}

// Import takes nothing that the wire would not have taken.
func TestImportRefuses(t *testing.T) {
	const (
		header = `{"a2e_state":1,"parts":["planning"]}` + "\n"
		plan   = `{"kind":"planning.plan","record":{"plan_id":"00000000000a","name":"n","description":"","columns":["open"],"created_at":1}}` + "\n"
		task   = `{"kind":"planning.task","record":{"task_id":"00000000000b","plan_id":"00000000000a","title":"t","status":"open","deps":[],"created_at":1,"updated_at":1}}` + "\n"
		two    = `{"kind":"planning.task","record":{"task_id":"00000000000c","plan_id":"00000000000a","title":"t","status":"open","deps":["00000000000b"],"created_at":1,"updated_at":1}}` + "\n"
		other  = `{"kind":"planning.plan","record":{"plan_id":"00000000000d","columns":["open"],"created_at":1}}` + "\n"
	)
	for name, tc := range map[string]struct{ text, says string }{
		"unknown kind":     {strings.Replace(plan, "planning.plan", "planning.board", 1), "planning.task"},
		"unknown field":    {strings.Replace(plan, `"name"`, `"nome"`, 1), "nome"},
		"wrong type":       {strings.Replace(plan, `["open"]`, `"open"`, 1), "columns"},
		"plan id":          {strings.Replace(plan, "00000000000a", "a", 1), "12 hex digits"},
		"no columns":       {strings.Replace(plan, `["open"]`, `[]`, 1), "at least one"},
		"double column":    {strings.Replace(plan, `["open"]`, `["open","open"]`, 1), "/columns/1"},
		"negative time":    {strings.Replace(plan, `"created_at":1`, `"created_at":-1`, 1), "/created_at"},
		"far time":         {strings.Replace(plan, `"created_at":1`, `"created_at":1e300`, 1), "/created_at"},
		"no plan":          {task, "should come first"},
		"task id":          {plan + strings.Replace(task, "00000000000b", "00000000000B", 1), "12 hex digits"},
		"no title":         {plan + strings.Replace(task, `"title":"t"`, `"title":" "`, 1), "/title"},
		"no status":        {plan + strings.Replace(task, `"status":"open",`, ``, 1), "no column"},
		"unknown status":   {plan + strings.Replace(task, `"status":"open"`, `"status":"shut"`, 1), "open"},
		"metadata":         {plan + strings.Replace(task, `"deps"`, `"metadata":[],"deps"`, 1), "metadata"},
		"too much":         {plan + strings.Replace(task, `"deps"`, `"metadata":{"a":"`+strings.Repeat("x", maxMetadata)+`"},"deps"`, 1), "/metadata"},
		"unknown dep":      {plan + two, "/deps/0"},
		"itself":           {plan + strings.Replace(task, `"deps":[]`, `"deps":["00000000000b"]`, 1), "no task"},
		"circle":           {plan + task + two + strings.Replace(task, `"deps":[]`, `"deps":["00000000000c"]`, 1), "circle"},
		"another plan":     {plan + other + task + strings.Replace(task, "00000000000a", "00000000000d", 1), "belongs to"},
		"changed columns":  {plan + strings.Replace(plan, `"open"`, `"shut"`, 1), "other columns"},
		"good, then wrong": {plan + task + two + `{"kind":"planning.task","record":{}}`, "/task_id"},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, newFile(t))
			_, err := s.Import(t.Context(), strings.NewReader(header+tc.text), store.Merge)
			if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), string(protocol.CodeSchemaViolation)) {
				t.Errorf("%v", err)
			}
			if got := exported(t, s); got != header {
				t.Errorf("something was kept: %s", got)
			}
		})
	}
	s := openStore(t, newFile(t))
	imported(t, s, header+plan+task+two, store.Merge)
}
