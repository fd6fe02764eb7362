package planning

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"a2e/host/state/store"
	"a2e/protocol"
)

// Limits, so that no store grows without bound.
const (
	maxPlans     = 1_000
	maxPlansSize = 8 << 20 // bytes of text of all plans without their tasks: plan/list sends it
	maxColumns   = 50
	maxTasks     = 10_000  // of a plan
	maxTasksSize = 8 << 20 // bytes of text of a plan's tasks: plan/board sends it
	maxDeps      = 1_000   // of a task

	maxName        = 1_000 // characters of a name, title or assignee
	maxColumn      = 100
	maxDescription = 100_000
	maxMetadata    = 64 << 10 // bytes
	maxComments    = 100      // of a task
	maxComment     = 10_000
	commentSize    = 50  // bytes that a comment counts in addition to its text
	maxOwner       = 200 // bytes
	usualLease     = 300 // seconds
	maxLease       = 7 * 24 * time.Hour

	// maxAnswer limits the bytes of text in the answer to a request for all plans. The
	// tasks of one plan always fit.
	maxAnswer = 16 << 20
	// rowSize is roughly how many bytes a row takes in an answer in addition to its texts.
	rowSize = 400
)

// problems collects what is wrong with the fields of a request or a record.
type problems []protocol.FieldError

func (p *problems) add(path, format string, args ...any) {
	*p = append(*p, protocol.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
}

// length adds a problem if the text has more than limit characters.
func (p *problems) length(path, text string, limit int) {
	if n := utf8.RuneCountInString(text); n > limit {
		p.add(path, "has %d characters; at most %d are allowed", n, limit)
	}
}

// err returns a `schema_violation` with the problems, or nil if there are none.
func (p problems) err() error {
	if p == nil {
		return nil
	}
	return protocol.Violation(p...)
}

// check returns a `schema_violation` if a field of the plan is wrong.
func (pl *plan) check() error {
	var wrong problems
	wrong.length("/name", pl.Name, maxName)
	wrong.length("/description", pl.Description, maxDescription)
	if len(pl.Columns) > maxColumns {
		wrong.add("/columns", "has %d entries; at most %d are allowed", len(pl.Columns), maxColumns)
		return wrong.err()
	}
	for i, column := range pl.Columns {
		path := fmt.Sprintf("/columns/%d", i)
		wrong.length(path, column, maxColumn)
		switch first := slices.Index(pl.Columns, column); {
		case strings.TrimSpace(column) == "":
			wrong.add(path, "is empty; a column needs a name, such as %q", defaultColumns()[0])
		case first < i:
			wrong.add(path, "is %q again, as /columns/%d; each column may appear once", column, first)
		}
	}
	if pl.DoneColumn != "" && !slices.Contains(pl.Columns, pl.DoneColumn) {
		wrong.add("/done_column", "is %.100q, which is not one of the columns: %s", pl.DoneColumn,
			strings.Join(pl.Columns, ", "))
	}
	return wrong.err()
}

// check returns a `schema_violation` if a field of the task is wrong. It does not look at its plan.
func (t *task) check() error {
	var wrong problems
	if strings.TrimSpace(t.Title) == "" {
		wrong.add("/title", "is empty; say in a few words what there is to do")
	}
	wrong.length("/title", t.Title, maxName)
	wrong.length("/assignee", t.Assignee, maxName)
	if n := len(t.Comments); n > maxComments {
		wrong.add("/comment", "would be comment %d of the task, which may have %d; write it into the description", n,
			maxComments)
	}
	wrong.length("/description", t.Description, maxDescription)
	if n := len(t.Metadata); n > maxMetadata {
		wrong.add("/metadata", "has %d bytes; at most %d are allowed: keep the rest in a file and name that", n,
			maxMetadata)
	}
	if n := len(t.Deps); n > maxDeps {
		wrong.add("/deps", "has %d entries; at most %d are allowed", n, maxDeps)
	}
	return wrong.err()
}

// status adds a problem if the status is not a column of the plan.
func (p *problems) status(pl *plan, status string) {
	if !slices.Contains(pl.Columns, status) {
		p.add("/status", "is %.100q, which is not a column of the plan %s; its columns are: %s", status, pl.ID,
			strings.Join(pl.Columns, ", "))
	}
}

// roomForPlan returns an error if the store has no room for the plan. The error is not
// `overloaded`, as that would tell the agent to send the same request again.
func roomForPlan(tx *store.Tx, pl *plan) error {
	var count, size int
	if _, err := tx.Get("SELECT count(*), coalesce(sum(size), 0) FROM planning_plans", nil, &count, &size); err != nil {
		return err
	}
	var wrong problems
	if count >= maxPlans {
		wrong.add("/name", "would be one plan too many: there are %d, which is the limit; delete one, or use one; "+
			"planning/plan/list names them", count)
	}
	if size+pl.size() > maxPlansSize {
		wrong.add("/description", "is too long for the room that is left: the plans hold %d bytes of names, columns "+
			"and descriptions, of %d that they may", size, maxPlansSize)
	}
	return wrong.err()
}

// room returns an error if the plan has no room for tasks more tasks and size more bytes of text.
func (pl *plan) room(tasks, size int) error {
	var wrong problems
	if tasks > 0 && pl.tasks+tasks > maxTasks {
		wrong.add("/plan_id", "is a plan with %d tasks, which is the limit; make another with planning/plan/create",
			pl.tasks)
	}
	if size > 0 && pl.tasksSize+size > maxTasksSize {
		wrong.add("/plan_id", "is a plan whose tasks hold %d bytes of text, of %d that they may; write less, keep "+
			"long texts in files, or make another plan", pl.tasksSize, maxTasksSize)
	}
	return wrong.err()
}

// answer counts the text in an answer of several plans.
type answer int

// add counts a row with size bytes of text, and returns an error if the answer is too large.
func (a *answer) add(size int) error {
	if *a += answer(size + rowSize); *a <= maxAnswer {
		return nil
	}
	return protocol.Wrong("/plan_id", "does not name a plan, and all plans have more than the %d bytes that an "+
		"answer may hold; ask for one plan at a time, planning/plan/list names them", maxAnswer)
}
