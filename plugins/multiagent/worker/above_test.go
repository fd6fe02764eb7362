package worker

import (
	"context"
	"strings"
	"testing"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// Nobody has a task done as one of those above: their memory is not its own.
func TestNoTaskAsOneAbove(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", "true"))
	s.env.Agent = &fleet.Agent{AgentID: "me", ParentAgentID: "boss", RootAgentID: "root", ToolScope: protocol.ToolsShared}
	for id, refused := range map[string]bool{"boss": true, "root": true, "child": false} {
		task := brief("t", "")
		task.Agent = scope(id, protocol.ToolsShared, 0)
		if _, err := s.RunTask(context.Background(), task); (err != nil) != refused || refused && !strings.Contains(err.Error(), "/agent/agent_id") {
			t.Errorf("%s: %v", id, err)
		}
	}
}
