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

// MemoryScoper is a plugin that keeps memories of agents, for the plugin that starts child agents. Services.Memory
// finds it.
type MemoryScoper interface {
	// ScopeMemory sets which memory the agent with the id child sees: that of the agent whose request ctx belongs
	// to, one of its own, or one of its own that begins with copies.
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

// ProcResult is how a program ended. Bytes that are no UTF-8 are replaced by U+FFFD.
type ProcResult struct {
	Stdout, Stderr string
	ExitCode       int  // 128 + N when signal N ended it
	Truncated      bool // there was more output
}

// ToolDescriber is a plugin that knows more about its tools than tool/list says, and makes a checkpoint before it
// runs a tool that may change something (see Services.Checkpoint). Services.Tool finds it.
type ToolDescriber interface {
	// DescribeTool returns the details of a tool; false = the tool is not the plugin's, or may not be called.
	DescribeTool(name string) (ToolDetail, bool)
}

// ToolKeeper is a plugin that knows when its tools change. Services.ToolState asks it.
type ToolKeeper interface {
	// ToolState returns a value that stays equal as long as tool/list, for all tools, and DescribeTool say the
	// same. Like the list, it waits for tools that are on their way.
	ToolState(ctx context.Context) any
}

// ShortCaller is a plugin with tools that do little and wait for nothing, so that the time of
// their calls is not bounded. Services.ShortTool finds it.
type ShortCaller interface {
	// ShortTool reports whether a tool is one of those. It must be quick, because it is called for each call of a
	// tool.
	ShortTool(name string) bool
}

// ToolDetail is what a ToolDescriber returns. An empty schema means that the schema is not known.
type ToolDetail struct {
	Title        string
	InputSchema  jsontext.Value // JSON Schema of the arguments, an object
	OutputSchema jsontext.Value // JSON Schema of the result's data
	ReadOnly     bool           // it changes nothing
	Destructive  bool           // it may take away or overwrite what was there
	Idempotent   bool           // a second call with the same arguments changes nothing more
	OpenWorld    bool           // it reaches things outside of this machine
	Task         bool           // MCPCall may ask to run it as a task
	Foreign      bool           // its data is a result of MCP, as its server wrote it
	Annotations  jsontext.Value // of MCP, an object, as its server wrote them; nil = none but those above
	Icons        jsontext.Value // of MCP, an array
	Meta         jsontext.Value // _meta of MCP, an object
}

// ToolAnswer is an answer to tool/call/req whose parts can be read without encoding and decoding it.
type ToolAnswer interface {
	// ToolResult returns the result, without past events, and the details of the tool.
	ToolResult() (*protocol.ToolResult, *ToolDetail, error)
}

// MCPGateway is a plugin with MCP servers behind it. It serves those requests of an MCP client for which A2E has no
// message. Services.Gateways finds it.
type MCPGateway interface {
	// ForwardMCP sends a request to the server that its params name, and returns the result unchanged. The names of
	// prompts and the ids of tasks begin with SERVER__, like those of tools; URIs may begin with mcp://SERVER/. The
	// error is NotOwner if the params name no server of the plugin.
	ForwardMCP(ctx context.Context, method string, params jsontext.Value, emit Emitter) (jsontext.Value, error)
}

// MCPCall is what an MCP client says about a call of a tool beyond its arguments, and how it learns of progress. It
// is only for the tool that the client named, not for tools that this tool calls.
type MCPCall struct {
	Tool     string                // the name
	Task     jsontext.Value        // makes the call start a task: the data is {"task": …}; nil = no task
	Meta     protocol.Object       // further members of _meta, for the server
	Progress func(protocol.Object) // receives the params of progress notifications, without the token
}

// mcpCallKey is the context key of the MCPCall.
type mcpCallKey struct{}

// WithMCPCall returns a context in which the tools of MCP servers find c.
func WithMCPCall(ctx context.Context, c *MCPCall) context.Context {
	return context.WithValue(ctx, mcpCallKey{}, c)
}

// MCPCallOf returns the MCPCall of a context if it is for this tool, or nil.
func MCPCallOf(ctx context.Context, tool string) *MCPCall {
	if c, ok := ctx.Value(mcpCallKey{}).(*MCPCall); ok && c.Tool == tool {
		return c
	}
	return nil
}

// FileSource is a plugin with files of its own, which read_file and list_dir reach by
// a URI such as skill://NAME/FILE. Services.Files finds it.
type FileSource interface {
	// Scheme returns the scheme of the plugin's URIs, without "://".
	Scheme() string
	// OpenFiles returns what one authority of the URI stands for, such as the folder of one skill. The caller
	// closes it. Paths in it cannot leave it. The error is a *protocol.Error that names what exists.
	OpenFiles(ctx context.Context, authority string) (*os.Root, error)
}

// WorkerPool is a plugin whose child agents do tasks. Services.Workers finds it.
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

// CallRecord is the outcome of one call of a component.
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
	// RecordCall records one call. It must not block and takes well under a microsecond, because it is called on
	// the way of every answer.
	RecordCall(CallRecord)
}

// Weigher is a plugin that knows how well components did.
type Weigher interface {
	// Weight returns the routing weight of a component: 1 is neutral, more is better, never
	// negative. It must be quick.
	Weight(kind, component string) float64
}
