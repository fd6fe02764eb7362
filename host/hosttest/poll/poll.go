// Package poll has the functions for tests that wait or repeat. It imports no package of the host, so
// that the tests of all packages can use it.
package poll

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// Patience is how long a test waits for something that should happen soon, with enough time for a busy
// machine.
const Patience = time.Minute

// Eventually polls until a condition holds, and fails the test after Patience; what names the condition.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Within(t, Patience, what, ok)
}

// Within is like Eventually with another patience.
func Within(t testing.TB, patience time.Duration, what string, ok func() bool) {
	t.Helper()
	pause := 2 * time.Millisecond // grows, as a check may cost as much as the work it waits for
	for end := time.Now().Add(patience); !ok(); pause = min(pause*5/4, 50*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
		time.Sleep(pause)
	}
}

// Soak returns the number of repetitions of a test: that in the environment variable, else usual.
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
