package host

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// SessionStates keeps what sessions had in memory, by agent, for snapshots.
// Both maps are from plugin names to what their SaveSession gave.
type SessionStates interface {
	// Put keeps the states of an agent's session that ends, in place of those
	// of its former one. An empty map only removes these.
	Put(agentID string, states map[string]jsontext.Value) error
	// Take gives, once, what the agent's next session is to begin with; nil is
	// nothing. It is asked before a handshake is answered, so nothing must cost
	// next to nothing.
	Take(agentID string) (map[string]jsontext.Value, error)
}

// restoreTimeout is how long a handshake waits for the plugins to take
// states in.
const restoreTimeout = 5 * time.Second

// snapshotSession puts aside what the plugins have in memory for a session that
// ends.
func (h *Host) snapshotSession(ctx context.Context, sess *Session) {
	if !h.keeps(sess) {
		return
	}
	ctx, cancel := share(ctx, leaveTimeout) // the rest is for what must be done when a session ends
	defer cancel()
	var mu sync.Mutex
	states := make(map[string]jsontext.Value) // guarded by mu: a plugin may come too late
	all := h.eachKeeper(ctx, "save of the session in plugin ", func(name string, k SessionKeeper) error {
		state, err := k.SaveSession(ctx, sess)
		if err != nil || state == nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		states[name] = state
		return nil
	})
	mu.Lock()
	kept := maps.Clone(states)
	mu.Unlock()
	if !all {
		h.opts.Log.Warn().Str("agent_id", sess.AgentID).Msg("not all of the session's state was kept")
		if len(kept) == 0 {
			return // the former state is better than none
		}
	}
	h.putStates(ctx, sess.AgentID, kept)
}

// putStates keeps states; the rest of the host does not wait for a slow disk past
// ctx.
func (h *Host) putStates(ctx context.Context, agentID string, states map[string]jsontext.Value) {
	done := make(chan struct{})
	h.goes.Go(func() {
		defer close(done)
		defer h.guard("the store of session states")
		if err := h.opts.Sessions.Put(agentID, states); err != nil {
			h.opts.Log.Warn().Err(err).Str("agent_id", agentID).Msg("the session's state was not kept")
		}
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// restoreSession returns the plugins what was put back for the agent of a session
// that begins. What fails is logged: a session without it is better than none.
func (h *Host) restoreSession(c *call, sess *Session) {
	if !h.keeps(sess) {
		return
	}
	states, err := h.opts.Sessions.Take(sess.AgentID)
	if err != nil {
		h.opts.Log.Warn().Err(err).Str("agent_id", sess.AgentID).Msg("the session begins without the state that was restored for it")
	}
	if len(states) == 0 {
		return
	}
	HandOff(c)
	ctx, cancel := context.WithTimeout(c, restoreTimeout)
	defer cancel()
	var taken atomic.Int64
	all := h.eachKeeper(ctx, "restore of the session in plugin ", func(name string, k SessionKeeper) error {
		state := states[name]
		if state == nil {
			return nil
		}
		if err := k.RestoreSession(ctx, sess, state); err != nil {
			return err
		}
		taken.Add(1)
		return nil
	})
	if !all || int(taken.Load()) < len(states) {
		h.opts.Log.Warn().Str("agent_id", sess.AgentID).Int("states", len(states)).Int64("restored", taken.Load()).
			Msg("not all of the session's state was restored: a plugin failed, was too slow, or is not there")
	}
}

// keeps reports whether the session may use a plugin that keeps something for it.
// Another session says nothing about the agent's state, so it leaves it as it is.
func (h *Host) keeps(sess *Session) bool {
	if h.opts.Sessions == nil {
		return false
	}
	for _, p := range h.opts.Plugins {
		if _, ok := As[SessionKeeper](p); ok && sess.Caps[p.Info().Capability] {
			return true
		}
	}
	return false
}

// eachKeeper calls f for the plugins that keep something for sessions, side by
// side; false means that one failed, or did not end before ctx.
func (h *Host) eachKeeper(ctx context.Context, what string, f func(name string, k SessionKeeper) error) bool {
	var keepers, succeeded atomic.Int64
	for _, p := range h.opts.Plugins {
		if _, ok := As[SessionKeeper](p); ok {
			keepers.Add(1)
		}
	}
	h.eachPlugin(ctx, what, func(p Plugin) error {
		k, ok := As[SessionKeeper](p)
		if !ok {
			return nil
		}
		name := p.Info().Name
		if err := f(name, k); err != nil {
			h.opts.Log.Warn().Err(err).Str("plugin", name).Msg(what + name + " failed")
			return nil
		}
		succeeded.Add(1)
		return nil
	})
	return succeeded.Load() == keepers.Load()
}
