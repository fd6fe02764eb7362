package cli_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// TestStepsOutliveAKill: whatever env answered is there after kill -9, the last step too.
// Before, 6,545 of 6,591 experiences were lost, and the episodes with them.
func TestStepsOutliveAKill(t *testing.T) {
	t.Parallel()
	dir := durableDir(t)
	writeConfig(t, dir, durableConfig+"  - {name: env, type: env, metadata: {env: gridworld}}\n")
	h := durableStart(t, dir)
	begin := func() string {
		t.Helper()
		var seen protocol.EnvResetResponse
		if err := h.Call(t.Context(), protocol.TypeEnvResetReq, map[string]any{"env_name": "gridworld", "seed": 7}, &seen); err != nil {
			t.Fatal(err)
		}
		return seen.Obs.EpisodeID
	}
	step := func(id string) (n int, err error) {
		var seen protocol.EnvStepResponse
		err = h.Call(t.Context(), protocol.TypeEnvStepReq, map[string]any{"episode_id": id, "action": map[string]any{"type": "up"}}, &seen)
		return seen.Obs.StepNum, err
	}
	const rounds, steps = 4, 25
	walked, fresh, closed := begin(), begin(), begin()
	made := 0
	for round := range rounds {
		for range steps {
			n, err := step(walked)
			if made++; err != nil || n != made {
				t.Fatalf("round %d: step %d of %d: %v", round, n, made, err)
			}
		}
		if round == 0 {
			if err := h.Call(t.Context(), protocol.TypeEnvCloseReq, map[string]any{"episode_id": closed}, new(protocol.EnvCloseResponse)); err != nil {
				t.Fatal(err)
			}
		}
		h.kill()
		if err := h.Wait(); err == nil {
			t.Fatal("a host that should have been killed ended by itself")
		}
		h = durableStart(t, dir)
		var list struct {
			Episodes []jsontext.Value `json:"episodes"`
		}
		if err := h.Call(t.Context(), protocol.TypeEnvExpListReq, map[string]any{"episode_id": walked, "limit": 10_000}, &list); err != nil {
			t.Fatal(err)
		}
		if len(list.Episodes) != made {
			t.Fatalf("round %d: %d of %d experiences are there", round, len(list.Episodes), made)
		}
	}
	if n, err := step(fresh); err != nil || n != 1 {
		t.Errorf("the episode that took no step gave step %d, %v", n, err)
	}
	if n, err := step(walked); err != nil || n != made+1 {
		t.Errorf("the episode of %d steps gave step %d, %v", made, n, err)
	}
	var refused *protocol.Error
	if _, err := step(closed); !errors.As(err, &refused) || refused.Code != protocol.CodeUnknownEpisode {
		t.Errorf("the closed episode gave %v", err)
	}
	h.end()
	if left, _ := filepath.Glob(filepath.Join(dir, "state", "env", "*.journal")); len(left) > rounds {
		t.Errorf("these journals are left: %q", left)
	}
}
