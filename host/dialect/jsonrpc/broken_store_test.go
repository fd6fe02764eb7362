package jsonrpc_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

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
	if got := p.call("session.create", ""); get(t, got, "/error/code") != "-32603" || !strings.Contains(get(t, got, "/error/message"), "the disk is full") {
		t.Error(got)
	}
	if got := p.call("model.select", `{"session_id":"`+id+`","model":"big"}`); get(t, got, "/error/code") != "-32603" {
		t.Error(got)
	}
	p.call("session.send", `{"session_id":"`+id+`","text":"not kept"}`)
	p.event("session.completed", "did small", 1) // the model is as it was
	for nth, text := range []string{"not kept", "did small"} {
		if got := p.event("session.message.appended", text, nth); get(t, got, "/params/payload/kept") != "false" {
			t.Error(got)
		}
	}
	broken.Store(false)
	if got := p.call("session.get", `{"session_id":"`+id+`"}`); get(t, got, "/result/message_count") != "2" || get(t, got, "/result/model") != "small" {
		t.Error(got)
	}
	if got := p.call("state.get", ""); get(t, got, "/result/sessions_kept") != "1" || strings.Count(raw(t, got, "/result/sessions"), "session_id") != 1 {
		t.Error(got)
	}
}
