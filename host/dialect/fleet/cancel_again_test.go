package fleet_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	front "a2e/host/dialect/fleet"
)

// TestCancelAgain: a task that is cancelled again and again is answered when the patience
// with its worker is over, not when that is so after the last time.
func TestCancelAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		workers := &pool{hold: make(chan struct{}), deaf: true}
		p := openLab(t, workers, front.Options{}, 200*time.Millisecond, long, long)
		p.SendRaw(dispatch("t", "low", "") + "\n")
		workers.awaitStart(t, "t")
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := 0; len(results(p.Pair, "t")) == 0; n++ {
			if n == 300 { // 3 s
				t.Error("there is no result")
				break
			}
			p.SendRaw(cancel("t") + "\n")
			<-tick.C
		}
		close(workers.hold)
		if m := result(p.Pair, "t"); !strings.Contains(string(m.Line), `"error":"cancelled"`) {
			t.Errorf("%s", m.Line)
		}
	})
}
