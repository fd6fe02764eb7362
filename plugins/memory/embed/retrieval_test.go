package embed

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/go-json-experiment/json"
)

// retrievalSet is the labelled set that the memory plugin's searches are measured
// with: what an agent might remember, and what it might ask later.
type retrievalSet struct {
	Entries []struct {
		ID   string `json:"id"`
		Text string `json:"text"`
	} `json:"entries"`
	Queries []struct {
		Q    string   `json:"q"`
		Want []string `json:"want"`
		Kind string   `json:"kind"`
	} `json:"queries"`
}

func readSet(t testing.TB) retrievalSet {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "testdata", "retrieval.json"))
	if err != nil {
		t.Fatal(err)
	}
	var set retrievalSet
	if err := json.Unmarshal(raw, &set, json.RejectUnknownMembers(true)); err != nil {
		t.Fatal(err)
	}
	return set
}

// score gives how near each entry is to a query; the highest is the best.
type score func(query string) []float64

func byVectors(t testing.TB, set retrievalSet) score {
	h := Hashed()
	texts := make([]string, len(set.Entries))
	for i, e := range set.Entries {
		texts[i] = e.Text
	}
	entries := embedded(t, h, texts...)
	return func(query string) []float64 {
		q := embedded(t, h, query)[0]
		out := make([]float64, len(entries))
		for i, e := range entries {
			out[i] = q.Cosine(e)
		}
		return out
	}
}

func byGrams(_ testing.TB, set retrievalSet) score {
	return func(query string) []float64 {
		g := Grams(query)
		out := make([]float64, len(set.Entries))
		for i, e := range set.Entries {
			out[i] = g.In(e.Text)
		}
		return out
	}
}

// recall gives the share of wanted entries among the best three, of all queries
// ("all") and of each kind, and names what was missed.
func recall(t testing.TB, set retrievalSet, s score) map[string]float64 {
	sum, count := map[string]float64{}, map[string]float64{}
	for _, q := range set.Queries {
		scores := s(q.Q)
		order := make([]int, len(scores))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
		found := 0.0
		for rank, i := range order {
			id := set.Entries[i].ID
			if !slices.Contains(q.Want, id) {
				continue
			}
			if rank < 3 {
				found++
			} else {
				t.Logf("missed: %s %q: %s has rank %d, the first is %s", q.Kind, q.Q, id, rank+1, set.Entries[order[0]].ID)
			}
		}
		for _, kind := range []string{"all", q.Kind} {
			sum[kind] += found / float64(len(q.Want))
			count[kind]++
		}
	}
	for kind := range sum {
		sum[kind] /= count[kind]
	}
	return sum
}

// The built-in vectors, and the share of n-grams, find what is asked for, alone.
func TestRecall(t *testing.T) {
	set := readSet(t)
	for name, c := range map[string]struct {
		score func(testing.TB, retrievalSet) score
		least float64
	}{"vectors": {byVectors, 0.95}, "grams": {byGrams, 0.97}} {
		t.Run(name, func(t *testing.T) {
			got := recall(t, set, c.score(t, set))
			for _, kind := range slices.Sorted(maps.Keys(got)) {
				t.Logf("recall@3 %-6s %.3f", kind, got[kind])
			}
			if got["all"] < c.least {
				t.Errorf("recall@3 is %.3f, want at least %.2f", got["all"], c.least)
			}
		})
	}
}

// The set is as its users expect it.
func TestRetrievalSet(t *testing.T) {
	set := readSet(t)
	if len(set.Entries) < 80 || len(set.Queries) < 60 {
		t.Errorf("only %d entries and %d queries", len(set.Entries), len(set.Queries))
	}
	known, asked := map[string]bool{}, map[string]bool{}
	for _, e := range set.Entries {
		if e.ID == "" || e.Text == "" || known[e.ID] {
			t.Errorf("the entry %+v is empty or twice there", e)
		}
		known[e.ID] = true
	}
	for _, q := range set.Queries {
		if len(q.Want) == 0 || asked[q.Q] || !slices.Contains([]string{"typo", "form", "order", "plain", "mixed"}, q.Kind) {
			t.Errorf("the query %+v is incomplete or twice there", q)
		}
		asked[q.Q] = true
		for _, id := range q.Want {
			if !known[id] {
				t.Errorf("%q wants %s, which does not exist", q.Q, id)
			}
		}
	}
}

func embedded(t testing.TB, e Embedder, texts ...string) []Vector {
	t.Helper()
	out, err := e.Embed(t.Context(), texts)
	if err != nil || len(out) != len(texts) {
		t.Fatalf("%d vectors of %d texts, %v", len(out), len(texts), err)
	}
	return out
}
