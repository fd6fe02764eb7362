package planning

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"a2e/host"
	"a2e/host/observe/event"
	"a2e/host/state/store"
	"a2e/protocol"
)

// A claim is a lease: an agent that works on a task claims it for some time, and during that time nobody
// else may claim or change it. The store carries out one write at a time, also those of other hosts,
// so that only one of several agents that claim a task gets it.

// claimed reports whether somebody has the task now.
func (t *task) claimed(now store.Micros) bool { return t.ClaimedUntil > now }

// notYours declines an action that only the holder of the task may do. what names the action; force, which
// may be "", is a hint that it can be forced.
func (c *change) notYours(t *task, what, force string) error {
	return decline("the task %s is not %.100s's to %s: %s%s", t.ID, c.me, what, t.holder(c.now), force)
}

// holder returns a text that tells who has claimed the task.
func (t *task) holder(now store.Micros) string {
	switch {
	case t.ClaimedBy == "":
		return "nobody has claimed it"
	case !t.claimed(now):
		return fmt.Sprintf("the claim of %.100s ran out at %s", t.ClaimedBy, timeText(t.ClaimedUntil))
	}
	return fmt.Sprintf("%.100s has claimed it until %s", t.ClaimedBy, timeText(t.ClaimedUntil))
}

// take checks that the agent who asks may change the task, and changes the claim.
func (c *change) take(tx *store.Tx, pl *plan, t *task) error {
	mine := c.has(t)
	switch c.Action {
	case protocol.TaskClaim:
		if err := c.mayClaim(tx, pl, t); err != nil {
			return err
		}
		t.ClaimedBy, t.ClaimedUntil, t.ClaimedFor = c.me, c.until(), c.agent
	case protocol.TaskRenew:
		if !mine {
			return c.notYours(t, "renew", "")
		}
		t.ClaimedUntil = c.until()
	case protocol.TaskRelease:
		if !mine && !c.Force {
			return c.notYours(t, "release", "; \"force\": true releases it anyway")
		}
		t.free()
	default:
		if !c.onlyComments() && !mine && !c.Force && (t.claimed(c.now) || c.Owner != "") {
			return c.notYours(t, "change", "; \"force\": true changes it anyway")
		}
	}
	return nil
}

// has reports whether the agent who asks has the task, or was the last to have it. If apart is set, the name
// alone does not count.
func (c *change) has(t *task) bool {
	return t.ClaimedBy != "" && t.ClaimedBy == c.me && (!c.apart || t.ClaimedFor == c.agent)
}

// forces reports whether the change overrides the claim of somebody else, which is recorded.
func (c *change) forces(t *task) bool {
	return c.Force && t.claimed(c.now) && !c.has(t) && !c.onlyComments()
}

// who returns the name of the agent who asks for records: the agent of its session, with the name in the
// request if that differs.
func (c *change) who() string {
	if c.agent != "" && c.agent != c.me {
		return c.agent + " (" + c.me + ")"
	}
	return c.me
}

// store puts a changed task in the place of old. A comment records a change against the claim of old.
func (c *change) store(tx *store.Tx, pl *plan, t, old *task) error {
	if c.forces(old) {
		text := fmt.Sprintf("by force: %s, though %s", cmp.Or(c.Action, "change"), old.holder(c.now))
		t.Comments = append(slices.Clip(t.Comments), comment{Author: c.who(), Text: text, CreatedAt: c.now})
	}
	t.Version++
	t.UpdatedAt = c.now
	return t.put(tx, pl, old)
}

// free ends the claim.
func (t *task) free() { t.ClaimedBy, t.ClaimedUntil, t.ClaimedFor = "", 0, "" }

// recordForce records in the log and the audit trail that who deleted what, which holder had claimed.
func (p *Plugin) recordForce(ctx context.Context, what, holder, who string) {
	who, holder = cmp.Or(who, "somebody without a name"), protocol.Clip(holder, maxOwner)
	p.env.Log.Warn().Str("deleted", what).Str("claimed_by", holder).Str("by",
		who).Msg("a claimed task was deleted by force")
	e := event.Event{
		Type: "planning/forced", Capability: string(protocol.CapPlanning),
		Name: "delete of " + what + ", which " + holder + " had claimed, by " + who,
	}
	if s := host.SessionFrom(ctx); s != nil {
		e.SessionID = s.ID
	}
	host.Trail(ctx, e, nil)
}

// until returns the end of the lease.
func (c *change) until() store.Micros { return c.now + store.Micros(c.lease.Microseconds()) }

// onlyComments reports whether the request only adds a comment.
func (c *change) onlyComments() bool {
	r := c.TaskUpdateRequest
	return r.Comment != "" && r.Action+r.Status+r.Title+r.Description+r.Assignee+r.Priority+r.Due+r.Estimate == "" &&
		len(r.Deps)+len(r.Clear)+r.Metadata.Len() == 0
}

// mayClaim declines a claim of a task that is done, waits for others, or is claimed. It also declines if the
// claim has the name of the agent who asks, as two agents may have the same name.
func (c *change) mayClaim(tx *store.Tx, pl *plan, t *task) error {
	switch {
	case pl.isDone(t):
		return decline("the task %s is done already", t.ID)
	case c.Force:
		return nil
	case t.claimed(c.now):
		return decline("the task %s is taken: %s; its owner extends the claim with the action renew", t.ID,
			t.holder(c.now))
	}
	if open, err := undone(tx, t.Deps); err != nil || open == "" {
		return err
	} else {
		return decline("the task %s waits for others: %s; \"force\": true claims it anyway", t.ID, open)
	}
}

// remove deletes a task. If others wait for it, it declines unless force is set; then it removes the
// dependency from them.
func (c *change) remove(tx *store.Tx, pl *plan, t *task) error {
	waiting, err := store.Rows(tx, selectTasks+" WHERE plan_id = $1 AND deps LIKE '%' || $2 || '%'"+inOrder,
		[]any{pl.ID, t.ID}, (*task).columns)
	if err != nil {
		return err
	}
	var ids []string
	for _, w := range waiting {
		ids = append(ids, w.ID)
	}
	if len(waiting) > 0 && !c.Force {
		return decline("others wait for the task %s: %s; \"force\": true deletes it anyway", t.ID, shown(ids))
	}
	for _, w := range waiting {
		fresh := *w
		fresh.Deps = slices.DeleteFunc(slices.Clone(w.Deps), func(id string) bool { return id == t.ID })
		if err := c.store(tx, pl, &fresh, w); err != nil {
			return err
		}
	}
	if _, err := tx.Exec("DELETE FROM planning_tasks WHERE id = $1", t.ID); err != nil {
		return err
	}
	return pl.add(tx, -1, -t.size(), -count(pl.isDone(t)))
}
