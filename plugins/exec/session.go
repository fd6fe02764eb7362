package exec

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"a2e/host"
	"a2e/protocol"
)

// session is what the child's session is used for. A child has one at a time: sessions of the agent that overlap,
// as those of several protocols on one pipe may, share it. The first after them begins with a new handshake, so
// that nothing of them is left for it.
type session struct {
	turn chan struct{} // held while a session begins; takes one

	mu    sync.Mutex // guards the field below
	users []*host.Session
}

// any reports whether something holds for one of the sessions.
func (s *session) any(holds func(*host.Session) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.users, holds)
}

func (s *session) uses(sess *host.Session) bool {
	return s.any(func(u *host.Session) bool { return u == sess })
}

// join makes the child's session one of the agent's session, before its first request.
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
	case ctx.Err() != nil: // a session that ends meanwhile must not come back: nobody would leave for it
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

// greet shakes hands: the child begins a session, and says what it serves. A child that
// refuses, or does not answer in time, is ended.
func (c *peer) greet(ctx context.Context, agent string) error {
	p := c.plugin
	wanted := p.opts.Capabilities
	if len(wanted) == 0 {
		wanted = capabilities()
	}
	if slices.Contains(wanted, protocol.CapEnv) { // who gets the pushes is decided here
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
	if err != nil && ctx.Err() != nil { // who waits for it has gone
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
