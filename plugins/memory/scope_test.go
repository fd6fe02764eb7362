package memory

import (
	"context"
	"testing"

	"a2e/host"
	"a2e/protocol"
)

// probe is a plugin whose one request runs a function.
type probe struct {
	do  func(context.Context) error
	err error // what it gave
}

func (*probe) Info() host.PluginInfo {
	return host.PluginInfo{Name: "probe", Capability: protocol.CapMemory}
}

func (p *probe) Routes() []host.Route {
	return []host.Route{host.Handle("memory/probe/req", func(ctx context.Context, _ *struct{}, _ host.Emitter) (*struct{}, error) {
		p.err = p.do(ctx)
		return &struct{}{}, nil
	})}
}

func (*probe) Close(context.Context) error { return nil }

func TestScopesOfChildAgents(t *testing.T) {
	st, c := file(t), newClock()
	probe := &probe{}
	parent := newAgent(t, st, "parent", DefaultOptions(), c, probe)
	parent.store(one(1, "episodic", "the launch code is blue"), one(2, "working", "today is rainy"), one(3, "semantic", "water is wet"))
	set := func(child string, scope protocol.MemoryScope) error {
		probe.do = func(ctx context.Context) error {
			memory := host.ServicesOf(ctx).Memory()
			if memory == nil {
				t.Fatal("the host has no plugin that scopes memory")
			}
			return memory.ScopeMemory(ctx, child, scope)
		}
		parent.Call("memory/probe/req", `{}`)
		return probe.err
	}
	for child, scope := range map[string]protocol.MemoryScope{"sharing": protocol.MemoryShared, "alone": protocol.MemoryIsolated, "copying": protocol.MemorySnapshot} {
		if err := set(child, scope); err != nil {
			t.Fatalf("%s: %v", child, err)
		}
	}
	sharing, alone, copying := newAgent(t, st, "sharing", DefaultOptions(), c), newAgent(t, st, "alone", DefaultOptions(), c), newAgent(t, st, "copying", DefaultOptions(), c)
	sharing.want("shared", `{"tier":"episodic"}`, `{"n":1}`)
	alone.want("isolated", `{"tier":"episodic"}`, ``)
	copying.want("snapshot", `{"tier":"episodic"}`, `{"n":2} {"n":1}`)
	copying.want("snapshot, searched", `{"query":"launch code","tier":"episodic"}`, `{"n":1}`)
	for _, child := range []*agent{sharing, alone, copying} {
		child.want("the semantic tier is all agents'", `{"tier":"semantic"}`, `{"n":3}`)
	}
	sharing.store(one(10, "episodic", "by the sharing child"))
	copying.store(one(11, "episodic", "by the copying child"))
	copying.forget(`{"keys":[{"n":1}]}`)
	parent.want("the parent", `{"tier":"episodic"}`, `{"n":10} {"n":1}`)
	if err := set("sharing", protocol.MemoryIsolated); err != nil {
		t.Fatal(err)
	}
	sharing.want("isolated after all", `{"tier":"episodic"}`, ``)
	for _, wrong := range []struct {
		child string
		scope protocol.MemoryScope
	}{{"", protocol.MemoryShared}, {"parent", protocol.MemoryIsolated}, {"x", "borrowed"}} {
		if err := set(wrong.child, wrong.scope); err == nil {
			t.Errorf("%+v gave no error", wrong)
		}
	}
}
