package agent

import (
	"context"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// MemoryScoper is a plugin that keeps memories of agents, for the plugin that starts child agents.
type MemoryScoper interface {
	// ScopeMemory sets which memory the agent with the id child sees: that of the agent whose request ctx belongs
	// to, one of its own, or one of its own that begins with copies.
	ScopeMemory(ctx context.Context, child string, scope protocol.MemoryScope) error
}

// WorkerPool is a plugin whose child agents do tasks. The function Workers finds it.
type WorkerPool interface {
	// Workers lists the configured workers in the config's order; the first is the default.
	Workers() []WorkerInfo
	// RunTask lets a worker do one task and returns its one result, also if the worker crashed or was stopped. The
	// error is a *protocol.Error for a task that cannot even begin (such as for an unknown worker), or that of ctx
	// if ctx ended first: then the worker was stopped.
	RunTask(ctx context.Context, task WorkerTask) (*fleet.Result, error)
}

// WorkerInfo is what is known of one worker.
type WorkerInfo struct {
	Name          string
	Mode          string // oneshot, fleet or llm
	Model         string
	ModelTier     string
	ContextWindow int // tokens; 0 = not known
	MaxTasks      int // at once
	Active        int // tasks under way
	Waiting       int
	Healthy       bool
	Reason        string   // why it is not healthy
	Tools         []string // and capabilities, from its config and as it announced
	MCPServers    []string
	MCPHealth     map[string]fleet.Health // as it announced
	HostTools     bool                    // it has the host's tools: it works in the host, or nothing is listed
	Only          []string                // names or globs: it has only these of the host's tools; nil = all
	Unknown       bool                    // it announces what it has, and has not done so yet
	Extensions    []string                // of the fleet protocol that it takes
	// how much its model thinks, as the config says: off, minimal, low, medium, high or xhigh; "" = it has no model
	Thinking string
	KeyFor   string // the origin of its endpoint, where it takes a stored key; "" = it takes none
	// ServedBy asks the worker's endpoint which providers serve a model; none = the endpoint does not tell that.
	// ServedBy is nil if the worker has no endpoint.
	ServedBy func(ctx context.Context, model string) (providers []string, none bool, err error) `json:"-"`
}

// NoWorker returns the error for a task if no worker is configured. It says how to configure one.
func NoWorker() *protocol.Error {
	return protocol.Errorf(protocol.CodeCapabilityMissing, "no worker is configured; these three lines of a config "+
		"make one:\n"+
		"plugins:\n  multi_agent:\n    workers: [{name: coder, llm: {url: \"http://127.0.0.1:11434/v1\", model: "+
		"qwen3}}]")
}

// WorkerTask is a task for a worker.
type WorkerTask struct {
	fleet.Dispatch
	Worker string // the name of the worker that shall do it; "" = one is chosen
	// Workspace is the absolute path of the folder to work in; "" = the host's. It is a working tree of the same
	// repository, and shares objects and branches with the main working tree.
	Workspace string
	// of the worker to choose if Worker is ""; "" = that of the default worker, if it can do the task; "auto" =
	// any, by what was learned of each
	Model string
	Tier  string // of that model; "" = any
	// Fallback lets another worker do the task if no worker has Model or Tier, and the result says so. Without
	// Fallback that is an error.
	Fallback bool
	// Retries is how often the task is started again if its worker died; nil = as the worker's config says.
	Retries *int
	// Env is given to a one-shot worker on top of the task's own variables.
	Env map[string]string
	// Started receives the name of the worker that takes the task, once it has a place there, for each worker that
	// tries. It receives "" if the task has to wait for a place. It must not wait; nil = nobody asks.
	Started func(worker string)
	// Output receives each line that the worker prints, at once; nil = nobody listens.
	Output func(stream, line string)
	// Steer carries texts to a worker that takes them while it works (modes fleet and llm); Steering.Taken tells
	// whether it did. A model gets them with its next request, even if it was about to end. nil = no texts.
	Steer <-chan Steering
	// Talk makes the task the next turn of a conversation; nil = the task stands alone.
	Talk *Talk
}

// Steering is a text for a worker at work.
type Steering struct {
	Text  string
	Taken chan<- bool // receives once whether it was taken; has room for that
}

// Workers returns the plugin whose child agents do tasks, or nil if there is none.
func Workers(s *host.Services) WorkerPool { return host.First[WorkerPool](s) }
