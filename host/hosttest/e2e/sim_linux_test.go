//go:build linux

package e2e_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"a2e/host/hosttest"
	"a2e/host/hosttest/postgres"
	"a2e/host/hosttest/sim"
)

// simOptions returns the options for a seed.
func simOptions(t *testing.T, seed uint64) sim.Options {
	opts := sim.Options{
		Seed: seed, Binary: hosttest.Program(t, "a2e"), Chaos: hosttest.Program(t, "a2e/host/hosttest/peers/chaos"),
		Check: func(state string) error { durableCheck(t, state); return nil },
	}
	if os.Getenv("A2E_SIM_POSTGRES") != "" {
		server := postgres.Start(t)
		opts.State = fmt.Sprintf("state: %q\n", server.URL(postgres.Superuser))
		opts.Check = func(string) error { return nil } // the server checks its own files
		opts.Sever = func() {
			server.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name <> 'psql' "+
				"AND backend_type = 'client backend'")
		}
	}
	return opts
}

// TestSimulation plays seeds of the simulator; by default the first lives of a seed that is always the same.
// A2E_SIM_SEED names the first seed, A2E_SIM_SECONDS=7200 plays as many as that time allows, A2E_SIM_KILLS=1000 plays
// storms until as many hosts were killed, and A2E_SIM_RESTS=400 a marathon of as many rounds. With A2E_SIM_POSTGRES=1
// the state is on a server.
func TestSimulation(t *testing.T) {
	t.Parallel()
	first, seconds := hosttest.Soak(t, "A2E_SIM_SEED", 1), hosttest.Soak(t, "A2E_SIM_SECONDS", 1)
	kills, rests := hosttest.Soak(t, "A2E_SIM_KILLS", 0), hosttest.Soak(t, "A2E_SIM_RESTS", 0)
	var all sim.Figures
	for seed, end := first, time.Now().Add(time.Duration(seconds)*time.Second); seed == first ||
		time.Now().Before(end) || all.Kills < kills; seed++ {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			opts := simOptions(t, uint64(seed))
			opts.Plain = seed%5 == 0
			switch {
			case kills > 0:
				opts.Kills = min(50, kills-all.Kills)
			case rests > 0:
				opts.Rests = rests
			case os.Getenv("A2E_SIM_SEED")+os.Getenv("A2E_SIM_SECONDS") == "":
				opts.Lives = 2
			case seed%4 == 2:
				opts.Kills = 50
			case seed%4 == 3:
				opts.Rests = 30
			}
			all.Add(sim.Run(t, opts))
		})
	}
	t.Log(all)
}
