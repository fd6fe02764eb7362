package planning

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/store"
	"a2e/protocol"
)

// consistent checks that the counts in a store match its plans and tasks.
func consistent(t testing.TB, s store.Store) {
	t.Helper()
	must.OK(t, s.Read(t.Context(), func(tx *store.Tx) error {
		plans, err := findPlans(tx, "")
		if err != nil {
			return err
		}
		for _, pl := range plans {
			tasks, size, done := 0, 0, 0
			if err := eachTask(tx, &filter{PlanID: pl.ID}, func(task *task) error {
				tasks++
				size += task.size()
				done += count(pl.isDone(task))
				return nil
			}); err != nil {
				return err
			}
			assert.That(t, pl.tasks == tasks && pl.tasksSize == size && pl.done == done,
				"the plan %s counts %d tasks of %d bytes, %d done, but has %d of %d, %d done", pl.Name, pl.tasks,
				pl.tasksSize, pl.done, tasks, size, done)
			var own int
			if _, err := tx.Get("SELECT size FROM planning_plans WHERE id = $1", []any{pl.ID}, &own); err != nil ||
				own != pl.size() {
				t.Errorf("the plan %s notes %d bytes of text, but has %d, %v", pl.Name, own, pl.size(), err)
			}
		}
		stray, err := tx.Get("SELECT 1 FROM planning_tasks WHERE plan_id NOT IN (SELECT id FROM planning_plans)", nil,
			new(int))
		assert.That(t, !stray, "a task belongs to no plan")
		return err
	}))
}

// fill makes a plan with tasks of every kind, and returns its id.
func fill(s *stage) string {
	plan := s.plan("name", "release", "description", "two\nlines", "columns", []string{"open", "shut"})
	first := s.task(plan, "first", "metadata", jsontext.Value(`{"n":12345678901234567890,"s":"\u0000"}`))
	second := s.task(plan, "second", "status", "shut", "assignee", "me", "description", "d", "deps", []string{first},
		"force", true, "priority", "high", "due", "2031-02-03", "estimate", "90m")
	third := s.task(plan, "third \x00 😀")
	s.update(plan, first, "deps", []string{third}, "assignee", "you") // waits for a later task
	s.update(plan, third, "status", "shut", "comment", "well\ndone")
	s.update(plan, first, "action", "claim", "owner", "w")
	s.task(plan, "fourth", "deps", []string{third, second, first})
	return plan
}

func TestEverythingSurvives(t *testing.T) {
	path := newFile(t)
	s := newStage(t, path)
	plan := fill(s)
	want := s.boards("")
	consistent(t, s.store)
	s.Close()
	must.OK(t, s.store.Close())
	s = newStage(t, path)
	assert.Equal(t, s.boards(""), want, "after a restart")
	s.task(plan, "one more")
	consistent(t, s.store)
}

// bigTasks adds tasks with texts of these sizes, which may be larger than a request allows.
func (s *stage) bigTasks(plan string, sizes ...int) {
	s.t.Helper()
	must.OK(s.t, s.store.Write(s.t.Context(), func(tx *store.Tx) error {
		for i, size := range sizes {
			pl, err := findPlan(tx, plan)
			if err != nil {
				return err
			}
			t := task{
				ID: plan[:8] + fmt.Sprintf("%04x", i), PlanID: plan, Place: pl.tasks, Status: "todo",
				Title: "big", Description: strings.Repeat("x", size), Metadata: jsontext.Value("{}"),
			}
			if err := t.put(tx, pl, nil); err != nil {
				return err
			}
		}
		return nil
	}))
}

// put changes a store by a statement.
func put(t testing.TB, s store.Store, statement string, args ...any) {
	t.Helper()
	must.OK(t, s.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(statement, args...)
		return err
	}))
}

func TestTasksOfAPlanAreBounded(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan()
	put(t, s.store, "UPDATE planning_plans SET tasks = $1", maxTasks-1)
	last := s.task(plan, "the last")
	path, message := s.refused(protocol.TypeTaskAddReq, fields(t, "plan_id", plan, "title", "one too many"))
	assert.That(t, path == "/plan_id" && strings.Contains(message, "10000 tasks"), "%q: %s", path, message)
	s.update(plan, last, "status", "done") // not a new task
	s.task(s.plan(), "in another")
}

