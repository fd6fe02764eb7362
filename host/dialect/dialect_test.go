package dialect_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host/dialect"
	"a2e/host/hosttest/assert"
)

// TestGuard: after three wrong tokens in a row each further answer is delayed, until a token is right.
func TestGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g dialect.Guard
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for i, c := range []struct {
			ctx  context.Context
			ok   bool
			wait time.Duration
		}{
			{t.Context(), false, 0},
			{t.Context(), false, 0},
			{t.Context(), false, 0},
			{t.Context(), false, time.Second},
			{ended, false, 0},
			{t.Context(), true, 0},
			{t.Context(), false, 0},
		} {
			begun := time.Now()
			if got := g.Checked(c.ctx, c.ok); got != c.ok || time.Since(begun) != c.wait {
				t.Errorf("token %d: %t after %s", i, got, time.Since(begun))
			}
		}
	})
}

// TestShift: an item that was taken off a list is not kept in memory by the list.
func TestShift(t *testing.T) {
	list := []*int{new(int), new(int)}
	whole := list
	first, ok := dialect.Shift(&list)
	assert.That(t, ok && first != nil && len(list) == 1 && whole[0] == nil, "%v %t, left %v of %v", first, ok, list,
		whole)
	list = nil
	_, ok = dialect.Shift(&list)
	assert.That(t, !ok, "there was something in an empty list")
}

// TestMerge: the merged context ends with the one context and has the values of both.
func TestMerge(t *testing.T) {
	type key string
	values := context.WithValue(t.Context(), key("v"), 1)
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key("c"), 2))
	m := dialect.Merge(values, ctx)
	cancel()
	if m.Value(key("v")) != 1 || m.Value(key("c")) != 2 || m.Err() == nil {
		t.Error(m.Value(key("v")), m.Value(key("c")), m.Err())
	}
}
