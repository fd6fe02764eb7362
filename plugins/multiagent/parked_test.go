package multiagent

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// slowRunner is a plugin that runs programs, which end when the test says so.
type slowRunner struct{ begun, end chan struct{} }

func (r slowRunner) Info() host.PluginInfo {
	return host.PluginInfo{Name: "runner", Capability: protocol.CapProc}
}
func (r slowRunner) Routes() []host.Route        { return nil }
func (r slowRunner) Close(context.Context) error { return nil }

func (r slowRunner) RunProc(ctx context.Context, _ host.ProcRun) (*host.ProcResult, error) {
	r.begun <- struct{}{}
	select {
	case <-r.end:
		return &host.ProcResult{Stdout: "{}"}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Merges leave their place, so they have a bound of their own.
func TestTooManyMerges(t *testing.T) {
	r := slowRunner{make(chan struct{}, 1000), make(chan struct{})}
	opts := options(shell("w", "echo x"))
	opts.MergeCommand = []string{"merge"}
	s, _ := openStage(t, opts, Env{}, r)
	req := fmt.Sprintf(`{"subagent_ids":[%q],"strategy":"custom"}`, s.spawn("a", "", ""))
	var all []string
	for range maxMerges {
		all = append(all, s.Go(protocol.TypeSubagentMergeReq, req))
		<-r.begun
	}
	if m := s.refused(protocol.CodeOverloaded, protocol.TypeSubagentMergeReq, req); m.Get("/retryable") != "true" || !strings.Contains(m.Get("/message"), "merges") {
		t.Errorf("%s", m)
	}
	close(r.end)
	for _, id := range all {
		answered[protocol.SubagentMergeResponse](s, protocol.TypeSubagentMergeReq, id)
	}
	ask[protocol.SubagentMergeResponse](s, protocol.TypeSubagentMergeReq, req)
}

// The answer to a cancel waits for the end of the task only as long as not too many wait.
func TestStopsDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plugin, g, tasks := new(Plugin), &group{waits: maxWaits}, []*job{{done: make(chan struct{})}}
		start := time.Now()
		plugin.settled(t.Context(), g, tasks)
		if waited := time.Since(start); waited != 0 || g.waits != maxWaits {
			t.Errorf("beside others it waits for %s; %d wait", waited, g.waits)
		}
		g.waits--
		plugin.settled(t.Context(), g, tasks)
		if waited := time.Since(start); waited != stopWait || g.waits != maxWaits-1 {
			t.Errorf("it waits for %s; %d wait", waited, g.waits)
		}
	})
}

// openStage is newStage with the plugin at hand.
func openStage(t *testing.T, opts Options, env Env, more ...host.Plugin) (*stage, *Plugin) {
	t.Helper()
	dir := t.TempDir()
	plugin := newPlugin(t, dir, opts, env)
	s := &stage{t: t, dir: dir, Pair: hosttest.New(t, host.Options{Plugins: append(more, plugin)})}
	s.Handshake()
	return s, plugin
}

// childOf gives a child of any session.
func (p *Plugin) childOf(t *testing.T, id string) *subagent {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.groups {
		if c := g.children[id]; c != nil {
			return c
		}
	}
	t.Fatalf("no child %s", id)
	return nil
}
