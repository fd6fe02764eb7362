package planning

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/store"
	"a2e/protocol"
)

// consistent holds what a store counts against what it has.
func consistent(t testing.TB, s *store.SQLite) {
	t.Helper()
	err := s.Read(t.Context(), func(tx *store.Tx) error {
		plans, err := findPlans(tx, "")
		if err != nil {
			return err
		}
		for _, pl := range plans {
			tasks, size := 0, 0
			if err := eachTask(tx, pl.id, "", func(task *task) error {
				tasks++
				size += task.size()
				return nil
			}); err != nil {
				return err
			}
			if pl.tasks != tasks || pl.tasksSize != size {
				t.Errorf("the plan %s counts %d tasks of %d bytes, but has %d of %d", pl.name, pl.tasks, pl.tasksSize, tasks, size)
			}
			var own int
			if _, err := tx.Get("SELECT size FROM planning_plans WHERE id = ?", []any{pl.id}, &own); err != nil || own != pl.size() {
				t.Errorf("the plan %s notes %d bytes of text, but has %d, %v", pl.name, own, pl.size(), err)
			}
		}
		return tx.Each("SELECT \"table\" FROM pragma_foreign_key_check", nil, func(scan func(...any) error) error {
			t.Error("a task belongs to no plan")
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// fill makes a plan with tasks of every kind and gives its id.
func fill(s *stage) string {
	plan := s.plan("name", "release", "description", "two\nlines", "columns", []string{"open", "shut"})
	first := s.task(plan, "first", "metadata", jsontext.Value(`{"n":12345678901234567890,"s":"\u0000"}`))
	second := s.task(plan, "second", "status", "shut", "assignee", "me", "description", "d", "deps", []string{first})
	third := s.task(plan, "third \x00 😀")
	s.update(plan, first, "deps", []string{third}, "assignee", "you") // waits for a later one
	s.update(plan, third, "status", "shut")
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
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	s = newStage(t, path)
	if got := s.boards(""); got != want {
		t.Errorf("after a restart\n%s\nshould be\n%s", got, want)
	}
	s.task(plan, "one more")
	consistent(t, s.store)
}

// Two hosts on one file write at the same time, and each sees at once what the
// other was told is done.
func TestTwoHostsOnOneFile(t *testing.T) {
	path := newFile(t)
	hosts := []*stage{newStage(t, path), newStage(t, path)}
	plan := hosts[0].plan()
	task := hosts[1].task(plan, "made by the other")
	hosts[0].update(plan, task, "status", "done")
	if got := hosts[1].titles("status", "done"); got != "[made by the other]" {
		t.Fatalf("the other has %s", got)
	}
	const each = 40
	var all sync.WaitGroup
	for i, s := range hosts {
		all.Go(func() {
			var ids []string
			for n := range each {
				ids = append(ids, s.Go(protocol.TypeTaskAddReq, fields(t, "plan_id", plan, "title", fmt.Sprintf("%d of %d", n, i))))
			}
			for _, id := range ids {
				m := s.Answer(id)
				if m.Get("/success") != "true" {
					t.Errorf("host %d: %s", i, m.Line)
				}
			}
		})
	}
	all.Wait()
	want := hosts[0].boards("")
	if got := hosts[1].boards(""); got != want || strings.Count(got, `"title"`) != 2*each+1 {
		t.Errorf("the hosts differ, or have lost something:\n%s\n%s", got, want)
	}
	consistent(t, hosts[0].store)
}

// Neither host can close a circle of which the other made a part.
func TestCycleOverTwoHosts(t *testing.T) {
	path := newFile(t)
	hosts := []*stage{newStage(t, path), newStage(t, path)}
	for range 10 {
		plan := hosts[0].plan()
		tasks := []string{hosts[0].task(plan, "a"), hosts[0].task(plan, "b")}
		var ids [2]string
		for i, s := range hosts {
			ids[i] = s.Go(protocol.TypeTaskUpdateReq, fields(t, "plan_id", plan, "task_id", tasks[i], "deps", tasks[1-i:2-i]))
		}
		taken := 0
		for i, s := range hosts {
			if s.Answer(ids[i]).Get("/success") == "true" {
				taken++
			}
		}
		if taken != 1 {
			t.Fatalf("%d of two halves of a circle were taken", taken)
		}
	}
}

// bigTasks gives a plan tasks with much text, more of it than a request may hold.
func (s *stage) bigTasks(plan string, sizes ...int) {
	s.t.Helper()
	err := s.store.Write(s.t.Context(), func(tx *store.Tx) error {
		for i, size := range sizes {
			pl, err := findPlan(tx, plan)
			if err != nil {
				return err
			}
			t := task{id: plan[:8] + fmt.Sprintf("%04x", i), planID: plan, place: pl.tasks, status: "todo", title: "big", description: strings.Repeat("x", size), metadata: jsontext.Value("{}")}
			if err := t.put(tx, pl, nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func TestTasksOfAPlanAreBounded(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan()
	if err := s.store.Write(t.Context(), func(tx *store.Tx) error {
		_, _, err := tx.Exec("UPDATE planning_plans SET tasks = ?", maxTasks-1)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	last := s.task(plan, "the last")
	path, message := s.refused(protocol.TypeTaskAddReq, fields(t, "plan_id", plan, "title", "one too many"))
	if path != "/plan_id" || !strings.Contains(message, "10000 tasks") {
		t.Errorf("%q: %s", path, message)
	}
	s.update(plan, last, "status", "done") // it is no new one
	s.task(s.plan(), "in another")
}

func TestTextOfAPlanIsBounded(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan()
	task := s.task(plan, "t") // 1 byte, 7 of "backlog", 2 of {}
	s.bigTasks(plan, maxTasksSize-10-len("todo"+"big"+"{}")-10)
	for typ, more := range map[protocol.Type][]any{
		protocol.TypeTaskAddReq: {"title", "too much"}, protocol.TypeTaskUpdateReq: {"task_id", task, "assignee", "somebody else"},
	} {
		path, message := s.refused(typ, fields(t, append(more, "plan_id", plan)...))
		if path != "/plan_id" || !strings.Contains(message, fmt.Sprint(maxTasksSize)) {
			t.Errorf("%s: %q: %s", typ, path, message)
		}
	}
	s.update(plan, task, "assignee", "0123456789")
	s.update(plan, task, "status", "todo")
	consistent(t, s.store)
}

// A request for everything is answered up to a size; each plan can be had alone.
func TestAnswersAreBounded(t *testing.T) {
	s := newStage(t, newFile(t))
	plans := []string{s.plan(), s.plan(), s.plan()}
	for _, plan := range plans {
		s.bigTasks(plan, maxAnswer/6, maxAnswer/6)
	}
	for _, typ := range []protocol.Type{protocol.TypeTaskListReq, protocol.TypePlanBoardReq} {
		path, message := s.refused(typ, `{}`)
		if path != "/plan_id" || !strings.Contains(message, "one plan at a time") {
			t.Errorf("%s: %q: %s", typ, path, message)
		}
	}
	p := newPlugin(t, "plans", s.store, nil) // without a line of 5 MB to be looked at
	for _, plan := range plans {
		list, err := p.tasks(t.Context(), &protocol.TaskListRequest{PlanID: plan}, nil)
		if err != nil || len(list.Tasks) != 2 {
			t.Errorf("%d tasks of one plan, %v", len(list.Tasks), err)
		}
		board, err := p.board(t.Context(), &protocol.PlanBoardRequest{PlanID: plan}, nil)
		if err != nil || len(board.Boards) != 1 {
			t.Errorf("%d boards of one plan, %v", len(board.Boards), err)
		}
	}
}

func TestPlansAreBounded(t *testing.T) {
	s := newStage(t, newFile(t))
	first := s.plan("description", strings.Repeat("😀", maxDescription))
	err := s.store.Write(t.Context(), func(tx *store.Tx) error {
		_, _, err := tx.Exec("UPDATE planning_plans SET size = ?", maxPlansSize-100)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if path, message := s.refused(protocol.TypePlanCreateReq, fields(t, "description", strings.Repeat("x", 100))); path != "/description" {
		t.Errorf("%q: %s", path, message)
	}
	err = s.store.Write(t.Context(), func(tx *store.Tx) error {
		_, _, err := tx.Exec(`WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
			INSERT INTO planning_plans (id, created_at, size, name, columns, description) SELECT printf('%012x', i), i, 0, '', '["a"]', '' FROM n`, maxPlans-1)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.plan("name", "the last")
	if path, message := s.refused(protocol.TypePlanCreateReq, `{}`); path != "/name" || !strings.Contains(message, "1000") {
		t.Errorf("%q: %s", path, message)
	}
	s.task(first, "still works")
}

// steps gives how SQLite would answer a query.
func steps(t *testing.T, s *store.SQLite, query string) (all []string) {
	t.Helper()
	err := s.Read(t.Context(), func(tx *store.Tx) error {
		return tx.Each("EXPLAIN QUERY PLAN "+query, nil, func(scan func(...any) error) error {
			var step string
			err := scan(new(int), new(int), new(int), &step)
			all = append(all, step)
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Each filter has an index that gives its tasks in order, however many others there are,
// and what a task waits for is found by its id.
func TestQueriesUseIndexes(t *testing.T) {
	s := openStore(t, newFile(t))
	for where, index := range map[string]string{
		"": "planning_tasks_by_age", " WHERE plan_id = 'p'": "planning_tasks_by_plan", " WHERE status = 's'": "planning_tasks_by_status",
		" WHERE plan_id = 'p' AND status = 's'": "planning_tasks_by_plan_and_status", " WHERE id = 'i'": "sqlite_autoindex_planning_tasks_1",
	} {
		if got := steps(t, s, selectTasks+where+inOrder); len(got) != 1 || !strings.Contains(got[0]+" ", index+" ") {
			t.Errorf("%q: %q", where, got)
		}
	}
	for _, query := range []string{selectDeps, selectWaits} {
		byID := 0
		for _, step := range steps(t, s, strings.ReplaceAll(query, "?", "'[]'")) {
			if strings.Contains(step, "SCAN t") {
				t.Errorf("it goes over all tasks: %q", step)
			}
			if strings.Contains(step, "SEARCH t USING") && strings.Contains(step, "(id=?)") {
				byID++
			}
		}
		if byID == 0 {
			t.Errorf("tasks are not found by id: %q", steps(t, s, strings.ReplaceAll(query, "?", "'[]'")))
		}
	}
}
