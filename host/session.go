package host

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"a2e/host/guard/auth"
	"a2e/protocol"
)

// Session is what one handshake agreed on. It does not change.
type Session struct {
	ID      string
	AgentID string
	Caps    map[protocol.Capability]bool // those that were asked for and are available

	// Pushes says that the agent takes `env/state/push`: it asked for it, or its dialect has no agent_caps.
	Pushes bool

	tokens auth.Tokens // of the host

	why       map[protocol.Capability]string // why a capability that was asked for is not available
	ofDialect bool                           // of a dialect, not of the handshake
	ask       Asker                          // of a dialect's session; nil = nobody answers
}

// Owner returns the owner of the things that are kept for the session's agent: the agent, if a token is for it
// alone, or "" for all other agents together. apart reports whether things of other owners are out of reach. A nil
// session, and a session of a host without tokens for agents, reaches all things.
func (s *Session) Owner() (agentID string, apart bool) {
	if s == nil {
		return "", false
	}
	return s.tokens.Apart(s.AgentID)
}

// MayBe reports whether the session may act under a name: its own, or one for which there is no token.
func (s *Session) MayBe(name string) bool {
	return s == nil || name == s.AgentID || !s.tokens.Name(name)
}

// capabilities returns the names that the answer to a handshake has rows for. The older flags `streaming` and
// `artifacts`, which an agent may send, never appear in an answer.
func capabilities() []protocol.Capability {
	return append(protocol.PluginCapabilities(), protocol.CapTest)
}

// authDelay is how long the answer to a handshake waits after maxFailures failed handshakes in a row.
const (
	authDelay   = time.Second
	maxFailures = 3
)

// maxAgentID is the longest agent_id, in bytes. It is kept in memory, logged, and stored with all data of the
// agent.
const maxAgentID = 1 << 10

// maxLoggedCaps is how many requested names the log shows of a refused handshake.
const maxLoggedCaps = 12

// available returns the names of the capabilities that a plugin can serve.
func (h *Host) available() []string {
	var names []string
	infos := h.infos()
	for _, name := range capabilities() {
		if meta, _ := h.describe(name, infos); meta != nil {
			names = append(names, string(name))
		}
	}
	return names
}

