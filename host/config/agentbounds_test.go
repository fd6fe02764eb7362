package config

import (
	"strings"
	"testing"
)

// A child agent without a depth that makes sense would have children without end.
func TestAgentBelowZero(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		`{"agent_id":"a","tool_scope":"shared","depth":2,"max_steps":3}`: true,
		`{"agent_id":"a","tool_scope":"shared","depth":-2}`:              false,
		`{"agent_id":"a","tool_scope":"shared","max_steps":-1}`:          false,
	} {
		agent, err := agentOf(env("A2E_AGENT", text))
		if (err == nil) != ok || (agent != nil) != ok || !ok && !strings.Contains(err.Error(), "negative") {
			t.Errorf("%s: %v, %v", text, agent, err)
		}
	}
}
