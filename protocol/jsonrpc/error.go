package jsonrpc

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

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
	CodeRefused        Code = -32000 // what can happen to a request that is in order; data.reason says what it was
)

// Reason returns what data.reason says of the code.
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

// Invalid says that a line is no request.
func Invalid(why string) *Error { return Errorf(CodeInvalidRequest, "%s", why) }

// NoBatch says that a line is a batch.
func NoBatch() *Error {
	return Invalid("batches are not supported; send one request per line").With("reason", "batch_not_supported")
}

// Params says what is wrong with a parameter. field is its name, a pointer without its
// slash where it is nested.
func Params(field, why string) *Error {
	return Errorf(CodeInvalidParams, "%s: %s", field, why).With("field", field)
}

// NotObject says that the parameters of a method are no object.
func NotObject(method string) *Error {
	return Errorf(CodeInvalidParams, "invalid params for %s: expected an object, the parameters by name", method)
}

// Refused says why a request that is in order is not done.
func Refused(reason, format string, args ...any) *Error {
	return Errorf(CodeRefused, format, args...).With("reason", reason)
}

// NotFound says that there is no such method.
func NotFound(method string) *Error {
	if len(method) > 200 {
		method = strings.ToValidUTF8(method[:200], "") + "…"
	}
	return Errorf(CodeMethodNotFound, "unknown method %q; rpc.handshake lists the methods", method).With("method", method)
}

// From makes an Error of any error. One of A2E that tells of a mistake in the request is
// about parameters, and one that tells of a fault of the host internal; any other is what can
// be expected, such as a tool that is denied: then data.reason is its code. data.detail is its
// detail.
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
	case protocol.CodeSchemaViolation, protocol.CodeUnknownTool, protocol.CodeUnknownSkill, protocol.CodeUnknownEnv, protocol.CodeUnknownAction, protocol.CodeUnknownProc,
		protocol.CodeUnknownEpisode, protocol.CodeUnknownSubagent, protocol.CodeMemoryNotFound, protocol.CodeMCPServerNotFound, protocol.CodeMCPToolNotFound:
		e = Errorf(CodeInvalidParams, "%s", a2e.Message).With("field", "").With("code", a2e.Code)
	case protocol.CodeRuntimeError, protocol.CodeOutOfMemory, protocol.CodeSandboxCrash, protocol.CodeInvalidMessage, protocol.CodeParseError:
		e.With("code", a2e.Code)
	default:
		e = Refused(string(a2e.Code), "%s", a2e.Message)
	}
	if problems, ok := a2e.Detail["errors"].([]protocol.FieldError); ok && len(problems) > 0 {
		e.With("field", strings.TrimPrefix(problems[0].Path, "/"))
		e.Message = strings.TrimPrefix(e.Message, "/") // as that of Params
	}
	if len(a2e.Detail) > 0 {
		e.With("detail", a2e.Detail)
	}
	if a2e.Retryable {
		e.With("retryable", true)
	}
	return e
}

// AppendError appends the answer to a request that was not served; a nil id is null.
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
