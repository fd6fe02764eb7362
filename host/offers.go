package host

import (
	"context"
	"os"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// ProcRunner is a plugin that runs programs, for other plugins. Services.Procs finds it.
type ProcRunner interface {
	// RunProc runs one program to its end, under the plugin's allow list and
	// sandbox. A program that ran and failed is no error; a *protocol.Error says
	// why one could not run or did not end.
	RunProc(ctx context.Context, run ProcRun) (*ProcResult, error)
}

// MemoryScoper is a plugin that keeps memories of agents, for the one that starts
// child agents. Services.Memory finds it.
type MemoryScoper interface {
	// ScopeMemory sets what the agent with the id child sees of the memory of the
	// agent whose request ctx is of: the same one, one of its own, or one of its own
	// that begins with copies.
	ScopeMemory(ctx context.Context, child string, scope protocol.MemoryScope) error
}

// ProcRun is a program to run.
type ProcRun struct {
	Cmd     []string          // a bare name of the allow list, and its arguments
	Cwd     string            // within the workspace; "" = its root
	Env     map[string]string // on top of what every child gets
	Stdin   string
	Timeout time.Duration // 0 = what the config says
}

// ProcResult is how a program ended. Bytes that are no UTF-8 stand as U+FFFD.
type ProcResult struct {
	Stdout, Stderr string
	ExitCode       int  // 128 + N when signal N ended it
	Truncated      bool // there was more output
}

// ToolDescriber is a plugin that knows more of its tools than tool/list says, and makes a checkpoint
// before one runs that may change something (see Services.Checkpoint). Services.Tool finds it.
type ToolDescriber interface {
	// DescribeTool tells of the tool with a name, if it is the plugin's and may be called.
	DescribeTool(name string) (ToolDetail, bool)
}

// ToolKeeper is a plugin that knows when its tools change. Services.ToolState asks it.
type ToolKeeper interface {
	// ToolState returns a value that is equal to one of before as long as tool/list, for all tools, and
	// DescribeTool say the same. It waits for tools that are on their way, as the list does.
	ToolState(ctx context.Context) any
}

// ShortCaller is a plugin with tools that do little and wait for nothing, so that the time of
// their calls is not bounded. Services.ShortTool finds it.
type ShortCaller interface {
	// ShortTool reports whether a tool is one of those. It must be quick: calls ask.
	ShortTool(name string) bool
}

// ToolDetail is what a ToolDescriber tells. An empty schema is not known.
type ToolDetail struct {
	Title        string
	InputSchema  jsontext.Value // JSON Schema of the arguments, an object
	OutputSchema jsontext.Value // JSON Schema of the result's data
	ReadOnly     bool           // it changes nothing
	Destructive  bool           // it may take away or overwrite what was there
	Idempotent   bool           // a second call with the same arguments changes nothing more
	OpenWorld    bool           // it reaches things outside of this machine
	Task         bool           // MCPCall may have it run as a task
	Foreign      bool           // its data is a result of MCP, as its server wrote it
	Annotations  jsontext.Value // of MCP, an object, as its server wrote them; nil = none but those above
	Icons        jsontext.Value // of MCP, an array
	Meta         jsontext.Value // _meta of MCP, an object
}

// ToolAnswer is an answer to tool/call/req that has its parts at hand: who wants them need not
// encode and decode it.
type ToolAnswer interface {
	// ToolResult returns the result, without past events, and what the tool says of itself.
	ToolResult() (*protocol.ToolResult, *ToolDetail, error)
}

// MCPGateway is a plugin with MCP servers behind it, for those requests of an MCP client
// that no message of A2E stands for. Services.Gateways finds it.
type MCPGateway interface {
	// ForwardMCP makes a request of the server that its params name, and gives the result
	// as the server gave it. The names of prompts and the ids of tasks begin with SERVER__, as
	// those of tools do; URIs may begin with mcp://SERVER/. The error is NotOwner where the
	// params name no server of the plugin.
	ForwardMCP(ctx context.Context, method string, params jsontext.Value, emit Emitter) (jsontext.Value, error)
}

// MCPCall is what an MCP client says of a call of a tool beyond its arguments, and how it is told of
// progress. It is for the tool that the client named, and for none that this one calls.
type MCPCall struct {
	Tool     string                // the name
	Task     jsontext.Value        // has the call be the begin of a task: the data is {"task": …}; nil = none
	Meta     protocol.Object       // further members of _meta, for the server
	Progress func(protocol.Object) // takes the params of a notification of progress, without the token
}

// mcpCallKey finds the MCPCall in a context.
type mcpCallKey struct{}

// WithMCPCall has the tools of MCP servers find c.
func WithMCPCall(ctx context.Context, c *MCPCall) context.Context {
	return context.WithValue(ctx, mcpCallKey{}, c)
}

// MCPCallOf returns what WithMCPCall was given for a tool; nil = nothing.
func MCPCallOf(ctx context.Context, tool string) *MCPCall {
	if c, ok := ctx.Value(mcpCallKey{}).(*MCPCall); ok && c.Tool == tool {
		return c
	}
	return nil
}

// FileSource is a plugin with files of its own, which read_file and list_dir reach by
// a URI such as skill://NAME/FILE. Services.Files finds it.
type FileSource interface {
	// Scheme is that of the plugin's URIs, without "://".
	Scheme() string
	// OpenFiles returns what one authority of the URI stands for, such as the folder of one
	// skill, to be closed by the caller. Paths in it cannot leave it. The error is a
	// *protocol.Error that names what there is.
	OpenFiles(ctx context.Context, authority string) (*os.Root, error)
}

// WorkerPool is a plugin that has tasks done by child agents. Services.Workers finds it.
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
	Mode          string // oneshot, fleet or llm
	Model         string
	ModelTier     string
	ContextWindow int // tokens; 0 = not known
	MaxTasks      int // at once
	Active        int // tasks under way
	Waiting       int
	Healthy       bool
	Reason        string   // why it is not healthy
	Tools         []string // and capabilities: those that its config lists, and that it announced
	MCPServers    []string
	MCPHealth     map[string]fleet.Health // as it announced
	HostTools     bool                    // it has what the host has: it works in it, or nothing is listed
	Only          []string                // of the host's tools it has those by these names or globs alone; nil = all
	Unknown       bool                    // it says itself what it has, and has not yet
	Extensions    []string                // of the fleet protocol that it takes
	// how much its model thinks, as the config says: off, minimal, low, medium, high or xhigh; "" = it is no model
	Thinking string
	KeyFor   string // the origin of its endpoint, where it takes a stored key; "" = it takes none
	// ServedBy asks its endpoint which providers serve a model behind it; none = the endpoint
	// does not tell that. nil = it has no endpoint.
	ServedBy func(ctx context.Context, model string) (providers []string, none bool, err error) `json:"-"`
}

