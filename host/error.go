package host

import (
	"context"
	"errors"

	"a2e/protocol"
)

var errNoSession = protocol.Errorf(protocol.CodeUnauthorized, "handshake first: send handshake/req; before it only ping and shutdown work")

// wireError turns any error into the body of an `error` message: a
// *protocol.Error as it is, an ended context as `timeout` or `cancelled`, and
// everything else as `runtime_error`, which may be tried again unless something in it says
// that it lasts.
func wireError(err error) *protocol.Error {
	var own *protocol.Error
	var cause interface{ Lasting() bool }
	lasts := errors.As(err, &cause) && cause.Lasting()
	switch {
	case errors.As(err, &own) && !lasts:
		return own
	case own != nil:
		again := *own
		again.Retryable = false
		return &again
	case errors.Is(err, context.DeadlineExceeded):
		return protocol.Errorf(protocol.CodeTimeout, "the time for the request was up: %w", err)
	case errors.Is(err, context.Canceled):
		return protocol.Errorf(protocol.CodeCancelled, "the request was stopped: %w", err)
	}
	e := protocol.Errorf(protocol.CodeRuntimeError, "%w", err)
	e.Retryable = e.Retryable && !lasts
	return e
}

func codeOf(err error) protocol.ErrorCode { return wireError(err).Code }
