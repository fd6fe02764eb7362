package host

import (
	"context"
	"errors"

	"a2e/protocol"
)

var errNoSession = protocol.Errorf(protocol.CodeUnauthorized, "handshake first: send handshake/req; before it only ping and shutdown work")

// wireError turns any error into the body of an `error` message: a
// *protocol.Error as it is, an ended context as `timeout` or `cancelled`, and
// everything else as `runtime_error`.
func wireError(err error) *protocol.Error {
	var own *protocol.Error
	switch {
	case errors.As(err, &own):
		return own
	case errors.Is(err, context.DeadlineExceeded):
		return protocol.Errorf(protocol.CodeTimeout, "the time for the request was up: %w", err)
	case errors.Is(err, context.Canceled):
		return protocol.Errorf(protocol.CodeCancelled, "the request was stopped: %w", err)
	}
	return protocol.Errorf(protocol.CodeRuntimeError, "%w", err)
}

func codeOf(err error) protocol.ErrorCode { return wireError(err).Code }
