package hosttest

import (
	"context"

	"a2e/host"
	"a2e/protocol"
)

// TypeProbe is the only request of a Probe.
const TypeProbe protocol.Type = "memory/probe/req"

// Probe is a plugin whose only request runs a function within the host.
type Probe struct {
	Do  func(context.Context) error
	Err error // the result of Do
}

// Info implements host.Plugin.
func (*Probe) Info() host.PluginInfo {
	return host.PluginInfo{Name: "probe", Capability: protocol.CapMemory}
}

// Routes implements host.Plugin.
func (p *Probe) Routes() []host.Route {
	return []host.Route{host.Handle(TypeProbe, func(ctx context.Context, _ *struct{}, _ host.Emitter) (*struct{},
		error,
	) {
		p.Err = p.Do(ctx)
		return &struct{}{}, nil
	})}
}

// Close implements host.Plugin.
func (*Probe) Close(context.Context) error { return nil }