func TestTextOfAPlanIsBounded(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan()
	task := s.task(plan, "t") // 1 byte, 7 of "backlog", 2 of {}
	s.bigTasks(plan, maxTasksSize-10-len("todo"+"big"+"{}")-10)
	for typ, more := range map[protocol.Type][]any{
		protocol.TypeTaskAddReq:    {"title", "too much"},
		protocol.TypeTaskUpdateReq: {"task_id", task, "assignee", "somebody else"},
	} {
		path, message := s.refused(typ, fields(t, append(more, "plan_id", plan)...))
		assert.That(t, path == "/plan_id" && strings.Contains(message, fmt.Sprint(maxTasksSize)), "%s: %q: %s", typ,
			path, message)
	}
	s.update(plan, task, "assignee", "0123456789")
	s.update(plan, task, "status", "todo")
	consistent(t, s.store)
}

// TestAnswersAreBounded: a request for all plans is answered up to a size; each single plan is always
// answered.
func TestAnswersAreBounded(t *testing.T) {
	s := newStage(t, newFile(t))
	plans := []string{s.plan(), s.plan(), s.plan()}
	for _, plan := range plans {
		s.bigTasks(plan, maxAnswer/6, maxAnswer/6)
	}
	for _, typ := range []protocol.Type{protocol.TypeTaskListReq, protocol.TypePlanBoardReq} {
		path, message := s.refused(typ, `{}`)
		assert.That(t, path == "/plan_id" && strings.Contains(message, "one plan at a time"), "%s: %q: %s", typ, path,
			message)
	}
	p := newPlugin(t, "plans", s.store, nil) // called directly, as the checks of a line of 5 MB would take long
	for _, plan := range plans {
		list, err := p.tasks(t.Context(), &protocol.TaskListRequest{PlanID: plan}, nil)
		assert.That(t, err == nil && len(list.Tasks) == 2, "%d tasks of one plan, %v", len(list.Tasks), err)
		board, err := p.board(t.Context(), &protocol.PlanBoardRequest{PlanID: plan}, nil)
		assert.That(t, err == nil && len(board.Boards) == 1, "%d boards of one plan, %v", len(board.Boards), err)
	}
}

func TestPlansAreBounded(t *testing.T) {
	s := newStage(t, newFile(t))
	first := s.plan("description", strings.Repeat("😀", maxDescription))
	put(t, s.store, "UPDATE planning_plans SET size = $1", maxPlansSize-100)
	path, message := s.refused(protocol.TypePlanCreateReq, fields(t, "description", strings.Repeat("x", 100)))
	assert.Equal(t, path, "/description", "%s", message)
	put(t, s.store, `WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < $1)
		INSERT INTO planning_plans (id, created_at, size, name, columns, description) SELECT printf('%012x', i), i,
		0, '', '["a"]', '' FROM n`, maxPlans-1)
	s.plan("name", "the last")
	path, message = s.refused(protocol.TypePlanCreateReq, `{}`)
	assert.That(t, path == "/name" && strings.Contains(message, "1000"), "%q: %s", path, message)
	s.task(first, "still works")
}

// steps returns the steps of SQLite's plan for a query.
func steps(t *testing.T, s store.Store, query string) (all []string) {
	t.Helper()
	must.OK(t, s.Read(t.Context(), func(tx *store.Tx) error {
		return tx.Each("EXPLAIN QUERY PLAN "+query, nil, func(scan func(...any) error) error {
			var step string
			err := scan(new(int), new(int), new(int), &step)
			all = append(all, step)
			return err
		})
	}))
	return all
}

