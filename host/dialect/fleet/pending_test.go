package fleet_test

import (
	"fmt"
	"strings"
	"testing"

	front "a2e/host/dialect/fleet"
)

// TestPendingInOrder: tasks that wait for the same MCP server to connect start in the order
// in which they came, when it has.
func TestPendingInOrder(t *testing.T) {
	workers := &pool{}
	l := openLab(t, workers, front.Options{}, shortly, long, long)
	l.kit.set("connecting", "connecting")
	var lines strings.Builder
	var want []string
	for i := range 30 {
		want = append(want, fmt.Sprint("t", i))
		lines.WriteString(needing(want[i], `{"required_mcp":["up"]}`, "") + "\n")
	}
	l.SendRaw(lines.String() + needing("last", `{"required_mcp":["down"]}`, "") + "\n")
	result(l.Pair, "last") // all have been looked at
	l.kit.set("ready", "connected")
	for _, id := range want {
		result(l.Pair, id)
	}
	if got := workers.order(); got != strings.Join(want, " ") {
		t.Errorf("the order was %s", got)
	}
}
