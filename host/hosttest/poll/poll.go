// Package poll is what every test uses that waits or repeats. It imports nothing of the host, so
// that the tests of the packages below it can use it too.
package poll

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// Patience is how long a test waits for what should come soon: what is not there by then
// never comes, on a busy machine as well.
const Patience = time.Minute

// Eventually polls until a condition holds; what names it, if it never does.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	Within(t, Patience, what, ok)
}

// Within is Eventually with another patience.
func Within(t testing.TB, patience time.Duration, what string, ok func() bool) {
	t.Helper()
	pause := 2 * time.Millisecond // and longer and longer: a look may cost as much as what it waits for
	for end := time.Now().Add(patience); !ok(); pause = min(pause*5/4, 50*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
		time.Sleep(pause)
	}
}

// Soak returns how often a test does its thing: as often as the variable says, else as usual.
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
