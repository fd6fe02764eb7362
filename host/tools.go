package host

import (
	"context"
	"os"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

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

// FileSource is a plugin with files of its own, which read_file and list_dir reach by
// a URI such as skill://NAME/FILE. Services.Files finds it.
type FileSource interface {
	// Scheme returns the scheme of the plugin's URIs, without "://".
	Scheme() string
	// OpenFiles returns what one authority of the URI stands for, such as the folder of one skill. The caller
	// closes it. Paths in it cannot leave it. The error is a *protocol.Error that names what exists.
	OpenFiles(ctx context.Context, authority string) (*os.Root, error)
}

// ToolBox is the tools of one folder. Its methods may be called at the same time.
type ToolBox interface {
	// Tools lists the tools by name.
	Tools() []protocol.ToolDefinition
	// ReadOnly reports whether a tool changes nothing.
	ReadOnly(name string) bool
	// Start passes the host's services to the tools. It is called before Call.
	Start(ctx context.Context, s *Services) error
	// Call runs a tool. The error is a *protocol.Error, or that of ctx.
	Call(ctx context.Context, name string, args protocol.Object) (*protocol.ToolResult, error)
	// Close ends what the tools started.
	Close(ctx context.Context) error
}

// ToolBoxOptions say what the tools of a folder are made from.
type ToolBoxOptions struct {
	Workspace       string   // the folder, absolute
	Hidden          string   // absolute folder that no program may see
	Read            []string // absolute; what programs may read in addition
	AllowedCommands []string // of run_command; nil = those of the config
	AllowedTools    []string // names or globs; nil = all
	Deny            []string // names or globs
	Network         bool
}
