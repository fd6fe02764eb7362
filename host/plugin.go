package host

import (
	"context"
	"os"
	"time"

	"a2e/protocol"

	"github.com/go-json-experiment/json/jsontext"
)

// Plugin serves the message types of one capability. A plugin may implement
// Starter, SlowCloser, SessionEnder and SessionKeeper as well. One that wraps another says so
// by a method Unwrap() Plugin, and need not pass these on.
type Plugin interface {
	// Info describes the plugin. The host reads its name and priority once, when it is
	// built, and the rest for each handshake.
	Info() PluginInfo
	// Routes lists what the plugin answers. It is read once, when the host is built.
	Routes() []Route
	// Close stops whatever the plugin started and waits for it, until ctx ends.
	Close(ctx context.Context) error
}

// PluginInfo is what a plugin says of itself; the handshake shows it to the agent.
type PluginInfo struct {
	Name       string // unique in one host
	Capability protocol.Capability
	Also       []protocol.Capability // what else it serves, such as the tools of an mcp plugin
	Priority   int                   // higher is asked first
	Exclusive  bool                  // answers its message types alone
	Metadata   map[string]any        // further entries for the handshake's metadata; may be nil
	Children   bool                  // it starts programs: the handshake says how they are confined
	Stored     bool                  // it serves nothing without the store
	Broken     string                // why it can serve nothing until somebody mends that; "" = it can
}

// Starter is a plugin that has work to do before the first request, or needs something of
// its host. Start must not wait for slow things: it runs before the handshake is answered.
type Starter interface {
	Start(ctx context.Context, s *Services) error
}

// SessionEnder is a plugin that keeps something for a session. EndSession is
// called once when the session ends: by another handshake, even one that is then
// refused, or with the host, before Close. Feeds of the session still take
// messages until the EndSession of all plugins has returned or ctx has ended; it
// should be done then. ctx belongs to no request.
type SessionEnder interface {
	EndSession(ctx context.Context, s *Session)
}

// SlowCloser is a plugin whose Close may take longer than that of others, since
// what it ends has a right to some time. It has that unless the host ends in haste.
type SlowCloser interface {
	CloseTimeout() time.Duration
}

// SessionKeeper is a plugin that has something in memory for each session, which
// outlives it in a snapshot. The host calls it where Options have Sessions. Both
// should be done when ctx ends.
type SessionKeeper interface {
	// SaveSession gives the state of a session that ends, before EndSession; nil is
	// nothing to keep. Requests that did not stop in time may still run.
	SaveSession(ctx context.Context, s *Session) (jsontext.Value, error)
	// RestoreSession takes in what SaveSession gave for an earlier session of the
	// agent, perhaps in an older build. It is called before the handshake is
	// answered, so before any request of the session.
	RestoreSession(ctx context.Context, s *Session, state jsontext.Value) error
}

// ProcRunner is a plugin that runs programs, for other plugins. Find finds it.
type ProcRunner interface {
	// RunProc runs one program to its end, under the plugin's allow list and
	// sandbox. A program that ran and failed is no error; a *protocol.Error says
	// why one could not run or did not end.
	RunProc(ctx context.Context, run ProcRun) (*ProcResult, error)
}

// MemoryScoper is a plugin that keeps memories of agents, for the one that starts
// child agents. Find finds it.
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

// ToolDescriber is a plugin that knows more of its tools than tool/list says. All finds
// it.
type ToolDescriber interface {
	// DescribeTool tells of the tool with a name, if it is the plugin's and may be called.
	DescribeTool(name string) (ToolDetail, bool)
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
	Task         bool           // WithMCPTask has it run as a task
}

// MCPGateway is a plugin with MCP servers behind it, for those requests of an MCP client
// that no message of A2E stands for. All finds it.
type MCPGateway interface {
	// ForwardMCP makes a request of the server that its params name, and gives the result
	// as the server gave it. The names of prompts and the ids of tasks begin with SERVER__, as
	// those of tools do; URIs may begin with mcp://SERVER/. The error is NotMine where the
	// params name no server of the plugin.
	ForwardMCP(ctx context.Context, method string, params jsontext.Value, emit Emitter) (jsontext.Value, error)
}

// taskKey finds the task in a context.
type taskKey struct{}

// WithMCPTask has a call of a tool of an MCP server be the begin of a task, with what an MCP
// client says of it: the result's data is the server's, {"task": {…}}.
func WithMCPTask(ctx context.Context, task jsontext.Value) context.Context {
	return context.WithValue(ctx, taskKey{}, task)
}

// MCPTask gives what WithMCPTask was given; nil = the call is none.
func MCPTask(ctx context.Context) jsontext.Value {
	task, _ := ctx.Value(taskKey{}).(jsontext.Value)
	return task
}

// FileSource is a plugin with files of its own, which read_file and list_dir reach by
// a URI such as skill://NAME/FILE. All finds it.
type FileSource interface {
	// Scheme is that of the plugin's URIs, without "://".
	Scheme() string
	// OpenFiles gives what one authority of the URI stands for, such as the folder of one
	// skill, to be closed by the caller. Paths in it cannot leave it. The error is a
	// *protocol.Error that names what there is.
	OpenFiles(ctx context.Context, authority string) (*os.Root, error)
}

// hostKey finds the host in the contexts that it gives.
type hostKey struct{}

// Emitter sends the events of one request, in order, before its answer. It is
// safe for concurrent use. It does nothing when the agent asked for no stream,
// and after the request was answered.
type Emitter interface {
	// Progress reports how far the work is, pct in 0..100.
	Progress(pct float64, message string)
	// Status reports one line of state.
	Status(message string)
	// Log passes on one line of output. stream is "stdout", "stderr" or "".
	Log(level, message, stream string)
	// Artifact passes on a piece of a file; the bytes go as base64.
	Artifact(name, mime string, chunk []byte, final bool)
	// Streaming tells whether anybody listens.
	Streaming() bool
}
