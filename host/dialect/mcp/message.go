package mcp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/host/trace"
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

// member returns a member of an object; nil = there is none, or no object.
func member(obj jsontext.Value, name string) jsontext.Value {
	o, err := protocol.ParseObject(obj)
	if err != nil {
		return nil
	}
	val, _ := o.Get(name)
	return jsontext.Value(val)
}

// progressToken returns what the client wants progress notifications to carry, as it came.
func progressToken(params jsontext.Value) jsontext.Value {
	token := member(member(params, "_meta"), "progressToken")
	if k := token.Kind(); k != '"' && k != '0' {
		return nil
	}
	return token
}

// traceparent returns the trace that the client's request is part of; "" = it does not say.
func traceparent(params jsontext.Value) string {
	text, _ := protocol.Value(member(member(params, "_meta"), "traceparent")).Str()
	return text
}

// origin is what the answer to a request, and the audit trail, need of it.
type origin struct {
	id     jsontext.Value // as it came; nil = none that can be told
	method string
	name   string // of the tool or prompt
	bytes  int    // of its line
	came   time.Time
	batch  *batch // that it came in; nil = none
	span   *trace.Span
}

// Why requests end early. They are made anew for each: what is sent may be added to.
var (
	errCancelled = protocol.Errorf(protocol.CodeCancelled, "the client cancelled the request")
	errShutdown  = protocol.Errorf(protocol.CodeTimeout,
		"the host shut down before the request was done; send it again to a new host")
	errLate = protocol.Errorf(protocol.CodeTimeout, "the request did not end within its time")
)

// maxErrorText bounds the text of an error, in bytes: the go-sdk quotes what it cannot read.
const maxErrorText = 2000

// toRPC makes the error that a client gets of any error.
func toRPC(err error) *rpcError {
	var own *protocol.Error
	var rpc *rpcError
	switch {
	case errors.As(err, &own):
		return fromA2E(own)
	case errors.As(err, &rpc):
		// some of the go-sdk's have no code: a second initialize, for one
		return &rpcError{Code: cmp.Or(rpc.Code, codeInvalidRequest), Message: shortened(err.Error()), Data: rpc.Data}
	case errors.Is(err, context.DeadlineExceeded):
		return fromA2E(errLate)
	case errors.Is(err, context.Canceled):
		return fromA2E(errCancelled)
	}
	return rpcErrorf(codeInternal, "%s", shortened(err.Error()))
}

func shortened(text string) string { return protocol.Clip(text, maxErrorText) }

// fromA2E returns an error of the host its JSON-RPC code; its own stands in data.
func fromA2E(e *protocol.Error) *rpcError {
	rpc := &rpcError{Code: codeOf(e.Code), Message: e.Message}
	data := map[string]any{"code": string(e.Code), "retryable": e.Retryable}
	if len(e.Detail) > 0 {
		data["detail"] = e.Detail
	}
	raw, err := json.Marshal(data, json.Deterministic(true))
	if err != nil { // a detail that does not encode
		delete(data, "detail")
		raw, _ = json.Marshal(data, json.Deterministic(true))
	}
	rpc.Data = raw
	return rpc
}

// codeOf returns the code of JSON-RPC that goes with one of the host.
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

// batchVersion is the one version of MCP that has batches: an array of messages as one line.
const batchVersion = "2025-03-26"

// maxBatch is how many messages a batch may have.
const maxBatch = 1000

// batch gathers the answers to the requests of one line; they are one line as well.
type batch struct {
	mu    sync.Mutex
	left  int      // requests without an answer; guarded by mu
	lines [][]byte // answers; guarded by mu
}

// add takes in an answer, nil for a request that gets none, and sends them all after the last.
func (b *batch) add(s *server, line []byte) {
	if b == nil {
		return
	}
	b.mu.Lock()
	if line != nil {
		b.lines = append(b.lines, line)
	}
	b.left--
	last := b.left == 0 && len(b.lines) > 0
	b.mu.Unlock()
	if last { // nobody adds to it any more
		s.out.Send(append(append([]byte{'['}, bytes.Join(b.lines, []byte{','})...), ']'))
	}
}

