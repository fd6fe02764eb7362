// Package dialect is the common code of the protocols beside A2E on the host's pipe. Each of
// them (jsonrpc, mcp, fleet) is a host.Dialect in a folder of its own and works in the same way:
//
//	line ─ host.Work ─ host's scheduler ─ token (Guard) ─ session (BeginSession, Merge) ─ plugins ─ one answer
//	end of the input: Drain waits for the answers to all that was taken; the host stops what takes too long
package dialect

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/protocol"
)

// Guard slows down a client that tries tokens: after maxFailures wrong tokens in a row, each further wrong one is
// answered only after authDelay.
type Guard struct{ failed atomic.Int64 }

const (
	maxFailures = 3
	authDelay   = time.Second
)

// Checked takes whether a token was right and returns that. After too many wrong tokens it waits first, at most until
// ctx ends.
func (g *Guard) Checked(ctx context.Context, ok bool) bool {
	if ok {
		g.failed.Store(0)
	} else if g.failed.Add(1) > maxFailures {
		select {
		case <-time.After(authDelay):
		case <-ctx.Done():
		}
	}
	return ok
}

// Bell wakes one goroutine that waits for work. Its channel has room for one element.
type Bell chan struct{}

// NewBell returns a Bell.
func NewBell() Bell { return make(Bell, 1) }

// Ring wakes the goroutine: at once if it waits, else as soon as it waits again. Ring itself never waits.
func (b Bell) Ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// Shift removes the first element of a list and returns it; false = the list is empty. The list keeps no reference to
// the element.
func Shift[T any](list *[]T) (first T, ok bool) {
	if len(*list) == 0 {
		return first, false
	}
	var zero T
	first, (*list)[0] = (*list)[0], zero
	*list = (*list)[1:]
	return first, true
}

// AwaitPlugins waits until each plugin knows what it serves, as a handshake does. It waits for ten seconds at most, or
// until ctx ends. ctx names the host.
func AwaitPlugins(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	host.ServicesOf(ctx).Ready(ctx)
}

// PluginSession is a session of the host's plugins.
type PluginSession struct {
	Ctx context.Context // for its requests
	End func()          // tells the plugins that the session is over; must be called once
}

// BeginSession begins a session by host.BeginSession for an agent that cannot be asked anything.
func BeginSession(ctx context.Context, agent string) *PluginSession {
	ctx, _, end := host.BeginSession(ctx, agent, nil)
	return &PluginSession{ctx, end}
}

// merged is a context with the end of one context and the values of two.
type merged struct {
	context.Context
	values context.Context
}

// Merge returns a context that ends with ctx. It has the values of ctx and, after them, those of values.
func Merge(values, ctx context.Context) context.Context { return merged{ctx, values} }

// Value implements context.Context.
func (m merged) Value(key any) any {
	if v := m.Context.Value(key); v != nil {
		return v
	}
	return m.values.Value(key)
}

// Write calls to.Write, but does not wait longer than ctx. The store itself waits while another host writes, so fn may
// still run after Write has returned an error.
func Write(ctx context.Context, to store.Opener, fn func(*store.Tx) error) error {
	done := make(chan error, 1)
	go func() { done <- to.Write(ctx, fn) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Over runs wait on a goroutine and returns a channel that is closed when wait returns. wait must return soon.
func Over(wait func()) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		wait()
	}()
	return over
}

// Await waits until a channel is closed, but no longer than patience, because a plugin may never stop.
func Await(over <-chan struct{}, patience time.Duration) {
	select {
	case <-over:
	case <-time.After(patience):
	}
}

// IsMissing reports whether an error says that no plugin serves the request.
func IsMissing(err error) bool {
	var e *protocol.Error
	return errors.As(err, &e) && e.Code == protocol.CodeCapabilityMissing
}
