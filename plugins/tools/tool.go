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
)

// tool is one entry of the registry.
type tool struct {
	def      protocol.ToolDefinition
	kind     Kind
	readOnly bool          // changes nothing: stays when the plugin is read_only
	slow     bool          // waits on something outside the process: never run on the reading goroutine
	timeout  time.Duration // upper bound of one call; 0 = what the request says
	call     func(ctx context.Context, args protocol.Object, emit host.Emitter) (*outcome, error)
}

// outcome is what a tool that ran gives back. A tool that could not run
// returns an error instead.
type outcome struct {
	data      any    // encoded as the result's `data`; a jsontext.Value passes through as it is
	summary   string // one line for a person; "" = none
	truncated bool
	failed    bool   // the tool itself reports failure: `success:false`
	failure   string // with failed: why
	exitCode  *int   // of a child process
}
