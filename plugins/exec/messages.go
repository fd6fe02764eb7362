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

// handler answers a request with the body of the answer.
type handler = func(context.Context, protocol.Object, host.Emitter) (jsontext.Value, error)

// message has what the plugin knows about one request type beyond the protocol's table.
type message struct {
	route func(protocol.Type, handler) host.Route
	list  bool                        // answers of several plugins are merged
	feeds bool                        // messages with its id may follow the answer
	valid func(protocol.Object) error // checks an answer; nil = answers are not checked
}

// merged returns the message of a request whose answers from several plugins are merged.
func merged[Resp any](merge func(dst, src *Resp)) message {
	return message{
		list:  true,
		route: func(t protocol.Type, h handler) host.Route { return host.RawList(t, h, merge) },
		valid: func(obj protocol.Object) error { return protocol.Decode(obj, nil, new(Resp)) },
	}
}

// known returns the message of each request type that a child may serve.
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

// The entries of a capability's metadata that name message types: all types, or those in addition
// to the standard ones.
const (
	allTypes    = "types"
	customTypes = "custom_types"
)

// offer is what a child serves, as its handshake says.
type offer struct {
	caps     []protocol.Capability
	types    map[protocol.Type]bool                // standard requests
	custom   map[protocol.Type]protocol.Capability // its own types; "" = of no capability that can be negotiated
	parallel int                                   // requests at once
}

// newOffer makes the offer from the answer to a handshake. The config may leave out capabilities and
// add types.
func newOffer(resp *protocol.HandshakeResponse, opts *Options) *offer {
	o := &offer{
		types: make(map[protocol.Type]bool), custom: make(map[protocol.Type]protocol.Capability),
		parallel: min(max(cmp.Or(opts.MaxParallel, resp.MaxParallel), 1), maxSlots),
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

// take adds the types of one capability.
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

// allows reports whether a session may use a type of the child's own: it needs the capability of the type, or, if
// the type has none, any capability of the child.
func (o *offer) allows(t protocol.Type, sess *host.Session) bool {
	if name := o.custom[t]; name != "" {
		return sess.Caps[name]
	}
	got := func(name protocol.Capability) bool { return sess.Caps[name] }
	return len(o.caps) == 0 || slices.ContainsFunc(o.caps, got)
}

// serves reports whether the child serves a type.
func (o *offer) serves(t protocol.Type) bool {
	_, own := o.custom[t]
	return own || o.types[t]
}

// customNames returns the names of the child's own types, sorted.
func (o *offer) customNames() []string {
	var names []string
	for _, t := range slices.Sorted(maps.Keys(o.custom)) {
		names = append(names, string(t))
	}
	return names
}
