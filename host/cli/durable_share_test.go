package cli_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"a2e/host/hosttest"
	"a2e/protocol"
)

// TestFourHostsOnOneFile has four hosts write to one file as fast as they can. No write is
// lost, and none fails because another was under way.
func TestFourHostsOnOneFile(t *testing.T) {
	t.Parallel()
	const hosts, inFlight = 4, 16
	writes := hosttest.Soak(t, "A2E_SOAK_STORE_WRITES", 300)
	dir := durableDir(t)
	var all sync.WaitGroup
	for i := range hosts {
		h := durableStart(t, dir)
		for j := range inFlight {
			all.Go(func() {
				for n := j; n < writes; n += inFlight {
					if err := h.store(durableSemantic(fmt.Sprintf("h%d-%d", i, n), "written beside others")); err != nil {
						t.Errorf("host %d, write %d: %v; stderr: %s", i, n, err, h.stderr)
						return
					}
				}
			})
		}
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	fifth := durableStart(t, dir)
	resp, err := fifth.retrieve(map[string]any{"tier": "semantic", "limit": 1})
	if err != nil || resp.Total != hosts*writes {
		t.Errorf("%d entries are there, should be %d (%v)", resp.Total, hosts*writes, err)
	}
	var keys []string
	for i := range hosts {
		for n := range writes {
			keys = append(keys, fmt.Sprintf("h%d-%d", i, n))
		}
	}
	if there := fifth.versions(keys); len(there) != len(keys) {
		t.Errorf("%d of %d keys are there", len(there), len(keys))
	}
	durableCheck(t, filepath.Join(dir, "state"))
}

// durableSemantic is an entry of the semantic tier.
func durableSemantic(key, text string) durableEntry {
	return durableEntry{Key: map[string]string{"id": key}, Content: durableContent{1, text}, Tier: protocol.TierSemantic, Tags: []string{}}
}

// TestHostsSeeEachOthersEntriesAtOnce stores by one host and asks another as soon as that
// was acknowledged, in turns.
func TestHostsSeeEachOthersEntriesAtOnce(t *testing.T) {
	t.Parallel()
	dir := durableDir(t)
	hosts := []*durableHost{durableStart(t, dir), durableStart(t, dir)}
	for i := range 100 {
		writer, reader := hosts[i%2], hosts[(i+1)%2]
		key := fmt.Sprint("turn-", i)
		if err := writer.store(durableSemantic(key, fmt.Sprintf("the word of this turn is zq%dx", i))); err != nil {
			t.Fatal(err)
		}
		if there := reader.versions([]string{key}); there[key] != 1 {
			t.Fatalf("turn %d: the other host has no such key", i)
		}
		found, err := reader.retrieve(map[string]any{"query": fmt.Sprintf("zq%dx", i), "limit": 1})
		if err != nil || len(found.Entries) != 1 {
			t.Fatalf("turn %d: the other host's search finds %+v, %v", i, found, err)
		}
		if id, _ := found.Entries[0].Key.Get("id"); string(id) != fmt.Sprintf("%q", key) {
			t.Fatalf("turn %d: the other host's search finds %s first", i, id)
		}
		if i%10 == 9 { // what is forgotten is gone as soon
			var gone protocol.MemoryForgetResponse
			err := writer.Call(t.Context(), protocol.TypeMemoryForgetReq, map[string]any{"memory_id": writer.memory, "keys": []any{map[string]string{"id": key}}, "tier": "semantic"}, &gone)
			if there := reader.versions([]string{key}); err != nil || gone.Deleted != 1 || len(there) > 0 {
				t.Fatalf("turn %d: %d forgotten, %v; the other host has %v", i, gone.Deleted, err, there)
			}
		}
	}
}

// durableRefusal gives the host's answer of a request that it could not do; nil when err is
// none such.
func durableRefusal(err error) *protocol.Error {
	var answer *protocol.Error
	errors.As(err, &answer)
	return answer
}
