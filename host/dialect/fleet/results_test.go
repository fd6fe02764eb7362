package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host"
	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/store"
	"a2e/protocol/fleet"
)

// TestResultsKept: a result in the store outlives the host, and is sent again for the same task, whatever the brief
// says then.
func TestResultsKept(t *testing.T) {
	state := newState(t, t.TempDir())
	workers := &pool{}
	opts := front.Options{Store: state}
	for i := range 2 {
		p := open(t, workers, opts)
		if m := do(p, dispatch("t", "low", ""), "t"); m.Get("/summary") != "did work" || len(announces(p)) != 1 ||
			p.Messages()[0].Type != fleet.TypeAnnounce {
			t.Errorf("host %d: after %d announces %s", i, len(announces(p)), m.Line)
		}
		p.SendRaw(strings.Replace(dispatch("t", "low", ""), `"brief":"work"`, `"brief":"rest"`, 1) + "\n")
		check(t, resultNo(t, p, "t", 2), "/summary", "did work")
		p.Close()
	}
	opts.Workspace = t.TempDir() // in another workspace the same id is another task
	p := open(t, workers, opts)
	do(p, dispatch("t", "low", ""), "t")
	assert.Equal(t, workers.order(), "t t", "done")
}

// TestSentAgain: when a result was sent, its task is no longer running, so the task can be sent again at once. The
// kept result is sent even if the deadline is over by then.
func TestSentAgain(t *testing.T) {
	workers := &pool{}
	p := open(t, workers, front.Options{})
	const tasks = 50
	for i := range tasks {
		id := fmt.Sprint("t", i)
		do(p, dispatch(id, "low", ""), id)
		p.SendRaw(dispatch(id, "low", `,"deadline":"2001-01-01T00:00:00Z"`) + "\n")
		m := resultNo(t, p, id, 2)
		must.Equal(t, m.Get("/status"), "done", "sent again: %s", m.Line)
	}
	assert.Equal(t, len(strings.Fields(workers.order())), tasks, "… tasks were done")
}

// TestResultsMove: an export contains the results, and after an import they are sent again.
func TestResultsMove(t *testing.T) {
	part := front.Part()
	var records []jsontext.Value
	for i := range 2 {
		state := newState(t, t.TempDir())
		err := state.Write(t.Context(), func(tx *store.Tx) error {
			for _, r := range records {
				if err := part.Import(t.Context(), tx, "fleet.result", r); err != nil {
					return err
				}
			}
			return nil
		})
		workers := &pool{}
		p := open(t, workers, front.Options{Workspace: "/of/both", Store: state})
		if m := do(p, dispatch("t", "low", ""), "t"); err != nil || m.Get("/summary") != "did work" ||
			(i == 1) != (workers.order() == "") {
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
		must.That(t, err == nil && len(records) != 0, "export: %v", err)
	}
}

// TestSlowStore: a store that another host keeps locked for long does not delay results, and the results are then
// sent again from memory.
func TestSlowStore(t *testing.T) {
	dir := t.TempDir()
	own, another := newState(t, dir), newState(t, dir)
	held, release := make(chan struct{}), make(chan struct{})
	var other sync.WaitGroup
	defer other.Wait()
	defer close(release)
	other.Go(func() {
		err := another.Write(context.Background(), func(*store.Tx) error {
			close(held)
			<-release
			return nil
		})
		assert.OK(t, err)
	})
	<-held
	f := front.New(front.Options{Log: zerolog.Nop(), Store: own})
	f.HurryStore(50 * time.Millisecond)
	workers := &pool{}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{workers}, Dialects: []host.Dialect{f}})
	for i := range 2 {
		p.SendRaw(dispatch("t", "low", "") + "\n")
		check(t, resultNo(t, p, "t", i+1), "/status", "done")
	}
	assert.Equal(t, workers.order(), "t", "done")
}
