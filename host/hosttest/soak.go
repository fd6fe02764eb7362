package hosttest

import (
	"a2e/host/hosttest/poll"
	"flag"
	"strconv"
	"testing"
)

// Soak is poll.Soak.
func Soak(t testing.TB, variable string, usual int) int {
	t.Helper()
	return poll.Soak(t, variable, usual)
}

// Checks bounds how many cases rapid.Check tries in a test whose cases are slow; where the
// flag -rapid.checks is given, that stands. The test must not run beside others.
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
