package cli_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"a2e/host/hosttest"
)

// TestKilledWhileTheFileIsMade kills hosts while they make the store's file. What they
// leave is no obstacle to the next one.
func TestKilledWhileTheFileIsMade(t *testing.T) {
	t.Parallel()
	rounds := hosttest.Soak(t, "A2E_SOAK_STORE_KILLS", 32) / 4
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := durableDir(t)
	state := filepath.Join(dir, "state")
	began, unmade := 0, 0
	for range rounds {
		h := durableStart(t, dir)
		time.AfterFunc(time.Duration(rng.IntN(20_000))*time.Microsecond, h.kill)
		acked := h.store(durableSemantic("first", "stored into a file that is just being made")) == nil
		if err := h.Wait(); err == nil {
			t.Fatal("a host that should have been killed ended by itself")
		}
		if _, err := os.Stat(filepath.Join(state, "state.db")); err == nil && !acked {
			began++
		} else if err != nil {
			unmade++
		}
		h = durableStart(t, dir)
		if there := h.versions([]string{"first"}); acked && there["first"] != 1 {
			t.Fatal("an entry was acknowledged and is gone")
		}
		if err := h.store(durableSemantic("second", "stored by the next host")); err != nil {
			t.Fatal(err)
		}
		h.end()
		durableCheck(t, state)
		if err := os.RemoveAll(state); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("of %d files %d were not begun and %d not finished", rounds, unmade, began)
}
