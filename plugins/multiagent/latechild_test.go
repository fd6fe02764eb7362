package multiagent

import (
	"context"
	"errors"
	"testing"

	"a2e/host"
)

// A request that was stopped begins no children for a session that may be over.
func TestNoChildForAStoppedRequest(t *testing.T) {
	plugin := newPlugin(t, t.TempDir(), options(shell("w", "cat")), Env{})
	ctx, cancel := context.WithCancel(host.InSession(t.Context(), &host.Session{}))
	cancel()
	if _, err := plugin.groupOf(ctx); !errors.Is(err, context.Canceled) || len(plugin.groups) != 0 {
		t.Errorf("%v, %d groups", err, len(plugin.groups))
	}
}
