package exec

import (
	"cmp"
	"context"
	"maps"
	"slices"

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
	list  bool                        // answers of several plugins are put together
	feeds bool                        // messages with its id may follow the answer
	valid func(protocol.Object) error // does an answer fit? nil = it is not looked at
}

// merged says how the answers of several plugins to a request are put together.
func merged[Resp any](merge func(dst, src *Resp)) message {
	return message{
		list:  true,
		route: func(t protocol.Type, h handler) host.Route { return host.RawList(t, h, merge) },
		valid: func(obj protocol.Object) error { return protocol.Decode(obj, nil, new(Resp)) },
	}
}

// known says what is known of each request that an agent may send.
func known() map[protocol.Type]message {
	all := map[protocol.Type]message{
		protocol.TypeToolListReq:          merged(protocol.MergeTools),
		protocol.TypeToolkitListReq:       merged(protocol.MergeToolkits),
		protocol.TypeSkillDiscoverReq:     merged(protocol.MergeSkills),
		protocol.TypeProcStatusReq:        merged(protocol.MergeProcStatus),
		protocol.TypeLearnStatsReq:        merged(protocol.MergeLearnStats),
		protocol.TypeRefinementHistoryReq: merged(protocol.MergeRefinements),
		protocol.TypeMCPServerListReq:     merged(protocol.MergeMCPServers),
		protocol.TypePlanListReq:          merged(protocol.MergePlans),
		protocol.TypePlanBoardReq:         merged(protocol.MergeBoards),
		protocol.TypeTaskListReq:          merged(protocol.MergeTasks),
		protocol.TypeAgentListReq:         merged(protocol.MergeAgents),
		protocol.TypeSubagentListReq:      merged(protocol.MergeSubagents),
		protocol.TypeEnvExpListReq:        {list: true, route: env.RawExperiences},
		protocol.TypeMCPResourceListReq:   {list: true, route: host.Raw},
		protocol.TypeMCPPromptListReq:     {list: true, route: host.Raw},
	}
	for _, info := range protocol.Types() {
		if _, set := all[info.Type]; !set && isRequest(info) {
			all[info.Type] = message{route: host.Raw, feeds: feeds(info.Type)}
		}
	}
	return all
}

// isRequest reports whether a child may serve a type.
func isRequest(info protocol.Info) bool {
	return info.Capability != protocol.CapCore && info.Direction == protocol.AgentRequest
}

// feeds reports whether messages with the id of a request of a standard type may follow its answer.
func feeds(t protocol.Type) bool {
	switch t {
	case protocol.TypeEnvResetReq, protocol.TypeProcSpawnReq, protocol.TypeMCPServerRegisterReq,
		protocol.TypeMCPResourceSubscribeReq, protocol.TypeAgentDelegateReq, protocol.TypeSubagentDelegateReq,
		protocol.TypeAgentSpawnReq, protocol.TypeSubagentSpawnReq:
		return true
	}
	return false
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
	types    map[protocol.Type]bool                // standard requests
	custom   map[protocol.Type]protocol.Capability // its own; "" = of no capability that can be negotiated
	parallel int                                   // requests at once
}

// newOffer reads an answered handshake. The config may leave out capabilities, and add
// types.
func newOffer(resp *protocol.HandshakeResponse, opts *Options) *offer {
	o := &offer{
		types: make(map[protocol.Type]bool), custom: make(map[protocol.Type]protocol.Capability),
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
			if info.Capability == name && isRequest(info) {
				o.types[info.Type] = true
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
		case standard && isRequest(*info):
			o.types[info.Type] = true
		case isCustom(t):
			if _, taken := o.custom[t]; !taken {
				o.custom[t] = name
			}
		}
	}
}

// allows reports whether a session got the capability of a type of the child's own; one of
// no capability goes with any of the child's.
func (o *offer) allows(t protocol.Type, sess *host.Session) bool {
	if name := o.custom[t]; name != "" {
		return sess.Caps[name]
	}
	got := func(name protocol.Capability) bool { return sess.Caps[name] }
	return len(o.caps) == 0 || slices.ContainsFunc(o.caps, got)
}

// serves reports whether the child takes a type.
func (o *offer) serves(t protocol.Type) bool {
	_, own := o.custom[t]
	return own || o.types[t]
}

// customNames lists the child's own types.
func (o *offer) customNames() []string {
	var names []string
	for _, t := range slices.Sorted(maps.Keys(o.custom)) {
		names = append(names, string(t))
	}
	return names
}
