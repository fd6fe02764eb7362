package cli_test

import (
	"strings"
	"testing"
)

// What a child agent has done by a2e dispatch is done as that agent, one deeper.
func TestDispatchKeepsTheAgent(t *testing.T) {
	dir := workDir(t)
	t.Setenv("A2E_AGENT", `{"agent_id":"child","depth":1,"tool_scope":"shared","max_steps":3}`)
	results, stderr := dispatched(t, dir, `{"brief":"x"}`, 0, "-", "-w", "1", "--", "sh", "-c", `echo "$A2E_AGENT"`)
	if got := toldResults(results); !strings.Contains(got, `"agent_id":"child","depth":2`) || !strings.Contains(got, `"max_steps":3`) {
		t.Errorf("got %s, stderr %s", got, stderr)
	}
}
