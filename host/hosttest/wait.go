package hosttest

import (
	"testing"
	"time"
)

// Patience is how long a test waits for what should come soon: what is not there by then
// never comes, on a busy machine as well.
const Patience = time.Minute

// Eventually polls until a condition holds; what names it, if it never does.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}
