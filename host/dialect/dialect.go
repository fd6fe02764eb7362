// Package dialect is what the protocols beside A2E on the host's pipe have in common. Each of
// them (jsonrpc, mcp, fleet) is a host.Dialect in a folder of its own and goes the same way:
//
//	line ─ host.Work ─ host's scheduler ─ token (Guard) ─ session (BeginSession, Merge) ─ plugins ─ one answer
//	end of the input: Drain waits for the answers of what was taken, of which the host cuts off the rest
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

// Guard slows down who tries tokens. After maxFailures wrong ones in a row each further
// answer takes authDelay, so that nobody can try many.
type Guard struct{ failed atomic.Int64 }

const (
	maxFailures = 3
	authDelay   = time.Second
)

// Checked notes whether a token was right, and waits after too many wrong ones, at most until
// ctx ends. It returns ok.
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

// Bell wakes one goroutine that looks for work. Its channel has room for one.
type Bell chan struct{}

// NewBell returns a Bell.
func NewBell() Bell { return make(Bell, 1) }

// Ring has the goroutine look, now or when it has time.
func (b Bell) Ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// Shift takes the first element off a list; false = there is none. The list holds it no more.
func Shift[T any](list *[]T) (first T, ok bool) {
	if len(*list) == 0 {
		return first, false
	}
	var zero T
	first, (*list)[0] = (*list)[0], zero
	*list = (*list)[1:]
	return first, true
}

// AwaitPlugins waits until each plugin knows what it serves, as a handshake does: at most ten
// seconds, or until ctx ends. ctx names the host.
func AwaitPlugins(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	host.ServicesOf(ctx).Ready(ctx)
}

// Session is a session of the host's plugins.
type Session struct {
	Ctx context.Context // of its requests
	End func()          // tells the plugins that it is over; called once
}

// BeginSession is host.BeginSession for an agent that is asked nothing.
func BeginSession(ctx context.Context, agent string) *Session {
	ctx, _, end := host.BeginSession(ctx, agent, nil)
	return &Session{ctx, end}
}

// merged is a context with the end of one and the values of both.
type merged struct {
	context.Context
	values context.Context
}

// Merge returns a context that ends with ctx and has the values of values as well.
func Merge(values, ctx context.Context) context.Context { return merged{ctx, values} }

// Value implements context.Context.
func (m merged) Value(key any) any {
	if v := m.Context.Value(key); v != nil {
		return v
	}
	return m.values.Value(key)
}

// Write is Write of a store that does not wait longer than ctx: the store itself does while
// another host writes, and what has its turn then may be done after all.
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

// Over returns a channel that is closed when wait returns, which should be soon.
func Over(wait func()) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		wait()
	}()
	return over
}

// Await waits until a channel is closed, but not longer than a time: a plugin may not stop.
func Await(over <-chan struct{}, patience time.Duration) {
	select {
	case <-over:
	case <-time.After(patience):
	}
}

// IsMissing reports whether an error says that no plugin serves what was asked for.
func IsMissing(err error) bool {
	var e *protocol.Error
	return errors.As(err, &e) && e.Code == protocol.CodeCapabilityMissing
}
