package jsonrpc_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host"
	front "a2e/host/dialect/jsonrpc"
	"a2e/host/store"
	"a2e/protocol/fleet"
)

func TestTurn(t *testing.T) {
	k := newKit()
	p := open(t, front.Options{}, k)
	s := p.session("")
	got := p.call("session.send", `{"session_id":"`+s+`","text":"  first line\nsecond"}`)
	if get(t, got, "/result/status") != "started" || get(t, got, "/result/turn_id") == "" {
		t.Error(got)
	}
	turn := get(t, got, "/result/turn_id")
	done := p.event("session.completed", "", 0)
	if get(t, done, "/params/payload/summary") != "did " || get(t, done, "/params/payload/turn_id") != turn || get(t, done, "/params/payload/tokens_spent") != "7" {
		t.Error(done)
	}
	p.event("session.status", `"status":"idle"`, 0)
	var order []string
	for _, l := range p.all() {
		if e := get(t, l, "/params/type"); e != "" && e != "state.changed" {
			order = append(order, e)
			if get(t, l, "/params/payload/session_id") != s {
				t.Error(l)
			}
		} else if strings.Contains(l, turn) {
			order = append(order, "answer")
		}
	}
	if want := "answer session.status session.message.appended session.stream.chunk session.message.appended session.completed session.status"; strings.Join(order, " ") != want {
		t.Errorf("order: %v, should be %s", order, want)
	}
	if brief := <-k.begun; brief != "|  first line\nsecond" {
		t.Errorf("brief: %q", brief)
	}
	p.call("session.send", `{"session_id":"`+s+`","text":"again"}`)
	check(t, <-k.begun, "~", "[assistant]\ndid \n\n[user, now]\nagain")
	p.event("session.completed", "", 1)
	got = p.call("session.get", `{"session_id":"`+s+`"}`)
	check(t, got, "/result/title", "first line", "/result/message_count", "4", "/result/messages/1/role", "assistant")
	got = p.call("history.get", `{"session_id":"`+s+`","limit":3,"offset":0}`)
	check(t, got, "/result/next_offset", "3", "/result/messages/2/text", "again", "/result/total", "4")
	check(t, p.call("history.clear_session", `{"session_id":"`+s+`"}`), "/result/cleared", "4")
	check(t, p.call("history.get", `{"session_id":"`+s+`"}`), "/result/messages", "[]", "/result/title", "")
}

// TestQueue: while a worker works, messages wait, steer it, or are refused.
func TestQueue(t *testing.T) {
	k := newKit()
	k.hold = make(chan struct{})
	p := open(t, front.Options{MaxWaiting: 3}, k)
	s := p.session(`{"title":"T"}`)
	say := func(method, text, more string) string {
		return p.call(method, fmt.Sprintf(`{"session_id":%q,"text":%q%s}`, s, text, more))
	}
	say("session.send", "one", "")
	<-k.begun
	check(t, say("session.send", "two", ""), "/error/data/code", "session_busy", "/error/data/field", "enqueue")
	check(t, say("session.send", "two", `,"enqueue":true`), "/result/status", "queued", "/result/position", "1")
	check(t, say("session.steer", "to the left", ""), "/result/status", "steered")
	k.deaf = true
	check(t, say("session.steer", "before", ""), "/result/status", "queued", "/result/position", "1")
	say("session.send", "three", `,"enqueue":true`)
	check(t, say("session.send", "four", `,"enqueue":true`), "/error/data/code", "overloaded")
	got := p.call("session.queue.list", `{"session_id":"`+s+`"}`)
	check(t, got, "/result/queue/0/text", "before", "/result/queue/1/text", "two", "/result/queue/2/text", "three")
	third := get(t, got, "/result/queue/2/message_id")
	check(t, p.call("session.queue.clear", `{"session_id":"`+s+`","message_id":"`+third+`"}`), "/result/cleared", "1")
	check(t, p.call("session.queue.clear", `{"session_id":"`+s+`","message_id":"`+third+`"}`), "/error/data/field", "message_id")
	k.hold <- struct{}{}
	check(t, p.event("session.completed", "", 0), "/params/payload/summary", "did it to the left,before")
	if brief := <-k.begun; !strings.HasSuffix(brief, "[user, now]\nbefore") {
		t.Errorf("the next one: %q", brief)
	}
	other := p.session("") // goes on beside it
	p.call("session.send", `{"session_id":"`+other+`","text":"beside"}`)
	<-k.begun
	check(t, p.call("session.interrupt", `{"session_id":"`+s+`","clear_queue":true}`), "/result/interrupted", "true", "/result/cleared", "1")
	check(t, p.event("session.interrupted", "", 0), "/params/payload/session_id", s)
	check(t, p.call("session.get", `{"session_id":"`+other+`"}`), "/result/status", "running")
	check(t, p.call("session.interrupt", `{"session_id":"`+s+`"}`), "/result/interrupted", "false")
	p.send(request("1", "system.shutdown", `{"timeout":0}`))
	p.wait()
	check(t, p.event("session.interrupted", other, 0), "/params/payload/message", "the host ends")
}

