package link

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const methodProgress = "notifications/progress"

// guard stands before the handlers of what a server sends. They and the SDK's own take it
// for granted that there are params, which the SDK does not see to; and a panic on the
// SDK's goroutines would end the host.
func (c *conn) guard(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (_ mcp.Result, err error) {
		defer func() {
			if v := recover(); v != nil {
				c.link.panicked(method, v)
				err = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "it cannot be taken in"}
			}
		}()
		switch method {
		case methodProgress:
			defer c.gate.take()
		case "elicitation/create", "notifications/elicitation/complete", "notifications/resources/updated":
			if reflect.ValueOf(req.GetParams()).IsNil() {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "it has no params"}
			}
		}
		return next(ctx, method, req)
	}
}

// uncached has the SDK keep no more than one of the resources that were read: of a server
// that speaks a newer version of MCP it keeps all, under their URIs, until the connection ends.
func uncached(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if params, ok := req.GetParams().(*mcp.ReadResourceParams); ok && params != nil {
			params.URI = ""
		}
		return res, err
	}
}

// try makes a request of the server. What it answers is read by the SDK on this goroutine.
func (l *Link) try(ctx context.Context, session *mcp.ClientSession, f func(context.Context, *mcp.ClientSession) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			l.panicked("an answer", v)
			err = errors.New("it cannot be read")
		}
	}()
	return f(ctx, session)
}

// panicked logs a panic.
func (l *Link) panicked(of string, v any) {
	l.log.Error().Str("of", of).Str("panic", l.secrets.Text(fmt.Sprint(v))).Bytes("stack", debug.Stack()).Msg("what the MCP server sent could not be taken in")
}
