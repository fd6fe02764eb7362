package tools

import (
	"context"
	"time"

	"a2e/host"
	"a2e/protocol"
)

// Kind is where a tool comes from; `filter_kind` of tool/list/req matches it.
type Kind string

// The origins of WIRE section 7.
const (
	KindBuiltin Kind = "builtin"
	KindCommand Kind = "command"
	KindMCP     Kind = "mcp"
	KindToolkit Kind = "toolkit"
)

// Tool is one tool of a Set. What it refers to must not change afterwards.
type Tool struct {
	Def  protocol.ToolDefinition // what tool/list says of it
	Kind Kind
	// Detail is what DescribeTool says of it. An empty InputSchema is made from
	// Def.InputParameters; Def.Idempotent counts as well.
	Detail host.ToolDetail
	// Timeout bounds one call; 0 = only the request does.
	Timeout time.Duration
	// Denied says why the tool may not be called, as the end of a sentence about it ("is
	// withheld: …"), and then it is not listed; "" = it may be.
	Denied string
	// Files says which files of the workspace a call is about; nil = none that matter to
	// others. The arguments were not checked.
	Files func(args protocol.Object) host.Files
	// Check tells whether arguments fit; the error is a *protocol.Error. nil holds them
	// against Def.InputParameters, which only then have to make sense.
	Check func(args protocol.Object) error
	// Call runs the tool. An error means that it could not run: a *protocol.Error is
	// answered as it is, one of ctx as what stopped the call, any other as tool_error. It
	// may take its time: it never runs on the goroutine that reads. args are valid until it
	// returns.
	Call func(ctx context.Context, args protocol.Object, emit host.Emitter) (*Outcome, error)

	quick bool // waits on nothing outside of the process: the reading goroutine may run it
}

// Outcome is what a tool that ran gives back.
type Outcome struct {
	// Data is encoded as the result's `data`: a jsontext.Value, valid JSON, as it is. What
	// is longer than the limit of output is cut, except for a protocol.Appender, which has
	// to know its own bounds.
	Data      any
	Summary   string // one line for a person; "" = none
	Truncated bool   // there was more
	Failed    bool   // the tool itself reports failure: `success:false`
	Failure   string // with Failed: why
	ExitCode  *int   // of a child process; nil = there was none
}
