package planning

import (
	"cmp"
	"crypto/rand"
	"embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/state/store"
)

// tables has the SQL of the tables. Lists are stored as JSON, times as microseconds since 1970. A plan has the
// counts and sizes of its tasks, so that no limit needs a look at all tasks.
//
//go:embed sql/*.sql
var tables embed.FS

// plan is one row of planning_plans, and a record of an export.
type plan struct {
	ID          string       `json:"plan_id"`
	Name        string       `json:"name"`
	Description string       `json:"description"`
	Columns     []string     `json:"columns"`
	DoneColumn  string       `json:"done_column"`
	CreatedAt   store.Micros `json:"created_at"`
	Folder      string       `json:"folder,omitzero"` // workspace where it was made; see wall.Canonical

	tasks, tasksSize, done int
}

// defaultColumns returns the columns of a plan whose request names none.
func defaultColumns() []string { return []string{"backlog", "todo", "in_progress", "done"} }

// usualDone returns the column of done tasks for a plan that does not name it.
func (pl *plan) usualDone() string {
	if slices.Contains(pl.Columns, "done") {
		return "done"
	}
	return pl.Columns[len(pl.Columns)-1]
}

// size returns the bytes of the plan's own text, without its tasks.
func (pl *plan) size() int {
	n := len(pl.Name) + len(pl.Description)
	for _, c := range pl.Columns {
		n += len(c)
	}
	return n
}

// entry returns the column for a new task with this status. Clients send the first default
// column ("backlog") by default: in a plan without it, entry returns the plan's first column.
func (pl *plan) entry(status string) string {
	first := defaultColumns()[0]
	if status = cmp.Or(status, first); status == first && !slices.Contains(pl.Columns, first) {
		return pl.Columns[0]
	}
	return status
}

func (pl *plan) insert(tx *store.Tx) error {
	_, err := tx.Exec("INSERT INTO planning_plans (id, created_at, size, name, columns, done_column, description, "+
		"folder) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
		pl.ID, pl.CreatedAt, pl.size(), pl.Name, store.JSON(pl.Columns), pl.DoneColumn, pl.Description, pl.Folder)
	return err
}

// selectPlans is the beginning of each query for plans.
const selectPlans = "SELECT id, name, description, columns, done_column, created_at, tasks, tasks_size, done, " +
	"folder FROM planning_plans"

// findPlans returns the plan with the id, or all plans for "", the oldest first.
func findPlans(tx *store.Tx, id string) ([]*plan, error) {
	query, args := selectPlans+" ORDER BY created_at, number", []any(nil)
	if id != "" {
		query, args = selectPlans+" WHERE id = $1", []any{id}
	}
	return store.Rows(tx, query, args, func(pl *plan) []any {
		return []any{
			&pl.ID, &pl.Name, &pl.Description, store.JSON(&pl.Columns), &pl.DoneColumn, &pl.CreatedAt,
			&pl.tasks, &pl.tasksSize, &pl.done, &pl.Folder,
		}
	})
}

// findPlan returns the plan with the id, or nil if there is none.
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
	ID           string         `json:"task_id"`
	PlanID       string         `json:"plan_id"`
	Title        string         `json:"title"`
	Status       string         `json:"status"`
	Assignee     string         `json:"assignee"`
	Description  string         `json:"description"`
	Deps         []string       `json:"deps"`
	Metadata     jsontext.Value `json:"metadata"` // an object
	Priority     priority       `json:"priority"`
	Due          due            `json:"due"`
	Estimate     estimate       `json:"estimate"`
	Comments     []comment      `json:"comments"`
	ClaimedBy    string         `json:"claimed_by"` // who claimed it last; valid until ClaimedUntil
	ClaimedUntil store.Micros   `json:"claimed_until"`
	ClaimedFor   string         `json:"claimed_for,omitzero"` // see host.Session.Owner
	Version      int            `json:"version"`
	Place        int            `json:"place"` // order of tasks with the same created_at
	CreatedAt    store.Micros   `json:"created_at"`
	UpdatedAt    store.Micros   `json:"updated_at"`
}

// comment is a comment on a task.
type comment struct {
	Author    string       `json:"author"`
	Text      string       `json:"text"`
	CreatedAt store.Micros `json:"created_at"`
}

// size returns the bytes of the task's text.
func (t *task) size() int {
	n := len(t.Title) + len(t.Status) + len(t.Assignee) + len(t.Description) + len(t.Metadata)
	for _, c := range t.Comments {
		n += len(c.Author) + len(c.Text) + commentSize
	}
	return n + len(t.Deps)*(idDigits+len(`"",`))
}

// isDone reports whether the task is in the plan's column of done tasks.
func (pl *plan) isDone(t *task) bool { return t.Status == pl.DoneColumn }

// put writes the task in place of old, or adds it if old is nil, and updates the
// counts of its plan.
func (t *task) put(tx *store.Tx, pl *plan, old *task) error {
	tasks, size, done := 1, t.size(), count(pl.isDone(t))
	if old != nil {
		tasks, size, done = 0, t.size()-old.size(), done-count(pl.isDone(old))
	}
	if err := pl.room(tasks, size); err != nil {
		return err
	}
	if _, err := tx.Exec(putTask,
		t.ID, t.PlanID, t.CreatedAt, t.Place, t.UpdatedAt, t.Status, count(pl.isDone(t)), t.Assignee, t.Title,
		store.JSON(t.Deps), t.Description, string(t.Metadata),
		int(t.Priority), t.Due.stored(), int64(t.Estimate), t.ClaimedBy, t.ClaimedUntil, t.ClaimedFor,
		store.JSON(t.Comments), t.Version); err != nil {
		return err
	}
	return pl.add(tx, tasks, size, done)
}

