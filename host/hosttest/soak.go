package hosttest

import (
	"flag"
	"os"
	"strconv"
	"testing"
)

// Soak gives how often a test does its thing: as often as the variable says, else as usual.
// `make soak` sets such variables.
func Soak(t testing.TB, variable string, usual int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q; should be a number from 1", variable, text)
	}
	return n
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
