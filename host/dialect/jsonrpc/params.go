package jsonrpc

import (
	"context"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// method serves one method.
type method struct {
	run   func(f *Front, ctx context.Context, c *call) (any, error)
	at    lane
	takes shape
	works func(f *Front) bool // whether rpc.handshake lists it; nil = it does
}

// shape says what the parameters of a method must be.
type shape int

const (
	whatever shape = iota // they are not looked at, or all of them are optional filters
	optional              // an object, or nothing
	required              // an object
)

// fits reports whether parameters that came as JSON of a kind are what the method takes.
func (s shape) fits(kind byte) bool {
	return s == whatever || kind == '{' || kind == 0 && s == optional
}

// text is a text of the client, without space around it; null is none.
type text string

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (t *text) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	var s string
	err := json.UnmarshalDecode(dec, &s)
	*t = text(strings.TrimSpace(s))
	return err
}

// taking makes a method of what one does with parameters. Those that are named must be texts
// that are not blank.
func taking[P any](run func(*Front, context.Context, *call, *P) (any, error), texts ...string) func(*Front, context.Context, *call) (any, error) {
	return func(f *Front, ctx context.Context, c *call) (any, error) {
		for _, name := range texts {
			val, _ := c.params.Get(name)
			if s, ok := val.Str(); !ok || strings.TrimSpace(s) == "" {
				return nil, c.wrong(name, "must be a non-empty string")
			}
		}
		var req P
		if err := protocol.Decode(c.params, nil, &req); err != nil {
			e := jsonrpc.From(err)
			field, _ := e.Data["field"].(string)
			return nil, c.wrong(field, strings.TrimPrefix(e.Message, field+": "))
		}
		return run(f, ctx, c, &req)
	}
}

// wrong is the error of a parameter.
func (c *call) wrong(field, why string) *jsonrpc.Error {
	e := jsonrpc.Params(field, why)
	e.Message = "invalid params for " + c.method + ": " + field + " " + why
	return e
}

// named is the parameters of a method on a session.
type named struct {
	SessionID text `json:"session_id"`
}

func (n named) of() string { return string(n.SessionID) }

// onSession makes a method of what one does with a session and its parameters. The session
// stays in memory meanwhile.
func onSession[P interface{ of() string }](run func(*Front, context.Context, *call, *session, *P) (any, error), texts ...string) func(*Front, context.Context, *call) (any, error) {
	return taking(func(f *Front, ctx context.Context, c *call, req *P) (any, error) {
		s, err := f.get(ctx, (*req).of())
		if err != nil {
			return nil, err
		}
		defer f.unpin(s)
		return run(f, ctx, c, s, req)
	}, append([]string{"session_id"}, texts...)...)
}

// quoted shows a name of the client in an error.
func quoted(name string) string { return string(protocol.AppendString(nil, dialect.Clip(name, 64))) }
