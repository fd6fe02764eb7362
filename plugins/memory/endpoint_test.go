package memory

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/store"
	"a2e/protocol"
)

// model is an embeddings server that knows a few meanings: texts with words of one meaning have the
// same vector.
type model struct {
	*httptest.Server
	down atomic.Bool
	asks atomic.Int64
}

// meanings has a list of words for each meaning.
var meanings = [][]string{{"car", "automobile", "vehicle"}, {"doctor", "physician"}, {"happy", "joyful", "glad"}}

func newModel(t *testing.T) *model {
	m := &model{}
	m.Server = httptest.NewServer(http.HandlerFunc(m.serve))
	t.Cleanup(m.Close)
	return m
}

func (m *model) serve(w http.ResponseWriter, r *http.Request) {
	m.asks.Add(1)
	if m.down.Load() {
		http.Error(w, "overloaded", http.StatusBadRequest) // final: no retries slow the test down
		return
	}
	var req struct {
		Input []string `json:"input"`
	}
	if err := json.UnmarshalRead(r.Body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	type vector struct {
		Index     int       `json:"index"`
		Embedding []float32 `json:"embedding"`
	}
	var data []vector
	for i, text := range req.Input {
		v := vector{i, make([]float32, 8)}
		v.Embedding[7] = 0.1
		for at, words := range meanings {
			for _, word := range words {
				if strings.Contains(strings.ToLower(text), word) {
					v.Embedding[at] = 1
				}
			}
		}
		data = append(data, v)
	}
	_ = json.MarshalWrite(w, map[string]any{"data": data})
}

func withModel(m *model, name string) Options {
	opts := DefaultOptions()
	opts.Embeddings = Embeddings{URL: m.URL, Model: name, APIKey: config.NewSecret("sk-very-secret")}
	return opts
}

func TestAnEndpointFindsMeanings(t *testing.T) {
	m := newModel(t)
	a := newAgent(t, file(t), "ann", withModel(m, "meanings-1"), newClock())
	a.store(one(1, "semantic", "the automobile is in the garage"), one(2, "working", "see the physician at nine"),
		one(3, "episodic", "nothing of it"))
	a.want("a synonym", `{"query":"car"}`, `{"n":1}`)
	a.want("a synonym in the working tier", `{"query":"doctor"}`, `{"n":2}`)
	lexical := newAgent(t, file(t), "ann", DefaultOptions(), newClock())
	lexical.store(one(1, "semantic", "the automobile is in the garage"))
	lexical.want("the built-in embedder is honest about being lexical", `{"query":"car"}`, ``)
}

// TestAnEndpointThatIsDown: while the embeddings server is down, entries are stored, and found by their
// words. They get their vectors later.
func TestAnEndpointThatIsDown(t *testing.T) {
	m := newModel(t)
	st, c := file(t), newClock()
	m.down.Store(true)
	a := newAgent(t, st, "ann", withModel(m, "meanings-1"), c)
	resp := a.store(one(1, "semantic", "the automobile is in the garage"))
	note, _ := resp.Detail["embeddings"].(string)
	must.That(t, len(resp.Stored) == 1 && strings.Contains(note, "only words count") &&
		!strings.Contains(note, "sk-very-secret"), "stored %+v", resp)
	found := a.want("words still find it", `{"query":"garage"}`, `{"n":1}`)
	if note, _ := found.Detail["embeddings"].(string); note == "" {
		t.Errorf("the answer does not say that vectors are missing: %+v", found.Detail)
	}
	a.want("meanings do not", `{"query":"car"}`, ``)
	m.down.Store(false)
	b := newAgent(t, st, "bob", withModel(m, "meanings-1"),
		c) // another host, as the first one does not ask the server for a while
	if resp := b.store(one(2, "semantic", "glad tidings")); resp.Detail != nil {
		t.Errorf("the server is back, and yet: %+v", resp.Detail)
	}
	b.want("the waiting entry has its vector now", `{"query":"car"}`, `{"n":1}`)
}

func TestVectorsOfTwoModelsDoNotMix(t *testing.T) {
	m := newModel(t)
	st, c := file(t), newClock()
	a := newAgent(t, st, "ann", withModel(m, "meanings-0"), c)
	a.store(one(1, "semantic", "the automobile is in the garage"), one(2, "episodic", "a joyful day"))
	b := newAgent(t, st, "ann", withModel(m, "meanings-1"), c)
	for _, request := range []struct {
		typ    protocol.Type
		fields string
	}{
		{protocol.TypeMemoryStoreReq, `{"entries":[` + one(3, "semantic", "x") + `]}`},
		{protocol.TypeMemoryRetrieveReq, `{"query":"car"}`},
	} {
		got := b.Call(request.typ, b.with(request.fields))
		if got.Code != protocol.CodeRuntimeError || !strings.Contains(string(got.Line), "a2e state reembed") ||
			!strings.Contains(string(got.Line), "meanings-0") || !strings.Contains(string(got.Line), "meanings-1") {
			t.Errorf("%s was answered %s", request.typ, got.Line)
		}
	}
	resp := b.store(one(4, "working", "the session's own memory is of its own model"))
	assert.That(t, len(resp.Stored) == 1, "the working tier refused: %+v", resp)
	var steps []string
	must.OK(t, Reembed(t.Context(), st, b.plugin.embedder, func(done,
		total int,
	) {
		steps = append(steps, fmt.Sprintf("%d/%d", done, total))
	}))
	assert.That(t, strings.Join(steps, " ") == "2/2", "progress was %v", steps)
	b.want("after reembed", `{"query":"car","tier":"semantic"}`, `{"n":1}`)
	b.want("after reembed", `{"query":"happy","tier":"episodic"}`, `{"n":2}`)
	if got := a.Call(protocol.TypeMemoryRetrieveReq, a.with(`{"query":"car"}`)); got.Code != protocol.CodeRuntimeError {
		t.Errorf("the host that is set to the old model was answered %s", got.Line)
	}
}

// TestReembedGoesOn: a Reembed that was stopped continues where it stopped.
func TestReembedGoesOn(t *testing.T) {
	m := newModel(t)
	st := file(t)
	a := newAgent(t, st, "ann", DefaultOptions(), newClock())
	for i := range 3 {
		var entries []string
		for j := range 50 {
			entries = append(entries, one(100*i+j, "semantic", "a car"))
		}
		a.store(entries...)
	}
	by := must.Get(withModel(m, "meanings-1").Embedder())(t)
	ctx, cancel := context.WithCancel(t.Context())
	if err := Reembed(ctx, st, by, func(done, total int) { cancel() }); err == nil {
		t.Fatal("a stopped Reembed gave no error")
	}
	var waiting int
	count := func() {
		must.OK(t, st.Read(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Get("SELECT count(*) FROM memory_waiting", nil, &waiting)
			return err
		}))
	}
	if count(); waiting == 0 || waiting == 150 {
		t.Fatalf("%d entries wait", waiting)
	}
	must.OK(t, Reembed(t.Context(), st, by, nil))
	if count(); waiting != 0 {
		t.Errorf("%d entries wait after all", waiting)
	}
}

