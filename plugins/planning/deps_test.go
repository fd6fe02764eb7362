package planning

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"a2e/host/hosttest"
	"a2e/host/store"
	"a2e/protocol"
)

// graph is who waits for whom, as a matrix: what the plugin should agree with.
type graph [][]bool

// circular tells whether anybody waits for himself, by way of others or not.
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

// Whatever is asked for in whatever order, a change is taken if and only if no task
// waits for itself then; a refusal shows a circle that is one, and changes nothing.
func TestOnlyCyclesAreRefused(t *testing.T) {
	s := newStage(t, newFile(t))
	hosttest.Checks(t, 30)
	rapid.Check(t, func(rt *rapid.T) {
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
				rt.Logf("%s", m.Get("/message"))
				checkWay(rt, m.Get("/message"), ids, g)
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
			if fmt.Sprint(got) != fmt.Sprint(g[i]) {
				rt.Fatalf("task %d waits for %v, should be %v", i, got, g[i])
			}
		}
	})
	consistent(t, s.store)
}

// checkWay holds the circle in a message against the graph.
func checkWay(rt *rapid.T, message string, ids []string, g graph) {
	_, text, _ := strings.Cut(message, "circle: ")
	text, _, _ = strings.Cut(text, ";")
	way := strings.Split(text, " → ")
	if len(way) < 2 || way[0] != way[len(way)-1] {
		rt.Fatalf("no circle in %s", message)
	}
	number := func(id string) int {
		for i := range ids {
			if ids[i] == id {
				return i
			}
		}
		rt.Fatalf("%s is no task: %s", id, message)
		return -1
	}
	for i := range len(way) - 1 {
		if !g[number(way[i])][number(way[i+1])] {
			rt.Fatalf("%s does not wait for %s: %s", way[i], way[i+1], message)
		}
	}
}

// A circle through many tasks is found, and told in few words.
func TestLongCycle(t *testing.T) {
	const length = 500
	s := newStage(t, newFile(t))
	plan := s.plan()
	if err := s.store.Write(t.Context(), func(tx *store.Tx) error {
		_, _, err := tx.Exec(`WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
			INSERT INTO planning_tasks (id, plan_id, created_at, place, updated_at, status, assignee, title, deps, description, metadata)
			SELECT printf('%012x', i), ?, i, 0, i, 'done', '', 't', CASE i WHEN 0 THEN '[]' ELSE printf('["%012x"]', i - 1) END, '', '{}' FROM n`, length-1, plan)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	first, last := fmt.Sprintf("%012x", 0), fmt.Sprintf("%012x", length-1)
	path, message := s.refused(protocol.TypeTaskUpdateReq, fields(t, "plan_id", plan, "task_id", first, "deps", []string{last}))
	if path != "/deps/0" || len(message) > 1000 || !strings.Contains(message, first+" → "+last+" → ") || !strings.Contains(message, "more) → ") || !strings.Contains(message, " → "+first+";") {
		t.Errorf("%q: %s", path, message)
	}
	s.update(plan, last, "deps", []string{first})
}
