package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"a2e/protocol"
)

// The methods that a client may call.
const (
	methodInitialize   = "initialize"
	methodPing         = "ping"
	methodSetLevel     = "logging/setLevel"
	methodTools        = "tools/list"
	methodCallTool     = "tools/call"
	methodResources    = "resources/list"
	methodTemplates    = "resources/templates/list"
	methodReadResource = "resources/read"
	methodSubscribe    = "resources/subscribe"
	methodUnsubscribe  = "resources/unsubscribe"
	methodComplete     = "completion/complete"
	methodPrompts      = "prompts/list"
	methodGetPrompt    = "prompts/get"
	methodGetTask      = "tasks/get"
	methodTaskResult   = "tasks/result"
	methodTasks        = "tasks/list"
	methodCancelTask   = "tasks/cancel"
	methodDiscover     = "server/discover"
	methodListen       = "subscriptions/listen"
)

// The notifications of both sides.
const (
	notifyCancelled      = "notifications/cancelled"
	notifyProgress       = "notifications/progress"
	notifyMessage        = "notifications/message"
	notifyToolsChanged   = "notifications/tools/list_changed"
	notifyPromptsChanged = "notifications/prompts/list_changed"
	notifyFilesChanged   = "notifications/resources/list_changed"
	notifyUpdated        = "notifications/resources/updated"
	notifyListening      = "notifications/subscriptions/acknowledged"
	notifyElicited       = "notifications/elicitation/complete"
)

// The error codes of JSON-RPC and MCP, and those of this server.
const (
	codeParse            int64 = -32700
	codeInvalidRequest   int64 = -32600
	codeMethodNotFound   int64 = -32601
	codeInvalidParams    int64 = -32602
	codeInternal         int64 = -32603
	codeServer           int64 = -32000 // data.code says more: overloaded, timeout…
	codeUnauthorized     int64 = -32001
	codeResourceNotFound int64 = -32002
	codeCancelled        int64 = -32800 // the code of language servers
)

type (
	rpcError   = jsonrpc.Error
	rpcMessage = jsonrpc.Message
)