// TestContext: of a long history a worker is told the end, and of a long message its start.
func TestContext(t *testing.T) {
	k := newKit()
	p := open(t, front.Options{MaxContext: 120}, k)
	s := p.session("")
	for i := range 12 { // each as soon as the one before has ended
		text := fmt.Sprint("text ", i)
		if i == 10 {
			text += strings.Repeat("y", 200)
		}
		if got := p.call("session.send", `{"session_id":"`+s+`","text":"`+text+`"}`); get(t, got, "/error") != "" {
			t.Fatal(got)
		}
		brief := <-k.begun
		if i == 11 && (!strings.Contains(brief, "\ntext 10yyy") || !strings.Contains(brief, "y… (cut)\n") || !strings.Contains(brief, "text 9\n") || strings.Contains(brief, "text 0\n") || len(brief) > 1000) {
			t.Errorf("%s", brief)
		}
		p.event("session.completed", "", i)
	}
}

// TestEnds: how a worker ends is told.
func TestEnds(t *testing.T) {
	k := newKit()
	p := open(t, front.Options{}, k)
	for i, c := range []struct {
		status        fleet.Status
		event, member string
		want          string
	}{
		{fleet.StatusPartial, "session.completed", "status", "partial"},
		{fleet.StatusBlocked, "session.error", "message", "no tool"},
		{fleet.StatusError, "session.error", "message", "it crashed"},
	} {
		k.work = func(task host.WorkerTask) *fleet.Result {
			r := fleet.NewResult(task.Task.TaskID, c.status)
			why := "no tool"
			r.BlockedReason, r.Error = &why, "it crashed"
			return r
		}
		s := p.session("")
		p.call("session.send", `{"session_id":"`+s+`","text":"go"}`)
		if got := p.event(c.event, s, 0); get(t, got, "/params/payload/"+c.member) != c.want {
			t.Errorf("%d: %s", i, got)
		}
		p.event("session.status", `"session_id":"`+s+`","status":"idle"`, 0)
	}
	k.work = func(host.WorkerTask) *fleet.Result { panic("ouch") }
	s := p.session("")
	p.call("session.send", `{"session_id":"`+s+`","text":"go"}`)
	p.event("session.error", "panicked", 0)
}

// TestErrors: what is wrong with parameters is named.
func TestErrors(t *testing.T) {
	p := open(t, front.Options{MaxText: 100}, newKit())
	s := `"session_id":"` + p.session("") + `"`
	for _, c := range []struct{ method, params, field string }{
		{"session.create", `{"title":5}`, "title"},
		{"session.create", `{"model":"huge"}`, "model"},
		{"session.get", `{}`, "session_id"},
		{"session.get", `{"session_id":"x"}`, "session_id"},
		{"session.send", `{"session_id":"x","text":"t"}`, "session_id"},
		{"session.send", `{` + s + `}`, "text"},
		{"session.send", `{` + s + `,"text":" "}`, "text"},
		{"session.send", `{` + s + `,"text":"` + strings.Repeat("x", 101) + `"}`, "text"},
		{"session.send", `{` + s + `,"text":"x","images":["a.png"]}`, "images"},
		{"session.send", `{` + s + `,"text":"x","images":[{}]}`, "images/0"},
		{"session.steer", `{` + s + `}`, "text"},
		{"session.interrupt", `{"session_id":null}`, "session_id"},
		{"session.queue.list", `{}`, "session_id"},
		{"session.queue.clear", `{"session_id":7}`, "session_id"},
		{"command.execute", `{` + s + `}`, "raw_command"},
		{"command.execute", `{` + s + `,"raw_command":"echo"}`, "raw_command"},
		{"command.execute", `{` + s + `,"raw_command":"/ x"}`, "raw_command"},
		{"command.execute", `{` + s + `,"raw_command":"/echo {"}`, "raw_command"},
		{"command.execute", `{` + s + `,"raw_command":"/echo {} x"}`, "raw_command"},
		{"command.execute", `{` + s + `,"raw_command":"/echo a"}`, "raw_command"},
		{"command.execute", `{` + s + `,"raw_command":"/echo a=\"x"}`, "raw_command"},
		{"command.execute", `{` + s + `,"raw_command":"/echo a=1 a=2"}`, "raw_command"},
		{"history.list", `{"limit":-1}`, "limit"},
		{"history.list", `{"limit":501}`, "limit"},
		{"history.get", `{` + s + `,"offset":-1}`, "offset"},
		{"history.clear_session", `{}`, "session_id"},
		{"model.select", `{}`, "model"},
		{"model.select", `{"model":"huge"}`, "model"},
		{"model.select", `{"model":"m1","session_id":"x"}`, "session_id"},
		{"debug.set", `{}`, "enabled"},
	} {
		got := p.call(c.method, c.params)
		check(t, got, "/error/code", "-32602", "/error/data/field", c.field, "/error/data/reason", "invalid_params")
	}
	none := open(t, front.Options{})
	got := none.call("session.send", `{"session_id":"`+none.session("")+`","text":"x"}`)
	check(t, got, "/error/code", "-32603", "/error/data/code", "no_worker")
	for method, want := range map[string]string{"tools.list": `{"tools":[]}`, "skills.list": `{"skills":[]}`, "model.list": `{"models":[],"selected":""}`} {
		check(t, none.call(method, ""), "/result", want)
	}
}

