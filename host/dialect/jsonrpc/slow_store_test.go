package jsonrpc_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	front "a2e/host/dialect/jsonrpc"
	"a2e/host/store"
)

// TestSlowStore: a store that another host has to itself for long does not hold up the
// requests that need nothing of it, nor the end of a turn.
func TestSlowStore(t *testing.T) {
	dir := t.TempDir()
	opts := front.Options{StoreWait: 50 * time.Millisecond, Store: state(t, dir)}
	p := open(t, opts, newKit())
	id := ""
	for id == "" { // on a busy machine the wait may be too short even for a free store
		id = get(t, p.call("session.create", ""), "/result/session_id")
	}
	release := occupy(t, state(t, dir))
	defer release()
	p.send(request("1", "session.create", ""), request("2", "system.ping", ""), request("3", "session.send", `{"session_id":"`+id+`","text":"x"}`))
	if got := p.answer("1"); get(t, got, "/error/data/code") != "timeout" || get(t, got, "/error/data/retryable") != "true" || !strings.Contains(get(t, got, "/error/message"), "store") {
		t.Error(got)
	}
	p.answer("2")
	p.event("session.completed", id, 0)
	p.event("session.status", `"idle"`, 0)
}

// TestWaitOvertaken: while a request waits for the store, those that need nothing of it are
// answered, and those that come behind it in order wait.
func TestWaitOvertaken(t *testing.T) {
	dir := t.TempDir()
	p := open(t, front.Options{StoreWait: time.Hour, Store: state(t, dir)}, newKit())
	s := p.session("")
	release := occupy(t, state(t, dir))
	defer release()
	p.send(request("1", "session.create", ""), onSession("2", "session.queue.list", s, ""))
	for _, method := range []string{"system.ping", "auth.status", "model.list"} {
		p.call(method, "")
	}
	if got := p.call("debug.set", `{"enabled":false}`); get(t, got, "/result/enabled") != "false" {
		t.Error(got)
	}
	for _, l := range p.all() {
		if strings.HasPrefix(l, `{"jsonrpc":"2.0","id":1,`) || strings.HasPrefix(l, `{"jsonrpc":"2.0","id":2,`) {
			t.Errorf("while the store was not free: %s", l)
		}
	}
	release()
	p.answer("2")
	if got := p.answer("1"); get(t, got, "/result/session_id") == "" {
		t.Error(got)
	}
}

// occupy has a store to itself until release is called.
func occupy(t *testing.T, s store.Opener) (release func()) {
	t.Helper()
	held, free := make(chan struct{}), make(chan struct{})
	var other sync.WaitGroup
	other.Go(func() {
		err := s.Write(context.Background(), func(*store.Tx) error {
			close(held)
			<-free
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-held
	return sync.OnceFunc(func() {
		close(free)
		other.Wait()
	})
}
