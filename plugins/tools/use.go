package tools

import (
	"context"
	"slices"

	"a2e/host"
	"a2e/protocol"
)

// Tools lists what Call takes, by name, the deferred ones too.
func (p *Plugin) Tools() []protocol.ToolDefinition {
	listed := p.set.content.Load().listed
	defs := make([]protocol.ToolDefinition, len(listed))
	for i, t := range listed {
		defs[i] = t.Def
	}
	return defs
}

// ReadOnly tells whether a tool changes nothing, whatever its arguments are.
func (p *Plugin) ReadOnly(name string) bool {
	t := p.set.content.Load().tools[name]
	return t != nil && t.Detail.ReadOnly
}

// Call runs one tool as tool/call/req does, for another part of the host. The error
// is a *protocol.Error, or that of ctx when that ended first; a tool that ran and
// failed is no error.
func (p *Plugin) Call(ctx context.Context, name string, args protocol.Object) (*protocol.ToolResult, error) {
	resp, err := p.set.call(ctx, &protocol.ToolCallRequest{ToolName: name, Arguments: args}, host.Mute{})
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
		Success: !r.out.Failed, ToolName: r.tool, Data: slices.Clip(data), Summary: appendText(nil, r.out.Summary),
		Truncated: new(r.out.Truncated), ExitCode: r.out.ExitCode, DurationMS: r.took.Milliseconds(), Events: []protocol.PastEvent{},
	}
	if r.out.Failed {
		res.Error, res.ErrorCode = new(r.out.Failure), new(protocol.CodeToolError)
	}
	return res, nil
}
