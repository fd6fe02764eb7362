package hosttest

import (
	"testing"

	"a2e/host/hosttest/poll"
)

// Patience is how long a test waits for what should come soon.
const Patience = poll.Patience

// Eventually is poll.Eventually.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	poll.Eventually(t, what, ok)
}
