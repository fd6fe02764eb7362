package planning

import (
	"cmp"
	"context"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/protocol"
)

// unknownPlan returns the error text for a plan that does not exist.
func unknownPlan(id string) string {
	return fmt.Sprintf("there is no plan %.64q; planning/plan/list names those there are, planning/plan/create "+
		"makes one", id)
}

// declined is a refusal because of the present state of the plan or the task. It becomes an
// answer without success instead of an error, as agents of this protocol expect.
type declined struct{ text string }

func (d declined) Error() string { return d.text }

func decline(format string, args ...any) error { return declined{fmt.Sprintf(format, args...)} }

// value parses the text of a field into to, and adds a problem if that fails. An empty text changes nothing.
func (p *problems) value(path, text string, to encoding.TextUnmarshaler) {
	if text == "" {
		return
	}
	if err := to.UnmarshalText([]byte(text)); err != nil {
		p.add(path, "%v", err)
	}
}

func (p *Plugin) add(ctx context.Context, req *protocol.TaskAddRequest, _ host.Emitter) (*protocol.TaskAddResponse,
	error,
) {
	t := task{
		PlanID: req.PlanID, Title: req.Title, Assignee: req.Assignee, Description: req.Description,
		Deps: req.Deps, Metadata: jsontext.Value(req.Metadata.Raw()), Comments: []comment{}, Version: 1,
	}
	var wrong problems
	wrong.values(&t, req.Priority, req.Due, req.Estimate)
	if err := errors.Join(wrong.err(), t.check()); err != nil {
		return nil, err
	}
	t.Deps = once(req.Deps)
	resp := &protocol.TaskAddResponse{}
	err := p.kept.Write(ctx, func(tx *store.Tx) error {
		*resp = protocol.TaskAddResponse{}
		pl, err := findPlan(tx, req.PlanID)
		if err != nil {
			return err
		}
		if pl == nil {
			return host.NotOwnerBut(&protocol.TaskAddResponse{Error: unknownPlan(req.PlanID)})
		}
		t.Status = pl.entry(req.Status)
		var wrong problems
		wrong.status(pl, t.Status)
		if err := wrong.deps(tx, pl, req.Deps); err != nil {
			return err
		}
		if wrong != nil {
			return wrong.err()
		}
		if err := pl.mayBeDone(tx, &t, req.Force); err != nil {
			return answered(err, &resp.Error)
		}
		if t.ID, err = newID(tx, "SELECT 1 FROM planning_tasks WHERE id = $1"); err != nil {
			return err
		}
		t.Place, t.CreatedAt = pl.tasks, p.now()
		t.UpdatedAt = t.CreatedAt
		resp.Success, resp.TaskID, resp.Status = true, t.ID, t.Status
		return t.put(tx, pl, nil)
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// answered puts the text of a declined error into an answer and returns nil; it returns other errors.
func answered(err error, into *string) error {
	if d, ok := errors.AsType[declined](err); ok {
		*into = d.text
		return nil
	}
	return err
}

// values parses the fields of a task that have a format.
func (p *problems) values(t *task, priority, due, estimate string) {
	p.value("/priority", priority, &t.Priority)
	p.value("/due", due, &t.Due)
	p.value("/estimate", estimate, &t.Estimate)
}

// mayBeDone declines a task in the done column whose dependencies are not done, unless force is set.
func (pl *plan) mayBeDone(tx *store.Tx, t *task, force bool) error {
	if !pl.isDone(t) || force {
		return nil
	}
	if open, err := undone(tx, t.Deps); err != nil || open == "" {
		return err
	} else {
		return decline("the task cannot be done before those that it waits for: %s; "+
			"\"force\": true does it anyway", open)
	}
}

// undone names the tasks of a list that are not done; "" = all are done.
func undone(tx *store.Tx, ids []string) (string, error) {
	if len(ids) == 0 {
		return "", nil
	}
	open, err := store.Column[string](tx, "SELECT t.id FROM json_each($1) d CROSS JOIN planning_tasks t WHERE t.id = "+
		"d.value AND t.done = 0", store.JSON(ids))
	return shown(open), err
}

// shown returns a list of tasks as text, without its end if it is long.
func shown(ids []string) string {
	if len(ids) > maxShown {
		return fmt.Sprintf("%s and %d more", strings.Join(ids[:maxShown], ", "), len(ids)-maxShown)
	}
	return strings.Join(ids, ", ")
}

// change is a request to change a task, before the task is read.
type change struct {
	*protocol.TaskUpdateRequest
	me    string // who asks
	agent string // agent of the session, see host.Session.Owner
	apart bool   // claims with the same name from another agent's session do not count as mine
	lease time.Duration
	now   store.Micros
}

// update changes a task, see change.apply and change.take.
func (p *Plugin) update(ctx context.Context, req *protocol.TaskUpdateRequest,
	_ host.Emitter,
) (*protocol.TaskUpdateResponse, error) {
	c := &change{
		TaskUpdateRequest: req, me: req.Owner,
		lease: time.Duration(cmp.Or(req.Lease, usualLease)) * time.Second, now: p.now(),
	}
	s := host.SessionFrom(ctx)
	if s != nil {
		c.me = cmp.Or(c.me, s.AgentID)
	}
	c.agent, c.apart = s.Owner()
	if !s.MayBe(c.me) {
		return nil, protocol.Wrong("/owner", "is %.100q, the name of another agent; leave it out, or name one of your "+
			"own workers", c.me)
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	resp, deleted := &protocol.TaskUpdateResponse{}, (*task)(nil)
	err := p.kept.Write(ctx, func(tx *store.Tx) error {
		*resp = protocol.TaskUpdateResponse{TaskID: req.TaskID}
		pl, err := findPlan(tx, req.PlanID)
		if err != nil {
			return err
		}
		if pl == nil {
			return host.NotOwnerBut(&protocol.TaskUpdateResponse{TaskID: req.TaskID, Error: unknownPlan(req.PlanID)})
		}
		old, err := c.find(tx, pl, resp)
		if err != nil {
			return answered(err, &resp.Error)
		}
		t, err := c.made(tx, pl, old)
		if err != nil {
			resp.Task = old.row(c.now)
			return answered(err, &resp.Error)
		}
		resp.Success, resp.TaskID = true, old.ID
		deleted = nil
		if t == nil && c.forces(old) {
			deleted = old
		}
		if t != nil {
			resp.Task = t.row(c.now)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if deleted != nil { // a deleted task has no comments that could record it
		p.recordForce(ctx, "the task "+deleted.ID, deleted.ClaimedBy, c.who())
	}
	return resp, nil
}

// check returns an error if the request is wrong for every task.
func (c *change) check() error {
	var wrong problems
	wrong.values(&task{}, c.Priority, c.Due, c.Estimate)
	actions := []string{protocol.TaskClaim, protocol.TaskRenew, protocol.TaskRelease, protocol.TaskDelete}
	takes := c.Action == protocol.TaskClaim || c.Action == protocol.TaskRenew
	switch {
	case c.Action != "" && !slices.Contains(actions, c.Action):
		wrong.add("/action", "is %.40q; should be one of %s", c.Action, strings.Join(actions, ", "))
	case takes && c.me == "":
		wrong.add("/owner", "is missing, and the session has no agent_id; say who claims the task")
	case !takes && c.Lease != 0:
		wrong.add("/lease", "goes with the actions claim and renew")
	}
	if c.lease < time.Second || c.lease > maxLease {
		wrong.add("/lease", "is %d; should be 1 to %d seconds", c.Lease, maxLease/time.Second)
	}
	if n := len(c.me); takes && n > maxOwner {
		wrong.add("/owner", "has %d bytes; at most %d are allowed", n, maxOwner)
	}
	if c.IfVersion < 0 {
		wrong.add("/if_version", "is %d; should be the version that the task had, from 1", c.IfVersion)
	}
	wrong.length("/comment", c.Comment, maxComment)
	clearable := (&task{}).clearable()
	for i, name := range c.Clear {
		if clearable[name] == nil {
			wrong.add(fmt.Sprintf("/clear/%d", i), "is %.40q; what can be empty is assignee, deps, description, "+
				"due, estimate and metadata", name)
		}
	}
	return wrong.err()
}

// clearable returns a function for each field that may be emptied, by the name of the field.
func (t *task) clearable() map[string]func() {
	return map[string]func(){
		"assignee": func() { t.Assignee = "" }, "deps": func() { t.Deps = []string{} },
		"description": func() { t.Description = "" },
		"due":         func() { t.Due = 0 }, "estimate": func() { t.Estimate = 0 },
		"metadata": func() { t.Metadata = jsontext.Value("{}") },
	}
}

// find returns the task of the request: the task that it names or, for a claim without a name, the first
// that is ready.
func (c *change) find(tx *store.Tx, pl *plan, resp *protocol.TaskUpdateResponse) (found *task, err error) {
	if c.TaskID == "" && c.Action == protocol.TaskClaim {
		ready, err := findTasks(tx, &filter{PlanID: pl.ID, Ready: true, Now: c.now, For: c.me, Limit: 1})
		if len(ready) > 0 {
			found = ready[0]
		} else if err == nil {
			left := pl.tasks - pl.done
			resp.Remaining = &left
			state := "all are done"
			if left > 0 {
				state = fmt.Sprintf("%d not done, but claimed, waiting for others or assigned to another", left)
			}
			err = decline("no task of the plan %s is ready for %.100s: %s", pl.ID, c.me, state)
		}
		return found, err
	}
	found, err = findTask(tx, c.TaskID)
	switch {
	case err != nil:
		return nil, err
	case c.TaskID == "":
		return nil, decline("no task is named; give its task_id, which only a claim of the next task may leave out")
	case found == nil:
		return nil, decline("there is no task %.64q; planning/task/list names those of the plan %s", c.TaskID, pl.ID)
	case found.PlanID != pl.ID:
		return nil, decline("the task %s belongs to the plan %s, not to %s", found.ID, found.PlanID, pl.ID)
	}
	return found, nil
}

// made carries out the request and returns the new task, or nil if it was deleted. If it declines the
// request, it has written nothing.
func (c *change) made(tx *store.Tx, pl *plan, old *task) (*task, error) {
	if c.IfVersion != 0 && c.IfVersion != old.Version {
		return nil, decline("the task %s has version %d by now, not %d; look at it again, and send the change with "+
			"if_version %d", old.ID, old.Version, c.IfVersion, old.Version)
	}
	t := *old
	t.Comments = slices.Clip(t.Comments)
	if err := c.take(tx, pl, &t); err != nil {
		return nil, err
	}
	if c.Action == protocol.TaskDelete {
		return nil, c.remove(tx, pl, old)
	}
	if err := c.apply(tx, pl, &t); err != nil {
		return nil, err
	}
	if pl.isDone(&t) {
		t.free()
	}
	if reflect.DeepEqual(&t, old) {
		return old, nil // nothing was updated
	}
	return &t, c.store(tx, pl, &t, old)
}

// apply puts the fields of the request into the task; an empty field changes nothing.
func (c *change) apply(tx *store.Tx, pl *plan, t *task) error {
	before := *t
	var wrong problems
	for _, name := range c.Clear {
		t.clearable()[name]()
	}
	if c.Status != "" {
		wrong.status(pl, c.Status)
	}
	t.Status, t.Title = cmp.Or(c.Status, t.Status), cmp.Or(c.Title, t.Title)
	t.Assignee, t.Description = cmp.Or(c.Assignee, t.Assignee), cmp.Or(c.Description, t.Description)
	wrong.values(t, c.Priority, c.Due, c.Estimate)
	if c.Metadata.Len() > 0 {
		t.Metadata = jsontext.Value(c.Metadata.Raw())
	}
	if c.Comment != "" {
		t.Comments = append(t.Comments, comment{Author: c.me, Text: c.Comment, CreatedAt: c.now})
	}
	if len(c.Deps) > 0 {
		t.Deps = c.Deps
	}
	if err := t.check(); err != nil {
		return err
	}
	if len(c.Deps) > 0 {
		t.Deps = once(c.Deps)
		if err := wrong.newDeps(tx, pl, t.ID, c.Deps); err != nil {
			return err
		}
	}
	if wrong != nil {
		return wrong.err()
	}
	if pl.isDone(&before) {
		return nil // a done task may stay done
	}
	return pl.mayBeDone(tx, t, c.Force)
}

func (p *Plugin) tasks(ctx context.Context, req *protocol.TaskListRequest, _ host.Emitter) (*protocol.TaskListResponse,
	error,
) {
	if req.Limit < 0 {
		return nil, protocol.Wrong("/limit", "is less than 0; 0 means no limit")
	}
	f := &filter{
		PlanID: req.PlanID, Status: req.Status, TaskID: req.TaskID, Assignee: req.Assignee, Ready: req.Ready,
		Now: p.now(), Limit: req.Limit,
	}
	resp := &protocol.TaskListResponse{}
	err := p.kept.Read(ctx, func(tx *store.Tx) error {
		var size answer
		return eachTask(tx, f, func(t *task) error {
			resp.Tasks = append(resp.Tasks, t.row(f.Now))
			return size.add(t.size())
		})
	})
	return resp, err
}

// row returns the task as answers have it, without a claim that has run out.
func (t *task) row(now store.Micros) map[string]any {
	by, until := t.ClaimedBy, t.ClaimedUntil
	if !t.claimed(now) {
		by, until = "", 0
	}
	return map[string]any{
		"task_id": t.ID, "plan_id": t.PlanID, "title": t.Title, "status": t.Status, "assignee": t.Assignee,
		"description": t.Description, "deps": t.Deps, "metadata": t.Metadata, "priority": t.Priority.String(),
		"due": t.Due.String(), "estimate": t.Estimate.String(),
		"comments": t.Comments, "claimed_by": by, "claimed_until": until.Seconds(), "version": t.Version,
		"created_at": t.CreatedAt.Seconds(), "updated_at": t.UpdatedAt.Seconds(),
	}
}
