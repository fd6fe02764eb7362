package host_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// patient is a plugin whose lists release their slot and then wait for the next plan/create/req.
type patient struct{ begin chan struct{} }

func (p patient) Info() host.PluginInfo {
	return host.PluginInfo{Name: "patient", Capability: protocol.CapPlanning}
}

func (p patient) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypePlanListReq, func(ctx context.Context, _ *protocol.PlanListRequest,
			_ host.Emitter,
		) (*protocol.PlanListResponse, error) {
			for range 2 {
				host.ReleaseSlot(ctx)
			}
			select {
			case <-p.begin:
				return &protocol.PlanListResponse{}, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}).InOrder(protocol.Claim{Key: "value/", Access: protocol.Shared}),
		host.Handle(protocol.TypePlanCreateReq, func(context.Context, *protocol.PlanCreateRequest,
			host.Emitter,
		) (*protocol.PlanCreateResponse, error) {
			p.begin <- struct{}{}
			return &protocol.PlanCreateResponse{Success: true}, nil
		}).InOrder(protocol.Claim{Key: "value/", Access: protocol.Exclusive}),
		host.Handle(protocol.TypePlanBoardReq, func(ctx context.Context, _ *protocol.PlanBoardRequest,
			_ host.Emitter,
		) (*protocol.PlanBoardResponse, error) {
			return &protocol.PlanBoardResponse{}, host.ServicesOf(ctx).Call(ctx, protocol.TypePlanListReq, struct{}{},
				nil, nil)
		}),
	}
}

func (p patient) Close(context.Context) error { return nil }

// TestLeave: a request that has released its slot delays no other request, neither by max_parallel nor by the order
// of its capability. It can be cancelled, and the host waits for it at the end.
func TestLeave(t *testing.T) {
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{patient{make(chan struct{})}}, MaxParallel: 1})
	p.Handshake(protocol.CapPlanning)
	var waiting []string
	for range 3 {
		waiting = append(waiting, p.Go(protocol.TypePlanListReq, `{}`))
	}
	dropped := p.Go(protocol.TypePlanListReq, `{}`)
	p.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, dropped))
	wantCode(t, p.Answer(dropped), protocol.CodeCancelled)
	for range 2 {
		wantCode(t, p.Call(protocol.TypePlanCreateReq, `{}`), "")
	}
	last := p.Go(protocol.TypePlanCreateReq, `{}`)
	p.CloseInput()
	assert.OK(t, p.WaitEnd())
	for _, id := range append(waiting, last) {
		wantCode(t, p.Answer(id), "")
	}
}

// TestLeaveEndsWithTheSession: a new handshake cancels requests that have released their slot, because they may wait
// for ever.
func TestLeaveEndsWithTheSession(t *testing.T) {
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{patient{make(chan struct{})}}})
	p.Handshake(protocol.CapPlanning)
	waiting := p.Go(protocol.TypePlanListReq, `{}`)
	p.Handshake(protocol.CapPlanning).Has(t, "/ok", "true")
	m := p.Answer(waiting)
	assert.That(t, m.Code == protocol.CodeCancelled && strings.Contains(m.Get("/message"), "handshake"), "%s", m)
	left := p.Go(protocol.TypePlanListReq, `{}`)
	p.Call(protocol.TypePlanCreateReq, `{}`)
	wantCode(t, p.Answer(left), "")
}

// TestLeaveWhenAHandshakeWaits: a new handshake also cancels a request that releases its slot only after the
// handshake was sent.
func TestLeaveWhenAHandshakeWaits(t *testing.T) {
	begin := make(chan struct{})
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{patient{begin}}, MaxParallel: 1})
	p.Handshake(protocol.CapPlanning)
	first, second := p.Go(protocol.TypePlanCreateReq, `{}`), p.Go(protocol.TypePlanListReq, `{}`)
	p.Send(hosttest.Request(protocol.TypeHandshakeReq, "again", `{"agent_caps":["planning"]}`))
	p.Call(protocol.TypePing, `{}`)
	<-begin
	wantCode(t, p.Answer(first), "")
	wantCode(t, p.Answer(second), protocol.CodeCancelled)
	p.Answer("again").Has(t, "/ok", "true")
}

// TestLeaveWithinACall: in a nested Call, ReleaseSlot does not release the slot of the caller, which still needs it.
func TestLeaveWithinACall(t *testing.T) {
	begin := make(chan struct{})
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{patient{begin}}, MaxParallel: 1})
	p.Handshake(protocol.CapPlanning)
	id := p.Go(protocol.TypePlanBoardReq, `{}`)
	next := p.Go(protocol.TypePlanCreateReq, `{}`)
	p.Call(protocol.TypePing, `{}`)
	begin <- struct{}{}
	wantCode(t, p.Answer(id), "")
	assert.That(t, len(p.Answers(next)) <= 0, "the next request got a slot that was not free")
	<-begin
	wantCode(t, p.Answer(next), "")
}

// deaf is a plugin whose lists release their slot and do not stop when they are cancelled.
type deaf struct{ end chan struct{} }

func (p deaf) Info() host.PluginInfo {
	return host.PluginInfo{Name: "deaf", Capability: protocol.CapPlanning}
}

func (p deaf) Routes() []host.Route {
	return []host.Route{host.Handle(protocol.TypePlanListReq, func(ctx context.Context, _ *protocol.PlanListRequest,
		_ host.Emitter,
	) (*protocol.PlanListResponse, error) {
		host.ReleaseSlot(ctx)
		<-p.end
		return &protocol.PlanListResponse{}, nil
	})}
}

func (p deaf) Close(context.Context) error { return nil }

// TestLeaveAndStay: a handshake does not wait for a cancelled request that has released its slot and does not stop.
// When that request ends later, the slots of other requests do not change.
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
