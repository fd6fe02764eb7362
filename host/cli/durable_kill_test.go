package cli_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"a2e/host/hosttest"
	"a2e/protocol"
)

// durableInFlight is how many requests each host has at once: more than it runs at once.
const durableInFlight = 6

// durableRounds is one file through the deaths of many hosts.
type durableRounds struct {
	t       *testing.T
	rng     *rand.Rand
	dir     string
	plan    string
	workers [2][]*durableWorker // of the first host and of the one beside it
	acks    int
}

// TestKilledHostsLoseNothing kills hosts with SIGKILL at random points of a load, alone or
// beside another host on the same file. The next host has all that was acknowledged.
func TestKilledHostsLoseNothing(t *testing.T) {
	t.Parallel()
	rounds := hosttest.Soak(t, "A2E_SOAK_STORE_KILLS", 20)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := &durableRounds{t: t, rng: rand.New(rand.NewPCG(seed, 0)), dir: durableDir(t)}
	for i := range r.workers {
		for j := range durableInFlight {
			r.workers[i] = append(r.workers[i], newDurableWorker(fmt.Sprintf("w%d%d", i, j), seed, 1+i*durableInFlight+j))
		}
	}
	h := durableStart(t, r.dir)
	r.plan = durablePlan(t, h)
	for i := range rounds {
		r.load(h)
		h = durableStart(t, r.dir)
		thorough := i == rounds-1 || (i+1)%max(10, rounds/20) == 0
		r.verify(h, thorough)
		if thorough {
			durableCheck(t, filepath.Join(r.dir, "state"))
		}
	}
	h.end()
	durableCheck(t, filepath.Join(r.dir, "state"))
	t.Logf("%d rounds, %d acknowledged requests", rounds, r.acks)
}

// durablePlan makes a plan for tasks.
func durablePlan(t *testing.T, h *durableHost) string {
	t.Helper()
	var made protocol.PlanCreateResponse
	if err := h.Call(t.Context(), protocol.TypePlanCreateReq, map[string]any{"name": "durable"}, &made); err != nil || !made.Success {
		t.Fatalf("%+v, %v", made, err)
	}
	return made.PlanID
}

// load has a host, or two, work until its end.
func (r *durableRounds) load(h *durableHost) {
	hosts, killed := []*durableHost{h}, []bool{true}
	if r.rng.IntN(3) == 0 {
		hosts, killed = append(hosts, durableStart(r.t, r.dir)), [][]bool{{true, false}, {false, true}, {true, true}}[r.rng.IntN(3)]
	}
	until := &durableEnd{at: int64(r.rng.IntN(40))}
	if until.at == 0 || r.rng.IntN(3) == 0 {
		until.delay = time.Duration(r.rng.IntN(2000)) * time.Microsecond
	}
	until.end = func() {
		until.over.Store(true)
		for i, h := range hosts {
			if killed[i] {
				h.kill()
			}
		}
	}
	until.reached(0)
	var working sync.WaitGroup
	for i, h := range hosts {
		for _, w := range r.workers[i] {
			working.Go(func() { until.work(r.t, w, h, r.plan, killed[i]) })
		}
	}
	working.Wait()
	r.acks += int(until.acks.Load())
	for i, h := range hosts {
		if !killed[i] {
			h.end()
		} else if err := h.Wait(); err == nil {
			r.t.Fatal("a host that should have been killed ended by itself")
		}
	}
}

// durableEnd is when a load ends: at an acknowledgement, which a careless host would have
// given too early, or some time after it.
type durableEnd struct {
	at    int64
	delay time.Duration
	end   func()
	acks  atomic.Int64
	over  atomic.Bool
}

func (u *durableEnd) reached(acks int64) {
	switch {
	case acks != u.at:
	case u.delay == 0:
		u.end()
	default:
		time.AfterFunc(u.delay, u.end)
	}
}

// work sends requests until the host is killed; to one that is not, some more after that.
func (u *durableEnd) work(t *testing.T, w *durableWorker, h *durableHost, plan string, killed bool) {
	for more := 5; more > 0; {
		over := u.over.Load()
		if err := w.step(h, plan); err != nil {
			var answer *protocol.Error
			if !killed || !u.over.Load() || errors.As(err, &answer) {
				t.Errorf("%s: %v; stderr: %s", w.name, err, h.stderr)
			}
			return
		}
		u.reached(u.acks.Add(1))
		if over && !killed {
			more--
		}
	}
}

// verify asks a host for what was acknowledged: all of it, or that of the last round.
func (r *durableRounds) verify(h *durableHost, thorough bool) {
	r.t.Helper()
	if r.t.Failed() {
		r.t.FailNow()
	}
	for _, workers := range r.workers {
		for _, w := range workers {
			w.verify(r.t, h, thorough)
		}
	}
	if !thorough {
		return
	}
	var resp protocol.TaskListResponse
	if err := h.Call(r.t.Context(), protocol.TypeTaskListReq, map[string]any{"plan_id": r.plan}, &resp); err != nil {
		r.t.Fatal(err)
	}
	there := make(map[any]bool)
	for _, task := range resp.Tasks {
		there[task["title"]] = true
	}
	for _, workers := range r.workers {
		for _, w := range workers {
			for _, title := range w.tasks {
				if !there[title] {
					r.t.Fatalf("the task %s was acknowledged and is gone", title)
				}
			}
		}
	}
}
