package plugins

import (
	"context"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// toolbox is a plugin with one tool.
type toolbox struct {
	name string
	cap  protocol.Capability
	also []protocol.Capability
}

func (b toolbox) Info() host.PluginInfo {
	return host.PluginInfo{Name: b.name, Capability: b.cap, Also: b.also}
}

func (b toolbox) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeToolCallReq, func(_ context.Context, r *protocol.ToolCallRequest,
			_ host.Emitter,
		) (*protocol.ToolCallResponse, error) {
			if r.ToolName != b.name {
				return nil, host.NotOwner(protocol.Errorf(protocol.CodeUnknownTool, "there is no tool %q", r.ToolName))
			}
			return &protocol.ToolCallResponse{}, nil
		}),
		host.Handle(protocol.TypePlanListReq, func(context.Context, *protocol.PlanListRequest,
			host.Emitter,
		) (*protocol.PlanListResponse, error) {
			return &protocol.PlanListResponse{}, nil
		}),
	}
}

func (toolbox) Close(context.Context) error { return nil }

// TestStepsAreCalls: a call is one step, however many plugins are asked for its tool. A call of a tool that no plugin
// has is not a step.
func TestStepsAreCalls(t *testing.T) {
	within := newScope(&fleet.Agent{AgentID: "c", ToolScope: protocol.ToolsShared, MaxSteps: 2})
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{
		within.confine(toolbox{name: "first", cap: protocol.CapTools}),
		within.confine(toolbox{name: "second", cap: protocol.CapToolkits}),
	}})
	p.Handshake()
	for _, c := range []struct {
		tool string
		code protocol.ErrorCode
	}{{"second", ""}, {"none", protocol.CodeUnknownTool}, {"second", ""}, {"first", protocol.CodeToolDenied}} {
		m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"`+c.tool+`","arguments":{}}`)
		assert.Equal(t, m.Code, c.code, "%s: %s", c.tool, m)
	}
}

// TestScopeOfAPluginOfManyCapabilities: a plugin that serves several capabilities has those that are granted to the
// agent, and not the others.
func TestScopeOfAPluginOfManyCapabilities(t *testing.T) {
	within := newScope(&fleet.Agent{
		AgentID: "c", ToolScope: protocol.ToolsRestricted,
		Capabilities: []string{"planning"},
	})
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{within.confine(toolbox{
		name: "exec",
		also: []protocol.Capability{protocol.CapPlanning, protocol.CapSkill},
	})}})
	m := p.Handshake()
	assert.That(t, m.Get("/accepted_caps/0/enabled") == "false" && m.Get("/accepted_caps/10/enabled") == "true", "%s",
		m)
	if m := p.Call(protocol.TypePlanListReq, `{}`); m.Code != "" {
		t.Errorf("%s", m)
	}
}
