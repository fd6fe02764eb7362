package fleet_test

import (
	"testing"

	front "a2e/host/dialect/fleet"
	"a2e/protocol/fleet"
)

// TestFirstTaskIsBlocked: who sends a task that cannot be done here learns first, and once,
// what can; but not who has no token, or sends what is no task.
func TestFirstTaskIsBlocked(t *testing.T) {
	for name, c := range map[string]struct {
		line  string
		state string // of the server up
		want  int    // announces
	}{
		"no such server":   {needing("ID", `{"required_mcp":["gone"]}`, ""), "connected", 1},
		"no such tool":     {needing("ID", `{"required_capabilities":["fly"]}`, ""), "connected", 1},
		"too late":         {dispatch("ID", "", `,"deadline":"2001-01-01T00:00:00Z"`), "connected", 1},
		"a mute server":    {needing("ID", `{"required_mcp":["up"]}`, ""), "connecting", 1},
		"without a token":  {dispatch("ID", "", `,"auth_token":"wrong"`), "connected", 0},
		"another version":  {`{"type":"TASK_DISPATCH","task":{"task_id":"ID"},"brief":"x"}`, "connected", 0},
		"does not decode":  {`{"type":"TASK_DISPATCH","task":{"task_id":"ID","token_budget":"x"}}`, "connected", 0},
		"a wrong priority": {dispatch("ID", "asap", ""), "connected", 0},
	} {
		t.Run(name, func(t *testing.T) {
			opts := front.Options{}
			if name == "without a token" {
				opts.Tokens = tokens("secret")
			}
			l := openLab(t, &pool{}, opts, shortly, shortly, long)
			if c.state == "connecting" {
				l.kit.set("connecting", c.state)
			}
			for i := range 2 {
				l.SendRaw(c.line + "\n")
				m := resultNo(t, l.Pair, "ID", i+1)
				if m.Get("/status") != "blocked" || len(announces(l.Pair)) != c.want {
					t.Fatalf("%d announces, want %d, with %s", len(announces(l.Pair)), c.want, m.Line)
				}
			}
			if first := l.Messages()[0]; c.want > 0 && (first.Type != fleet.TypeAnnounce || first.Get("/session/session_fresh") != "true" || first.Get("/session/active_tasks") != "0") {
				t.Errorf("first came %s", first.Line)
			}
		})
	}
}