// NoWorker is the error of a task where no worker is configured: it says how one is made.
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
	// Workspace is the folder to work in instead of the host's, absolute: a working tree of
	// the same repository, whose main one it shares objects and branches with. "" = the host's.
	Workspace string
	// of the worker to choose, where Worker is ""; "" = that of the default, if it can do the task; "auto" = any, by
	// what was learned of each
	Model string
	Tier  string // of that model; "" = any
	// Fallback has a task whose Model or Tier no worker has done by another one, and the
	// result says so; otherwise it is an error.
	Fallback bool
	// Retries is how often the task is begun again whose worker died; nil = as the worker's
	// config says.
	Retries *int
	// Env is given to a one-shot worker on top of the task's own variables.
	Env map[string]string
	// Started is told the worker that takes the task up, once it has a place there, for each
	// one that tries, and "" where the task has to wait for a place; nil = nobody asks. It
	// must not wait.
	Started func(worker string)
	// Output gets each line that the worker prints, as it comes; nil = nobody listens.
	Output func(stream, line string)
	// Steer returns texts to a worker that takes them while it works (modes fleet and llm);
	// taken tells whether it did. A model gets them with its next request, also where it was
	// about to end. nil = there are none.
	Steer <-chan Steering
	// Talk has the task be the next turn of a conversation; nil = it stands by itself.
	Talk *Talk
}

// Steering is a text for a worker at work.
type Steering struct {
	Text  string
	Taken chan<- bool // told once, with room for it
}

// The kinds of components.
const (
	KindTool   = "tool"
	KindSkill  = "skill"
	KindEnv    = "env"
	KindWorker = "worker"
	KindServer = "server" // of MCP
	KindChain  = "chain"
	KindPrompt = "prompt" // of an MCP server; see protocol.MCPName
)

// CallRecord is what became of one call of a component.
type CallRecord struct {
	Kind        string
	Component   string // the tool's, skill's, environment's… name
	Correlation string // the request's correlation_id, or its id; feedback names the call by it
	Success     bool
	Duration    time.Duration
	Ended       time.Time // zero = now
	Reward      *float64  // of an environment's step
}

// Recorder is a plugin that counts calls.
type Recorder interface {
	// RecordCall takes one call in. It must not block and costs well under a
	// microsecond: it is called on the way of every answer.
	RecordCall(CallRecord)
}

// Weigher is a plugin that knows how well components did.
type Weigher interface {
	// Weight returns the routing weight of a component: 1 is neutral, more is better, never
	// negative. It must be quick.
	Weight(kind, component string) float64
}
