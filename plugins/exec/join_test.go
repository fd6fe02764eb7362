package exec

import (
	"context"
	"testing"

	"a2e/host"
)

// A session that has ended does not come back by a request that was late: nobody would
// leave for it, and the next one would find what it left behind.
func TestEndedSessionsDoNotJoin(t *testing.T) {
	f := newField(t)
	p := f.plugin("x", "", Options{})
	s := newStage(t, p)
	s.must(s.tool("say", `{"text":"x"}`), "/data/data/text", "x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		sess := &host.Session{AgentID: "late"}
		if err := p.current().join(ctx, sess); err == nil || p.current().session.uses(sess) {
			t.Fatal("it joined")
		}
	}
}
