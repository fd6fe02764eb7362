// Package property checks properties on values that rapid draws.
package property

import (
	"flag"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// sameEachTime sets a fixed seed for rapid unless -rapid.seed names one.
var sameEachTime = sync.OnceValue(func() error {
	if flag.Lookup("rapid.seed").Value.String() != "0" {
		return nil
	}
	return flag.Set("rapid.seed", "1")
})

// Check is rapid.Check with the same values in each run. -rapid.seed=N draws other values,
// -rapid.checks=N sets their number.
func Check(t *testing.T, holds func(*rapid.T)) {
	t.Helper()
	if err := sameEachTime(); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, holds)
}
