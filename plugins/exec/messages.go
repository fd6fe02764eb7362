package exec

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/plugins/env"
	"a2e/protocol"
)

// handler answers requests with the body of an answer.
type handler = func(context.Context, protocol.Object, host.Emitter) (jsontext.Value, error)

// message is what the plugin knows of one request type beyond the protocol's table.
type message struct {
	route func(protocol.Type, handler) host.Route
	names string                      // the field that says what it is about; "" = it has none
	list  bool                        // answers of several plugins are put together
	feeds bool                        // messages with its id may follow the answer
	quick bool                        // it waits for no place of the child
	own   bool                        // the child keeps the order of such requests itself
	valid func(protocol.Object) error // does an answer fit? nil = it is not looked at
}

// messages are what is known of each request that an agent may send.
type messages map[protocol.Type]message

// set changes what is known of some types.
func (all messages) set(change func(*message), types ...protocol.Type) {
	for _, t := range types {
		m := all[t]
		change(&m)
		all[t] = m
	}
}

// named says which field tells whose a request is.
func (all messages) named(field string, types ...protocol.Type) {
	all.set(func(m *message) { m.names = field }, types...)
}

// merged makes a type one whose answers are put together.
func merged[Resp any](all messages, t protocol.Type, merge func(dst, src *Resp)) {
	all.set(func(m *message) {
		m.list = true
		m.route = func(t protocol.Type, h handler) host.Route { return host.RawList(t, h, merge) }
		m.valid = func(obj protocol.Object) error { return protocol.Decode(obj, nil, new(Resp)) }
	}, t)
}

// known says what is known of each request that an agent may send.
func known() messages {
	all := make(messages)
	for _, info := range protocol.Types() {
		if info.Capability != protocol.CapCore && info.Direction == protocol.AgentRequest {
			all[info.Type] = message{route: host.Raw, quick: info.Ahead, own: info.Ahead ||
				info.Capability == protocol.CapMultiAgent}
		}
	}
	merged(all, protocol.TypeToolListReq, protocol.MergeTools)
	merged(all, protocol.TypeToolkitListReq, protocol.MergeToolkits)
	merged(all, protocol.TypeSkillDiscoverReq, protocol.MergeSkills)
	merged(all, protocol.TypeProcStatusReq, protocol.MergeProcStatus)
	merged(all, protocol.TypeLearnStatsReq, protocol.MergeLearnStats)
	merged(all, protocol.TypeRefinementHistoryReq, protocol.MergeRefinements)
	merged(all, protocol.TypeMCPServerListReq, protocol.MergeMCPServers)
	merged(all, protocol.TypePlanListReq, protocol.MergePlans)
	merged(all, protocol.TypePlanBoardReq, protocol.MergeBoards)
	merged(all, protocol.TypeTaskListReq, protocol.MergeTasks)
	merged(all, protocol.TypeAgentListReq, protocol.MergeAgents)
	merged(all, protocol.TypeSubagentListReq, protocol.MergeSubagents)
	all.set(func(m *message) { m.list, m.route = true, env.RawExperiences }, protocol.TypeEnvExpListReq)
	all.set(func(m *message) { m.list = true }, protocol.TypeMCPResourceListReq, protocol.TypeMCPPromptListReq)

	onEpisode := []protocol.Type{protocol.TypeEnvStepReq, protocol.TypeEnvObserveReq, protocol.TypeEnvCloseReq,
		protocol.TypeEnvRenderReq, protocol.TypeEnvPlanReq}
	all.named(fieldTool, protocol.TypeToolCallReq)
	all.named(fieldSkill, protocol.TypeSkillCallReq)
	all.named(fieldEnv, protocol.TypeEnvResetReq, protocol.TypeEnvSpaceReq)
	all.named(fieldProc, protocol.TypeProcWriteReq, protocol.TypeProcKillReq)
	all.named("toolkit_name", protocol.TypeToolkitConfigureReq)
	all.named("episode_id", onEpisode...)
	all.named("memory_id", protocol.TypeMemoryStoreReq, protocol.TypeMemoryRetrieveReq, protocol.TypeMemoryForgetReq)
	all.named("plan_id", protocol.TypeTaskAddReq, protocol.TypeTaskUpdateReq)
	all.named("server_id", protocol.TypeMCPServerUnregisterReq, protocol.TypeMCPResourceReadReq,
		protocol.TypeMCPPromptGetReq, protocol.TypeMCPResourceSubscribeReq)
	all.named("subagent_id", protocol.TypeAgentAwaitReq, protocol.TypeAgentTerminateReq, protocol.TypeAgentDelegateReq,
		protocol.TypeSubagentAwaitReq, protocol.TypeSubagentCancelReq, protocol.TypeSubagentTerminateReq,
		protocol.TypeSubagentDelegateReq)
	all.set(func(m *message) { m.feeds = true }, protocol.TypeEnvResetReq, protocol.TypeProcSpawnReq,
		protocol.TypeMCPServerRegisterReq, protocol.TypeMCPResourceSubscribeReq,
		protocol.TypeAgentDelegateReq, protocol.TypeSubagentDelegateReq, protocol.TypeAgentSpawnReq,
		protocol.TypeSubagentSpawnReq)

	return all
}

