package a2a

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
	wire "a2e/protocol/a2a"
)

// The error codes of JSON-RPC and of A2A.
const (
	codeParse         = -32700
	codeRequest       = -32600
	codeMethod        = -32601
	codeParams        = -32602
	codeServer        = -32000
	codeTaskNotFound  = -32001
	codeNotCancelable = -32002
	codeNoPush        = -32003
	codeUnsupported   = -32004
	codeContentType   = -32005
	codeNoExtended    = -32007
	codeVersion       = -32009
)

// rpcError is the error of an answer.
type rpcError struct {
	Code    int            `json:"code"`
	Message string         `json:"message"`
	Data    map[string]any `json:"data,omitzero"`
}

func invalid(format string, args ...any) *rpcError {
	return &rpcError{Code: codeParams, Message: fmt.Sprintf(format, args...)}
}

// call is one request.
type call struct {
	agent  *Agent
	ctx    context.Context
	w      http.ResponseWriter
	spell  spelling
	token  string
	owner  string
	id     jsontext.Value
	params protocol.Object
}

// method serves a request. If the result and the error are nil, the answer was written already.
type method func(*call) (any, *rpcError)

// methods returns the method of either version that has a name, and its spelling; nil = there is none.
func methods(name string) (method, spelling) {
	switch name {
	case "SendMessage":
		return (*call).send, plain
	case "SendStreamingMessage":
		return (*call).sendStreaming, plain
	case "GetTask":
		return (*call).get, plain
	case "ListTasks":
		return (*call).list, plain
	case "CancelTask":
		return (*call).cancel, plain
	case "SubscribeToTask":
		return (*call).subscribe, plain
	case "GetExtendedAgentCard":
		return (*call).extendedCard, plain
	case "message/send":
		return (*call).send, v03
	case "message/stream":
		return (*call).sendStreaming, v03
	case "tasks/get":
		return (*call).get, v03
	case "tasks/list":
		return (*call).list, v03
	case "tasks/cancel":
		return (*call).cancel, v03
	case "tasks/resubscribe":
		return (*call).subscribe, v03
	case "agent/getAuthenticatedExtendedCard":
		return (*call).extendedCard, v03
	}
	if strings.HasPrefix(name, "tasks/pushNotificationConfig/") || strings.Contains(name,
		"TaskPushNotificationConfig") {
		return (*call).noPush, v03
	}
	return nil, plain
}

// request is a request of JSON-RPC.
type request struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      jsontext.Value  `json:"id"`
	Method  string          `json:"method"`
	Params  protocol.Object `json:"params"`
}

// serveRPC answers one request.
func (a *Agent) serveRPC(w http.ResponseWriter, r *http.Request) {
	c := &call{agent: a, ctx: r.Context(), w: w}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(a.opts.MaxBytes)))
	switch long := (*http.MaxBytesError)(nil); {
	case errors.As(err, &long):
		c.answer(http.StatusRequestEntityTooLarge, nil, &rpcError{
			Code:    codeRequest,
			Message: fmt.Sprintf("the message is longer than %d bytes", long.Limit),
		})
		return
	case err != nil:
		return // the client has gone
	}
	c.token = bearer(r)
	if admit := a.opts.Admit; admit != nil {
		var ok bool
		if c.owner, ok = admit(c.token); !ok {
			w.Header().Set("WWW-Authenticate", `Bearer realm="a2e"`)
			c.answer(http.StatusUnauthorized, nil, &rpcError{
				Code:    codeRequest,
				Message: "a token is needed: Authorization: Bearer TOKEN",
			})
			return
		}
	}
	serve, fault := c.read(body, r.Header.Get(wire.VersionHeader))
	var result any
	if fault == nil {
		result, fault = serve(c)
	}
	if result != nil || fault != nil {
		c.answer(http.StatusOK, result, fault)
	}
}

func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// read reads a request and returns the method that serves it.
func (c *call) read(body []byte, version string) (method, *rpcError) {
	body = bytes.TrimSpace(bytes.TrimPrefix(body, []byte("\ufeff")))
	if !jsontext.Value(body).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) {
		return nil, &rpcError{Code: codeParse, Message: "the body is not JSON; it should be one JSON-RPC request"}
	}
	if len(body) > 0 && body[0] == '[' {
		return nil, &rpcError{Code: codeRequest, Message: "batches are not taken; send one request in each POST"}
	}
	obj, err := protocol.ParseObject(body)
	if err != nil {
		return nil, &rpcError{Code: codeRequest, Message: "the body should be a JSON-RPC request, an object"}
	}
	if id, ok := obj.Get("id"); ok && id.Kind() != '{' && id.Kind() != '[' {
		c.id = jsontext.Value(id)
	}
	var req request
	switch err := protocol.Decode(obj, nil, &req); {
	case err != nil:
		return nil, &rpcError{Code: codeRequest, Message: textOf(err)}
	case req.JSONRPC != "2.0":
		return nil, &rpcError{Code: codeRequest, Message: `jsonrpc should be "2.0"`}
	case c.id == nil:
		return nil, &rpcError{Code: codeRequest, Message: "id is missing, or no string or number; each request of " +
			"A2A has one"}
	}
	serve, spell := methods(req.Method)
	if serve == nil {
		return nil, &rpcError{Code: codeMethod, Message: fmt.Sprintf("there is no method %.64q; SendMessage, "+
			"SendStreamingMessage, GetTask, "+
			"ListTasks, CancelTask and SubscribeToTask are known, and those of A2A 0.3, such as message/send",
			req.Method)}
	}
	c.params, c.spell = req.Params, spell
	if spell == plain {
		var fault *rpcError
		if c.spell, fault = spelled(version, req.Params); fault != nil {
			return nil, fault
		}
	}
	return serve, nil
}

// spelled returns the spelling for a method name of 1.0. It is v10 if the client names version 1 or writes the role as
// 1.0 does, else plain.
func spelled(version string, params protocol.Object) (spelling, *rpcError) {
	major, _, _ := strings.Cut(strings.TrimSpace(version), ".")
	switch {
	case major == "1":
		return v10, nil
	case major != "" && major != "0":
		return plain, &rpcError{Code: codeVersion, Message: fmt.Sprintf("%s is %.16q; 1.0 and 0.3 are known",
			wire.VersionHeader, version)}
	}
	raw, _ := params.Get("message")
	if m, err := protocol.ParseObject(raw); err == nil && strings.HasPrefix(m.Text("role"), "ROLE_") {
		return v10, nil
	}
	return plain, nil
}

// textOf returns the text of an error without its code.
func textOf(err error) string {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

// decode reads the params of a request.
func (c *call) decode(into any) *rpcError {
	if err := protocol.Decode(c.params, nil, into); err != nil {
		return invalid("params: %s", textOf(err))
	}
	return nil
}

// answer writes the response.
func (c *call) answer(status int, result any, fault *rpcError) {
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(status)
	_, _ = c.w.Write(append(c.response(result, fault), '\n')) // fails if the client has gone
}

func (c *call) response(result any, fault *rpcError) []byte {
	o := object{"jsonrpc": "2.0", "id": c.id}
	if c.id == nil {
		o["id"] = jsontext.Value("null")
	}
	if fault != nil {
		o["error"] = fault
	} else {
		o["result"] = result
	}
	text, err := protocol.AppendJSON(nil, o)
	if err != nil {
		text = []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"the answer does not encode"}}`)
	}
	return text
}
