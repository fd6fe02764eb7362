package planning

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/store"
)

// migrations make the tables. Lists are JSON; times are microseconds since 1970.
// What is counted is kept with the plan, so that no limit costs a look at all tasks.
func migrations() []string {
	return []string{`
CREATE TABLE planning_plans (
	number      INTEGER PRIMARY KEY,
	id          TEXT NOT NULL UNIQUE,
	created_at  INTEGER NOT NULL,
	size        INTEGER NOT NULL, -- bytes of its own text
	tasks       INTEGER NOT NULL DEFAULT 0,
	tasks_size  INTEGER NOT NULL DEFAULT 0, -- bytes of text of its tasks
	name        TEXT NOT NULL,
	columns     TEXT NOT NULL,
	description TEXT NOT NULL
);
CREATE TABLE planning_tasks (
	number      INTEGER PRIMARY KEY,
	id          TEXT NOT NULL UNIQUE,
	plan_id     TEXT NOT NULL REFERENCES planning_plans (id),
	created_at  INTEGER NOT NULL,
	place       INTEGER NOT NULL, -- among those of one microsecond: tasks that the plan had before
	updated_at  INTEGER NOT NULL,
	status      TEXT NOT NULL,
	assignee    TEXT NOT NULL,
	title       TEXT NOT NULL,
	deps        TEXT NOT NULL,
	description TEXT NOT NULL,
	metadata    TEXT NOT NULL
);
CREATE INDEX planning_tasks_by_age ON planning_tasks (created_at, place);
CREATE INDEX planning_tasks_by_plan ON planning_tasks (plan_id, created_at, place);
CREATE INDEX planning_tasks_by_status ON planning_tasks (status, created_at, place);
CREATE INDEX planning_tasks_by_plan_and_status ON planning_tasks (plan_id, status, created_at, place);`}
}

// plan is one row of planning_plans, and a record of an export.
type plan struct {
	ID          string       `json:"plan_id"`
	Name        string       `json:"name"`
	Description string       `json:"description"`
	Columns     []string     `json:"columns"`
	CreatedAt   store.Micros `json:"created_at"`

	tasks, tasksSize int
}

// defaultColumns are those of a plan that names none.
func defaultColumns() []string { return []string{"backlog", "todo", "in_progress", "done"} }

// size is the bytes of the plan's own text.
func (pl *plan) size() int {
	n := len(pl.Name) + len(pl.Description)
	for _, c := range pl.Columns {
		n += len(c)
	}
	return n
}

// entry is the column where a task begins that is to have this status. The first of the
// usual columns is what clients send by default: in a plan without it that is the plan's own
// first one.
func (pl *plan) entry(status string) string {
	first := defaultColumns()[0]
	if status = cmp.Or(status, first); status == first && !slices.Contains(pl.Columns, first) {
		return pl.Columns[0]
	}
	return status
}

func (pl *plan) insert(tx *store.Tx) error {
	columns, err := listText(pl.Columns)
	if err != nil {
		return err
	}
	_, _, err = tx.Exec("INSERT INTO planning_plans (id, created_at, size, name, columns, description) VALUES (?, ?, ?, ?, ?, ?)",
		pl.ID, int64(pl.CreatedAt), pl.size(), pl.Name, columns, pl.Description)
	return err
}

// selectPlans begins each query for plans.
const selectPlans = "SELECT id, name, description, columns, created_at, tasks, tasks_size FROM planning_plans"

// findPlans returns the plan of an id, or all for "", the oldest first.
func findPlans(tx *store.Tx, id string) ([]*plan, error) {
	query, args := selectPlans+" ORDER BY created_at, number", []any(nil)
	if id != "" {
		query, args = selectPlans+" WHERE id = ?", []any{id}
	}
	var all []*plan
	err := tx.Each(query, args, func(scan func(...any) error) error {
		var pl plan
		var columns string
		if err := scan(&pl.ID, &pl.Name, &pl.Description, &columns, (*int64)(&pl.CreatedAt), &pl.tasks, &pl.tasksSize); err != nil {
			return err
		}
		all = append(all, &pl)
		return json.Unmarshal([]byte(columns), &pl.Columns)
	})
	return all, err
}

// findPlan returns nil when there is none.
func findPlan(tx *store.Tx, id string) (*plan, error) {
	if id == "" {
		return nil, nil
	}
	found, err := findPlans(tx, id)
	if err != nil || found == nil {
		return nil, err
	}
	return found[0], nil
}

