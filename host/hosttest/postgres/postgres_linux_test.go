package postgres

import (
	"testing"

	"a2e/host/hosttest/assert"
)

func TestStart(t *testing.T) {
	s := Start(t)
	s.Exec(t, "CREATE TABLE t (n int); INSERT INTO t VALUES (7)")
	assert.Equal(t, s.Exec(t, "SELECT n FROM t"), "7", "what was stored")
}
