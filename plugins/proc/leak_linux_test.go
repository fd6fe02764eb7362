package proc

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
)

// descriptors counts the open files of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// Processes that have ended, or never began, leave no file and no goroutine.
func TestNothingIsLeft(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close forgotten files
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
	cycle() // what is made once
	files, goes := descriptors(t), runtime.NumGoroutine()
	for range 8 {
		cycle()
	}
	poll(t, "as many files and goroutines as before", func() bool {
		return descriptors(t) <= files && runtime.NumGoroutine() <= goes
	})
}
