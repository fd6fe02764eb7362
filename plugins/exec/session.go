package exec

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"a2e/host"
	"a2e/protocol"
)

// session is what the child's session is used for. A child has one at a time: sessions of
// the agent that overlap, as those of several protocols on one pipe may, share it. Once
// the last of them has ended the child gets a new handshake, so that nothing of them is
// left for the next.
type session struct {
	turn chan struct{} // held while sessions begin and end; takes one

	mu    sync.Mutex // guards the fields below
	users []*host.Session
	agent string // agent_id of the child's session
}

func (s *session) init() { s.turn = make(chan struct{}, 1) }

func (s *session) uses(sess *host.Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.users, sess)
}

// has reports whether one of the sessions got a capability; "" = any.
func (s *session) has(name protocol.Capability) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.users, func(u *host.Session) bool { return name == "" || u.Caps[name] })
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
	case <-c.Done():
		return c.died(false)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.turn }()
	s.mu.Lock()
	there, foreign := slices.Contains(s.users, sess), len(s.users) == 0 && s.agent != sess.AgentID
	s.mu.Unlock()
	switch {
	case there:
		return nil
	case ctx.Err() != nil: // a session that ends meanwhile must not come back: nobody would leave for it
		return context.Cause(ctx)
	}
	if foreign { // what it keeps for an agent is this one's
		if err := c.greet(ctx, sess.AgentID); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = append(s.users, sess)
	return nil
}

// leave tells the child that a session of the agent is over.
func (c *peer) leave(ctx context.Context, sess *host.Session) {
	s := &c.session
	if !s.uses(sess) {
		return
	}
	select {
	case s.turn <- struct{}{}:
	case <-c.Done():
		return
	}
	defer func() { <-s.turn }()
	s.mu.Lock()
	s.users = slices.DeleteFunc(s.users, func(u *host.Session) bool { return u == sess })
	last, agent := len(s.users) == 0, s.agent
	s.mu.Unlock()
	if last {
		if err := c.greet(ctx, agent); err != nil && ctx.Err() == nil {
			c.log.Warn().Err(err).Msg("the plugin's child took no new session")
		}
	}
	c.streams.leave(sess)
}

// EndSession implements host.SessionEnder.
func (p *Plugin) EndSession(ctx context.Context, sess *host.Session) {
	p.mu.Lock()
	c := p.child
	if c == nil || p.closed {
		p.mu.Unlock()
		return
	}
	over := make(chan struct{})
	p.goes.Go(func() { // a child that does not answer ends by it, even after ctx
		c.leave(context.WithoutCancel(ctx), sess)
		close(over)
	})
	p.mu.Unlock()
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// greet shakes hands: the child begins a session, and says what it serves. A child that
// refuses, or does not answer in time, is ended.
func (c *peer) greet(ctx context.Context, agent string) error {
	p := c.plugin
	wanted := p.opts.Capabilities
	if len(wanted) == 0 {
		wanted = capabilities()
	}
	body, err := protocol.AppendJSON(nil, &protocol.HandshakeRequest{AgentID: agent, AgentCaps: wanted, AuthToken: p.opts.AuthToken.Reveal()})
	if err != nil {
		return err
	}
	c.session.mu.Lock()
	c.session.agent = "\x00" // nobody's, until it has answered
	c.session.mu.Unlock()
	raw, err := c.own(ctx, protocol.TypeHandshakeReq, body, p.opts.StartTimeout)
	var resp protocol.HandshakeResponse
	if err == nil {
		err = decode(raw, &resp)
	}
	switch {
	case err != nil && ctx.Err() != nil: // who waits for it has gone
		return err
	case err != nil:
		c.Kill(err)
		return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: the child is ended, as %w", p.name, err)
	case !resp.OK:
		err = fmt.Errorf("it refused the handshake: %.200q", p.secrets.Text(string(resp.Reason)))
		c.Kill(err)
		return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: the child is ended, as %w", p.name, err)
	}
	o := newOffer(&resp, &p.opts)
	c.offer.Store(o)
	c.session.mu.Lock()
	c.session.agent = agent
	c.session.mu.Unlock()
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
