package planning

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/store"
	"a2e/protocol"
)

// The kinds of records in an export.
const (
	kindPlan = "planning.plan"
	kindTask = "planning.task"
)

// Part is what the plugin keeps in a store.
func Part() store.Part {
	return store.Part{Name: "planning", Migrations: migrations(), Export: export, Import: importRecord, Clear: clearAll}
}

// planRecord is a plan in an export.
type planRecord struct {
	PlanID      string   `json:"plan_id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Columns     []string `json:"columns"`
	CreatedAt   float64  `json:"created_at"` // seconds since 1970
}

// taskRecord is a task in an export.
type taskRecord struct {
	TaskID      string          `json:"task_id"`
	PlanID      string          `json:"plan_id"`
	Title       string          `json:"title"`
	Status      string          `json:"status"`
	Assignee    string          `json:"assignee"`
	Description string          `json:"description"`
	Deps        []string        `json:"deps"`
	Metadata    protocol.Object `json:"metadata"`
	Place       int             `json:"place"`      // among tasks of the same created_at
	CreatedAt   float64         `json:"created_at"` // seconds since 1970
	UpdatedAt   float64         `json:"updated_at"`
}

// export gives each plan and then its tasks, each after those that it waits for: an
// import may look at every record as it comes.
func export(_ context.Context, tx *store.Tx, emit func(string, any) error) error {
	plans, err := findPlans(tx, "")
	if err != nil {
		return err
	}
	for _, pl := range plans {
		if err := emit(kindPlan, planRecord{pl.id, pl.name, pl.description, pl.columns, seconds(pl.createdAt)}); err != nil {
			return err
		}
		var tasks []*task
		if err := eachTask(tx, pl.id, "", func(t *task) error {
			tasks = append(tasks, t)
			return nil
		}); err != nil {
			return err
		}
		for _, t := range depsFirst(tasks) {
			record, err := t.record()
			if err != nil {
				return err
			}
			if err := emit(kindTask, record); err != nil {
				return err
			}
		}
	}
	return nil
}

// depsFirst gives the tasks in an order in which none waits for a later one.
func depsFirst(tasks []*task) []*task {
	left := make(map[string]*task, len(tasks))
	for _, t := range tasks {
		left[t.id] = t
	}
	out := make([]*task, 0, len(tasks))
	var visit func(t *task)
	visit = func(t *task) {
		delete(left, t.id)
		for _, id := range t.deps {
			if dep := left[id]; dep != nil {
				visit(dep)
			}
		}
		out = append(out, t)
	}
	for _, t := range tasks {
		if left[t.id] != nil {
			visit(t)
		}
	}
	return out
}

func (t *task) record() (taskRecord, error) {
	metadata, err := protocol.ParseObject(t.metadata)
	return taskRecord{
		TaskID: t.id, PlanID: t.planID, Title: t.title, Status: t.status, Assignee: t.assignee, Description: t.description,
		Deps: t.deps, Metadata: metadata, Place: t.place, CreatedAt: seconds(t.createdAt), UpdatedAt: seconds(t.updatedAt),
	}, err
}

// importRecord takes a record that could have come over the wire, and no other.
func importRecord(_ context.Context, tx *store.Tx, kind string, raw jsontext.Value) error {
	var err error
	switch kind {
	case kindPlan:
		var r planRecord
		if err = json.Unmarshal(raw, &r, json.RejectUnknownMembers(true)); err == nil {
			err = r.take(tx)
		}
	case kindTask:
		var r taskRecord
		if err = json.Unmarshal(raw, &r, json.RejectUnknownMembers(true)); err == nil {
			err = r.take(tx)
		}
	default:
		return fmt.Errorf("there is no such record; there are %s and %s", kindPlan, kindTask)
	}
	var refusal *protocol.Error
	if errors.As(err, &refusal) {
		return errors.New(refusal.Message) // its code is for agents
	}
	return err
}

// take puts the plan into the store. One that is there already keeps its columns,
// as its tasks stand in them.
func (r *planRecord) take(tx *store.Tx) error {
	pl := plan{id: r.PlanID, name: r.Name, description: r.Description, columns: r.Columns}
	var wrong problems
	wrong.id("/plan_id", pl.id)
	pl.createdAt = wrong.time("/created_at", r.CreatedAt)
	if len(pl.columns) == 0 {
		wrong.add("/columns", "is empty; a plan needs at least one")
	}
	if err := errors.Join(wrong.err(), pl.check()); err != nil {
		return err
	}
	there, err := findPlan(tx, pl.id)
	switch {
	case err != nil:
		return err
	case there == nil:
		if err := roomForPlan(tx, &pl); err != nil {
			return err
		}
		return pl.insert(tx)
	case !slices.Equal(there.columns, pl.columns):
		return fmt.Errorf("the plan %s is there already with other columns: %s", pl.id, strings.Join(there.columns, ", "))
	}
	_, _, err = tx.Exec("UPDATE planning_plans SET name = ?, description = ?, created_at = ?, size = ? WHERE id = ?",
		pl.name, pl.description, pl.createdAt, pl.size(), pl.id)
	return err
}

// take puts the task into the store.
func (r *taskRecord) take(tx *store.Tx) error {
	t := &task{
		id: r.TaskID, planID: r.PlanID, title: r.Title, status: r.Status, assignee: r.Assignee, description: r.Description,
		deps: r.Deps, metadata: jsontext.Value(r.Metadata.Raw()), place: r.Place,
	}
	var wrong problems
	wrong.id("/task_id", t.id)
	t.createdAt = wrong.time("/created_at", r.CreatedAt)
	t.updatedAt = wrong.time("/updated_at", r.UpdatedAt)
	if err := errors.Join(wrong.err(), t.check()); err != nil {
		return err
	}
	t.deps = once(r.Deps)
	pl, err := findPlan(tx, t.planID)
	if err != nil {
		return err
	}
	if pl == nil {
		return fmt.Errorf("the task %s belongs to the plan %.64q, which is not there; its record should come first", t.id, t.planID)
	}
	old, err := findTask(tx, t.id)
	switch {
	case err != nil:
		return err
	case old != nil && old.planID != t.planID:
		return fmt.Errorf("the task %s is there already and belongs to the plan %s, not to %s", t.id, old.planID, t.planID)
	case reflect.DeepEqual(t, old):
		return nil
	}
	wrong.status(pl, t.status)
	check := wrong.deps // nothing waits for a new task, and old deps were looked at when they came
	if old != nil && !slices.Equal(old.deps, t.deps) {
		check = func(tx *store.Tx, pl *plan, deps []string) error { return wrong.newDeps(tx, pl, t.id, deps) }
	}
	if err := check(tx, pl, t.deps); err != nil {
		return err
	}
	if wrong != nil {
		return wrong.err()
	}
	return t.put(tx, pl, old)
}

// id refuses what New would not have made.
func (p *problems) id(path, id string) {
	if len(id) != idDigits || strings.Trim(id, "0123456789abcdef") != "" {
		p.add(path, "is %.64q; should be %d hex digits", id, idDigits)
	}
}

// time refuses what is no time of this era, and gives it as the store keeps it.
func (p *problems) time(path string, seconds float64) int64 {
	const year10000 = 253402300800
	if !(seconds >= 0 && seconds < year10000) {
		p.add(path, "is %g; should be seconds since 1970", seconds)
		return 0
	}
	return int64(math.Round(seconds * 1e6))
}

func clearAll(_ context.Context, tx *store.Tx) error {
	if _, _, err := tx.Exec("DELETE FROM planning_tasks"); err != nil {
		return err
	}
	_, _, err := tx.Exec("DELETE FROM planning_plans")
	return err
}
