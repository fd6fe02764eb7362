package link

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
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

// rawMethod is what the SDK takes for the method of requests that it has no types for. Their
// own stands in the params, and takes its place on the way out.
const rawMethod = "a2e/raw"

type rawParams struct {
	mcp.ParamsBase
	Method string         `json:"method"`
	Params jsontext.Value `json:"params"`
}

type rawResult struct {
	mcp.ResultBase
	raw jsontext.Value
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *rawResult) UnmarshalJSON(b []byte) error {
	r.raw = slices.Clone(b)
	return nil
}

// Raw makes a request, within a Call, whose result is as the server gave it: what the SDK has
// no types for is lost otherwise. It is for versions of MCP that begin with initialize.
func Raw(ctx context.Context, session *mcp.ClientSession, method string, params jsontext.Value) (jsontext.Value, error) {
	res, err := mcp.CallCustomMethod[*rawParams, *rawResult](ctx, session, rawMethod, &rawParams{Method: method, Params: params})
	if err != nil {
		return nil, err
	}
	return res.raw, nil
}

// HasRaw reports whether a session may be used for Raw.
func HasRaw(session *mcp.ClientSession) bool {
	hello := session.InitializeResult()
	return hello != nil && hello.ProtocolVersion <= legacy
}

// unwrap returns a message as it goes out.
func unwrap(msg jsonrpc.Message) jsonrpc.Message {
	req, ok := msg.(*jsonrpc.Request)
	if !ok || req.Method != rawMethod {
		return msg
	}
	var p rawParams
	if json.Unmarshal(req.Params, &p) != nil {
		return msg
	}
	out := *req
	out.Method, out.Params = p.Method, []byte(p.Params)
	return &out
}
