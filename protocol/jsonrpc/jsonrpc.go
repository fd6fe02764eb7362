// Package jsonrpc has the messages of the JSON-RPC 2.0 sessions on the host's pipe: requests,
// answers, errors and events, one per line. It does no input or output.
package jsonrpc

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

const (
	// Version is the value of "jsonrpc" in each message.
	Version = "2.0"
	// Protocol is the version of the methods.
	Protocol = "1.0.0"
	// CancelMethod is the method of the client's notification that cancels a request, as in the
	// Language Server Protocol: params {id}.
	CancelMethod = "$/cancelRequest"
)

// The methods.
const (
	Handshake          = "rpc.handshake"
	Ping               = "system.ping"
	Shutdown           = "system.shutdown"
	StateGet           = "state.get"
	SessionCreate      = "session.create"
	SessionGet         = "session.get"
	SessionSend        = "session.send"
	SessionSteer       = "session.steer"
	SessionInterrupt   = "session.interrupt"
	SessionAnswer      = "session.answer"
	QueueList          = "session.queue.list"
	QueueClear         = "session.queue.clear"
	CommandExecute     = "command.execute"
	ToolsList          = "tools.list"
	SkillsList         = "skills.list"
	HistoryList        = "history.list"
	HistoryGet         = "history.get"
	HistoryClear       = "history.clear_session"
	LimitsGet          = "limits.get"
	ModelList          = "model.list"
	ModelSelect        = "model.select"
	AuthStatus         = "auth.status"
	DebugSet           = "debug.set"
	OnboardingStatus   = "onboarding.status"
	OnboardingComplete = "onboarding.complete"
	ConnectOpenAI      = "auth.connect.openai"
	ConnectAntigravity = "auth.connect.antigravity"
	SetOpenRouterKey   = "auth.set.openrouter_key"
	SetExaKey          = "auth.set.exa_key"
	RoutingProviders   = "model.openrouter.providers"
)

// EventType is the type of an event.
type EventType string

// The types of events. The payload of each but StateChanged has a session_id.
const (
	SessionStatus      EventType = "session.status"
	MessageAppended    EventType = "session.message.appended"
	StreamChunk        EventType = "session.stream.chunk"
	ToolCallStarted    EventType = "session.tool.call.started"
	ToolCallCompleted  EventType = "session.tool.call.completed"
	ToolResults        EventType = "session.tool.results"
	SessionCompleted   EventType = "session.completed"
	SessionInterrupted EventType = "session.interrupted"
	SessionError       EventType = "session.error"
	SessionDebug       EventType = "session.debug"
	SessionQuestion    EventType = "session.question"        // the client answers it with SessionAnswer
	QuestionClosed     EventType = "session.question.closed" // the question needs no answer any more
	StateChanged       EventType = "state.changed"

	// Events about the part of the model's context window that a conversation uses, and about the summary of its
	// older messages.
	ContextEstimate     EventType = "session.context.estimate"
	CompactionStarted   EventType = "compaction.started"
	AnchorSelected      EventType = "compaction.anchor_selected" // the summary replaces more messages now
	SummaryMerged       EventType = "compaction.summary_merged"
	CompactionCompleted EventType = "compaction.completed"
	CompactionFailed    EventType = "compaction.failed"
)

// Request is one request or notification. Its values are valid as long as the line is.
type Request struct {
	ID           jsontext.Value  // as the client sent it; nil = none was found
	Notification bool            // the client expects no answer
	Method       string          // "" in an answer
	Params       protocol.Object // `{}` if the parameters are not an object
	Shape        byte            // the first byte of the parameters' JSON; 0 = absent, null or an empty list
	Answer       bool            // the message is an answer, not a request
}

