package tools

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// setter is a plugin that keeps settings.
type setter map[string]any

func (s setter) Info() host.PluginInfo { return host.PluginInfo{Name: "setter"} }

func (s setter) Routes() []host.Route { return nil }

func (s setter) Close(context.Context) error { return nil }

func (s setter) Setting(kind, component, name string) any { return s[kind+" "+component+" "+name] }

// What a tool is set to by a refinement takes the place of what it says itself.
func TestSettingsOfTools(t *testing.T) {
	waits := func(ctx context.Context, _ protocol.Object, _ host.Emitter) (*Outcome, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	slow, shown, hidden := made("slow", waits), made("shown", waits), made("hidden", waits)
	hidden.Def.DeferLoading = true
	names := func(p *hosttest.Pair, fields string) string {
		var resp protocol.ToolListResponse
		p.Call(protocol.TypeToolListReq, fields).Decode(t, &resp)
		var words []string
		for _, d := range resp.Tools {
			words = append(words, fmt.Sprintf("%s:%t", d.Name, d.DeferLoading))
		}
		return strings.Join(words, " ")
	}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{withTools(t, Options{}, slow, shown, hidden), setter{
		"tool shown deferred": true, "tool hidden deferred": false, "tool slow timeout": 0.05, "skill slow deferred": true,
	}}})
	p.Handshake(protocol.CapTools)
	if got := names(p, `{}`); got != "hidden:false slow:false" {
		t.Errorf("listed are %s", got)
	}
	if got := names(p, `{"include_deferred":true}`); got != "hidden:false shown:true slow:false" {
		t.Errorf("with the deferred ones: %s", got)
	}
	if m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"slow","arguments":{}}`); m.Code != protocol.CodeTimeout || !strings.Contains(m.Get("/message"), "its own limit of 50ms") {
		t.Errorf("%s", m.Line)
	}
}
