package mcp

import (
	"cmp"
	"context"
	"errors"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"a2e/protocol"
)

// Why requests end early. They are made anew for each: what is sent may be added to.
var (
	errCancelled = protocol.Errorf(protocol.CodeCancelled, "the client cancelled the request")
	errShutdown  = protocol.Errorf(protocol.CodeTimeout, "the host shut down before the request was done; send it again to a new host")
	errLate      = protocol.Errorf(protocol.CodeTimeout, "the request did not end within its time")
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

func shortened(text string) string {
	if len(text) <= maxErrorText {
		return text
	}
	cut := maxErrorText
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

// fromA2E gives an error of the host its JSON-RPC code; its own stands in data.
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

func codeOf(code protocol.ErrorCode) int64 {
	switch code {
	case protocol.CodeUnknownTool, protocol.CodeUnknownSkill, protocol.CodeSchemaViolation, protocol.CodeInvalidMessage, protocol.CodeParseError:
		return codeInvalidParams
	case protocol.CodeMemoryNotFound, protocol.CodeMCPResourceNotFound:
		return codeResourceNotFound
	case protocol.CodeCancelled:
		return codeCancelled
	case protocol.CodeUnauthorized:
		return codeUnauthorized
	case protocol.CodeRuntimeError:
		return codeInternal
	}
	return codeServer
}

// isMissing tells whether an error says that no plugin serves what was asked for.
func isMissing(err error) bool {
	var own *protocol.Error
	return errors.As(err, &own) && own.Code == protocol.CodeCapabilityMissing
}
