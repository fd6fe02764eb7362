package planning

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/state/store"
	"a2e/protocol"
)

// The kinds of records in an export.
const (
	kindPlan = "planning.plan"
	kindTask = "planning.task"
)

// Part returns the plugin's part of the store.
func Part() store.Part {
	kinds := store.Kinds{
		{Kind: kindPlan, Export: exportPlans, Import: imported((*plan).take)},
		{Kind: kindTask, Export: exportTasks, Import: imported((*task).take)},
	}
	return store.Part{
		Name: "planning", SQL: tables,
		Export: kinds.Export, Import: kinds.Import, Clear: store.ClearTables("planning_tasks", "planning_plans"),
	}
}

// imported returns an import function that stores each record with take. A *protocol.Error of take becomes
// a plain error.
func imported[R any](take func(*R, *store.Tx) error) func(*store.Tx, jsontext.Value) error {
	return store.ImportOf(func(r *R, tx *store.Tx) error {
		err := take(r, tx)
		if refusal, ok := errors.AsType[*protocol.Error](err); ok {
			return errors.New(refusal.Message) // its code is for agents
		}
		return err
	})
}

func exportPlans(tx *store.Tx, emit func(any) error) error {
	plans, err := findPlans(tx, "")
	for _, pl := range plans {
		if err == nil {
			err = emit(pl)
		}
	}
	return err
}

// exportTasks exports each task after the tasks that it waits for, so that an import can check every
// record at once.
func exportTasks(tx *store.Tx, emit func(any) error) error {
	tasks, err := findTasks(tx, &filter{})
	for _, t := range depsFirst(tasks) {
		if err == nil {
			err = emit(t)
		}
	}
	return err
}

// depsFirst returns the tasks in an order in which none waits for a later one.
func depsFirst(tasks []*task) []*task {
	left := make(map[string]*task, len(tasks))
	for _, t := range tasks {
		left[t.ID] = t
	}
	out := make([]*task, 0, len(tasks))
	var visit func(t *task)
	visit = func(t *task) {
		delete(left, t.ID)
		for _, id := range t.Deps {
			if dep := left[id]; dep != nil {
				visit(dep)
			}
		}
		out = append(out, t)
	}
	for _, t := range tasks {
		if left[t.ID] != nil {
			visit(t)
		}
	}
	return out
}

// take puts the plan into the store. It refuses other columns for a plan that exists already,
// as its tasks are in those columns.
func (pl *plan) take(tx *store.Tx) error {
	var wrong problems
	wrong.id("/plan_id", pl.ID)
	if len(pl.Columns) == 0 {
		wrong.add("/columns", "is empty; a plan needs at least one")
	}
	if err := errors.Join(wrong.err(), pl.check()); err != nil {
		return err
	}
	pl.DoneColumn = cmp.Or(pl.DoneColumn, pl.usualDone())
	there, err := findPlan(tx, pl.ID)
	switch {
	case err != nil:
		return err
	case there == nil:
		if err := roomForPlan(tx, pl); err != nil {
			return err
		}
		return pl.insert(tx)
	case !slices.Equal(there.Columns, pl.Columns):
		return fmt.Errorf("the plan %s is there already with other columns: %s", pl.ID,
			strings.Join(there.Columns, ", "))
	case there.DoneColumn != pl.DoneColumn:
		return fmt.Errorf("the plan %s is there already with another done_column: %s", pl.ID, there.DoneColumn)
	}
	_, err = tx.Exec("UPDATE planning_plans SET name = $1, description = $2, created_at = $3, size = $4 WHERE id = $5",
		pl.Name, pl.Description, int64(pl.CreatedAt), pl.size(), pl.ID)
	return err
}

// take puts the task into the store.
func (t *task) take(tx *store.Tx) error {
	if t.Metadata == nil {
		t.Metadata = jsontext.Value("{}")
	}
	if t.Comments == nil {
		t.Comments = []comment{}
	}
	t.Version = max(t.Version, 1)
	var wrong problems
	wrong.id("/task_id", t.ID)
	if t.Metadata.Kind() != '{' {
		wrong.add("/metadata", "should be an object")
	}
	if len(t.ClaimedBy) > maxOwner {
		wrong.add("/claimed_by", "has %d bytes; at most %d are allowed", len(t.ClaimedBy), maxOwner)
	}
	for i, c := range t.Comments {
		wrong.length(fmt.Sprintf("/comments/%d/text", i), c.Text, maxComment)
		wrong.length(fmt.Sprintf("/comments/%d/author", i), c.Author, maxName)
	}
	if err := errors.Join(wrong.err(), t.check()); err != nil {
		return err
	}
	t.Deps = once(t.Deps)
	pl, err := findPlan(tx, t.PlanID)
	if err != nil {
		return err
	}
	if pl == nil {
		return fmt.Errorf("the task %s belongs to the plan %.64q, which is not there; its record should come first",
			t.ID, t.PlanID)
	}
	old, err := findTask(tx, t.ID)
	switch {
	case err != nil:
		return err
	case old != nil && old.PlanID != t.PlanID:
		return fmt.Errorf("the task %s is there already and belongs to the plan %s, not to %s", t.ID, old.PlanID,
			t.PlanID)
	case reflect.DeepEqual(t, old):
		return nil
	}
	wrong.status(pl, t.Status)
	if old != nil && !slices.Equal(old.Deps, t.Deps) {
		err = wrong.newDeps(tx, pl, t.ID, t.Deps)
	} else { // nothing waits for a new task, and unchanged deps were checked before
		err = wrong.deps(tx, pl, t.Deps)
	}
	if err = errors.Join(err, wrong.err()); err != nil {
		return err
	}
	return t.put(tx, pl, old)
}

// id adds a problem if an id does not have the format of newID.
func (p *problems) id(path, id string) {
	if len(id) != idDigits || strings.Trim(id, "0123456789abcdef") != "" {
		p.add(path, "is %.64q; should be %d hex digits", id, idDigits)
	}
}
