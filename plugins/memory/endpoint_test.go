package memory

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/config"
	"a2e/host/store"
	"a2e/protocol"
)

// model is an embeddings server that knows a few meanings: texts about the same of them
// have the same vector.
type model struct {
	*httptest.Server
	down atomic.Bool
	asks atomic.Int64
}

// meanings are words for the same thing, one thing a line.
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
	a.store(one(1, "semantic", "the automobile is in the garage"), one(2, "working", "see the physician at nine"), one(3, "episodic", "nothing of it"))
	a.want("a synonym", `{"query":"car"}`, `{"n":1}`)
	a.want("a synonym in the working tier", `{"query":"doctor"}`, `{"n":2}`)
	lexical := newAgent(t, file(t), "ann", DefaultOptions(), newClock())
	lexical.store(one(1, "semantic", "the automobile is in the garage"))
	lexical.want("the built-in embedder is honest about being lexical", `{"query":"car"}`, ``)
}

// A server that is down costs meanings, never an entry; what was stored meanwhile gets its
// vector later.
func TestAnEndpointThatIsDown(t *testing.T) {
	m := newModel(t)
	st, c := file(t), newClock()
	m.down.Store(true)
	a := newAgent(t, st, "ann", withModel(m, "meanings-1"), c)
	resp := a.store(one(1, "semantic", "the automobile is in the garage"))
	note, _ := resp.Detail["embeddings"].(string)
	if len(resp.Stored) != 1 || !strings.Contains(note, "only words count") || strings.Contains(note, "sk-very-secret") {
		t.Fatalf("stored %+v", resp)
	}
	found := a.want("words still find it", `{"query":"garage"}`, `{"n":1}`)
	if note, _ := found.Detail["embeddings"].(string); note == "" {
		t.Errorf("the answer does not say that vectors are missing: %+v", found.Detail)
	}
	a.want("meanings do not", `{"query":"car"}`, ``)
	m.down.Store(false)
	b := newAgent(t, st, "bob", withModel(m, "meanings-1"), c) // another host: the first one leaves the server alone for a while
	if resp := b.store(one(2, "semantic", "glad tidings")); resp.Detail != nil {
		t.Errorf("the server is back, and yet: %+v", resp.Detail)
	}
	b.want("the waiting entry has its vector now", `{"query":"car"}`, `{"n":1}`)
}

func TestVectorsOfTwoModelsDoNotMix(t *testing.T) {
	m := newModel(t)
	st, c := file(t), newClock()
	a := newAgent(t, st, "ann", DefaultOptions(), c)
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
		if got.Code != protocol.CodeRuntimeError || !strings.Contains(string(got.Line), "a2e state reembed") || !strings.Contains(string(got.Line), "a2e-hashed-1") || !strings.Contains(string(got.Line), "meanings-1") {
			t.Errorf("%s was answered %s", request.typ, got.Line)
		}
	}
	if resp := b.store(one(4, "working", "the session's own memory is of its own model")); len(resp.Stored) != 1 {
		t.Errorf("the working tier refused: %+v", resp)
	}
	var steps []string
	if err := Reembed(t.Context(), st, b.plugin.embedder, func(done, total int) { steps = append(steps, fmt.Sprintf("%d/%d", done, total)) }); err != nil {
		t.Fatal(err)
	}
	if strings.Join(steps, " ") != "2/2" {
		t.Errorf("progress was %v", steps)
	}
	b.want("after reembed", `{"query":"car","tier":"semantic"}`, `{"n":1}`)
	b.want("after reembed", `{"query":"happy","tier":"episodic"}`, `{"n":2}`)
	if got := a.Call(protocol.TypeMemoryRetrieveReq, a.with(`{"query":"car"}`)); got.Code != protocol.CodeRuntimeError {
		t.Errorf("the host that is set to the old model was answered %s", got.Line)
	}
}

// A Reembed that is stopped goes on where it was.
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
	by, err := withModel(m, "meanings-1").Embedder()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := Reembed(ctx, st, by, func(done, total int) { cancel() }); err == nil {
		t.Fatal("a stopped Reembed gave no error")
	}
	var waiting int
	count := func() {
		if err := st.Read(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Get("SELECT count(*) FROM memory_waiting", nil, &waiting)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if count(); waiting == 0 || waiting == 150 {
		t.Fatalf("%d entries wait", waiting)
	}
	if err := Reembed(t.Context(), st, by, nil); err != nil {
		t.Fatal(err)
	}
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
		if _, err := New("mem", opts, Env{}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"mem"`) {
			t.Errorf("%+v gave %v, want %q", e, err, want)
		}
	}
}
