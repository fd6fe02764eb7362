package host_test

import (
	"context"
	"fmt"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// deaf is a plugin whose lists leave their place and do not stop when they should.
type deaf struct{ end chan struct{} }

func (p deaf) Info() host.PluginInfo {
	return host.PluginInfo{Name: "deaf", Capability: protocol.CapPlanning}
}

func (p deaf) Routes() []host.Route {
	return []host.Route{host.Handle(protocol.TypePlanListReq, func(ctx context.Context, _ *protocol.PlanListRequest, _ host.Emitter) (*protocol.PlanListResponse, error) {
		host.ReleaseSlot(ctx)
		<-p.end
		return &protocol.PlanListResponse{}, nil
	})}
}

func (p deaf) Close(context.Context) error { return nil }

// A request that left its place and does not stop is given up like any other: a handshake
// does not wait for it, and its end takes nothing from others.
func TestLeaveAndStay(t *testing.T) {
	plugin := deaf{make(chan struct{})}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}, MaxParallel: 1})
	p.Handshake()
	for range 3 {
		stuck := p.Go(protocol.TypePlanListReq, `{}`)
		p.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, stuck))
		wantCode(t, p.Answer(stuck), protocol.CodeCancelled)
	}
	p.Handshake().Has(t, "/ok", "true")
	close(plugin.end)
	wantCode(t, p.Call(protocol.TypePlanListReq, `{}`), "")
	p.Handshake().Has(t, "/ok", "true")
}