// Batch implements host.BatchTaker.
func (s *server) Batch(line []byte) (works []*host.Work, ok bool) {
	if !s.batches.Load() {
		return nil, false
	}
	items, ok := protocol.SplitArray(line)
	if !ok || len(items) == 0 || len(items) > maxBatch {
		return nil, false
	}
	b := &batch{left: 1} // held back until all were taken in
	for _, item := range items {
		if w := s.takeItem(item, b); w != nil {
			works = append(works, w)
		}
	}
	b.add(s, nil)
	return works, true
}

// takeItem takes in one message of a batch. One with a fault does not harm the others.
func (s *server) takeItem(item []byte, b *batch) *host.Work {
	var line protocol.Line
	err := line.Scan(item)
	m, bad := parse(line.Object())
	fault, _ := errors.AsType[*protocol.Error](err)
	if err != nil || bad != nil || m.kind == aRequest {
		b.expect()
	}
	from := origin{id: m.id, method: m.method, came: time.Now(), batch: b}
	switch {
	case item[0] != '{':
		s.reply(from, nil, rpcErrorf(codeInvalidRequest, "a batch holds objects, each one message"))
	case err != nil:
		s.broken(&line, fault, b)
	case bad == nil && m.kind == aRequest && m.method == methodInitialize:
		s.reply(from, nil, rpcErrorf(codeInvalidRequest, "initialize cannot be part of a batch"))
	default:
		return s.take(line.Object(), b)
	}
	return nil
}

// expect notes one more request.
func (b *batch) expect() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left++
}

// callResult is the result of tools/call. The go-sdk's own would drop what it does not
// know of blocks that are passed on, and texts that are empty.
type callResult struct {
	mcp.ResultBase
	kind
	Content    []jsontext.Value `json:"content"`
	Structured jsontext.Value   `json:"structuredContent,omitzero"`
	IsError    bool             `json:"isError,omitzero"`
	more       []namedValue     // members that MCP does not know, of a server behind
}

type namedValue struct {
	name string
	val  jsontext.Value
}

// MarshalJSON implements json.Marshaler.
func (c *callResult) MarshalJSON() ([]byte, error) { return c.append(nil), nil }

// append appends the result as JSON.
func (c *callResult) append(dst []byte) []byte {
	dst = append(dst, '{')
	if c.ResultType != "" {
		dst = append(protocol.AppendString(append(dst, `"resultType":`...), c.ResultType), ',')
	}
	dst = append(dst, `"content":[`...)
	for i, block := range c.Content {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, block...)
	}
	dst = append(dst, ']')
	if len(c.Structured) > 0 {
		dst = append(append(dst, `,"structuredContent":`...), c.Structured...)
	}
	if c.IsError {
		dst = append(dst, `,"isError":true`...)
	}
	for _, m := range c.more {
		dst = append(append(protocol.AppendString(append(dst, ','), m.name), ':'), m.val...)
	}
	return append(dst, '}')
}

func (c *callResult) addText(text string) {
	block := protocol.AppendString([]byte(`{"type":"text","text":`), text)
	c.Content = append(c.Content, append(block, '}'))
}

// failedCall tells of a tool that could not run: the model where it can do something
// about it, else the client.
func failedCall(err error) (*callResult, error) {
	var own *protocol.Error
	if err = passed(err); !errors.As(err, &own) {
		return nil, err
	}
	switch own.Code {
	case protocol.CodeToolError, protocol.CodeSchemaViolation, protocol.CodeToolDenied, protocol.CodeTimeout,
		protocol.CodeMCPServerUnavailable, protocol.CodeMCPTransportError, protocol.CodeMCPProtocolError:
		out := &callResult{IsError: true}
		out.addText(own.Message)
		return out, nil
	}
	return nil, err
}

