package proc

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"a2e/host/hosttest"
	"a2e/protocol"
)

func TestWrites(t *testing.T) {
	s := newStage(t, DefaultOptions())
	p := s.spawn([]string{"cat"})
	p.write("one\n", false)
	p.says("one\n") // it answers while it runs
	p.write("", false)
	p.write("tw", false)
	p.write("o\n", true)
	if got := texts(p.end()); !slices.Equal(got, []string{"stdout one", "stdout two", "stdout code 0"}) {
		t.Errorf("%q", got)
	}
	m := s.Call(protocol.TypeProcWriteReq, fields(t, "proc_id", p.id, "data", "x"))
	if m.Code != protocol.CodeProcDead || !strings.Contains(m.Get("/message"), "completed") {
		t.Errorf("to a dead one: %s", m.Line)
	}
	m = s.Call(protocol.TypeProcWriteReq, `{"proc_id":"p0","data":"x"}`)
	if m.Code != protocol.CodeUnknownProc {
		t.Errorf("to an unknown one: %s", m.Line)
	}
}

func TestRefusedWrites(t *testing.T) {
	s := newStage(t, DefaultOptions())
	nobody := s.bash("sleep 1000", "stdin_mode", "null")
	if r := nobody.tryWrite("data", "x"); r.OK || !strings.Contains(r.Error, `stdin_mode "null"`) || r.PID != nobody.pid {
		t.Errorf("without stdin: %+v", r)
	}
	ended := s.bash("cat; echo eof; sleep 1000")
	ended.write("", true)
	ended.says("eof\n")
	for _, more := range [][]any{{"data", "x"}, {"eof", true}} {
		if r := ended.tryWrite(more...); r.OK || !strings.Contains(r.Error, "eof") {
			t.Errorf("after eof: %+v", r)
		}
	}
	if r := ended.tryWrite("metadata", map[string]int{"cols": 10, "rows": 10}); r.OK || !strings.Contains(r.Error, "no terminal") {
		t.Errorf("a size: %+v", r)
	}
	m := s.Call(protocol.TypeProcWriteReq, fields(t, "proc_id", ended.id, "metadata", map[string]int{"cols": -10}))
	if m.Code != protocol.CodeSchemaViolation || m.Problem() != "/metadata/cols" {
		t.Errorf("a wrong size: %s", m.Line)
	}
	closed := s.bash("exec <&-; echo closed; sleep 1000")
	closed.says("closed\n")
	hosttest.Eventually(t, "a refused write", func() bool {
		r := closed.tryWrite("data", "x")
		return !r.OK && strings.Contains(r.Error, "closed its stdin")
	})
}

// Input that a process does not read waits within bounds; one write, however
// large, always finds room when nothing waits. Meanwhile the host answers.
func TestStdinIsBounded(t *testing.T) {
	s := newStage(t, DefaultOptions())
	// It reads nothing until it is told to, by a signal.
	p := s.bash("trap 'wc -c; exit' USR1; echo ready; while :; do sleep 0.01; done")
	p.says("ready\n")
	chunk := strings.Repeat("x", 1<<20)
	p.write(strings.Repeat(chunk, 15), false)
	taken := 15
	var refused protocol.ProcWriteResponse
	for ; taken < 40; taken++ {
		if refused = p.tryWrite("data", chunk); !refused.OK {
			break
		}
	}
	if taken < 16 || taken > 18 || !strings.Contains(refused.Error, "stdin is full") {
		t.Errorf("%d MiB taken, then %+v", taken, refused)
	}
	if m := s.Call(protocol.TypePing, `{}`); m.Type != protocol.TypePong {
		t.Errorf("%s", m.Line)
	}
	p.kill("SIGUSR1")
	hosttest.Eventually(t, "room for the end", func() bool { return p.tryWrite("eof", true).OK })
	if got := texts(p.end()); !slices.Contains(got, fmt.Sprintf("stdout %d", taken<<20)) {
		t.Errorf("%q, of %d MiB written", got, taken)
	}
	deaf := s.bash("sleep 1000")
	deaf.write(chunk, false)
	if r := deaf.kill("SIGKILL"); !r.OK || r.State != protocol.ProcKilled {
		t.Errorf("%+v", r)
	}
}
