package fleet_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
	"a2e/host/store"
)

// TestSlowStore: a store that another host has to itself for long does not hold up results,
// which are sent again from memory then.
func TestSlowStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	open := func() store.Store {
		s, err := store.Open(t.Context(), path, store.Options{Parts: []store.Part{front.Part()}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	own, another := open(), open()
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
		if err != nil {
			t.Error(err)
		}
	})
	<-held
	f := front.New(front.Options{Log: zerolog.Nop(), Store: func(context.Context) (store.Store, error) { return own, nil }})
	f.HurryStore(50 * time.Millisecond)
	workers := &pool{}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{workers}, Dialects: []host.Dialect{f}})
	for i := range 2 {
		p.SendRaw(dispatch("t", "low", "") + "\n")
		if m := resultNo(t, p, "t", i+1); m.Get("/status") != "done" {
			t.Errorf("%s", m.Line)
		}
	}
	if got := workers.order(); got != "t" {
		t.Errorf("done: %s", got)
	}
}
