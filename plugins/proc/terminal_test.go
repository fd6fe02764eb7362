//go:build linux || darwin

package proc

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

func terminalOf(cols, rows int) map[string]any {
	return map[string]any{"pty": true, "cols": cols, "rows": rows}
}

// TestTerminalSession: an agent can use an interactive program that needs a terminal.
func TestTerminalSession(t *testing.T) {
	s := newStage(t, DefaultOptions())
	p := s.spawn([]string{"python3", "-q", "-i", "-c", "import sys, os; sys.ps1='ask> '"},
		"metadata", map[string]any{"pty": true}, "env", map[string]any{"TERM": "dumb"})
	p.says("ask> ") // a prompt has no newline
	p.write("print([os.isatty(i) for i in range(3)], os.get_terminal_size(), os.ttyname(0) != '', "+
		"os.environ['TERM'])\n", false)
	p.says("[True, True, True] os.terminal_size(columns=80, lines=24) True dumb\r\nask> ")
	p.write("import time; print('runs' + 'on'); [time.sleep(0.01) for _ in iter(int, 1)]\n", false)
	p.says("runson\r\n")
	p.write("\x03", false)
	p.says("KeyboardInterrupt\r\nask> ")
	p.write("sys.exit(7)\n", false)
	assert.Equal(t, last(p.end()), "stderr code 7")
}

func TestTerminalSize(t *testing.T) {
	s := newStage(t, DefaultOptions())
	p := s.python(`
import os, signal, time
def show(*_): print(os.get_terminal_size().lines, os.get_terminal_size().columns)
signal.signal(signal.SIGWINCH, show)
show()
print(os.environ['TERM'])
while True: time.sleep(0.01)
`, "metadata", terminalOf(100, 30))
	p.says("30 100\r\nxterm-256color\r\n")
	for _, tc := range []struct {
		size map[string]any
		want string
	}{
		{map[string]any{"cols": 120, "rows": 40}, "40 120\r\n"},
		{map[string]any{"rows": 50}, "50 120\r\n"},
		{map[string]any{"cols": 65535}, "50 65535\r\n"},
	} {
		r := p.tryWrite("metadata", tc.size)
		assert.That(t, r.OK, "%+v", r)
		p.says(tc.want)
	}
	assert.Equal(t, p.dies(), "killed")
}

// TestTerminalEOF: the end of input is a character, so the terminal stays open after it.
func TestTerminalEOF(t *testing.T) {
	s := newStage(t, DefaultOptions())
	p := s.bash("stty -echo; echo ready; cat; echo first; cat; echo second", "metadata", terminalOf(0, 0))
	p.says("ready\r\n")
	p.write("one\n", true)
	p.says("first\r\n")
	p.write("two\n", true)
	assert.Contains(t, textOf(p.end()), "ready\r\none\r\nfirst\r\ntwo\r\nsecond\r\n")
}

// TestTerminalJobControl: job control works, as the shell controls its terminal.
func TestTerminalJobControl(t *testing.T) {
	s := newStage(t, DefaultOptions())
	p := s.spawn([]string{"bash", "--norc", "--noprofile", "-i"}, "metadata", terminalOf(80, 24), "env",
		map[string]any{"TERM": "dumb"})
	p.says("$ ")
	p.write("sh -c 'echo going-$((1+1)); exec sleep 1000'\n", false)
	p.says("going-2") // the job now owns the terminal; an earlier ^Z may stop the shell instead
	// only once: each ^Z drops pending output of the terminal, so a second one may drop the shell's
	// text
	p.write("\x1a", false)
	p.says("Stopped")
	p.write("kill %1; echo mine-$((40+2))\n", false)
	all := p.says("mine-42")
	assert.That(t, !strings.Contains(all, "no job control"), "%q", all)
	p.write("exit 0\nexit 0\n", false) // the first may only warn of jobs
	p.end()
}

// TestTerminalLateOutput: output that is there when the time for the last output ends is passed on,
// even if the terminal stays open.
func TestTerminalLateOutput(t *testing.T) {
	tty, slave, err := newTerminal(protocol.ProcTerminal{})
	must.OK(t, err)
	defer slave.Close()
	must.Get(slave.WriteString("last"))(t)
	conn := must.Get(tty.master.SyscallConn())(t)
	_ = conn.Control(func(fd uintptr) { // the kernel may take a while to pass the output on
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience/time.Millisecond))
	})
	must.OK(t, err, tty.master.SetReadDeadline(time.Unix(1, 0)))
	var got bytes.Buffer
	tty.copy(&got)
	assert.Equal(t, got.String(), "last")
	assert.OK(t, tty.master.Close())
}

// TestTerminalOutput: a terminal passes on binary output, and all output before the end. A terminal
// without stdin refuses writes.
func TestTerminalOutput(t *testing.T) {
	s := newStage(t, DefaultOptions())
	p := s.bash(`stty raw; printf 'a\xff\n'; seq 1 20000; printf 'last'`, "metadata", terminalOf(80, 24), "stdin_mode",
		"null")
	all := p.end()
	var got, want strings.Builder
	for _, e := range all {
		got.Write(e.output())
		assert.That(t, e.last() || e.Stream == protocol.StreamStdout, "a terminal has written to %s", e.Stream)
	}
	want.WriteString("a\xff\n")
	for i := range 20000 {
		fmt.Fprintln(&want, i+1)
	}
	want.WriteString("last")
	assert.That(t, got.String() == want.String(), "%d bytes came, of %d; they end in %q", got.Len(), want.Len(),
		protocol.Tail(got.String(), shownOutput))
	assert.That(t, slices.ContainsFunc(all, func(e event) bool { return e.Data.Base64 != nil }), "no base64")
	r := s.spawn([]string{"cat"}, "metadata", terminalOf(0, 0), "stdin_mode", "null").tryWrite("data", "x")
	assert.That(t, !r.OK, "%+v", r)
}