func TestLists(t *testing.T) {
	p := open(t, front.Options{Version: "v9", Workspace: t.TempDir()}, newKit())
	check(t, p.call("tools.list", ""), "/result/tools/0/name", "echo")
	check(t, p.call("skills.list", `{"filter_tags":[]}`), "/result/skills/0/name", "cook")
	check(t, p.call("model.list", ""), "/result/selected", "small", "/result/models/1/model", "m2")
	s := p.session(`{"model":"small"}`)
	check(t, p.call("model.select", `{"model":"m2"}`), "/result/id", "big")
	p.event("state.changed", "model", 0)
	check(t, p.call("model.list", ""), "/result/selected", "big", "/result/models/1/selected", "true")
	for _, c := range [][2]string{{s, "did small"}, {p.session(""), "did big"}} {
		p.call("session.send", `{"session_id":"`+c[0]+`","text":"go"}`)
		check(t, p.event("session.completed", c[0], 0), "/params/payload/summary", c[1])
	}
	check(t, p.call("limits.get", ""), "/result/sessions/used", "2", "/result/workers/0/limit", "2", "/result/requests/used", "1")
	if got := p.call("state.get", ""); get(t, got, "/result/server/version") != "v9" || get(t, got, "/result/sessions/1/session_id") == "" || get(t, got, "/result/capabilities") != `["skill","tools"]` {
		t.Error(got)
	}
	check(t, p.call("auth.status", ""), "/result", `{"authenticated":true,"method":"none","required":false}`)
	check(t, p.call("debug.set", `{"enabled":true,"level":"debug"}`), "/result", `{"enabled":true,"level":"debug"}`)
	check(t, p.call("nope", ""), "/error/data/debug/method", "nope")
}

// TestSessionsBound: idle sessions leave the memory for others, busy ones do not.
func TestSessionsBound(t *testing.T) {
	k := newKit()
	k.hold = make(chan struct{})
	p := open(t, front.Options{MaxSessions: 2, Store: state(t, t.TempDir())}, k)
	var ids []string
	for range 3 {
		ids = append(ids, p.session(""))
	}
	for _, id := range []string{ids[0], ids[1]} { // the first one comes back from the store
		check(t, p.call("session.send", `{"session_id":"`+id+`","text":"x"}`), "/result/status", "started")
		<-k.begun
	}
	check(t, p.call("session.get", `{"session_id":"`+ids[2]+`"}`), "/error/data/code", "overloaded")
	close(k.hold)
	p.event("session.status", "idle", 1)
	check(t, p.call("session.get", `{"session_id":"`+ids[2]+`"}`), "/result/status", "idle")
}

// TestRestart: sessions, their messages and the settings outlive the host.
func TestRestart(t *testing.T) {
	opts := front.Options{Store: state(t, t.TempDir())}
	p := open(t, opts, newKit())
	s := p.session("")
	p.call("session.send", `{"session_id":"`+s+`","text":"remember"}`)
	p.event("session.completed", "", 0)
	check(t, p.call("onboarding.status", ""), "/result/completed", "false", "/result/completed_at", "null")
	p.call("onboarding.complete", "")
	p.close()
	k := newKit()
	p = open(t, opts, k)
	check(t, p.call("onboarding.complete", ""), "/result/completed", "true")
	got := p.call("history.list", "")
	check(t, got, "/result/sessions/0/session_id", s, "/result/sessions/0/title", "remember", "/result/sessions/0/message_count", "2", "/result/next_offset", "null")
	p.call("session.send", `{"session_id":"`+s+`","text":"on"}`)
	check(t, <-k.begun, "~", "remember")
	p.event("session.completed", "", 0)
	check(t, p.call("history.clear_session", `{"session_id":"`+s+`"}`), "/result/cleared", "4")
}

