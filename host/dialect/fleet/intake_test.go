package fleet

import (
	"fmt"
	"sync/atomic"
	"testing"

	"a2e/protocol"
)

// counted is an output that counts lines.
type counted struct{ lines atomic.Int64 }

func (c *counted) Send([]byte) { c.lines.Add(1) }

// TestIntakeLetsGo: what intake has looked at is not held by the list that it stood in.
func TestIntakeLetsGo(t *testing.T) {
	f, out := New(Options{}), new(counted)
	const tasks = 100
	for i := range tasks {
		line := new(protocol.Line)
		if err := line.Scan(fmt.Appendf(nil, `{"type":"TASK_DISPATCH","protocol_version":"9","task":{"task_id":"t%d"},"brief":"x"}`, i)); err != nil {
			t.Fatal(err)
		}
		f.Take(line)
	}
	list := f.incoming
	f.Open(t.Context(), out)
	f.Drain(t.Context())
	if n := out.lines.Load(); n != tasks || len(list) != tasks {
		t.Fatalf("%d tasks were taken in, %d answered", len(list), n)
	}
	for i, it := range list {
		if it.task != nil {
			t.Fatalf("task %d is still held", i)
		}
	}
}
