package hosttest

import (
	"context"

	"a2e/host"
)

// Overrides is a plugin that has overrides of components, by kind and name.
type Overrides map[string]map[string]*host.Override

// Info implements host.Plugin.
func (o Overrides) Info() host.PluginInfo { return host.PluginInfo{Name: "overrides"} }

// Routes implements host.Plugin.
func (o Overrides) Routes() []host.Route { return nil }

// Close implements host.Plugin.
func (o Overrides) Close(context.Context) error { return nil }

// Overrides implements host.Overrider.
func (o Overrides) Overrides(kind string) map[string]*host.Override { return o[kind] }
