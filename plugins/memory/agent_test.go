package memory

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/protocol"
)

// file opens the store in a new file.
func file(t testing.TB) store.Store { return openFile(t, filepath.Join(t.TempDir(), store.FileName)) }

func openFile(t testing.TB, path string) store.Store {
	t.Helper()
	return stores.Open(t, path, Part())
}

// clock is a time that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Unix(1_800_000_000, 0)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func pluginOn(t testing.TB, st store.Store, opts Options, c *clock) *Plugin {
	t.Helper()
	return must.Get(New("memory", opts, host.Env{
		Store: func(context.Context) (store.Store, error) { return st, nil },
		Now:   c.Now,
	}))(t)
}

// agent is an agent with a host of its own and one memory.
type agent struct {
	*hosttest.Pair
	t      testing.TB
	plugin *Plugin
	id     string // memory_id
}

// newAgent starts a host for an agent on a store and opens its default memory.
func newAgent(t testing.TB, st store.Store, name string, opts Options, c *clock, more ...host.Plugin) *agent {
	t.Helper()
	a := &agent{t: t, plugin: pluginOn(t, st, opts, c)}
	a.Pair = hosttest.New(t, host.Options{Plugins: append(more, a.plugin), MaxParallel: 8})
	a.handshake(name)
	a.id = a.open(`{}`)
	return a
}

func (a *agent) handshake(name string) {
	a.t.Helper()
	var resp protocol.HandshakeResponse
	a.Call(protocol.TypeHandshakeReq, fmt.Sprintf(`{"agent_id":%q,"agent_caps":["memory"]}`, name)).Decode(a.t, &resp)
	must.That(a.t, resp.OK, "the handshake was refused: %+v", resp)
}

func (a *agent) open(fields string) string {
	a.t.Helper()
	var resp protocol.MemoryInitResponse
	a.call(protocol.TypeMemoryInitReq, fields, &resp)
	return resp.MemoryID
}

// with adds the memory's id to the fields of a request.
func (a *agent) with(fields string) string {
	if fields == "{}" {
		return fmt.Sprintf(`{"memory_id":%q}`, a.id)
	}
	return fmt.Sprintf(`{"memory_id":%q,%s`, a.id, strings.TrimPrefix(fields, "{"))
}

// call makes a request that must not fail.
func (a *agent) call(t protocol.Type, fields string, resp any) {
	a.t.Helper()
	m := a.Call(t, fields)
	must.That(a.t, m.Code == "", "%s %.300s was answered %s", t, fields, m.Line)
	m.Decode(a.t, resp)
}

func (a *agent) store(entries ...string) protocol.MemoryStoreResponse {
	a.t.Helper()
	var resp protocol.MemoryStoreResponse
	a.call(protocol.TypeMemoryStoreReq, a.with(`{"entries":[`+strings.Join(entries, ",")+`]}`), &resp)
	return resp
}

func (a *agent) retrieve(fields string) protocol.MemoryRetrieveResponse {
	a.t.Helper()
	var resp protocol.MemoryRetrieveResponse
	a.call(protocol.TypeMemoryRetrieveReq, a.with(fields), &resp)
	return resp
}

func (a *agent) forget(fields string) int {
	a.t.Helper()
	var resp protocol.MemoryForgetResponse
	a.call(protocol.TypeMemoryForgetReq, a.with(fields), &resp)
	return resp.Deleted
}

// keys returns the keys of an answer as one line.
func keys(resp protocol.MemoryRetrieveResponse) string {
	var all []string
	for _, e := range resp.Entries {
		all = append(all, string(e.Key.Raw()))
	}
	return strings.Join(all, " ")
}

// want compares what a request finds with the keys expected, in order.
func (a *agent) want(what, fields, expected string) protocol.MemoryRetrieveResponse {
	a.t.Helper()
	resp := a.retrieve(fields)
	got := keys(resp)
	assert.That(a.t, got == expected, "%s: %s found %s, want %s", what, fields, got, expected)
	return resp
}

// one returns an entry of a tier, with the number n as its key.
func one(n int, tier, content string) string {
	return fmt.Sprintf(`{"key":{"n":%d},"content":%q,"tier":%q}`, n, content, tier)
}
