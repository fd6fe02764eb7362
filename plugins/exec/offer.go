package exec

import (
	"cmp"
	"maps"
	"slices"

	"a2e/protocol"
)

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
