package protocol_test

import (
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// TestCount: a count of one has the singular, not "1 operations".
func TestCount(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"1 operation":   protocol.Count(1, "operation"),
		"0 operations":  protocol.Count(0, "operation"),
		"2 entries":     protocol.Count(int64(2), "entry"),
		"2 days":        protocol.Count(2, "day"),
		"3 matches":     protocol.Count(uint64(3), "match"),
		"2 processes":   protocol.Count(2, "process"),
		"1 child agent": protocol.Count(1, "child agent"),
	} {
		assert.Equal(t, got, want)
	}
}
