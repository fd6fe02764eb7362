package cli_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
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
	err := h.Call(t.Context(), protocol.TypePlanCreateReq, map[string]any{"name": "durable"}, &made)
	must.That(t, err == nil && made.Success, "%+v, %v", made, err)
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

// durableWorker sends one request after the other, and knows what must be stored of
// what it sent. Its keys are its own. Several make a load.
type durableWorker struct {
	name    string
	rng     *rand.Rand
	last    int            // version stored last; each is used once
	keys    []string       // all that were ever stored
	acked   map[string]int // version that was acknowledged; none = absent
	doubt   []durableDoubt // of the request that was not answered
	touched []string       // keys sent since the last look
	tasks   []string       // titles that were acknowledged
}

// durableDoubt is a transaction of which nobody knows whether it happened: what it would
// have left for each key, 0 = nothing.
type durableDoubt map[string]int

func newDurableWorker(name string, seed uint64, number int) *durableWorker {
	return &durableWorker{name: name, rng: rand.New(rand.NewPCG(seed, uint64(number))), acked: make(map[string]int)}
}

// step sends one request. After an error it is in doubt.
func (w *durableWorker) step(h *durableHost, plan string) error {
	switch n := w.rng.IntN(100); {
	case n < 8:
		return w.addTask(h, plan)
	case n < 20 && len(w.acked) > 0:
		return w.forget(h)
	default:
		return w.store(h)
	}
}

// tier is where a key is always stored.
func (w *durableWorker) tier(key string) protocol.MemoryTier {
	if strings.HasSuffix(key, "s") {
		return protocol.TierSemantic
	}
	return protocol.TierEpisodic
}

// store sends a batch of new entries and new versions of older ones.
func (w *durableWorker) store(h *durableHost) error {
	byTier := map[protocol.MemoryTier]durableDoubt{protocol.TierEpisodic: {}, protocol.TierSemantic: {}}
	var entries []durableEntry
	for range 1 + w.rng.IntN(5) {
		var key string
		if len(w.keys) > 0 && w.rng.IntN(3) == 0 {
			key = w.keys[w.rng.IntN(len(w.keys))]
		} else {
			key = fmt.Sprintf("%s-%d%c", w.name, len(w.keys), "es"[w.rng.IntN(2)])
			w.keys = append(w.keys, key)
		}
		tier := w.tier(key)
		if _, twice := byTier[tier][key]; twice {
			continue
		}
		w.last++
		byTier[tier][key] = w.last
		entries = append(entries, durableEntry{
			Key: map[string]string{"id": key}, Tier: tier, Tags: []string{"load", fmt.Sprint("t", w.rng.IntN(20))},
			Content: durableContent{w.last, strings.Repeat(fmt.Sprintf("%s version%d ", w.name, w.last), 1+w.rng.IntN(20))},
		})
	}
	return w.sent(h.store(entries...), byTier[protocol.TierEpisodic], byTier[protocol.TierSemantic])
}

// forget sends the keys of some entries that there are.
func (w *durableWorker) forget(h *durableHost) error {
	gone := map[protocol.MemoryTier]durableDoubt{protocol.TierEpisodic: {}, protocol.TierSemantic: {}}
	var keys []map[string]string
	for range 1 + w.rng.IntN(3) {
		key := w.keys[w.rng.IntN(len(w.keys))]
		if w.acked[key] > 0 && !slices.ContainsFunc(keys, func(k map[string]string) bool { return k["id"] == key }) {
			gone[w.tier(key)][key] = 0
			keys = append(keys, map[string]string{"id": key})
		}
	}
	var resp protocol.MemoryForgetResponse
	err := h.Call(context.Background(), protocol.TypeMemoryForgetReq, map[string]any{"memory_id": h.memory, "keys": keys, "tier": ""}, &resp)
	if err == nil && resp.Deleted != len(keys) {
		err = fmt.Errorf("of %v %d were forgotten", keys, resp.Deleted)
	}
	return w.sent(err, gone[protocol.TierEpisodic], gone[protocol.TierSemantic])
}

// sent notes what became of the transactions of a request.
func (w *durableWorker) sent(err error, all ...durableDoubt) error {
	for _, d := range all {
		for key := range d {
			w.touched = append(w.touched, key)
		}
		if err == nil {
			w.settle(d)
		}
	}
	if err != nil {
		w.doubt = all
	}
	return err
}

// settle takes a transaction as one that happened.
func (w *durableWorker) settle(d durableDoubt) {
	for key, version := range d {
		if w.acked[key] = version; version == 0 {
			delete(w.acked, key)
		}
	}
}

func (w *durableWorker) addTask(h *durableHost, plan string) error {
	w.last++
	title := fmt.Sprintf("%s-%d", w.name, w.last)
	var resp protocol.TaskAddResponse
	err := h.Call(context.Background(), protocol.TypeTaskAddReq, map[string]any{"plan_id": plan, "title": title}, &resp)
	if err == nil && !resp.Success {
		err = fmt.Errorf("no task was added: %s", resp.Error)
	}
	if err == nil {
		w.tasks = append(w.tasks, title)
	}
	return err
}

// verify compares what is stored with what must be: of all keys, or of those sent since
// the last time. A transaction in doubt has happened as a whole or not at all.
func (w *durableWorker) verify(t *testing.T, h *durableHost, all bool) {
	t.Helper()
	keys := w.touched
	if all {
		keys = w.keys
	}
	there := h.versions(keys)
	for _, d := range w.doubt {
		happened := 0
		for key, version := range d {
			if there[key] == version {
				happened++
			}
		}
		switch happened {
		case 0:
		case len(d):
			w.settle(d)
		default:
			t.Fatalf("half of a transaction is there: of %v there is %v", d, there)
		}
	}
	w.doubt, w.touched = nil, nil
	for _, key := range keys {
		must.Equal(t, there[key], w.acked[key], "%s has version …; acknowledged is … (0 = forgotten or never stored)", key)
	}
}

// TestKilledWhileTheFileIsMade kills hosts while they make the store's file. What they
// leave is no obstacle to the next one.
func TestKilledWhileTheFileIsMade(t *testing.T) {
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
		must.Fails(t, h.Wait(), "", "a host that should have been killed ended by itself")
		if _, err := os.Stat(filepath.Join(state, "state.db")); err == nil && !acked {
			began++
		} else if err != nil {
			unmade++
		}
		h = durableStart(t, dir)
		there := h.versions([]string{"first"})
		must.That(t, !acked || there["first"] == 1, "an entry was acknowledged and is gone")
		must.OK(t, h.store(durableSemantic("second", "stored by the next host")))
		h.end()
		durableCheck(t, state)
		must.OK(t, os.RemoveAll(state))
	}
	t.Logf("of %d files %d were not begun and %d not finished", rounds, unmade, began)
}
