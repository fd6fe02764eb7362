package worker

import (
	"fmt"
	"os"
	"slices"
	"time"

	"a2e/host/child"
	"a2e/host/sandbox"
	"a2e/protocol/fleet"
)

// selfName is the command that stands for this program where the PATH has no such.
const selfName = "a2e"

// policy says what to start. vars come on top of the config's variables; agent is whom it
// works for, nil = nobody in particular. Its DirFile, if any, is the caller's to close.
func (r *runner) policy(vars map[string]string, agent *fleet.Agent) (sandbox.Policy, error) {
	p := r.pool
	program := child.Program{Command: r.Command, Self: selfName, Workspace: p.workspace, Cwd: r.Cwd, Read: r.Read, Write: r.Write, Network: r.Network}
	if r.ShareState { // the sandbox grants only what is there
		if err := os.MkdirAll(p.stateDir, 0o700); err != nil {
			return sandbox.Policy{}, fmt.Errorf("state_dir, which the worker shares: %w", err)
		}
		program.Write = append(slices.Clone(r.Write), p.stateDir)
	}
	var err error
	if program.Env, err = r.environment(vars, agent); err != nil {
		return sandbox.Policy{}, err
	}
	return program.Policy()
}

// A child that ends within soonAfter of its start without a result counts as one that may
// not be able to work. From the second in a row each start waits, twice as long as the
// one before. After triesBeforeDown starts in a row at which it said nothing at all, tasks
// do not wait for it either.
const (
	soonAfter       = 10 * time.Second
	firstRest       = 500 * time.Millisecond
	longestRest     = 30 * time.Second
	triesBeforeDown = 3
)

// condition is how a worker is; smaller is better.
type condition int

const (
	conditionGood condition = iota
	conditionRests
	conditionDown
)

// health is whether a worker runs. It is guarded by Pool.mu.
type health struct {
	child.Backoff
	mute      int             // starts in a row that came to nothing
	announced *fleet.Announce // the last one; nil = none yet
}

// condition tells how the worker is.
func (h *health) condition(now time.Time) condition {
	switch {
	case h.Wait(now) <= 0:
		return conditionGood
	case h.mute >= triesBeforeDown:
		return conditionDown
	}
	return conditionRests
}

// lost notes how a worker ended, or why it did not start; then it lived 0, and rests at
// once. spoke tells whether it said anything, gave whether it had a result. first is the
// shortest rest.
func (h *health) lost(now time.Time, err error, lived time.Duration, spoke, gave bool, first time.Duration) {
	if h.mute++; spoke {
		h.mute = 0
	}
	h.First, h.Most, h.Enough, h.Free = first, longestRest, soonAfter, 1
	if lived == 0 {
		h.Free = 0
	}
	h.Down(now, err, lived, gave)
}

// runs notes that the program could be started.
func (r *runner) runs() {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.health.Up()
	r.health.mute = 0
}

// fails notes that it could not.
func (r *runner) fails(err error) {
	p := r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	r.health.lost(p.env.Now(), err, 0, false, false, p.pace.rest)
	if r.Mode == ModeFleet && r.health.condition(p.env.Now()) == conditionDown {
		r.evictLocked()
	}
	p.env.Log.Warn().Err(err).Str("worker", r.Name).Msg("a worker cannot be started")
}