func TestWrongEmbeddingsOptions(t *testing.T) {
	for want, e := range map[string]Embeddings{
		"needs a url":      {Model: "m"},
		"model is missing": {URL: "http://127.0.0.1:1"},
		"address such as":  {URL: "not a url", Model: "m"},
	} {
		opts := DefaultOptions()
		opts.Embeddings = e
		_, err := New("mem", opts, host.Env{})
		assert.That(t, err != nil && strings.Contains(err.Error(), want) && strings.Contains(err.Error(), `"mem"`),
			"%+v gave %v, want %q", e, err, want)
	}
}

// labelled is the data set for the quality of a search: entries that an agent might have stored, and
// queries that it might send later.
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

// TestRetrievalQuality: the fused search finds at least as much as a search by words or by vectors
// alone.
func TestRetrievalQuality(t *testing.T) {
	raw := must.Get(os.ReadFile(filepath.Join("testdata", "retrieval.json")))(t)
	var set labelled
	must.OK(t, json.Unmarshal(raw, &set, json.MatchCaseInsensitiveNames(true)))
	st := file(t)
	a := newAgent(t, st, "ann", DefaultOptions(), newClock())
	var entries []string
	for _, e := range set.Entries {
		entries = append(entries, fmt.Sprintf(`{"key":{"id":%q},"content":%s,"tier":"semantic"}`, e.ID,
			quoted(t, e.Text)))
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
				must.OK(t, json.Unmarshal(h.Key, &key, json.MatchCaseInsensitiveNames(true)))
				ids = append(ids, key.ID)
			}
			return ids
		}
	}
	words := set.recall(ranked(func(_ *want, hits []hit) []hit {
		slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(b.words, a.words) })
		return hits
	}))
	vectors := set.recall(ranked(func(_ *want, hits []hit) []hit {
		slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(b.similarity, a.similarity) })
		return hits
	}))
	fused := set.recall(ranked(rank))
	for kind := range fused {
		t.Logf("recall@3 %-6s words %.3f, vectors %.3f, fused %.3f", kind, words[kind], vectors[kind], fused[kind])
	}
	if fused["all"] < words["all"] || fused["all"] < vectors["all"] || fused["all"] < 0.95 {
		t.Errorf("the fused search has recall %.3f, words alone %.3f, vectors alone %.3f", fused["all"], words["all"],
			vectors["all"])
	}
}

func quoted(t *testing.T, text string) string {
	t.Helper()
	raw := must.Get(json.Marshal(text))(t)
	return string(raw)
}

// search returns the candidates for a query, before they are ranked.
func search(t *testing.T, p *Plugin, st store.Store, query string) (*want, []hit) {
	t.Helper()
	n := must.Get(nameOf("default", nil))(t)
	w := &want{pick: &pick{name: n, now: p.now()}, cursor: new(cursor), limit: 10}
	vectors, note := p.embedTexts(t.Context(), []string{query})
	if w.ask(query, vectors[0]); note != "" {
		t.Fatal(note)
	}
	var hits []hit
	must.OK(t, st.Read(t.Context(), func(tx *store.Tx) error {
		space, err := spaceOf(tx, n.id, "semantic", "")
		if err != nil {
			return err
		}
		hits, err = p.disk.search(tx, w, []int64{space})
		return err
	}))
	return w, hits
}
