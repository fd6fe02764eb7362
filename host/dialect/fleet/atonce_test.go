package fleet_test

import (
	"testing"

	front "a2e/host/dialect/fleet"
)

// TestAnnounceAtStartup: a worker says what it is also to who sends nothing.
func TestAnnounceAtStartup(t *testing.T) {
	for range 20 { // the end of the input races with the first look at the tools
		p := open(t, &pool{}, front.Options{AtStartup: true})
		p.CloseInput()
		if err := p.WaitEnd(); err != nil {
			t.Fatal(err)
		}
		if got := len(announces(p)); got != 1 {
			t.Fatalf("%d announces", got)
		}
	}
}