// The entries of a capability's metadata that name message types: all of them, or those
// beside the standard ones.
const (
	allTypes    = "types"
	customTypes = "custom_types"
)

// offer is what a child said in its handshake that it serves.
type offer struct {
	caps     []protocol.Capability
	types    map[protocol.Type]protocol.Type       // standard requests, and as the child spells them
	custom   map[protocol.Type]protocol.Capability // its own; "" = of no capability that can be negotiated
	parallel int                                   // requests at once
}

// newOffer reads an answered handshake. The config may leave out capabilities, and add
// types.
func newOffer(resp *protocol.HandshakeResponse, opts *Options) *offer {
	o := &offer{
		types: make(map[protocol.Type]protocol.Type), custom: make(map[protocol.Type]protocol.Capability),
		parallel: min(max(cmp.Or(opts.MaxParallel, resp.MaxParallel), 1), maxPlaces),
	}
	for _, row := range resp.AcceptedCaps {
		if !row.Enabled || len(opts.Capabilities) > 0 && !slices.Contains(opts.Capabilities, row.Capability) {
			continue
		}
		name := row.Capability
		if slices.Contains(capabilities(), name) {
			if !slices.Contains(o.caps, name) {
				o.caps = append(o.caps, name)
			}
		} else {
			name = ""
		}
		o.take(name, row.Metadata)
	}
	for _, t := range opts.Types {
		if _, ok := o.custom[protocol.Type(t)]; !ok {
			o.custom[protocol.Type(t)] = ""
		}
	}
	return o
}

// take notes the types of one capability.
func (o *offer) take(name protocol.Capability, meta map[string]any) {
	listed, exact := meta[allTypes].([]any)
	if !exact && name != "" {
		for _, info := range protocol.Types() {
			if info.Capability == name && info.Direction == protocol.AgentRequest {
				o.types[info.Type] = info.Type
			}
		}
	}
	more, _ := meta[customTypes].([]any)
	for _, entry := range slices.Concat(listed, more) {
		text, _ := entry.(string)
		t := protocol.Type(text)
		switch info, standard := protocol.Lookup(t); {
		case len(o.custom)+len(o.types) >= maxTypes+len(protocol.Types()):
			return
		case standard && info.Capability != protocol.CapCore && info.Direction == protocol.AgentRequest:
			o.types[info.Type] = t
		case isCustom(t):
			if _, taken := o.custom[t]; !taken {
				o.custom[t] = name
			}
		}
	}
}

// customNames lists the child's own types.
func (o *offer) customNames() []string {
	var names []string
	for _, t := range slices.Sorted(maps.Keys(o.custom)) {
		names = append(names, string(t))
	}
	return names
}

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

// pushes reports whether one of the sessions takes `env/state/push`.
func (s *session) pushes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.users, func(u *host.Session) bool { return u.Pushes })
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
	if slices.Contains(wanted, protocol.CapEnv) { // who gets the pushes is decided here
		wanted = append(slices.Clone(wanted), protocol.FlagEnvPush)
	}
	body, err := protocol.AppendJSON(nil, &protocol.HandshakeRequest{AgentID: agent, AgentCaps: wanted,
		AuthToken: p.opts.AuthToken.Reveal()})
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
