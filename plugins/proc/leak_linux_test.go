package proc

import (
	"os"
	"runtime/debug"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
)

// TestNothingIsLeft: a process that has ended, or that could not start, leaves no file open.
func TestNothingIsLeft(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the garbage collector would close forgotten files
	open := func() int {
		entries := must.Get(os.ReadDir("/proc/self/fd"))(t)
		return len(entries)
	}
	s := newStage(t, DefaultOptions())
	cycle := func() {
		s.bash("cat; echo x", "stdin_mode", "null").end()
		p := s.spawn([]string{"cat"})
		p.write("x\n", true)
		p.end()
		s.bash("echo x", "metadata", terminalOf(80, 24)).end()
		q := s.spawn([]string{"cat"}, "metadata", terminalOf(80, 24))
		q.kill("SIGKILL")
		q.end()
		s.Call("proc/spawn/req", `{"cmd":["cat"],"cwd":"missing","metadata":{"pty":true}}`)
		s.Call("proc/spawn/req", `{"cmd":["cat"],"env":{"LD_PRELOAD":"x"}}`)
	}
	cycle() // opens the files that stay open
	before := open()
	for range 8 {
		cycle()
	}
	hosttest.Eventually(t, "as many open files as before", func() bool { return open() <= before })
}
