package host

import (
	"context"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// routed is a plugin with some routes.
type routed []Route

func (r routed) Info() PluginInfo {
	return PluginInfo{Name: "routed", Capability: protocol.CapTools}
}
func (r routed) Routes() []Route             { return r }
func (r routed) Close(context.Context) error { return nil }

// TestRoutersShareNoRoutes: all hosts share the protocol's table of types, but not the routes that the plugins of one
// host add to it.
func TestRoutersShareNoRoutes(t *testing.T) {
	serve := func(context.Context, *struct{}, Emitter) (*struct{}, error) { return new(struct{}), nil }
	own := Handle(protocol.TypeToolListReq, serve).InOrder(protocol.Claim{Key: "mine/"}).NoSlot()
	own.Response = "mine/resp"
	first := newRouter([]Plugin{routed{
		own, Handle("mine/req", serve), Handle(CatchAll, serve),
		Handle(protocol.TypePing, serve),
	}})
	second := newRouter(nil)
	known, _ := protocol.Lookup(protocol.TypeToolListReq)
	for _, c := range []struct {
		of               *router
		typ              protocol.Type
		routes, claims   int
		response         protocol.Type
		noSlot, answered bool
	}{
		{first, protocol.TypeToolListReq, 1, len(known.Order) + 1, "mine/resp", true, false},
		{second, protocol.TypeToolListReq, 0, len(known.Order), protocol.TypeToolListResp, false, false},
		{first, "mine/req", 1, 0, "mine/resp", false, false},
		{first, "other/req", 1, 0, "", false, false}, // the route of the catch-all
		{first, protocol.TypePing, 0, 0, protocol.TypePong, false, true},
		{second, protocol.TypePing, 0, 0, protocol.TypePong, false, true},
		{second, protocol.TypeMCPElicitResp, 0, 0, "", false, true},
	} {
		d := c.of.find([]byte(c.typ))
		assert.That(t, d != nil, "%s has no destination", c.typ)
		assert.Equal(t, len(d.routes), c.routes, "routes of %s", c.typ)
		assert.Equal(t, len(d.order), c.claims, "claims of %s", c.typ)
		assert.Equal(t, d.response, c.response, "the response of %s", c.typ)
		assert.Equal(t, d.noSlot, c.noSlot, "whether %s takes no slot", c.typ)
		assert.Equal(t, d.control != nil, c.answered, "whether the host answers %s", c.typ)
	}
	assert.That(t, second.find([]byte("mine/req")) == nil, "a host knows a type of the plugins of another")
}
