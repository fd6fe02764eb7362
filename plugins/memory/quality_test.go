package memory

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/store"
)

// labelled is the set that the quality of a search is measured with: what an agent might
// have stored, and what it might ask later.
type labelled struct {
	Entries []struct{ ID, Text string }
	Queries []struct {
		Q    string
		Want []string
		Kind string
	}
}

// ranking returns the ids of the entries that a query finds, best first.
type ranking func(query string) []string

// recall returns the share of the wanted entries among the best three, by kind of query
// and for "all".
func (l *labelled) recall(by ranking) map[string]float64 {
	found, count := map[string]float64{}, map[string]float64{}
	for _, q := range l.Queries {
		ids := by(q.Q)
		ids = ids[:min(len(ids), 3)]
		for _, kind := range []string{q.Kind, "all"} {
			for _, id := range q.Want {
				count[kind]++
				if slices.Contains(ids, id) {
					found[kind]++
				}
			}
		}
	}
	for kind := range count {
		found[kind] /= count[kind]
	}
	return found
}

// TestRetrievalQuality holds the fused search against each of its parts.
func TestRetrievalQuality(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "retrieval.json"))
	if err != nil {
		t.Fatal(err)
	}
	var set labelled
	if err := json.Unmarshal(raw, &set, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	st := file(t)
	a := newAgent(t, st, "ann", DefaultOptions(), newClock())
	var entries []string
	for _, e := range set.Entries {
		entries = append(entries, fmt.Sprintf(`{"key":{"id":%q},"content":%s,"tier":"semantic"}`, e.ID, quoted(t, e.Text)))
	}
	a.store(entries...)
	candidates := make(map[string][]hit)
	wants := make(map[string]*want)
	for _, q := range set.Queries {
		wants[q.Q], candidates[q.Q] = search(t, a.plugin, st, q.Q)
	}
	ranked := func(order func(w *want, hits []hit) []hit) ranking {
		return func(query string) (ids []string) {
			for _, h := range order(wants[query], slices.Clone(candidates[query])) {
				var key struct{ ID string }
				if err := json.Unmarshal(h.Key, &key, json.MatchCaseInsensitiveNames(true)); err != nil {
					t.Fatal(err)
				}
				ids = append(ids, key.ID)
			}
			return ids
		}
	}
	words := set.recall(ranked(func(_ *want, hits []hit) []hit {
		hits = slices.DeleteFunc(hits, func(h hit) bool { return h.byWords == 0 })
		slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(a.byWords, b.byWords) })
		return hits
	}))
	vectors := set.recall(ranked(func(_ *want, hits []hit) []hit {
		slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(b.cosine, a.cosine) })
		return hits
	}))
	fused := set.recall(ranked(rank))
	for kind := range fused {
		t.Logf("recall@3 %-6s words %.3f, vectors %.3f, fused %.3f", kind, words[kind], vectors[kind], fused[kind])
	}
	if fused["all"] < words["all"] || fused["all"] < vectors["all"] || fused["all"] < 0.95 {
		t.Errorf("the fused search has recall %.3f, words alone %.3f, vectors alone %.3f", fused["all"], words["all"], vectors["all"])
	}
}

func quoted(t *testing.T, text string) string {
	t.Helper()
	raw, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// search returns the candidates for a query, before they are ranked.
func search(t *testing.T, p *Plugin, st store.Store, query string) (*want, []hit) {
	t.Helper()
	n, err := nameOf("default", nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &want{name: n, now: p.now(), limit: 10}
	if note := p.understand(t.Context(), w, query); note != "" {
		t.Fatal(note)
	}
	var hits []hit
	if err := st.Read(t.Context(), func(tx *store.Tx) error {
		space, err := spaceOf(tx, n.id, "semantic", "")
		if err != nil {
			return err
		}
		hits, err = p.disk.search(tx, w, []int64{space})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return w, hits
}
