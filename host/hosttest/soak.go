package hosttest

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"a2e/host/hosttest/poll"
)

// Soak is poll.Soak.
func Soak(t testing.TB, variable string, usual int) int {
	t.Helper()
	return poll.Soak(t, variable, usual)
}

// Checks limits the number of cases of rapid.Check in a test with slow cases, unless the
// flag -rapid.checks is set. The test must not run in parallel with others.
func Checks(t testing.TB, n int) {
	t.Helper()
	const name = "rapid.checks"
	f, given := flag.Lookup(name), false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if given {
		return
	}
	usual := f.Value.String()
	set := func(text string) {
		if err := f.Value.Set(text); err != nil {
			t.Fatal(err)
		}
	}
	set(strconv.Itoa(n))
	t.Cleanup(func() { set(usual) })
}

// Patience is poll.Patience.
const Patience = poll.Patience

// Eventually is poll.Eventually.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	poll.Eventually(t, what, ok)
}

// Running returns the number of processes of the machine that have the argument, from /proc.
func Running(t testing.TB, arg string) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		words, _ := os.ReadFile(file) // the process may have ended meanwhile
		if bytes.Contains(append([]byte{0}, words...), []byte("\x00"+arg+"\x00")) {
			n++
		}
	}
	return n
}