func rpcErrorf(code int64, format string, args ...any) *rpcError {
	return &rpcError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// messageKind is what a line is.
type messageKind int

const (
	aRequest messageKind = iota
	aNotification
	anAnswer // the client's answer to a request of this server
)

// message is one line of the client. Its values are valid only as long as the line is.
type message struct {
	kind   messageKind
	id     jsontext.Value // a text or a number; nil = none
	method string
	params jsontext.Value // an object; nil = none
	result jsontext.Value // of an answer
	fail   jsontext.Value // the error of an answer
}

// parse reads one line. bad is to be sent as the answer to m.id. parse reports no faults of notifications, because
// nobody is told of them.
func parse(obj protocol.Object) (m message, bad *rpcError) {
	method, hasMethod := obj.Get("method")
	id, hasID := obj.Get("id")
	params, _ := obj.Get("params")
	m.method, _ = method.Str()
	if id.Kind() == '"' || id.Kind() == '0' {
		m.id = jsontext.Value(id)
	}
	if params.Kind() == '{' {
		m.params = jsontext.Value(params)
	}
	if m.method != "" && !hasID {
		m.kind = aNotification
		return m, nil
	}
	text := obj.Text("jsonrpc")
	result, hasResult := obj.Get("result")
	fail, hasError := obj.Get("error")
	switch {
	case text != "2.0":
		return m, rpcErrorf(codeInvalidRequest, `"jsonrpc" must be "2.0"`)
	case !hasMethod && !hasResult && !hasError:
		return m, rpcErrorf(codeInvalidRequest, `a message needs a "method", or else a "result" or an "error"`)
	case !hasMethod:
		m.kind, m.result, m.fail = anAnswer, jsontext.Value(result), jsontext.Value(fail)
	case m.method == "":
		return m, rpcErrorf(codeInvalidRequest, `"method" must be a text`)
	case m.id == nil:
		return m, rpcErrorf(codeInvalidRequest, `"id" must be a text or a number; a notification has none`)
	case m.params == nil && params != nil && params.Kind() != 'n':
		return m, rpcErrorf(codeInvalidParams, `"params" must be an object`)
	}
	return m, nil
}

// member returns a member of an object, or nil if there is none or obj is not an object.
func member(obj jsontext.Value, name string) jsontext.Value {
	o, err := protocol.ParseObject(obj)
	if err != nil {
		return nil
	}
	val, _ := o.Get(name)
	return jsontext.Value(val)
}

// progressToken returns the token that the client wants in progress notifications, unchanged; nil = it wants none.
func progressToken(params jsontext.Value) jsontext.Value {
	token := member(member(params, "_meta"), "progressToken")
	if k := token.Kind(); k != '"' && k != '0' {
		return nil
	}
	return token
}

// traceparent returns the trace that the client's request is part of; "" = not given.
func traceparent(params jsontext.Value) string {
	text, _ := protocol.Value(member(member(params, "_meta"), "traceparent")).Str()
	return text
}

// origin has what the answer to a request and the audit trail need.
type origin struct {
	id     jsontext.Value // as the client wrote it; nil = none that can be read
	method string
	name   string // of the tool or prompt
	bytes  int    // of its line
	came   time.Time
	batch  *batch // the batch that the request came in; nil = none
	span   context.Context
}

// Why requests end early. fromA2E makes a new rpcError of them for each answer.
var (
	errCancelled = protocol.Errorf(protocol.CodeCancelled, "the client cancelled the request")
	errLate      = protocol.Errorf(protocol.CodeTimeout, "the request did not end within its time")
)

// maxErrorText bounds the text of an error, in bytes: the go-sdk quotes input that it cannot read.
const maxErrorText = 2000

// toRPC converts any error to the error that the client gets.
func toRPC(err error) *rpcError {
	var own *protocol.Error
	var rpc *rpcError
	switch {
	case errors.As(err, &own):
		return fromA2E(own)
	case errors.As(err, &rpc):
		// some errors of the go-sdk have no code, such as that of a second initialize
		return &rpcError{Code: cmp.Or(rpc.Code, codeInvalidRequest), Message: shortened(err.Error()), Data: rpc.Data}
	case errors.Is(err, context.DeadlineExceeded):
		return fromA2E(errLate)
	case errors.Is(err, context.Canceled):
		return fromA2E(errCancelled)
	}
	return rpcErrorf(codeInternal, "%s", shortened(err.Error()))
}

func shortened(text string) string { return protocol.Clip(text, maxErrorText) }

// fromA2E converts an error of the host to one of JSON-RPC. The code and the detail of the host's error are in data.
func fromA2E(e *protocol.Error) *rpcError {
	rpc := &rpcError{Code: codeOf(e.Code), Message: e.Message}
	data := map[string]any{"code": string(e.Code), "retryable": e.Retryable}
	if len(e.Detail) > 0 {
		data["detail"] = e.Detail
	}
	raw, err := json.Marshal(data, json.Deterministic(true))
	if err != nil { // the detail does not encode
		delete(data, "detail")
		raw, _ = json.Marshal(data, json.Deterministic(true))
	}
	rpc.Data = raw
	return rpc
}

// codeOf returns the code of JSON-RPC for a code of the host.
func codeOf(code protocol.ErrorCode) int64 {
	return cmp.Or(map[protocol.ErrorCode]int64{
		protocol.CodeUnknownTool: codeInvalidParams, protocol.CodeUnknownSkill: codeInvalidParams,
		protocol.CodeSchemaViolation: codeInvalidParams,
		protocol.CodeInvalidMessage:  codeInvalidParams, protocol.CodeParseError: codeInvalidParams,
		protocol.CodeMemoryNotFound: codeResourceNotFound, protocol.CodeMCPResourceNotFound: codeResourceNotFound,
		protocol.CodeCancelled: codeCancelled, protocol.CodeUnauthorized: codeUnauthorized,
		protocol.CodeRuntimeError: codeInternal,
	}[code], codeServer)
}

// textOf returns the string that a JSON string holds; "" for any other value.
func textOf(raw jsontext.Value) string {
	text, _ := protocol.Value(raw).Str()
	return text
}

func sortBy[T any](all []T, name func(T) string) {
	slices.SortStableFunc(all, func(a, b T) int { return cmp.Compare(name(a), name(b)) })
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