const putTask = `INSERT INTO planning_tasks (id, plan_id, created_at, place, updated_at, status, done, assignee, title,
	deps, description, metadata,
		priority, due, estimate, claimed_by, claimed_until, claimed_for, comments, version)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20) ON CONFLICT
		(id) DO UPDATE SET
	created_at = excluded.created_at, place = excluded.place, updated_at = excluded.updated_at,
	status = excluded.status, done = excluded.done,
	assignee = excluded.assignee, title = excluded.title, deps = excluded.deps, description = excluded.description,
	metadata = excluded.metadata,
	priority = excluded.priority, due = excluded.due, estimate = excluded.estimate, claimed_by = excluded.claimed_by,
	claimed_until = excluded.claimed_until,
	claimed_for = excluded.claimed_for,
	comments = excluded.comments, version = excluded.version`

// add adds to the counts of the plan; the numbers may be negative.
func (pl *plan) add(tx *store.Tx, tasks, size, done int) error {
	if tasks == 0 && size == 0 && done == 0 {
		return nil
	}
	_, err := tx.Exec("UPDATE planning_plans SET tasks = tasks + $1, tasks_size = tasks_size + $2, done = done + $3 "+
		"WHERE id = $4", tasks, size, done, pl.ID)
	return err
}

// count returns 1 for true and 0 for false.
func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// selectTasks is the beginning of each query for tasks, whose rows task.columns scans; inOrder is its end.
const (
	selectTasks = "SELECT id, plan_id, title, status, assignee, description, deps, metadata, priority, due, " +
		"estimate, comments, claimed_by, claimed_until, claimed_for, version, place, created_at, updated_at FROM " +
		"planning_tasks t"
	inOrder = " ORDER BY created_at, place, number"

	// isReady is the condition for tasks that can be started, and byUrgency their order.
	isReady = "done = 0 AND claimed_until <= %s AND (deps = '[]' OR NOT EXISTS (SELECT 1 FROM json_each(t.deps) d " +
		"CROSS JOIN planning_tasks o WHERE o.id = d.value AND o.done = 0))"
	byUrgency = " ORDER BY priority, due, created_at, place, number"
)

func (t *task) columns() []any {
	return []any{
		&t.ID, &t.PlanID, &t.Title, &t.Status, &t.Assignee, &t.Description, store.JSON(&t.Deps),
		(*[]byte)(&t.Metadata), (*int)(&t.Priority), &t.Due, (*int64)(&t.Estimate),
		store.JSON(&t.Comments), &t.ClaimedBy, &t.ClaimedUntil, &t.ClaimedFor, &t.Version, &t.Place, &t.CreatedAt,
		&t.UpdatedAt,
	}
}

// filter selects tasks; an empty field is no condition.
type filter struct {
	PlanID, Status, TaskID, Assignee string

	Ready bool         // only tasks that are ready, by urgency
	Now   store.Micros // time for Ready
	For   string       // only tasks assigned to this agent or to nobody
	Limit int          // 0 = all
}

// eachTask calls do for each task that a filter selects, the oldest first, or by urgency with Ready.
func eachTask(tx *store.Tx, f *filter, do func(*task) error) error {
	var conditions []string
	var args store.Args
	for _, c := range [][2]string{
		{"plan_id = %s", f.PlanID},
		{"status = %s", f.Status},
		{"id = %s", f.TaskID},
		{"assignee = %s", f.Assignee},
		{"assignee IN ('', %s)", f.For},
	} {
		if c[1] != "" {
			conditions = append(conditions, fmt.Sprintf(c[0], args.Add(c[1])))
		}
	}
	order := inOrder
	if f.Ready {
		conditions, order = append(conditions, fmt.Sprintf(isReady, args.Add(f.Now))), byUrgency
	}
	query := selectTasks
	if conditions != nil {
		query += " WHERE " + strings.Join(conditions, " AND ")
	}
	if query += order; f.Limit > 0 {
		query += " LIMIT " + args.Add(f.Limit)
	}
	return tx.Each(query, args, func(scan func(...any) error) error {
		t := new(task)
		if err := scan(t.columns()...); err != nil {
			return err
		}
		return do(t)
	})
}

// findTasks returns the tasks that a filter selects, in the order of eachTask.
func findTasks(tx *store.Tx, f *filter) (all []*task, err error) {
	err = eachTask(tx, f, func(t *task) error {
		all = append(all, t)
		return nil
	})
	return all, err
}

// findTask returns the task with the id, or nil if there is none.
func findTask(tx *store.Tx, id string) (*task, error) {
	if id == "" {
		return nil, nil
	}
	found, err := findTasks(tx, &filter{TaskID: id})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// idDigits is the length of an id.
const idDigits = 12

// newID returns a random id that is not taken. taken is the query that finds a row with the id $1.
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
