package rpc_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"a2e/host/rpc"
	"a2e/host/store"
)

// TestSlowStore: a store that another host has to itself for long does not hold up the
// requests that need nothing of it, nor the end of a turn.
func TestSlowStore(t *testing.T) {
	dir := t.TempDir()
	opts := rpc.Options{StoreWait: 50 * time.Millisecond, Store: state(t, dir)}
	p := open(t, opts, newKit())
	id := p.session("")
	held, release := make(chan struct{}), make(chan struct{})
	var other sync.WaitGroup
	defer other.Wait()
	defer close(release)
	another := state(t, dir)
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
	p.send(request("1", "session.create", ""), request("2", "system.ping", ""), request("3", "session.send", `{"session_id":"`+id+`","text":"x"}`))
	if got := p.answer("1"); get(t, got, "/error/data/code") != "timeout" || get(t, got, "/error/data/retryable") != "true" || !strings.Contains(get(t, got, "/error/message"), "store") {
		t.Error(got)
	}
	p.answer("2")
	p.event("session.completed", id, 0)
	p.event("session.status", `"idle"`, 0)
}
