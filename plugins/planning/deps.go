package planning

import (
	"fmt"
	"slices"
	"strings"

	"a2e/host/state/store"
)

// maxShown is how many tasks an error message names.
const maxShown = 20

// once returns the list without duplicates, in order.
func once(list []string) []string {
	seen := make(map[string]bool, len(list))
	out := make([]string, 0, len(list))
	for _, s := range list {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// selectDeps selects the ids of a list that are tasks of a plan. CROSS JOIN keeps
// SQLite from scanning all tasks of the plan instead.
const selectDeps = "SELECT t.id FROM json_each($1) d CROSS JOIN planning_tasks t WHERE t.id = d.value AND t.plan_id " +
	"= $2"

// deps adds a problem for each dependency that is not a task of the plan.
func (p *problems) deps(tx *store.Tx, pl *plan, deps []string) error {
	if len(deps) == 0 {
		return nil
	}
	there, err := store.Column[string](tx, selectDeps, store.JSON(deps), pl.ID)
	if err != nil {
		return err
	}
	for i, id := range deps {
		if !slices.Contains(there, id) {
			p.add(fmt.Sprintf("/deps/%d", i), "is %.64q, which is not a task of the plan %s; planning/task/list "+
				"names its tasks", id, pl.ID)
		}
	}
	return nil
}

// newDeps adds a problem for each dependency that an existing task cannot have: tasks that do
// not exist, the task itself, and tasks that wait for it.
func (p *problems) newDeps(tx *store.Tx, pl *plan, id string, deps []string) error {
	if err := p.deps(tx, pl, deps); err != nil || *p != nil {
		return err
	}
	way, err := cycle(tx, id, deps)
	if err != nil || way == nil {
		return err
	}
	p.add(fmt.Sprintf("/deps/%d", slices.Index(deps, way[1])), "would make the tasks wait for each other in a "+
		"circle: %s; leave it out", drawn(way))
	return nil
}

// drawn returns a path as text with arrows, without its middle if it is long.
func drawn(way []string) string {
	const arrow = " → "
	if len(way) <= maxShown {
		return strings.Join(way, arrow)
	}
	half := maxShown / 2
	return fmt.Sprintf("%s%s(%d more)%s%s", strings.Join(way[:half], arrow), arrow, len(way)-2*half, arrow,
		strings.Join(way[len(way)-half:], arrow))
}

// cycle returns the shortest path from a task, if it waited for deps, back to itself, or nil if there
// is none. The path begins and ends with the task.
func cycle(tx *store.Tx, id string, deps []string) ([]string, error) {
	graph, err := waits(tx, deps)
	if err != nil {
		return nil, err
	}
	graph[id] = deps
	from := make(map[string]string) // task to the task from which it was reached first
	queue := []string{id}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, next := range graph[at] {
			if next == id {
				way := []string{id, at}
				for at != id {
					at = from[at]
					way = append(way, at)
				}
				slices.Reverse(way)
				return way, nil
			}
			if _, seen := from[next]; !seen {
				from[next] = at
				queue = append(queue, next)
			}
		}
	}
	return nil, nil
}

// selectWaits selects the tasks of a list, the tasks that they wait for, and so on.
const selectWaits = `WITH RECURSIVE before (id) AS (
		SELECT t.id FROM json_each($1) d CROSS JOIN planning_tasks t WHERE t.id = d.value
		UNION SELECT d.value FROM before CROSS JOIN planning_tasks t CROSS JOIN json_each(t.deps) d
		WHERE t.id = before.id
	) SELECT t.id, t.deps FROM before CROSS JOIN planning_tasks t WHERE t.id = before.id`

// waits returns the dependencies of the tasks of a list, of their dependencies, and so on, by task.
func waits(tx *store.Tx, list []string) (map[string][]string, error) {
	found, err := store.Rows(tx, selectWaits, []any{store.JSON(list)},
		func(t *task) []any { return []any{&t.ID, store.JSON(&t.Deps)} })
	graph := make(map[string][]string, len(found))
	for _, t := range found {
		graph[t.ID] = t.Deps
	}
	return graph, err
}
