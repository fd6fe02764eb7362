package dialect

import (
	"context"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

// MCPGateway is a plugin with MCP servers behind it. It serves those requests of an MCP client for which A2E has no
// message.
type MCPGateway interface {
	// ForwardMCP sends a request to the server that its params name, and returns the result unchanged. The names of
	// prompts and the ids of tasks begin with SERVER__, like those of tools; URIs may begin with mcp://SERVER/. The
	// error is NotOwner if the params name no server of the plugin.
	ForwardMCP(ctx context.Context, method string, params jsontext.Value, emit host.Emitter) (jsontext.Value, error)
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

// Value implements host.Valuer: a context with the values of c finds c itself.
func (c *MCPCall) Value(key any) any {
	if key == (mcpCallKey{}) {
		return c
	}
	return nil
}
