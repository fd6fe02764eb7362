package link

import (
	"a2e/host/child"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// How a link that has no connection goes on trying.
const (
	maxFailures = 5                // in a row: from then on it waits for minutes
	steadyAfter = 30 * time.Second // a connection that lived as long was no failure
	pingTimeout = 10 * time.Second // or Config.PingEvery, if that is less
)

func newPace() *child.Backoff {
	return &child.Backoff{
		First: 500 * time.Millisecond, Most: 30 * time.Second, Jitter: 0.1, Enough: steadyAfter,
		Limit: maxFailures, Pause: time.Minute, PauseMost: 10 * time.Minute,
	}
}

// run is the link's goroutine.
func (l *Link) run() {
	defer close(l.over)
	pace := newPace()
	for {
		c, err := l.dial()
		var lived time.Duration
		if err == nil {
			l.up(c)
			err = l.watch(c)
			lived = l.env.Now().Sub(c.since)
			l.down(c, err)
			c.end(err)
		}
		if l.ctx.Err() != nil {
			break
		}
		pace.Down(l.env.Now(), err, lived, false)
		status, wait := Reconnecting, pace.Wait(l.env.Now())
		if pace.Paused() {
			status = Failed
		}
		l.lost(status, err, pace.Failures, wait)
		if !l.pause(wait) {
			break
		}
	}
	l.set(func(s *State) { s.Status, s.RetryAt, s.PID, s.Installing = Closed, time.Time{}, 0, false })
}

// pause waits before the next try; false = the link was closed.
func (l *Link) pause(wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// set changes the state, and tells of a new Status.
func (l *Link) set(change func(s *State)) {
	l.mu.Lock()
	before := l.state.Status
	change(&l.state)
	told := l.state.Status != before
	if told {
		l.state.Since = l.env.Now()
	}
	l.notifyLocked()
	l.mu.Unlock()
	if told && l.env.Changed != nil {
		l.env.Changed(l)
	}
}

// up notes a new connection.
func (l *Link) up(c *conn) {
	hello := c.session.InitializeResult()
	if p, ok := c.carrier.(*process); ok {
		p.settled()
	}
	l.log.Debug().Str("transport", string(c.transport)).Int("pid", c.carrier.pid()).Msg("the MCP server is connected")
	l.set(func(s *State) {
		l.conn = c
		if s.Server != nil || s.ProtocolVersion != "" {
			s.Restarts++
		}
		s.Status, s.RetryAt, s.Latency, s.PID, s.Transport, s.Installing = Connected, time.Time{}, 0, c.carrier.pid(), c.transport, false
		s.Server, s.Instructions, s.ProtocolVersion = hello.ServerInfo, hello.Instructions, hello.ProtocolVersion
	})
}

// down takes a connection away before it is ended: nobody gets it any more.
func (l *Link) down(c *conn, why error) {
	l.mu.Lock()
	l.conn = nil
	l.state.LastError = l.text(why)
	closing := l.ctx.Err() != nil
	if !closing {
		l.state.Status, l.state.Since = Reconnecting, l.env.Now()
	} else {
		l.state.Status, l.state.LastError, l.state.Since = Closed, "", l.env.Now()
	}
	l.notifyLocked()
	l.mu.Unlock()
	if l.env.Changed != nil {
		l.env.Changed(l)
	}
}

// lost notes a failure, and when the next try is.
func (l *Link) lost(status Status, why error, failures int, wait time.Duration) {
	text := l.text(why)
	level := l.log.Warn()
	if failures > maxFailures {
		level = l.log.Debug() // it was said often enough
	}
	level.Str("error", text).Int("failures", failures).Stringer("next_try", wait.Round(time.Millisecond)).Msg("the MCP server is not connected")
	l.set(func(s *State) {
		s.Status, s.LastError, s.Failures, s.RetryAt, s.PID, s.Installing = status, text, failures, l.env.Now().Add(wait), 0, false
	})
}

// watch returns why a connection is over, or must be ended.
func (l *Link) watch(c *conn) error {
	ticker := time.NewTicker(l.cfg.PingEvery)
	defer ticker.Stop()
	steady := time.NewTimer(steadyAfter)
	defer steady.Stop()
	for {
		select {
		case <-c.done:
			return c.reason()
		case <-l.ctx.Done():
			return context.Cause(l.ctx)
		case <-steady.C:
			l.set(func(s *State) { s.Failures = 0 })
		case <-c.doubt:
			if err := l.ping(c); err != nil {
				return err
			}
		case <-ticker.C:
			if err := l.ping(c); err != nil {
				return err
			}
		}
	}
}

// ping asks the server for a sign of life. The error says that there is none.
func (l *Link) ping(c *conn) error {
	limit := min(pingTimeout, l.cfg.PingEvery)
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	defer cancel()
	start := time.Now()
	err := c.session.Ping(ctx, nil)
	took := time.Since(start)
	var answer *jsonrpc.Error
	switch {
	case err == nil, errors.As(err, &answer) && !isRejected(err):
		l.mu.Lock()
		l.state.Latency = took
		l.mu.Unlock()
		return nil
	case l.ctx.Err() != nil || c.isOver():
		return nil // watch sees it
	case ctx.Err() == nil:
		return fmt.Errorf("a ping failed: %w", err)
	case c.busy(l.cfg.CallTimeout + limit):
		return nil
	}
	return fmt.Errorf("it did not answer a ping within %s", limit)
}
