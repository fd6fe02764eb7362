package jsonrpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"a2e/host/agent"
	front "a2e/host/dialect/jsonrpc"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/protocol/fleet"
)

// TestBrokenStore: if the store fails, the work of a worker is not lost: its messages say that they were not kept. A
// request that is refused has no effect.
func TestBrokenStore(t *testing.T) {
	var broken atomic.Bool
	whole := state(t, t.TempDir())
	opts := front.Options{Store: func(ctx context.Context) (store.Store, error) {
		if broken.Load() {
			return nil, errors.New("the disk is full")
		}
		return whole(ctx)
	}}
	p := open(t, opts, newKit())
	id := p.session(`{"model":"small"}`)
	p.on(id, "session.send", `,"text":"kept"`)
	p.idle(id, 0)
	check(t, p.event("session.message.appended", "kept", 0), "/params/payload/kept", "")
	broken.Store(true)
	check(t, p.call("session.create", ""), "/error/code", "-32603", "/error/message~", "the disk is full")
	check(t, p.call("model.select", `{"model_id":"m2","provider":"big","thinking_level":"OFF"}`), "/error/code",
		"-32603")
	p.on(id, "session.send", `,"text":"not kept"`)
	p.idle(id, 1)
	numbers := map[string]bool{}
	for nth, text := range []string{"not kept", "did small"} {
		got := p.event("session.message.appended", text, nth)
		check(t, got, "/params/payload/kept", "false")
		numbers[get(t, got, "/params/payload/message/id")] = true
	}
	broken.Store(false)
	check(t, p.on(id, "session.get", ""), "/result/history",
		`[{"role":"user","text":"kept"},{"role":"assistant","text":"did small"}]`)
	check(t, p.call("model.list", ""), "/result/selected_provider", "null")
	got := p.call("state.get", "")
	assert.That(t, get(t, got, "/result/sessions/count") == "1" && len(numbers) == 2, "%v %v", got, numbers)
}

// TestSlowStore: a store that another host keeps locked for long does not delay requests that do not need the store,
// or the end of a turn.
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
	p.send(request("1", "session.create", ""), request("2", "system.ping", ""),
		onSession("3", "session.send", id, `,"text":"x"`))
	check(t, p.answer("1"), "/error/data/reason", "timeout", "/error/data/retryable", "true", "/error/message~",
		"store")
	p.answer("2")
	p.event("session.completed", id, 0)
	p.idle(id, 0)
}

// TestShutdownWithoutStore: a store that hangs does not delay a shutdown or the end of the host.
func TestShutdownWithoutStore(t *testing.T) {
	var hangs atomic.Bool
	whole := state(t, t.TempDir())
	p := open(t, front.Options{StoreWait: 50 * time.Millisecond, Store: func(ctx context.Context) (store.Store, error) {
		if hangs.Load() {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		return whole(ctx)
	}}, newKit())
	for get(t, p.call("session.create", ""), "/result/session_id") == "" { // as in TestSlowStore
	}
	hangs.Store(true)
	p.send(request("1", "system.shutdown", `{"timeout":0}`))
	check(t, p.answer("1"), "/result/accepted", "true")
	p.wait()
}

// TestWaitOvertaken: while a request waits for the store, requests that do not need the store are answered. Later
// requests that must keep the order wait.
func TestWaitOvertaken(t *testing.T) {
	dir := t.TempDir()
	p := open(t, front.Options{StoreWait: time.Hour, Store: state(t, dir)}, newKit())
	s := p.session("")
	release := occupy(t, state(t, dir))
	defer release()
	p.send(request("1", "session.create", ""), onSession("2", "session.queue.list", s, ""))
	for _, method := range []string{"system.ping", "auth.status", "auth.connect.openai"} {
		p.call(method, "")
	}
	check(t, p.call("debug.set", `{"super_debug":false}`), "/result/super_debug", "false")
	for _, l := range p.all() {
		assert.That(t, !strings.HasPrefix(l, `{"jsonrpc":"2.0","id":1,`) && !strings.HasPrefix(l,
			`{"jsonrpc":"2.0","id":2,`),
			"while the store was not free: %s", l)
	}
	release()
	p.answer("2")
	got := p.answer("1")
	assert.That(t, get(t, got, "/result/session_id") != "", "%v", got)
}

// occupy locks a store until release is called.
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
		assert.OK(t, err)
	})
	<-held
	return sync.OnceFunc(func() {
		close(free)
		other.Wait()
	})
}

