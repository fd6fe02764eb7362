package tools

import (
	"context"
	"slices"

	"a2e/host"
	"a2e/protocol"
)

// Tools lists what Call takes, by name, the deferred ones too.
func (p *Plugin) Tools() []protocol.ToolDefinition {
	defs := make([]protocol.ToolDefinition, len(p.listed))
	for i, t := range p.listed {
		defs[i] = t.def
	}
	return defs
}

// ReadOnly tells whether a tool changes nothing, whatever its arguments are.
func (p *Plugin) ReadOnly(name string) bool {
	t := p.tools[name]
	return t != nil && t.readOnly
}

// Call runs one tool as tool/call/req does, for another part of the host. The error
// is a *protocol.Error, or that of ctx when that ended first; a tool that ran and
// failed is no error.
func (p *Plugin) Call(ctx context.Context, name string, args protocol.Object) (*protocol.ToolResult, error) {
	resp, err := p.call(ctx, &protocol.ToolCallRequest{ToolName: name, Arguments: args}, mute{})
	if err != nil {
		return nil, err
	}
	return resp.result()
}

// result gives an answer in the form in which a program reads it.
func (r *callResponse) result() (*protocol.ToolResult, error) {
	data, err := r.data.AppendJSON(nil)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "tool %q gave a result that is no JSON: %w", r.tool, err)
	}
	res := &protocol.ToolResult{
		Success: !r.out.failed, ToolName: r.tool, Data: slices.Clip(data), Summary: appendText(nil, r.out.summary),
		Truncated: new(r.out.truncated), ExitCode: r.out.exitCode, DurationMS: r.took.Milliseconds(), Events: []protocol.PastEvent{},
	}
	if r.out.failed {
		res.Error, res.ErrorCode = new(r.out.failure), new(protocol.CodeToolError)
	}
	return res, nil
}

// mute is an Emitter that nobody listens to.
type mute struct{}

// Progress implements host.Emitter.
func (mute) Progress(float64, string) {}

// Status implements host.Emitter.
func (mute) Status(string) {}

// Log implements host.Emitter.
func (mute) Log(string, string, string) {}

// Artifact implements host.Emitter.
func (mute) Artifact(string, string, []byte, bool) {}

// Streaming implements host.Emitter.
func (mute) Streaming() bool { return false }

var _ host.Emitter = mute{}
