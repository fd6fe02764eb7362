package skill

import (
	"context"
	"testing"
	"time"

	"a2e/protocol"
)

// A call whose time was up counts as failed, whoever set the time; one that was stopped
// does not count.
func TestCallsOutOfTimeAreNotCutShort(t *testing.T) {
	request, stop := context.WithCancelCause(t.Context()) // as the host stops a request
	stop(context.DeadlineExceeded)
	within, cancel := context.WithTimeoutCause(t.Context(), -time.Second, protocol.Errorf(protocol.CodeTimeout, "its time was up")) // a call within one
	defer cancel()
	cancelled, stop := context.WithCancelCause(t.Context())
	stop(protocol.Errorf(protocol.CodeCancelled, "enough"))
	for name, c := range map[string]struct {
		ctx  context.Context
		want bool
	}{"a request": {request, false}, "a call within": {within, false}, "a cancel": {cancelled, true}, "nothing": {t.Context(), false}} {
		if got := cutShort(c.ctx); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