// TestTwoHosts: two hosts that use the same session of a store each see the messages of the other one, and no message
// is lost.
func TestTwoHosts(t *testing.T) {
	dir := t.TempDir()
	k := newKit()
	var earlier []agent.Said
	k.play = func(_ context.Context, task agent.WorkerTask) *fleet.Result {
		earlier = task.Talk.Earlier
		return done(task, "it")
	}
	here, there := open(t, front.Options{Store: state(t, dir)}, newKit()), open(t, front.Options{Store: state(t, dir)},
		k)
	s := here.session("")
	there.on(s, "session.get", "") // it now knows the session without messages
	here.on(s, "session.send", `,"text":"from here"`)
	here.idle(s, 0)
	there.on(s, "session.send", `,"text":"from there"`)
	there.idle(s, 0)
	assert.That(t, len(earlier) == 2 && earlier[0].Text == "from here", "the other host's worker is told %v", earlier)
	for _, p := range []*pipe{here, there} {
		check(t, p.call("history.list", ""), "/result/total", "1", "/result/sessions/0/title", "from there",
			"/result/sessions/0/messageCount", "4")
		check(t, p.on(s, "session.get", ""), "/result/history/2/text", "from there")
	}
}

// TestPages: the history is listed in pages, newest first, and the oldest chat is removed when there are too many.
func TestPages(t *testing.T) {
	p := open(t, front.Options{MaxKept: 5}, newKit())
	p.session("") // a session without messages is not in the history
	for i := range 6 {
		s := p.session("")
		p.on(s, "session.send", fmt.Sprintf(`,"text":" number\n%d %s"`, i, strings.Repeat("é", 80)))
		p.idle(s, 0)
	}
	for params, want := range map[string]string{
		``: "5 0 100 5 null", `{"limit":null,"cursor":null}`: "5 0 100 5 null", `{"limit":0}`: "5 0 100 5 null",
		`{"limit":2.9}`: "5 0 2 2 2", `{"limit":2,"cursor":2.5}`: "5 2 2 4 4",
		`{"limit":2,"cursor":4}`: "5 4 2 5 null", `{"limit":-3}`: "5 0 1 1 1", `{"limit":2,"cursor":-7}`: "5 0 2 2 2",
		`{"limit":1e300,"cursor":1e300}`: "5 2147483648 2147483648 2147483648 null",
	} {
		got := p.call("history.list", params)
		rows := strings.Count(got, `"rolloutPath":"a2e:`)
		cursor, _ := strconv.Atoi(get(t, got, "/result/cursor"))
		is := fmt.Sprintf("%s %d %s %d %s", get(t, got, "/result/total"), cursor, get(t, got, "/result/limit"),
			cursor+rows, get(t, got, "/result/next_cursor"))
		assert.Equal(t, is, want, "%s", params)
	}
	check(t, p.call("history.list", `{"cursor":4}`), "/result/sessions/0/title", "number 1 "+strings.Repeat("é", 71))
	newest := p.call("history.list", `{"limit":1}`)
	check(t, newest, "/result/sessions/0/title~", "number 5")
	path := get(t, newest, "/result/sessions/0/rolloutPath")
	check(t, p.call("history.get", `{"rollout_path":" `+path+` ","id":"of no chat"}`), "/result/rolloutPath", path,
		"/result/messages/1/text", "did small")
	check(t, p.call("history.get", `{"rollout_path":"`+path[:12]+`"}`), "/error/message~", "failed to load chat")
}

// TestRestart: sessions and their messages outlive the host, also by an export and an import.
func TestRestart(t *testing.T) {
	opts, elsewhere := front.Options{Store: state(t, t.TempDir())}, state(t, t.TempDir())
	p := open(t, opts, newKit())
	s := p.session(`{"title":" My\n title "}`)
	p.on(s, "session.send", `,"text":"/tool {\"env\":{\"API_TOKEN\":\"canary-1\"}} --token canary-2 password=canary-3"`)
	p.idle(s, 0)
	before := p.on(s, "session.get", "")
	p.close()
	var out bytes.Buffer
	source, _ := opts.Store(t.Context())
	must.OK(t, source.Export(t.Context(), &out))
	assert.That(t, !strings.Contains(out.String(), "canary"), "a secret is kept: %s", out.String())
	target, _ := elsewhere(t.Context())
	for range 2 {
		must.Get(target.Import(t.Context(), bytes.NewReader(out.Bytes()), store.Merge))(t)
	}
	for _, o := range []front.Options{opts, {Store: elsewhere}} {
		p = open(t, o, newKit())
		check(t, p.on(s, "session.get", ""), "/result/history", get(t, before, "/result/history"), "/result/title",
			"My title", "/result/activeSessionId", get(t, before, "/result/activeSessionId"))
		check(t, p.call("history.list", ""), "/result/sessions/0/title", "My title", "/result/sessions/0/messageCount",
			"2")
		p.on(s, "session.send", `,"text":"on"`)
		p.idle(s, 0)
		check(t, p.call("history.get", `{"last":true}`), "/result/messages/2/text", "on", "/result/messageCount", "4")
		p.close()
	}
}

