package host_test

import (
	"context"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// asker is a plugin that keeps the session of the last request, so that the test can ask its agent later.
type asker struct {
	life context.Context
	sess *host.Session
}

func (k *asker) Info() host.PluginInfo {
	return host.PluginInfo{Name: "asker", Capability: protocol.CapTest}
}
func (k *asker) Close(context.Context) error { return nil }

func (k *asker) Routes() []host.Route {
	type empty struct{}
	return []host.Route{host.Handle("keep/req", func(ctx context.Context, _ *empty, _ host.Emitter) (*empty, error) {
		k.life, k.sess = context.WithoutCancel(ctx), host.SessionFrom(ctx)
		return &empty{}, nil
	})}
}

// TestAskAfterTheSession: a question for an agent whose session has ended is not sent to the next agent on the same
// pipe.
func TestAskAfterTheSession(t *testing.T) {
	k := new(asker)
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{k}})
	p.Handshake(protocol.CapTest)
	p.Call("keep/req", `{}`)
	p.Handshake(protocol.CapTest)
	err := host.ServicesOf(host.InSession(k.life, k.sess)).Ask(host.InSession(k.life, k.sess),
		protocol.TypeMCPRootListReq, struct{}{}, nil)
	assert.Fails(t, err, "ended", "the question was asked")
	for _, m := range p.Messages() {
		assert.That(t, m.Type != protocol.TypeMCPRootListReq, "the next agent was asked: %s", m)
	}
}
