package jsonrpc_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	front "a2e/host/dialect/jsonrpc"
	"a2e/host/store"
)

// TestBrokenStore: where the store fails nothing that a worker did is lost, what is not
// kept says so, and what was refused has not happened.
func TestBrokenStore(t *testing.T) {
	var broken atomic.Bool
	whole := state(t, t.TempDir())
	opts := front.Options{Store: func(ctx context.Context) (store.Store, error) {
		if broken.Load() {
			return nil, errors.New("the disk is full")
		}
		return whole(ctx)
	}}
	k := newKit()
	p := open(t, opts, k)
	id := p.session(`{"model":"small"}`)
	p.call("session.send", `{"session_id":"`+id+`","text":"kept"}`)
	p.event("session.completed", "", 0)
	if got := p.event("session.message.appended", "kept", 0); raw(t, got, "/params/payload/kept") != "" {
		t.Error(got)
	}
	broken.Store(true)
	check(t, p.call("session.create", ""), "/error/code", "-32603", "/error/message~", "the disk is full")
	check(t, p.call("model.select", `{"session_id":"`+id+`","model":"big"}`), "/error/code", "-32603")
	p.call("session.send", `{"session_id":"`+id+`","text":"not kept"}`)
	p.event("session.completed", "did small", 1) // the model is as it was
	for nth, text := range []string{"not kept", "did small"} {
		check(t, p.event("session.message.appended", text, nth), "/params/payload/kept", "false")
	}
	broken.Store(false)
	check(t, p.call("session.get", `{"session_id":"`+id+`"}`), "/result/message_count", "2", "/result/model", "small")
	if got := p.call("state.get", ""); get(t, got, "/result/sessions_kept") != "1" || strings.Count(raw(t, got, "/result/sessions"), "session_id") != 1 {
		t.Error(got)
	}
}

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
	check(t, p.answer("1"), "/error/data/code", "timeout", "/error/data/retryable", "true", "/error/message~", "store")
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
	check(t, p.call("debug.set", `{"enabled":false}`), "/result/enabled", "false")
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

// TestTwoHosts: hosts that work in one session of their store keep what the other one has
// changed there, and lose no message.
func TestTwoHosts(t *testing.T) {
	dir := t.TempDir()
	k := newKit()
	here, there := open(t, front.Options{Store: state(t, dir)}, newKit()), open(t, front.Options{Store: state(t, dir)}, k)
	s := here.session("")
	at := `{"session_id":"` + s + `"`
	there.call("session.get", at+`}`) // it knows the session as it is now
	here.call("session.send", at+`,"text":"the title"}`)
	here.event("session.status", `"idle"`, 0)
	here.call("model.select", at+`,"model":"big"}`)
	there.call("session.send", at+`,"text":"from there"}`)
	if brief := <-k.begun; !strings.HasPrefix(brief, "big|") || !strings.Contains(brief, "the title") {
		t.Errorf("the other host's worker and brief: %s", brief)
	}
	there.event("session.status", `"idle"`, 0)
	there.call("command.execute", at+`,"raw_command":"/echo"}`)
	for _, p := range []*pipe{here, there} {
		got := p.call("history.list", "")
		check(t, got, "/result/sessions/0/title", "the title", "/result/sessions/0/model", "big", "/result/sessions/0/message_count", "6")
	}
}

// TestImagesGoWithTheirSession: the images that came as data are taken away when their
// session goes, as the oldest of too many.
func TestImagesGoWithTheirSession(t *testing.T) {
	dir := t.TempDir()
	p := open(t, front.Options{Workspace: dir, MaxKept: 2}, newKit())
	var ids []string
	for i := range 3 {
		ids = append(ids, p.session(""))
		p.call("session.send", `{"session_id":"`+ids[i]+`","text":"look","images":["`+dataURL(png)+`"]}`)
		p.event("session.status", `"idle"`, i) // it has ended altogether
	}
	there, err := os.ReadDir(filepath.Join(dir, ".a2e-images"))
	var got []string
	for _, e := range there {
		if e.IsDir() {
			got = append(got, e.Name())
		}
	}
	if want := slices.Sorted(slices.Values(ids[1:])); err != nil || !slices.Equal(got, want) {
		t.Errorf("images of %q are there, should be %q (%v)", got, want, err)
	}
}
