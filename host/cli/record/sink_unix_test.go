//go:build unix

package record_test

import (
	"bufio"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/go-json-experiment/json"
	"golang.org/x/term"

	"a2e/host/cli/record"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/observe/event"
)

// TestSlowDisk: a disk that does not write does not stop the host. Lines that cannot wait for the disk are counted,
// and no other line is missing or out of order.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	master, slave, err := pty.Open() // holds some KiB until somebody reads
	must.OK(t, err)
	defer master.Close()
	defer slave.Close()
	must.Get(term.MakeRaw(int(slave.Fd())))(t)
	r := must.Get(record.Open(record.Options{Path: slave.Name(), Warn: func(string) {}}))(t)
	const lines, size = 120, 1 << 20
	to := event.New(nil).With(r, event.Out)
	for i := range lines {
		to.Take(event.Event{Kind: event.Out, Message: fmt.Appendf(nil, `{"i":%d,"text":"%s"}`, i,
			strings.Repeat("x", size))})
	}
	to.Take(event.Event{Kind: event.Out, Message: []byte(`{"i":-1}`)})
	out := bufio.NewReaderSize(master, 64<<10)
	must.Get(out.ReadString('\n'))(t) // the header
	seen, dropped := -1, int64(0)
	for n, last := int64(1), false; !last; n++ {
		line := must.Get(out.ReadBytes('\n'))(t)
		var e record.Entry
		must.OK(t, json.Unmarshal(line, &e))
		assert.Equal(t, e.N, n, "the number")
		if e.Dropped > 0 {
			dropped += e.Dropped
			seen += int(e.Dropped)
			continue
		}
		must.That(t, e.Msg != nil, "entry %d is not a message: %.200s", n, line)
		var m struct {
			I int `json:"i"`
		}
		must.OK(t, json.Unmarshal(e.Msg, &m))
		if last = m.I == -1; !last {
			assert.Equal(t, m.I, seen+1, "the line behind")
			seen = m.I
		}
	}
	assert.Equal(t, seen, lines-1, "lines that were recorded or counted")
	assert.That(t, dropped > 50 && dropped < lines, "%d lines were dropped", dropped)
	begun := time.Now()
	r.Close()
	t.Logf("closing took %v", time.Since(begun))
}
