// Package worker runs the workers of the config: programs that do tasks for other agents.
//
//	RunTask ── route ── queue ── a place at a worker ─┬─ oneshot: one process for the task
//	                                                  └─ fleet: one child for many tasks
//	result ◄── checked, completed, in the wanted shape ◄──┘
//
//	worker.go   one worker of the config, its start, its health
//	pool.go     the pool: a task from its begin to its result
//	task.go     how a task begins and ends     place.go    who may do it, who waits for a place
//	oneshot.go  a process for each task        fleet.go    a task at a long-lived child
//	peer.go     that child                     result.go   what a worker says
//	agent.go    whom it works for
package worker

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"a2e/host/child"
	"a2e/host/config"
	"a2e/host/sandbox"
	"a2e/protocol/fleet"
)

// The modes of a worker.
const (
	ModeOneshot = "oneshot" // a process for each task
	ModeFleet   = "fleet"   // one child that speaks the fleet protocol 2.0
)

// What holds where the config says nothing.
const (
	defaultTimeout = time.Hour
	maxPlaces      = 1024 // of one worker
	maxNameBytes   = 256
)

// Worker is one worker of the config.
type Worker struct {
	Name          string            `yaml:"name" required:"true" doc:"Unique name of the worker."`
	Command       []string          `yaml:"command" required:"true" doc:"The program and its arguments. A bare name is looked up on the PATH, one with a slash is relative to the workspace. a2e stands for this program where the PATH has none."`
	Mode          string            `yaml:"mode" enum:"oneshot,fleet" doc:"oneshot (the default): one process for each task, the brief on its stdin. fleet: one process that speaks the fleet protocol, such as [a2e, worker]."`
	Model         string            `yaml:"model" shown:"yes" doc:"Model that it works with; a task that asks for this model gets it."`
	ModelTier     string            `yaml:"model_tier" shown:"yes" doc:"Tier of that model, for tasks that prefer one."`
	ContextWindow int               `yaml:"context_window" min:"0" doc:"Context window of that model, in tokens."`
	MaxTasks      int               `yaml:"max_tasks" min:"0" max:"1024" doc:"Tasks that it works on at once; 0 = 1."`
	Timeout       time.Duration     `yaml:"timeout" doc:"Seconds that one task may take; 0 = an hour."`
	Env           map[string]string `yaml:"env" secret:"yes" doc:"Further environment variables of the program."`
	Network       bool              `yaml:"network" doc:"Let the program use the network; default: false."`
	Read          []string          `yaml:"read" doc:"Further files and folders that it may read, relative to the workspace or absolute."`
	ShareState    bool              `yaml:"share_state" doc:"Let an a2e that the worker starts keep its memory in the state_dir of this host, so that memory scopes reach it. The worker may then change all that lies there. Default: false."`
	Write         []string          `yaml:"write" doc:"Further folders that it may change, relative to the workspace or absolute, such as the one where an agent keeps its settings."`
	Cwd           string            `yaml:"cwd" doc:"The folder it runs in, relative to the workspace or absolute; default: the workspace."`
	Priority      int               `yaml:"priority" doc:"Workers with a higher one get tasks first; default: 0."`
	Capabilities  []string          `yaml:"capabilities" doc:"Tools, toolkits, capabilities and MCP servers that it has. Without this list a oneshot worker is taken to have all, and a fleet worker says itself what it has."`
	AuthToken     config.Secret     `yaml:"auth_token" doc:"Token that a fleet worker wants with each task."`
}

// Validate tells what is wrong with the worker.
func (w *Worker) Validate() error {
	switch {
	case w.Name == "":
		return errors.New("a worker has no name; give each one a name of its own")
	case len(w.Name) > maxNameBytes || strings.ContainsFunc(w.Name, func(r rune) bool { return r < ' ' }):
		return fmt.Errorf("worker %.64q: the name should be at most %d bytes without control characters", w.Name, maxNameBytes)
	case w.Mode != "" && w.Mode != ModeOneshot && w.Mode != ModeFleet:
		return fmt.Errorf("worker %q: mode is %.32q; it should be oneshot or fleet", w.Name, w.Mode)
	case w.ContextWindow < 0:
		return fmt.Errorf("worker %q: context_window should be 0 or more tokens", w.Name)
	case w.MaxTasks < 0 || w.MaxTasks > maxPlaces:
		return fmt.Errorf("worker %q: max_tasks should be between 1 and %d", w.Name, maxPlaces)
	case w.Timeout < 0:
		return fmt.Errorf("worker %q: timeout should be 0 or more seconds", w.Name)
	case w.AuthToken.Reveal() != "" && w.Mode != ModeFleet:
		return fmt.Errorf("worker %q: auth_token is for mode fleet; a oneshot worker gets secrets by env", w.Name)
	}
	if err := child.CheckCommand(w.Command, "the program that does the tasks, such as [my-agent, --print]"); err != nil {
		return fmt.Errorf("worker %q: %w", w.Name, err)
	}
	return nil
}

// withDefaults returns the worker with what holds where the config says nothing.
func (w Worker) withDefaults() Worker {
	if w.Mode == "" {
		w.Mode = ModeOneshot
	}
	w.MaxTasks = max(w.MaxTasks, 1)
	if w.Timeout == 0 {
		w.Timeout = defaultTimeout
	}
	return w
}

// validate tells what is wrong with a list of workers.
func validate(workers []Worker) error {
	seen := make(map[string]bool, len(workers))
	for i := range workers {
		w := &workers[i]
		if err := w.Validate(); err != nil {
			return err
		}
		if seen[w.Name] {
			return fmt.Errorf("two workers have the name %q; each needs one of its own", w.Name)
		}
		seen[w.Name] = true
	}
	return nil
}

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
// once. spoke reports whether it said anything, gave whether it had a result. first is the
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