// Parse reads one line that is a JSON object. The caller sends the error as the answer to r.ID,
// which is nil if the line has no usable id.
func Parse(obj protocol.Object) (r Request, bad *Error) {
	id, hasID := obj.Get("id")
	switch id.Kind() {
	case '"', '0', 'n':
		r.ID = jsontext.Value(id)
	}
	method, hasMethod := obj.Get("method")
	_, result := obj.Get("result")
	_, fail := obj.Get("error")
	version, _ := obj.Get("jsonrpc")
	params, hasParams := obj.Get("params")
	stamp, _ := version.Str()
	var named bool
	r.Method, named = method.Str()
	switch {
	case !hasMethod && (result || fail):
		r.Answer = true
		return r, nil
	case stamp != Version:
		return r, Invalid(`"jsonrpc" must be "2.0"`)
	case !named:
		return r, Invalid(`"method" must be a string`)
	case hasID && r.ID == nil:
		return r, Invalid(`"id" must be a string, a number or null; a notification has none`)
	}
	r.Notification = !hasID
	r.Shape = params.Kind()
	switch {
	case r.Shape == '{':
		r.Params, _ = protocol.ParseObject(params) // the line was checked
	case !hasParams, r.Shape == 'n', r.Shape == '[' &&
		len(bytes.TrimSpace(params[1:len(params)-1])) == 0: // some libraries send [] for no parameters
		r.Shape = 0
	}
	return r, nil
}

// Key returns a key that is the same for equal ids: 7 and "7" differ, "7" and "\u0037" do not.
func Key(id jsontext.Value) string {
	if text, ok := protocol.Value(id).Str(); ok {
		return `"` + text
	}
	return string(id)
}

// AppendResult appends the answer to a successful request. result is JSON; a nil id
// becomes null.
func AppendResult(dst []byte, id jsontext.Value, result []byte) []byte {
	dst = append(appendID(dst, id), `,"result":`...)
	return append(append(dst, result...), '}')
}

// AppendCall appends a request, or with a nil id a notification. params is JSON; nil = none.
func AppendCall(dst []byte, id jsontext.Value, method string, params []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0"`...)
	if id != nil {
		dst = append(append(dst, `,"id":`...), id...)
	}
	dst = protocol.AppendString(append(dst, `,"method":`...), method)
	if params != nil {
		dst = append(append(dst, `,"params":`...), params...)
	}
	return append(dst, '}')
}

// AppendEvent appends a notification with an event. at is RFC 3339, payload JSON.
func AppendEvent(dst []byte, t EventType, at string, payload []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","method":"event","params":{"type":"`...)
	dst = append(append(dst, t...), `","timestamp":"`...)
	dst = append(append(dst, at...), `","payload":`...)
	return append(append(dst, payload...), '}', '}')
}

func appendID(dst []byte, id jsontext.Value) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	if id == nil {
		return append(dst, "null"...)
	}
	return append(dst, id...)
}

// Code is the code of an error.
type Code int

// The codes.
const (
	CodeParse          Code = -32700
	CodeInvalidRequest Code = -32600
	CodeMethodNotFound Code = -32601
	CodeInvalidParams  Code = -32602
	CodeInternal       Code = -32603
	CodeUnauthorized   Code = -32001
	CodeRefused        Code = -32000 // a valid request was refused or failed; data.reason says why
)

// Reason returns the value of data.reason for the code.
func (c Code) Reason() string {
	switch c {
	case CodeParse:
		return "parse_error"
	case CodeInvalidRequest:
		return "invalid_request"
	case CodeMethodNotFound:
		return "method_not_found"
	case CodeInvalidParams:
		return "invalid_params"
	case CodeUnauthorized:
		return "unauthorized"
	}
	return "internal_error"
}

// Error is the error of an answer.
type Error struct {
	Code    Code
	Message string
	Data    map[string]any // with "reason"; with "field" for CodeInvalidParams, "method" for CodeMethodNotFound
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// With adds one entry to Data and returns e itself.
func (e *Error) With(key string, value any) *Error {
	e.Data[key] = value
	return e
}

// Errorf makes an Error with the code's reason.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Data: map[string]any{"reason": code.Reason()}}
}

// Invalid returns the error for a line that is not a request.
func Invalid(why string) *Error { return Errorf(CodeInvalidRequest, "%s", why) }

