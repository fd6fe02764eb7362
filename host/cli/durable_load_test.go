package cli_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"a2e/protocol"
)

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
		if there[key] != w.acked[key] {
			t.Fatalf("%s has version %d; acknowledged is %d (0 = forgotten or never stored)", key, there[key], w.acked[key])
		}
	}
}