// toolResult makes MCP's result of a tool that ran. checked says that clients hold it
// against a schema, foreign that it is that of an MCP server.
func toolResult(res *protocol.ToolResult, checked, foreign bool) *callResult {
	cut := deref(res.Truncated)
	out := passedOn(res.Data, foreign)
	words := textOf(res.Summary)
	switch {
	case out == nil:
		out = ownResult(res.Data)
		if !res.Success && res.Error != nil {
			words = *res.Error
		}
	case !cut:
		words = "" // the blocks say it themselves
	}
	if words != "" {
		out.addText(words)
	}
	out.IsError = !res.Success || cut && checked // what was cut need not fit the schema any more
	return out
}

// ownResult is the result of a tool that knows nothing of MCP.
func ownResult(data jsontext.Value) *callResult {
	out := &callResult{Content: []jsontext.Value{}}
	for _, text := range dataTexts(data) {
		out.addText(text)
	}
	if data.Kind() == '{' {
		out.Structured = data
	}
	return out
}

// passedOn returns the result of a tool of an MCP server as that server gave it: data of
// the shape {"content": [blocks], "structuredContent": {…}}. Nil is any other data.
func passedOn(data jsontext.Value, foreign bool) *callResult {
	if data.Kind() != '{' {
		return nil
	}
	obj, err := protocol.ParseObject(data)
	if err != nil {
		return nil
	}
	out := &callResult{}
	for key, val := range obj.All() {
		switch string(key) {
		case "content":
			if out.Content = blocks(jsontext.Value(val), foreign); out.Content == nil {
				return nil
			}
		case "structuredContent":
			if val.Kind() == '{' {
				out.Structured = jsontext.Value(val)
			}
		case "isError", "spilled":
		default:
			if !foreign && string(key) != "_meta" {
				return nil
			}
			out.more = append(out.more, namedValue{string(key), jsontext.Value(val)})
		}
	}
	if out.Content == nil {
		return nil
	}
	return out
}

// blocks returns the elements of an array of content blocks; nil = it is something else. A block of a
// type that clients do not know, which an MCP server gave, is a text with its JSON.
func blocks(list jsontext.Value, foreign bool) []jsontext.Value {
	if list.Kind() != '[' {
		return nil
	}
	all := []jsontext.Value{}
	if json.Unmarshal(list, &all) != nil {
		return nil
	}
	for i, block := range all {
		switch textOf(member(block, "type")) {
		case "text", "image", "audio", "resource", "resource_link":
		default:
			if !foreign {
				return nil
			}
			all[i] = append(protocol.AppendString([]byte(`{"type":"text","text":`), block), '}')
		}
	}
	return all
}

// dataTexts returns a result's data as texts for a model: a text as it is, a member
// "content" that is a text without JSON's escapes and the other members behind it,
// anything else as JSON.
func dataTexts(data jsontext.Value) []string {
	switch data.Kind() {
	case 0, 'n':
		return nil
	case '"':
		return []string{textOf(data)}
	case '{':
		if obj, err := protocol.ParseObject(data); err == nil {
			if texts := contentTexts(obj); texts != nil {
				return texts
			}
		}
	}
	return []string{string(data)}
}

func contentTexts(obj protocol.Object) []string {
	var rest []byte
	var content protocol.Value
	only := obj.Len() == 1
	for key, val := range obj.All() {
		if val.Kind() == '"' && (only || string(key) == "content") {
			content = val
			continue
		}
		rest = append(protocol.AppendString(append(rest, ','), key), ':')
		rest = append(rest, val...)
	}
	text, ok := content.Str()
	switch {
	case !ok:
		return nil
	case rest == nil:
		return []string{text}
	}
	rest[0] = '{'
	return []string{text, string(append(rest, '}'))}
}

// textOf returns a JSON text; "" for anything else.
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
