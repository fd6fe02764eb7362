package exec

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"a2e/host"
	"a2e/protocol"
)

// sharedSession has the agent's sessions that use the session of the child. A child has one session at a time, so
// sessions of the agent that overlap share it, as those of several protocols on one pipe may. The first one after all
// of them have ended begins with a new handshake, so that no state of theirs is left.
type sharedSession struct {
	turn chan struct{} // holds a token while a session begins

	mu    sync.Mutex // guards the field below
	users []*host.Session
}

// any reports whether holds returns true for one of the sessions.
func (s *sharedSession) any(holds func(*host.Session) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.users, holds)
}

func (s *sharedSession) uses(sess *host.Session) bool {
	return s.any(func(u *host.Session) bool { return u == sess })
}

// join adds the agent's session to the users of the child's session, before its first request.
func (c *peer) join(ctx context.Context, sess *host.Session) error {
	s := &c.session
	if sess == nil || s.uses(sess) {
		return nil
	}
	host.HandOff(ctx)
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-c.Done():
		return c.died(false)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch {
	case s.uses(sess):
		return nil
	case ctx.Err() != nil: // a session that has ended meanwhile must not be added: nobody would remove it
		return context.Cause(ctx)
	case !s.any(func(*host.Session) bool { return true }):
		c.changed.Store(true)
		if err := c.greet(ctx, sess.AgentID); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = append(s.users, sess)
	return nil
}

// EndSession implements host.SessionEnder.
func (p *Plugin) EndSession(_ context.Context, sess *host.Session) {
	p.mu.Lock()
	c := p.child
	p.mu.Unlock()
	if c == nil {
		return
	}
	c.session.mu.Lock()
	c.session.users = slices.DeleteFunc(c.session.users, func(u *host.Session) bool { return u == sess })
	c.session.mu.Unlock()
	c.streams.leave(sess)
}

// greet makes the handshake: the child begins a session and says what it serves. A child that
// refuses, or does not answer in time, is killed.
func (c *peer) greet(ctx context.Context, agent string) error {
	p := c.plugin
	wanted := p.opts.Capabilities
	if len(wanted) == 0 {
		wanted = capabilities()
	}
	if slices.Contains(wanted, protocol.CapEnv) { // the host decides which session gets the pushes
		wanted = append(slices.Clone(wanted), protocol.FlagEnvPush)
	}
	body, err := protocol.AppendJSON(nil, &protocol.HandshakeRequest{
		AgentID: agent, AgentCaps: wanted,
		AuthToken: p.opts.AuthToken.Reveal(),
	})
	if err != nil {
		return err
	}
	raw, err := c.own(ctx, protocol.TypeHandshakeReq, body, p.opts.StartTimeout)
	var resp protocol.HandshakeResponse
	if err == nil {
		err = decode(raw, &resp)
	}
	if err != nil && ctx.Err() != nil { // nobody waits for it any more
		return err
	}
	if err == nil && !resp.OK {
		err = fmt.Errorf("it refused the handshake: %.200q", p.secrets.Text(string(resp.Reason)))
	}
	if err != nil {
		c.Kill(err)
		return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: the child is ended, as %w", p.name, err)
	}
	o := newOffer(&resp, &p.opts)
	c.offer.Store(o)
	if c.places == nil {
		c.places = make(chan struct{}, o.parallel)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == c {
		p.offer = o
	}
	return nil
}