// NoBatch returns the error for a line that is a batch.
func NoBatch() *Error {
	return Invalid("batches are not supported; send one request per line").With("reason", "batch_not_supported")
}

// Params returns the error for a wrong parameter. field is its name or, if it is nested, its JSON Pointer
// without the first slash.
func Params(field, why string) *Error {
	return Errorf(CodeInvalidParams, "%s: %s", field, why).With("field", field)
}

// NotObject returns the error for parameters that are not an object.
func NotObject(method string) *Error {
	return Errorf(CodeInvalidParams, "invalid params for %s: expected an object, the parameters by name", method)
}

// Refused returns the error for a valid request that is refused or fails.
func Refused(reason, format string, args ...any) *Error {
	return Errorf(CodeRefused, format, args...).With("reason", reason)
}

// NotFound returns the error for an unknown method.
func NotFound(method string) *Error {
	if len(method) > 200 {
		method = strings.ToValidUTF8(method[:200], "") + "…"
	}
	return Errorf(CodeMethodNotFound, "unknown method %q; rpc.handshake lists the methods", method).With("method",
		method)
}

// From turns any error into an Error. A *protocol.Error for a mistake in the request becomes
// CodeInvalidParams, and one for a failure of the host CodeInternal. Any other, such as a denied tool,
// becomes CodeRefused with its code as data.reason. data.detail is the detail of the *protocol.Error.
func From(err error) *Error {
	if own := new(Error); errors.As(err, &own) {
		return own
	}
	a2e := new(protocol.Error)
	if !errors.As(err, &a2e) {
		return Errorf(CodeInternal, "%s", err)
	}
	e := Errorf(CodeInternal, "%s", a2e.Message)
	switch a2e.Code {
	case protocol.CodeSchemaViolation, protocol.CodeUnknownTool, protocol.CodeUnknownSkill, protocol.CodeUnknownEnv,
		protocol.CodeUnknownAction, protocol.CodeUnknownProc,
		protocol.CodeUnknownEpisode, protocol.CodeUnknownSubagent, protocol.CodeMemoryNotFound,
		protocol.CodeMCPServerNotFound, protocol.CodeMCPToolNotFound:
		e = Errorf(CodeInvalidParams, "%s", a2e.Message).With("field", "").With("code", a2e.Code)
	case protocol.CodeRuntimeError, protocol.CodeOutOfMemory, protocol.CodeSandboxCrash, protocol.CodeInvalidMessage,
		protocol.CodeParseError:
		e.With("code", a2e.Code)
	default:
		e = Refused(string(a2e.Code), "%s", a2e.Message)
	}
	if problems, ok := a2e.Detail["errors"].([]protocol.FieldError); ok && len(problems) > 0 {
		e.With("field", strings.TrimPrefix(problems[0].Path, "/"))
		e.Message = strings.TrimPrefix(e.Message, "/") // like a message of Params
	}
	if len(a2e.Detail) > 0 {
		e.With("detail", a2e.Detail)
	}
	if a2e.Retryable {
		e.With("retryable", true)
	}
	return e
}

// AppendError appends the answer to a failed request; a nil id becomes null.
func AppendError(dst []byte, id jsontext.Value, e *Error) []byte {
	data, err := protocol.AppendJSON(nil, e.Data)
	if err != nil { // a detail that does not encode
		data, _ = protocol.AppendJSON(nil, map[string]any{"reason": e.Code.Reason()})
	}
	return AppendFailure(dst, id, e.Code, e.Message, data)
}

// AppendFailure is AppendError with data as JSON; nil = none.
func AppendFailure(dst []byte, id jsontext.Value, code Code, message string, data []byte) []byte {
	dst = append(appendID(dst, id), `,"error":{"code":`...)
	dst = strconv.AppendInt(dst, int64(code), 10)
	dst = protocol.AppendString(append(dst, `,"message":`...), message)
	if len(data) > 0 {
		dst = append(append(dst, `,"data":`...), data...)
	}
	return append(dst, '}', '}')
}
