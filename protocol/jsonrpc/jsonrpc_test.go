package jsonrpc_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{`{"jsonrpc":"2.0","method":"m","id":1}`, `1 m {} false false`},
		{`{"jsonrpc":"2.0","method":"m","params":{"a":1},"id":"x"}`, `"x" m {"a":1} false false`},
		{`{"jsonrpc":"2.0","method":"m","params":null,"id":null}`, `null m {} false false`},
		{`{"jsonrpc":"2.0","method":"m","params":{}}`, `null m {} true false`},
		{`{"jsonrpc":"2.0","result":1,"id":1}`, `1  {} false true`},
		{`{"jsonrpc":"2.0","error":{},"id":1}`, `1  {} false true`},
		{`{"jsonrpc":"2.0","method":"m","params":[ ],"id":1}`, `1 m {} false false`}, // no parameters
		{`{"jsonrpc":"2.0","method":"m","params":[1],"id":1}`, `1 m {} false false list`},
		{`{"jsonrpc":"2.0","method":"m","params":1,"id":1}`, `1 m {} false false`},
		{`{"jsonrpc":"2.0","method":1,"params":"bar"}`, `-32600 false`}, // the specification answers this line
		{`{"jsonrpc":"2","method":"m"}`, `-32600 false`},
		{`{"jsonrpc":"2.0","method":"m","id":[]}`, `-32600 false`},
		{`{"jsonrpc":"2.0"}`, `-32600 false`},
	} {
		obj := must.Get(protocol.ParseObject([]byte(c.line)))(t)
		r, bad := jsonrpc.Parse(obj)
		got := fmt.Sprintf("%s %s %s %t %t", r.ID, r.Method, r.Params.Raw(), r.Notification, r.Answer)
		if r.Shape == '[' {
			got += " list"
		}
		if bad != nil {
			got = fmt.Sprintf("%d %t", bad.Code, r.Notification)
		}
		assert.Equal(t, got, c.want, "%s", c.line)
	}
}

func TestErrors(t *testing.T) {
	violation := protocol.Violation(protocol.FieldError{Path: "/a/b", Message: "is wrong"})
	for _, c := range []struct {
		err  error
		want string
	}{
		{jsonrpc.NotFound("x"), `{"code":-32601,"message":"unknown method \"x\"; rpc.handshake lists the methods","data":{"method":"x","reason":"method_not_found"}}}`},
		{jsonrpc.Params("f", "is bad"), `{"code":-32602,"message":"f: is bad","data":{"field":"f","reason":"invalid_params"}}}`},
		{
			fmt.Errorf("w: %w", jsonrpc.Invalid("no")),
			`{"code":-32600,"message":"no","data":{"reason":"invalid_request"}}}`,
		},
		{errors.New("e"), `{"code":-32603,"message":"e","data":{"reason":"internal_error"}}}`},
		{violation, `{"code":-32602,"message":"a/b: is wrong","data":{"code":"schema_violation","detail":{"errors":[{"path":"/a/b","message":"is wrong"}]},"field":"a/b","reason":"invalid_params"}}}`},
		{
			protocol.Errorf(protocol.CodeUnknownTool, "u"),
			`{"code":-32602,"message":"u","data":{"code":"unknown_tool","field":"","reason":"invalid_params"}}}`,
		},
		{
			protocol.Errorf(protocol.CodeTimeout, "late"),
			`{"code":-32000,"message":"late","data":{"reason":"timeout","retryable":true}}}`,
		},
		{
			protocol.Errorf(protocol.CodeRuntimeError, "x").With("f", func() {}),
			`{"code":-32603,"message":"x","data":{"reason":"internal_error"}}}`,
		},
	} {
		got := string(jsonrpc.AppendError(nil, nil, jsonrpc.From(c.err)))
		assert.Equal(t, got, `{"jsonrpc":"2.0","id":null,"error":`+c.want, "…\nshould end %s", c.want)
	}
}

func TestAppend(t *testing.T) {
	for want, got := range map[string][]byte{
		`{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":1}}`: jsonrpc.AppendCall(nil,
			jsontext.Value("7"), "m", []byte(`{"a":1}`)),
		`{"jsonrpc":"2.0","method":"m\"n"}`: jsonrpc.AppendCall(nil, nil, `m"n`,
			nil),
		`{"jsonrpc":"2.0","id":"x","result":[]}`: jsonrpc.AppendResult(nil,
			jsontext.Value(`"x"`), []byte("[]")),
		`{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no","data":{}}}`: jsonrpc.AppendFailure(nil,
			jsontext.Value("1"), jsonrpc.CodeInternal, "no", []byte("{}")),
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"no"}}`: jsonrpc.AppendFailure(nil, nil,
			jsonrpc.CodeInternal, "no", nil),
	} {
		assert.Equal(t, string(got), want, "%s", got)
	}
	a, b := jsonrpc.Key(jsontext.Value(`"\u0037"`)), jsonrpc.Key(jsontext.Value(`"7"`))
	assert.That(t, a == b && a != jsonrpc.Key(jsontext.Value("7")), "keys %s and %s", a, b)
}