// handshake ends the current session and begins a new one, or answers why it does not.
func handshake(h *Host, c *call) (any, error) {
	var req protocol.HandshakeRequest
	reason := protocol.HandshakeReason("")
	if c.line.Check() != nil {
		reason = protocol.ReasonVersionMismatch
	} else if err := protocol.Decode(c.line.Object(), nil, &req); err != nil {
		return nil, err
	}
	if n := len(req.AgentID); n > maxAgentID {
		return nil, protocol.Violation(protocol.FieldError{Path: "/agent_id", Message: fmt.Sprintf("has %d bytes; "+
			"should have at most %d", n, maxAgentID)})
	}
	if h.opts.AgentID != "" && req.AgentID == h.opts.AgentID {
		req.AgentID = "" // the host is this agent's, and has no other
	} else if wrong := auth.WrongName(req.AgentID); wrong != "" {
		return nil, protocol.Violation(protocol.FieldError{Path: "/agent_id", Message: wrong})
	}
	h.leaveSession(c)
	h.mu.Lock()
	delayed := h.failures >= maxFailures
	h.mu.Unlock()
	if delayed && !h.pause(c, authDelay) {
		return nil, errShutdown
	}
	var sess *Session
	rows := []protocol.CapabilityRow{}
	var meta map[string]any
	agent := req.AgentID
	if reason == "" {
		agent, reason = h.authenticate(&req)
	}
	if reason == "" {
		h.awaitPlugins(c)
		sess = h.newSession(cmp.Or(h.opts.AgentID, agent))
		if rows, meta = h.negotiate(req.AgentCaps, sess); len(sess.Caps) == 0 && namesSome(req.AgentCaps) {
			reason = protocol.ReasonNoCaps
			meta[protocol.MetaAvailableCaps] = h.available()
		}
	}
	if reason != "" {
		refused := h.opts.Log.Warn().Str("reason", string(reason))
		if reason == protocol.ReasonNoCaps {
			asked := fmt.Sprintf("%.32q", req.AgentCaps[:min(len(req.AgentCaps), maxLoggedCaps)])
			refused = refused.Str("asked", asked).Strs("available", h.available())
		}
		refused.Msg("handshake refused")
		return &protocol.HandshakeResponse{MaxParallel: h.opts.MaxParallel, Reason: reason, Metadata: meta}, nil
	}
	resp := &protocol.HandshakeResponse{
		SessionID: sess.ID, AcceptedCaps: rows, MaxParallel: h.opts.MaxParallel, OK: true, Metadata: meta,
	}
	if _, err := h.message(nil, c.dest.response, c.reqID(),
		resp); err != nil { // metadata of a plugin that does not encode
		h.opts.Log.Error().Err(err).Msg("handshake refused")
		return &protocol.HandshakeResponse{MaxParallel: h.opts.MaxParallel, Reason: protocol.ReasonServerError}, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over { // it was answered already: nobody would end the session
		return nil, errShutdown
	}
	h.session, h.failures = sess, 0
	h.opts.Checkpoints.Prepare()
	h.openPushesLocked(c)
	c.sess.Store(sess)
	return resp, nil
}

func (h *Host) newSession(agentID string) *Session {
	return &Session{
		ID: h.ids.text(), AgentID: agentID, tokens: h.opts.Tokens,
		Caps: make(map[protocol.Capability]bool), why: make(map[protocol.Capability]string),
	}
}

// leaveSession ends the current session, if there is one, before a new one begins.
func (h *Host) leaveSession(c *call) {
	h.mu.Lock()
	old := h.session
	h.mu.Unlock()
	if old == nil {
		return
	}
	HandOff(c)
	ctx, cancel := context.WithTimeout(h.ctx, leaveTimeout) // not c: EndSession belongs to no request
	defer cancel()
	h.endSession(ctx)
}

// pause waits for d; false means that the call was stopped first, as when the host ends.
func (h *Host) pause(c *call, d time.Duration) bool {
	HandOff(c)
	select {
	case <-time.After(d):
		return true
	case <-c.Done():
		return false
	}
}

// authenticate returns the id of the agent that the handshake's token admits, or the reason why it admits none.
func (h *Host) authenticate(req *protocol.HandshakeRequest) (agentID string, reason protocol.HandshakeReason) {
	agentID, ok := h.opts.Tokens.Admit(req.AuthToken, req.AgentID)
	if ok {
		return agentID, ""
	}
	h.mu.Lock()
	h.failures++
	h.mu.Unlock()
	return "", protocol.ReasonAuthFailed
}

// isFlag reports whether a name in agent_caps is a flag and no capability. The flags of an older protocol mean
// nothing here.
func isFlag(name protocol.Capability) bool {
	return name == "streaming" || name == "artifacts" || name == protocol.FlagEnvPush
}

// namesSome reports whether a handshake asks for any capability.
func namesSome(wanted []protocol.Capability) bool {
	return slices.ContainsFunc(wanted, func(name protocol.Capability) bool { return !isFlag(name) })
}

// maxUnknownCaps and maxUnknownCap bound how many unknown names the answer to a handshake lists,
// and how many bytes of one.
const (
	maxUnknownCaps = 100
	maxUnknownCap  = 64
)

// negotiate makes one row for each capability that the agent named, and notes in the session which of them are
// available. An agent that names none gets all available ones. meta lists the names that are unknown.
func (h *Host) negotiate(
	wanted []protocol.Capability, sess *Session,
) (rows []protocol.CapabilityRow, meta map[string]any) {
	sess.Pushes = slices.Contains(wanted, protocol.FlagEnvPush)
	rows, meta = []protocol.CapabilityRow{}, map[string]any{}
	if !namesSome(wanted) {
		wanted = slices.DeleteFunc(capabilities(), func(name protocol.Capability) bool { return !h.loaded(name) })
	}
	var seen []protocol.Capability
	var unknown []string
	infos := h.infos()
	for _, name := range wanted {
		name = cmp.Or(protocol.CapabilityAliases()[string(name)], name)
		if isFlag(name) || slices.Contains(seen, name) {
			continue
		}
		if !slices.Contains(capabilities(), name) {
			text := protocol.Head(string(name), maxUnknownCap)
			if !slices.Contains(unknown, text) && len(unknown) < maxUnknownCaps {
				unknown = append(unknown, text)
				meta[protocol.MetaUnknownCaps] = unknown
			}
			continue
		}
		seen = append(seen, name)
		about, why := h.describe(name, infos)
		if about != nil {
			sess.Caps[name] = true
		} else {
			about, sess.why[name] = map[string]any{"reason": why}, why
		}
		rows = append(rows, protocol.CapabilityRow{Capability: name, Enabled: sess.Caps[name], Metadata: about})
	}
	return rows, meta
}

// describe returns the handshake's metadata of a capability: that of the plugin that is asked first, with the names
// of all plugins if there are several. If a plugin is exclusive, it returns only the metadata of that plugin,
// because no other one is asked. nil means that no plugin can serve the capability; why is the reason. infos is the
// result of h.infos.
func (h *Host) describe(name protocol.Capability, infos []PluginInfo) (meta map[string]any, why string) {
	why = "no plugin loaded"
	var names []string
	for i, p := range h.opts.Plugins {
		info := infos[i]
		if !info.serves(name) {
			continue
		}
		if d, ok := As[Describer](p); ok {
			info = d.Describe(info)
		}
		if info.Broken != "" {
			why = info.Broken
			continue
		}
		if names = append(names, info.Name); meta != nil && !info.Exclusive {
			continue
		}
		meta = map[string]any{}
		for key, value := range info.Metadata {
			meta[key] = value
		}
		meta["name"], meta["type"] = info.Name, string(cmp.Or(info.Capability, name))
		meta["priority"], meta["exclusive"] = info.Priority, info.Exclusive
		if info.Exclusive {
			return meta, ""
		}
	}
	if len(names) > 1 {
		meta["plugins"] = names
	}
	return meta, why
}

// infos returns the Info of each plugin as it is now.
func (h *Host) infos() []PluginInfo {
	infos := make([]PluginInfo, len(h.opts.Plugins))
	for i, p := range h.opts.Plugins {
		infos[i] = p.Info()
	}
	return infos
}

// loaded reports whether a plugin serves a capability, even if the plugin is broken.
func (h *Host) loaded(name protocol.Capability) bool {
	return slices.ContainsFunc(h.opts.Plugins, func(p Plugin) bool { info := p.Info(); return info.serves(name) })
}

func (i *PluginInfo) serves(name protocol.Capability) bool {
	return i.Capability == name || slices.Contains(i.Also, name)
}

func (h *Host) hasSession() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.session != nil || h.handshakes > 0
}

// noSessionLocked returns the error for a request that belongs to no session.
func (h *Host) noSessionLocked() error {
	if h.over { // there may have been a session: this is not the agent's fault
		return errShutdown
	}
	return errNoSession
}

func (h *Host) noSession() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.noSessionLocked()
}

// endSession tells the plugins that the session is over, if there is one, and then closes its streams. It waits for
// the plugins until ctx ends. If another goroutine is ending the session, it waits for that one.
func (h *Host) endSession(ctx context.Context) {
	h.mu.Lock()
	sess, leaving := h.session, h.leaving
	if sess != nil && leaving == nil {
		h.leaving = make(chan struct{})
	}
	h.mu.Unlock()
	switch {
	case sess == nil:
		return
	case leaving != nil:
		select {
		case <-leaving:
		case <-ctx.Done():
		}
		return
	}
	h.tellEnd(ctx, sess)
	h.closeStreams()
}
