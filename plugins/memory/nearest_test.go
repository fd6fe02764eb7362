package memory

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/store"
)

// cone is an embeddings server whose vectors lie in a narrow cone: the cosine of any two texts is about
// 0.7, and larger within a topic. A text is a number; its remainder by topics is its topic.
type cone struct {
	*httptest.Server
	size   int
	topics int
	made   sync.Map // vectors by text
}

func newCone(t testing.TB, size, topics int) *cone {
	c := &cone{size: size, topics: topics}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Input []string `json:"input"`
		}
		if err := json.UnmarshalRead(r.Body, &req); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		data := make([]map[string]any, len(req.Input))
		for i, text := range req.Input {
			data[i] = map[string]any{"index": i, "embedding": c.vector(text)}
		}
		_ = json.MarshalWrite(w, map[string]any{"data": data})
	}))
	t.Cleanup(c.Close)
	return c
}

// vector returns the vector for the first number in a text. Without a number, it points along the axis
// of the cone.
func (c *cone) vector(text string) []float32 {
	if v, there := c.made.Load(text); there {
		return v.([]float32)
	}
	n := 0
	if at := strings.IndexAny(text, "0123456789"); at >= 0 {
		_, _ = fmt.Sscanf(text[at:], "%d", &n)
	}
	out := make([]float32, c.size)
	add := func(seed uint64, length float64) {
		r := rand.New(rand.NewPCG(seed, 7))
		for i := range out {
			out[i] += float32(r.NormFloat64() * length / math.Sqrt(float64(c.size)))
		}
	}
	add(1, math.Sqrt(0.7))
	if n > 0 {
		add(uint64(1000+n%c.topics), math.Sqrt(0.15))
		add(uint64(1_000_000+n), math.Sqrt(0.15))
	}
	c.made.Store(text, out)
	return out
}

// entry returns the entry of the number n. Its words have nothing in common with those of a query.
func (c *cone) entry(n int) string {
	return fmt.Sprintf(`{"key":{"n":%d},"content":%d,"tier":"semantic"}`, n, n)
}

func (c *cone) options() Options {
	opts := DefaultOptions()
	opts.Embeddings = Embeddings{URL: c.URL, Model: "cone", Batch: 2048}
	return opts
}

// exact returns the ten numbers whose vectors are nearest to that of the query.
func (c *cone) exact(query int, among []int) map[int64]bool {
	type near struct {
		n      int
		cosine float64
	}
	q, all := c.vector(fmt.Sprint(query)), make([]near, len(among))
	for at, n := range among {
		var dot, length float64
		for i, f := range c.vector(strconv.Itoa(n)) {
			dot, length = dot+float64(f)*float64(q[i]), length+float64(f)*float64(f)
		}
		all[at] = near{n, dot / math.Sqrt(length)} // the query's length does not change the order
	}
	slices.SortFunc(all, func(a, b near) int { return cmp.Compare(b.cosine, a.cosine) })
	best := make(map[int64]bool)
	for _, near := range all[:10] {
		best[int64(near.n)] = true
	}
	return best
}

// recall returns the share of the ten nearest entries that the plugin's index finds, over
// some queries. The keys of entries are their numbers.
func (c *cone) recall(t *testing.T, a *agent, st store.Store, among []int, allowed map[int64]bool) float64 {
	t.Helper()
	found := 0
	const queries = 20
	for q := range queries {
		query := 1_000_000 + 37*q
		vector := must.Get(a.plugin.embedder.Embed(t.Context(), []string{fmt.Sprint(query)}))(t)[0]
		want := c.exact(query, among)
		must.OK(t, st.Read(t.Context(), func(tx *store.Tx) error {
			spaces, err := store.Column[int64](tx, "SELECT id FROM memory_spaces")
			if err != nil {
				return err
			}
			best, err := a.plugin.diskRepository(st).index.nearest(tx, spaces, vector, 10, allowed)
			for _, b := range best {
				var n int64
				if _, err := tx.Get("SELECT content FROM memory_entries WHERE id = $1", []any{b.entry},
					&n); err != nil {
					return err
				}
				if want[n] {
					found++
				}
			}
			return err
		}))
	}
	return float64(found) / (10 * queries)
}

// TestNearestIsExact: the ten nearest entries are found as by an exact search: among loose and sealed
// vectors, after changes by another host, among the entries that a filter leaves, after most are gone,
// and if the codes do not fit in memory.
func TestNearestIsExact(t *testing.T) {
	c := newCone(t, 96, 40)
	st := file(t)
	a, other := newAgent(t, st, "ann", c.options(), newClock()), newAgent(t, st, "bob", c.options(), newClock())
	var there []int
	add := func(by *agent, from, to int) {
		var entries []string
		for n := from; n < to; n++ {
			entries, there = append(entries, c.entry(n)), append(there, n)
		}
		by.store(entries...)
	}
	check := func(what string) {
		t.Helper()
		got := c.recall(t, a, st, there, nil)
		assert.That(t, got >= 0.95, "%s: recall is %.3f", what, got)
	}
	add(a, 1, 200)
	check("loose vectors")
	add(a, 200, 3000)
	check("segments")
	add(other, 3000, 3400)
	check("what another host stored")
	c.recallOfFew(t, a, st, there)
	var keys []string
	for n := 1; n < 3000; n++ {
		keys = append(keys, fmt.Sprintf(`{"n":%d}`, n))
	}
	other.forget(`{"tier":"semantic","keys":[` + strings.Join(keys, ",") + `]}`)
	there = there[2999:]
	check("most is gone")
	add(other, 3400, 3700)
	check("segments made anew")
	a.plugin.disk.index = newIndex()
	a.plugin.disk.index.limit = 1
	check("nothing is kept in memory")
}

// recallOfFew searches only among allowed entries.
func (c *cone) recallOfFew(t *testing.T, a *agent, st store.Store, there []int) {
	t.Helper()
	var among []int
	for _, n := range there {
		if n%9 == 0 {
			among = append(among, n)
		}
	}
	allowed := make(map[int64]bool)
	must.OK(t, st.Read(t.Context(), func(tx *store.Tx) error {
		ids, err := store.Column[int64](tx, "SELECT id FROM memory_entries WHERE CAST(content AS BIGINT) % 9 = 0")
		for _, id := range ids {
			allowed[id] = true
		}
		return err
	}))
	got := c.recall(t, a, st, among, allowed)
	assert.That(t, got >= 0.95, "among %d entries: recall is %.3f", len(among), got)
}
