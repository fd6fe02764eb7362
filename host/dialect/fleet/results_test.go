package fleet_test

import (
	"context"
	"fmt"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"path/filepath"
	"strings"
	"testing"

	front "a2e/host/dialect/fleet"
	"a2e/host/store"
	"a2e/protocol/fleet"
)

// TestResultsKept: a result outlives the host in the store, and is sent again whatever the
// brief is then.
func TestResultsKept(t *testing.T) {
	state, err := store.Open(t.Context(), filepath.Join(t.TempDir(), store.FileName), store.Options{Parts: []store.Part{front.Part()}})
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	workers := &pool{}
	opts := front.Options{Store: func(context.Context) (store.Store, error) { return state, nil }}
	for i := range 2 {
		p := open(t, workers, opts)
		p.SendRaw(dispatch("t", "low", "") + "\n")
		if m := result(p, "t"); m.Get("/summary") != "did work" || len(announces(p)) != 1 || p.Messages()[0].Type != fleet.TypeAnnounce {
			t.Errorf("host %d: after %d announces %s", i, len(announces(p)), m.Line)
		}
		p.SendRaw(strings.Replace(dispatch("t", "low", ""), `"brief":"work"`, `"brief":"rest"`, 1) + "\n")
		if m := resultNo(t, p, "t", 2); m.Get("/summary") != "did work" {
			t.Errorf("host %d, sent again with another brief: %s", i, m.Line)
		}
		p.Close()
	}
	opts.Workspace = t.TempDir() // where the same id is another task
	p := open(t, workers, opts)
	p.SendRaw(dispatch("t", "low", "") + "\n")
	result(p, "t")
	if got := workers.order(); got != "t t" {
		t.Errorf("done: %s", got)
	}
}

// TestSentAgain: who has the result may send the task again at once; it is not under way any
// more. The stored result comes also when the deadline is past by then.
func TestSentAgain(t *testing.T) {
	workers := &pool{}
	p := open(t, workers, front.Options{})
	const tasks = 50
	for i := range tasks {
		id := fmt.Sprint("t", i)
		p.SendRaw(dispatch(id, "low", "") + "\n")
		result(p, id)
		p.SendRaw(dispatch(id, "low", `,"deadline":"2001-01-01T00:00:00Z"`) + "\n")
		if m := resultNo(t, p, id, 2); m.Get("/status") != "done" {
			t.Fatalf("sent again: %s", m.Line)
		}
	}
	if n := len(strings.Fields(workers.order())); n != tasks {
		t.Errorf("%d tasks were done, should be %d", n, tasks)
	}
}

// TestResultsMove: an export holds the results, and an import has them sent again.
func TestResultsMove(t *testing.T) {
	part := front.Part()
	opts := store.Options{Parts: []store.Part{part}}
	var records []jsontext.Value
	for i := range 2 {
		state, err := store.Open(t.Context(), filepath.Join(t.TempDir(), store.FileName), opts)
		if err != nil {
			t.Fatal(err)
		}
		defer state.Close()
		err = state.Write(t.Context(), func(tx *store.Tx) error {
			for _, r := range records {
				if err := part.Import(t.Context(), tx, "fleet.result", r); err != nil {
					return err
				}
			}
			return nil
		})
		workers := &pool{}
		p := open(t, workers, front.Options{Workspace: "/of/both", Store: func(context.Context) (store.Store, error) { return state, nil }})
		p.SendRaw(dispatch("t", "low", "") + "\n")
		if m := result(p, "t"); err != nil || m.Get("/summary") != "did work" || (i == 1) != (workers.order() == "") {
			t.Errorf("store %d: %s, done: %q, %v", i, m.Line, workers.order(), err)
		}
		p.Close()
		err = state.Read(t.Context(), func(tx *store.Tx) error {
			return part.Export(t.Context(), tx, func(_ string, record any) error {
				text, err := json.Marshal(record)
				records = append(records, text)
				return err
			})
		})
		if err != nil || len(records) == 0 {
			t.Fatalf("export: %v", err)
		}
	}
}
