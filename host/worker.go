package host

import (
	"context"

	"a2e/protocol/fleet"
)

// WorkerPool is a plugin that has tasks done by child agents. Find finds it.
type WorkerPool interface {
	// Workers lists the configured workers in the config's order; the first is the default.
	Workers() []WorkerInfo
	// RunTask has one task done and gives its one result, also where the worker crashed or
	// was stopped. The error is a *protocol.Error for a task that cannot even begin to be
	// looked at (an unknown worker), or that of ctx when it ended first: then the
	// worker was stopped.
	RunTask(ctx context.Context, task WorkerTask) (*fleet.Result, error)
}

// WorkerInfo is what is known of one worker.
type WorkerInfo struct {
	Name          string
	Mode          string // oneshot or fleet
	Model         string
	ModelTier     string
	ContextWindow int // tokens; 0 = not known
	MaxTasks      int // at once
	Active        int // tasks under way
	Waiting       int
	Healthy       bool
	Reason        string   // why it is not healthy
	Tools         []string // as it announced
	MCPServers    []string
	Extensions    []string // of the fleet protocol that it takes
}

// WorkerTask is a task for a worker.
type WorkerTask struct {
	fleet.Dispatch
	Worker string // the name of the worker that shall do it; "" = one is chosen
	Model  string // of the worker to choose, where Worker is ""; "" or an unknown one = the default
	Tier   string // the model tier to prefer
	// Env is given to a one-shot worker on top of the task's own variables.
	Env map[string]string
	// Started is told the worker that takes the task up, once it has a place there, for each
	// one that tries, and "" where the task has to wait for a place; nil = nobody asks. It
	// must not wait.
	Started func(worker string)
	// Output gets each line that the worker prints, as it comes; nil = nobody listens.
	Output func(stream, line string)
	// Steer gives texts to a worker that takes them while it works (mode fleet); taken tells
	// whether it did. nil = there are none.
	Steer <-chan Steering
}

// Steering is a text for a worker at work.
type Steering struct {
	Text  string
	Taken chan<- bool // told once, with room for it
}
