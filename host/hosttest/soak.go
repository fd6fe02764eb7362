package hosttest

import (
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
