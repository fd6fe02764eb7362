// Package jsonrpc is the wire of the JSON-RPC 2.0 sessions on the host's pipe: requests,
// answers, errors and events, one per line. It knows nothing but JSON.
package jsonrpc

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

const (
	// Version is what each message carries as "jsonrpc".
	Version = "2.0"
	// Protocol is the version of the methods.
	Protocol = "1.0.0"
	// CancelMethod is the method of the client's notification that takes a request back, as
	// language servers have it: params {id}.
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

// EventType says what an event tells.
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
	StateChanged       EventType = "state.changed"
)

// Request is one request or notification. Its values are valid as long as the line is.
type Request struct {
	ID           jsontext.Value  // as it came; nil = none was found
	Notification bool            // nobody is to be answered
	Method       string          // "" in an answer
	Params       protocol.Object // `{}` where they are no object
	Shape        byte            // of the parameters, the first byte of their JSON; 0 = absent, null or an empty list
	Answer       bool            // it is no request but an answer
}

// Parse reads one line that is a JSON object. The error is to be answered with r.ID, which
// is nil when no id can be told.
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
		return r, Invalid(`"method" must be a string, such as "rpc.handshake"`)
	case hasID && r.ID == nil:
		return r, Invalid(`"id" must be a string, a number or null; a notification has none`)
	}
	r.Notification = !hasID
	r.Shape = params.Kind()
	switch {
	case r.Shape == '{':
		r.Params, _ = protocol.ParseObject(params) // the line was checked
	case !hasParams, r.Shape == 'n', r.Shape == '[' && len(bytes.TrimSpace(params[1:len(params)-1])) == 0: // which some libraries send for none
		r.Shape = 0
	}
	return r, nil
}

// Key makes ids that mean the same the same: 7 and "7" differ, "7" and "\u0037" do not.
func Key(id jsontext.Value) string {
	if text, ok := protocol.Value(id).Str(); ok {
		return `"` + text
	}
	return string(id)
}

// AppendResult appends the answer to a request that was served. result is JSON; a nil id
// is null.
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