// TestTransfer: what the store exports of the sessions comes in again elsewhere, once.
func TestTransfer(t *testing.T) {
	from, to := state(t, t.TempDir()), state(t, t.TempDir())
	p := open(t, front.Options{Store: from}, newKit())
	s := p.session("")
	p.call("session.send", `{"session_id":"`+s+`","text":"remember"}`)
	p.event("session.completed", "", 0)
	p.call("onboarding.complete", "")
	var out bytes.Buffer
	source, _ := from(t.Context())
	if err := source.Export(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	target, _ := to(t.Context())
	for range 2 {
		if _, err := target.Import(t.Context(), bytes.NewReader(out.Bytes()), store.Merge); err != nil {
			t.Fatal(err)
		}
	}
	p = open(t, front.Options{Store: to}, newKit())
	check(t, p.call("history.get", `{"session_id":"`+s+`"}`), "/result/total", "2", "/result/messages/0/text", "remember")
	check(t, p.call("onboarding.status", ""), "/result/completed", "true")
}

const png = "\x89PNG\r\n\x1a\n and so on"

func dataURL(image string) string {
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString([]byte(image))
}

func TestImages(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "o.png")
	for name, text := range map[string]string{filepath.Join(dir, "a.png"): png, filepath.Join(dir, "t.png"): "text", outside: png} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link.png")); err != nil {
		t.Fatal(err)
	}
	k := newKit()
	p := open(t, front.Options{Workspace: dir}, k)
	s := p.session("")
	send := func(image string) string {
		return p.call("session.send", fmt.Sprintf(`{"session_id":%q,"text":"see","images":[%s]}`, s, image))
	}
	data := dataURL(png)
	for _, bad := range []string{`"gone.png"`, `"t.png"`, `"."`, `"../o.png"`, fmt.Sprintf("%q", outside), `"link.png"`, `"data:text/plain;base64,AA"`, `"data:image/png,x"`, `"data:image/png;base64,!!"`, `{"data_url":"data:image/png;base64,AAAA"}`} {
		check(t, send(bad), "/error/data/field", "images/0", "/error/code", "-32602")
	}
	for i, good := range []string{`"a.png"`, `{"path":` + fmt.Sprintf("%q", filepath.Join(dir, "a.png")) + `}`, `"` + data + `"`, `{"data_url":"` + data + `"}`} {
		check(t, send(good), "/result/status", "started")
		brief := <-k.begun
		_, name, _ := strings.Cut(brief, "in the workspace:\n- ")
		name, rest, _ := strings.Cut(name, " ")
		if raw, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(raw) != png || !strings.HasPrefix(rest, "(image/png, 18 bytes)") {
			t.Errorf("%s: %q", good, brief)
		}
		p.event("session.status", "idle", i)
	}
	p.call("history.clear_session", `{"session_id":"`+s+`"}`)
	if there, err := filepath.Glob(filepath.Join(dir, ".a2e-images", "*-*")); err != nil || len(there) > 0 {
		t.Errorf("images that came as data are still there: %v %v", there, err)
	}
}

// TestFlood: whatever the end of the host cuts off has its one answer.
func TestFlood(t *testing.T) {
	k := newKit()
	k.hold = make(chan struct{})
	p := open(t, front.Options{MaxParallel: 3, MaxQueue: 150}, k)
	s := p.session("")
	p.call("session.send", `{"session_id":"`+s+`","text":"x"}`)
	<-k.begun
	over := make(chan struct{})
	defer close(over)
	go func() {
		for { // whoever begins is not to wait
			select {
			case <-k.begun:
			case <-over:
				return
			}
		}
	}()
	methods := []string{"system.ping", "tools.list", "command.execute", "session.send", "state.get", "nope", "session.steer"}
	const n = 400
	for i := range n {
		p.send(request(fmt.Sprint(i), methods[i%len(methods)], `{"session_id":"`+s+`","raw_command":"/block","text":"x","enqueue":true}`))
	}
	p.send(request(`"end"`, "rpc.handshake", ""), `{"type":"shutdown","timeout":0}`)
	p.wait()
	for i := range n {
		if got := p.count(fmt.Sprintf(`"id":%d,`, i)); got != 1 {
			t.Errorf("request %d has %d answers", i, got)
		}
	}
	if ends := p.count(`"type":"session.interrupted"`); ends != 1 {
		t.Errorf("%d turns were interrupted, should be the one that ran", ends)
	}
}