// task is one row of planning_tasks, and a record of an export.
type task struct {
	ID          string         `json:"task_id"`
	PlanID      string         `json:"plan_id"`
	Title       string         `json:"title"`
	Status      string         `json:"status"`
	Assignee    string         `json:"assignee"`
	Description string         `json:"description"`
	Deps        []string       `json:"deps"`
	Metadata    jsontext.Value `json:"metadata"` // an object
	Place       int            `json:"place"`    // among tasks of the same created_at
	CreatedAt   store.Micros   `json:"created_at"`
	UpdatedAt   store.Micros   `json:"updated_at"`
}

// size is the bytes of the task's text.
func (t *task) size() int {
	n := len(t.Title) + len(t.Status) + len(t.Assignee) + len(t.Description) + len(t.Metadata)
	return n + len(t.Deps)*(idDigits+len(`"",`))
}

// put writes the task in place of old, which is nil for a new one, and counts it
// in its plan.
func (t *task) put(tx *store.Tx, pl *plan, old *task) error {
	tasks, size := 1, t.size()
	if old != nil {
		tasks, size = 0, t.size()-old.size()
	}
	if err := pl.room(tasks, size); err != nil {
		return err
	}
	deps, err := listText(t.Deps)
	if err != nil {
		return err
	}
	if _, _, err := tx.Exec(`INSERT INTO planning_tasks (id, plan_id, created_at, place, updated_at, status, assignee, title, deps, description, metadata)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
		created_at = excluded.created_at, place = excluded.place, updated_at = excluded.updated_at, status = excluded.status, assignee = excluded.assignee,
		title = excluded.title, deps = excluded.deps, description = excluded.description, metadata = excluded.metadata`,
		t.ID, t.PlanID, int64(t.CreatedAt), t.Place, int64(t.UpdatedAt), t.Status, t.Assignee, t.Title, deps, t.Description, string(t.Metadata)); err != nil {
		return err
	}
	_, _, err = tx.Exec("UPDATE planning_plans SET tasks = tasks + ?, tasks_size = tasks_size + ? WHERE id = ?", tasks, size, pl.ID)
	return err
}

// selectTasks begins each query for tasks, which scanTask reads; inOrder ends it.
const (
	selectTasks = "SELECT id, plan_id, title, status, assignee, description, deps, metadata, place, created_at, updated_at FROM planning_tasks"
	inOrder     = " ORDER BY created_at, place, number"
)

func scanTask(scan func(...any) error) (*task, error) {
	var t task
	var deps, metadata string
	if err := scan(&t.ID, &t.PlanID, &t.Title, &t.Status, &t.Assignee, &t.Description, &deps, &metadata, &t.Place, (*int64)(&t.CreatedAt), (*int64)(&t.UpdatedAt)); err != nil {
		return nil, err
	}
	t.Metadata = jsontext.Value(metadata)
	return &t, json.Unmarshal([]byte(deps), &t.Deps)
}

// eachTask goes over the tasks of a plan and a status, "" being any, the oldest first.
func eachTask(tx *store.Tx, planID, status string, do func(*task) error) error {
	query, args := selectTasks, []any(nil)
	switch {
	case planID != "" && status != "":
		query, args = query+" WHERE plan_id = ? AND status = ?", []any{planID, status}
	case planID != "":
		query, args = query+" WHERE plan_id = ?", []any{planID}
	case status != "":
		query, args = query+" WHERE status = ?", []any{status}
	}
	return tx.Each(query+inOrder, args, func(scan func(...any) error) error {
		t, err := scanTask(scan)
		if err != nil {
			return err
		}
		return do(t)
	})
}

// findTask returns nil when there is none.
func findTask(tx *store.Tx, id string) (found *task, err error) {
	err = tx.Each(selectTasks+" WHERE id = ?", []any{id}, func(scan func(...any) error) error {
		found, err = scanTask(scan)
		return err
	})
	return found, err
}

// listText is a list as a column holds it.
func listText(list []string) (string, error) {
	raw, err := json.Marshal(list)
	return string(raw), err
}

// idDigits is the length of an id.
const idDigits = 12

// newID returns an id that no row of the table has. taken is the query that asks.
func newID(tx *store.Tx, taken string) (string, error) {
	for {
		var random [idDigits / 2]byte
		_, _ = rand.Read(random[:]) // never fails
		id := hex.EncodeToString(random[:])
		there, err := tx.Get(taken, []any{id}, new(int))
		if err != nil || !there {
			return id, err
		}
	}
}