// TestQueriesUseIndexes: each filter has an index for its tasks in order, however many other tasks
// exist, and dependencies are found by id.
func TestQueriesUseIndexes(t *testing.T) {
	s := openStore(t, newFile(t))
	for where, index := range map[string]string{
		"": "planning_tasks_by_age", " WHERE plan_id = 'p'": "planning_tasks_by_plan",
		" WHERE status = 's'":                   "planning_tasks_by_status",
		" WHERE plan_id = 'p' AND status = 's'": "planning_tasks_by_plan_and_status",
		" WHERE id = 'i'":                       "sqlite_autoindex_planning_tasks_1",
	} {
		got := steps(t, s, selectTasks+where+inOrder)
		assert.That(t, len(got) == 1 && strings.Contains(got[0]+" ", index+" "), "%q: %q", where, got)
	}
	for _, query := range []string{selectDeps, selectWaits} {
		byID := 0
		query = strings.NewReplacer("$1", "'[]'", "$2", "'[]'").Replace(query)
		for _, step := range steps(t, s, query) {
			assert.That(t, !strings.Contains(step, "SCAN t"), "it goes over all tasks: %q", step)
			if strings.Contains(step, "SEARCH t USING") && strings.Contains(step, "(id=?)") {
				byID++
			}
		}
		if byID == 0 {
			t.Errorf("tasks are not found by id: %q", steps(t, s, query))
		}
	}
}

func exported(t testing.TB, s store.Store) string {
	t.Helper()
	var out bytes.Buffer
	must.OK(t, s.Export(t.Context(), &out))
	return out.String()
}

func takenIn(t testing.TB, s store.Store, text string, how store.How) store.Counts {
	t.Helper()
	counts := must.Get(s.Import(t.Context(), strings.NewReader(text), how))(t)
	consistent(t, s)
	return counts
}

// TestExportAndImport: an import of an export makes the same boards; to import it again changes
// nothing.
func TestExportAndImport(t *testing.T) {
	s := newStage(t, newFile(t))
	fill(s)
	s.plan("name", "empty")
	want, text := s.boards(""), exported(t, s.store)
	copied := newStage(t, newFile(t))
	for _, how := range []store.How{store.Merge, store.Merge, store.Replace} {
		counts := takenIn(t, copied.store, text, how)
		assert.That(t, counts[kindPlan] == 2 && counts[kindTask] == 4, "taken were %v", counts)
		assert.Equal(t, copied.boards(""), want, "the copy")
		assert.Equal(t, exported(t, copied.store), text, "the copy exports")
	}
	assert.Equal(t, copied.titles("status", "shut"), "[second third \x00 😀]", "by status")
}

// TestImportKeepsOrder: tasks of the same time keep their order, though the export has another order.
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
	takenIn(t, copied.store, exported(t, s.store), store.Merge)
	assert.Equal(t, copied.boards(""), want, "the copy")
}

// TestMerge: a merge keeps the tasks that only the store has, with their dependencies on imported
// tasks, and replaces the tasks that both have.
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
	takenIn(t, s.store, saved, store.Merge)
	assert.Equal(t, s.titles(), "[a b of own later]", "there")
	rows := s.list("plan_id", plan)
	assert.That(t, rows[1].Status == "backlog" && rows[1].Assignee == "" && rows[2].Deps[0] == a, "the tasks are %+v",
		rows)
	path, _ := s.refused(protocol.TypeTaskUpdateReq, fields(t, "plan_id", plan, "task_id", b, "deps", []string{later}))
	assert.Equal(t, path, "/deps/0", "a circle over what came and what was there")
	takenIn(t, s.store, saved, store.Replace)
	assert.Equal(t, s.titles(), "[a b]", "after a replacement there")
}