// TestFolders: chats are listed by the folder in which they began. Chats of older versions have no folder.
func TestFolders(t *testing.T) {
	dir, top := t.TempDir(), t.TempDir()
	part := stores.Older(t, front.Part(), 3)
	old := stores.Open(t, dir+"/"+store.FileName, part)
	must.OK(t, old.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec("INSERT INTO rpc_rollouts (id, title, provider, model, thinking, created, updated) VALUES " +
			"('r0', 'old', '', '', '', 1, 2)")
		if err == nil {
			_, err = tx.Exec(`INSERT INTO rpc_messages (rollout, turn, said, message) VALUES ('r0', 't', 1, '{"role":"user","text":"old"}')`)
		}
		return err
	}), old.Close())
	in := func(folder string) (p *pipe, session string) {
		must.OK(t, os.MkdirAll(filepath.Join(top, folder), 0o700))
		p = open(t, front.Options{Store: state(t, dir), Workspace: filepath.Join(top, folder)}, newKit())
		return p, p.session("")
	}
	say := func(p *pipe, s, text string, nth int) {
		p.on(s, "session.send", `,"text":"`+text+`"`)
		p.idle(s, nth)
	}
	a, sa := in("a")
	check(t, a.on(sa, "command.execute", `,"raw_command":"/history last"`), "/error/message~",
		"/history --all lists those of others")
	say(a, sa, "of a", 0)
	b, sb := in("b")
	say(b, sb, "of b", 0)
	for params, want := range map[string]string{
		``: "old of a of b", `{"folder":null}`: "old of a of b",
		`{"folder":"."}`: "of a", `{"folder":"../b"}`: "of b",
		fmt.Sprintf(`{"folder":%q,"limit":1}`, filepath.Join(top, "b")): "of b", `{"folder":"c"}`: "",
	} {
		list := a.call("history.list", params)
		for _, title := range []string{"old", "of a", "of b"} {
			assert.Equal(t, strings.Contains(list, `"title":"`+title+`"`), strings.Contains(want, title), "%s in %s",
				title, list)
		}
		check(t, list, "/result/total", fmt.Sprint(len(strings.Fields(strings.ReplaceAll(want, "of ", "")))))
	}
	check(t, a.on(sa, "command.execute", `,"raw_command":"/history"`), "/result/output/total", "1",
		"/result/output/sessions/0/folder", filepath.Join(top, "a"))
	check(t, a.on(sa, "command.execute", `,"raw_command":"/history --all"`), "/result/output/total", "3")
	last := get(t, b.call("history.list", `{"folder":"../a"}`), "/result/sessions/0/id")
	check(t, b.on(sb, "command.execute", `,"raw_command":"/history `+last+`"`), "/result/output/resumed", last)
	say(b, sb, "on with a", 1)
	check(t, b.call("history.list", `{"folder":"../a"}`), "/result/sessions/0/title",
		"on with a") // a chat stays in the folder where it began
	check(t, a.call("history.get", `{"last":true}`), "/result/id", last)
}

// TestOlder: messages that older versions have stored are still there.
func TestOlder(t *testing.T) {
	const s = "00000000-0000-4000-8000-000000000001"
	part := stores.Older(t, front.Part(), 1)
	path := filepath.Join(t.TempDir(), store.FileName)
	old := must.Get(store.Open(t.Context(), path, store.Options{Parts: []store.Part{part}}))(t)
	err := errors.Join(old.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec("INSERT INTO rpc_sessions VALUES ($1, 'said', 0, '', 1, 2)", s)
		for _, role := range []string{"user", "tool", "assistant"} {
			if err == nil {
				_, err = tx.Exec("INSERT INTO rpc_messages (session, message) VALUES ($1, $2)", s,
					`{"message_id":"m","role":"`+role+`","text":"said","images":[{"path":"a.png","mime_type":"image/png","bytes":7}],"created_at":"2026-01-01T00:00:00Z"}`)
			}
		}
		return err
	}), old.Close())
	must.That(t, err == nil, "%v", err)
	check(t, open(t, front.Options{Store: state(t, filepath.Dir(path))}).on(s, "session.get", ""),
		"/result/history", `[{"role":"user","text":"said"},{"role":"assistant","text":"said"}]`,
		"/result/activeSessionId", s)
}
