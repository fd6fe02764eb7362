package mcp

import (
	"fmt"
	"strconv"
	"time"

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

// laneOf tells where a request waits; false = there is no such method.
func laneOf(method string) (laneName, bool) {
	switch method {
	case methodListen:
		return laneListen, true
	case methodInitialize, methodDiscover, methodSetLevel, methodTools, methodPrompts, methodResources, methodTemplates:
		return laneLists, true
	case methodCallTool, methodGetPrompt, methodReadResource, methodSubscribe, methodUnsubscribe, methodComplete,
		methodGetTask, methodTaskResult, methodTasks, methodCancelTask:
		return laneCalls, true
	}
	return 0, false
}

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
	codeCancelled        int64 = -32800 // as language servers say it
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
	anAnswer // to a request of this server
)

// message is one line of the client. Its values are valid as long as the line is.
type message struct {
	kind   messageKind
	id     jsontext.Value // a text or a number; nil = none
	method string
	params jsontext.Value // an object; nil = none
	result jsontext.Value // of an answer
	fail   jsontext.Value // of an answer
}

// parse reads one line. What is bad about it is to be answered with m.id. Nobody is told
// what is bad about a notification.
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
	version, _ := obj.Get("jsonrpc")
	text, _ := version.Str()
	switch {
	case text != "2.0":
		return m, rpcErrorf(codeInvalidRequest, `"jsonrpc" must be "2.0"`)
	case !hasMethod:
		m.kind = anAnswer
		return m, m.readAnswer(obj)
	case m.method == "":
		return m, rpcErrorf(codeInvalidRequest, `"method" must be a text`)
	case m.id == nil:
		return m, rpcErrorf(codeInvalidRequest, `"id" must be a text or a number; a notification has none`)
	case m.params == nil && params != nil && params.Kind() != 'n':
		return m, rpcErrorf(codeInvalidParams, `"params" must be an object`)
	}
	return m, nil
}

func (m *message) readAnswer(obj protocol.Object) *rpcError {
	result, hasResult := obj.Get("result")
	fail, hasError := obj.Get("error")
	if !hasResult && !hasError {
		return rpcErrorf(codeInvalidRequest, `a message needs a "method", or else a "result" or an "error"`)
	}
	m.result, m.fail = jsontext.Value(result), jsontext.Value(fail)
	return nil
}

// member gives a member of an object; nil = there is none, or no object.
func member(obj jsontext.Value, name string) jsontext.Value {
	if len(obj) == 0 {
		return nil
	}
	o, err := protocol.ParseObject(obj)
	if err != nil {
		return nil
	}
	val, _ := o.Get(name)
	return jsontext.Value(val)
}

// progressToken gives what the client wants progress notifications to carry, as it came.
func progressToken(params jsontext.Value) jsontext.Value {
	token := member(member(params, "_meta"), "progressToken")
	if k := token.Kind(); k != '"' && k != '0' {
		return nil
	}
	return token
}

// origin is what the answer to a request, and the audit trail, need of it.
type origin struct {
	id     jsontext.Value // as it came; nil = none that can be told
	method string
	bytes  int // of its line
	came   time.Time
	batch  *batch // that it came in; nil = none
}

// resultLine is the answer to a request that was served. result is JSON.
func resultLine(id jsontext.Value, result []byte) []byte {
	line := appendID(make([]byte, 0, len(id)+len(result)+32), id)
	line = append(line, `,"result":`...)
	return append(append(line, result...), '}')
}

// errorLine is the answer to a request that was not; id nil is null.
func errorLine(id jsontext.Value, e *rpcError) []byte {
	line := appendID(make([]byte, 0, len(id)+len(e.Message)+len(e.Data)+64), id)
	line = append(line, `,"error":{"code":`...)
	line = strconv.AppendInt(line, e.Code, 10)
	line = append(line, `,"message":`...)
	line = protocol.AppendString(line, e.Message)
	if len(e.Data) > 0 {
		line = append(append(line, `,"data":`...), e.Data...)
	}
	return append(line, '}', '}')
}

// noticeLine is a notification. params is JSON; nil = none.
func noticeLine(method string, params []byte) []byte {
	line := protocol.AppendString([]byte(`{"jsonrpc":"2.0","method":`), method)
	if params != nil {
		line = append(append(line, `,"params":`...), params...)
	}
	return append(line, '}')
}

func appendID(line []byte, id jsontext.Value) []byte {
	line = append(line, `{"jsonrpc":"2.0","id":`...)
	if id == nil {
		return append(line, "null"...)
	}
	return append(line, id...)
}