// TestImportRefuses: an import refuses everything that a request would refuse.
func TestImportRefuses(t *testing.T) {
	const (
		header = `{"a2e_state":1,"parts":["planning"]}` + "\n"
		plan   = `{"kind":"planning.plan","record":{"plan_id":"00000000000a","name":"n","description":"","columns":["open"],"created_at":1}}` + "\n"
		task   = `{"kind":"planning.task","record":{"task_id":"00000000000b","plan_id":"00000000000a","title":"t","status":"open","deps":[],"created_at":1,"updated_at":1}}` + "\n"
		two    = `{"kind":"planning.task","record":{"task_id":"00000000000c","plan_id":"00000000000a","title":"t","status":"open","deps":["00000000000b"],"created_at":1,"updated_at":1}}` + "\n"
		other  = `{"kind":"planning.plan","record":{"plan_id":"00000000000d","columns":["open"],"created_at":1}}` + "\n"
	)
	for name, tc := range map[string]struct{ text, says string }{
		"unknown kind":   {strings.Replace(plan, "planning.plan", "planning.board", 1), "planning.task"},
		"unknown field":  {strings.Replace(plan, `"name"`, `"nome"`, 1), "nome"},
		"wrong type":     {strings.Replace(plan, `["open"]`, `"open"`, 1), "columns"},
		"plan id":        {strings.Replace(plan, "00000000000a", "a", 1), "12 hex digits"},
		"no columns":     {strings.Replace(plan, `["open"]`, `[]`, 1), "at least one"},
		"double column":  {strings.Replace(plan, `["open"]`, `["open","open"]`, 1), "/columns/1"},
		"negative time":  {strings.Replace(plan, `"created_at":1`, `"created_at":-1`, 1), "/created_at"},
		"far time":       {strings.Replace(plan, `"created_at":1`, `"created_at":1e300`, 1), "/created_at"},
		"no plan":        {task, "should come first"},
		"task id":        {plan + strings.Replace(task, "00000000000b", "00000000000B", 1), "12 hex digits"},
		"no title":       {plan + strings.Replace(task, `"title":"t"`, `"title":" "`, 1), "/title"},
		"no status":      {plan + strings.Replace(task, `"status":"open",`, ``, 1), "not a column"},
		"unknown status": {plan + strings.Replace(task, `"status":"open"`, `"status":"shut"`, 1), "open"},
		"metadata":       {plan + strings.Replace(task, `"deps"`, `"metadata":[],"deps"`, 1), "metadata"},
		"too much": {plan + strings.Replace(task, `"deps"`, `"metadata":{"a":"`+strings.Repeat("x",
			maxMetadata)+`"},"deps"`, 1), "/metadata"},
		"unknown dep":      {plan + two, "/deps/0"},
		"itself":           {plan + strings.Replace(task, `"deps":[]`, `"deps":["00000000000b"]`, 1), "not a task"},
		"circle":           {plan + task + two + strings.Replace(task, `"deps":[]`, `"deps":["00000000000c"]`, 1), "circle"},
		"another plan":     {plan + other + task + strings.Replace(task, "00000000000a", "00000000000d", 1), "belongs to"},
		"changed columns":  {plan + strings.Replace(plan, `"open"`, `"shut"`, 1), "other columns"},
		"good, then wrong": {plan + task + two + `{"kind":"planning.task","record":{}}`, "/task_id"},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, newFile(t))
			_, err := s.Import(t.Context(), strings.NewReader(header+tc.text), store.Merge)
			assert.That(t, err != nil && strings.Contains(err.Error(), tc.says) &&
				!strings.Contains(err.Error(), string(protocol.CodeSchemaViolation)), "%v", err)
			assert.Equal(t, exported(t, s), header, "something was kept")
		})
	}
	s := openStore(t, newFile(t))
	takenIn(t, s, header+plan+task+two, store.Merge)
}

// TestCycleOverTwoHosts: if two hosts each add one half of a circle of dependencies, one of them is
// refused.
func TestCycleOverTwoHosts(t *testing.T) {
	path := newFile(t)
	hosts := []*stage{newStage(t, path), newStage(t, path)}
	for range 10 {
		plan := hosts[0].plan()
		tasks := []string{hosts[0].task(plan, "a"), hosts[0].task(plan, "b")}
		onlyOne(hosts, func(i int) string {
			return fields(t, "plan_id", plan, "task_id", tasks[i], "deps", tasks[1-i:2-i])
		})
	}
}

// onlyOne lets all hosts update tasks at once, of which one must succeed. fields has those of the request to a host.
func onlyOne(hosts []*stage, fields func(i int) string) {
	ids := make([]string, len(hosts))
	for i, s := range hosts {
		ids[i] = s.Go(protocol.TypeTaskUpdateReq, fields(i))
	}
	taken := 0
	for i, s := range hosts {
		taken += count(s.Answer(ids[i]).Get("/success") == "true")
	}
	must.Equal(hosts[0].t, taken, 1, "… of the updates succeeded")
}
