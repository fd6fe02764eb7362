package jsonrpc_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"a2e/host"
	front "a2e/host/dialect/jsonrpc"
	"a2e/protocol/fleet"
)

// onSession makes the line of a request on a session.
func onSession(id, method, session, more string) string {
	return request(id, method, fmt.Sprintf(`{"session_id":%q%s}`, session, more))
}

// TestSteersInOrder: texts that no worker takes wait in the order in which they came, before
// those that were to wait.
func TestSteersInOrder(t *testing.T) {
	k := newKit()
	k.hold, k.deaf = make(chan struct{}), true
	p := open(t, front.Options{}, k)
	s := p.session("")
	p.send(onSession("1", "session.send", s, `,"text":"begin"`), onSession("2", "session.send", s, `,"text":"last","enqueue":true`))
	<-k.begun
	p.answer("2")
	var lines []string
	for i := range 8 {
		lines = append(lines, onSession(fmt.Sprint(10+i), "session.steer", s, fmt.Sprintf(`,"text":"steer %d"`, i)))
	}
	p.send(lines...)
	for i := range 8 {
		if got := p.answer(fmt.Sprint(10 + i)); get(t, got, "/result/position") != fmt.Sprint(i+1) {
			t.Errorf("steer %d: %s", i, got)
		}
	}
	queue := p.call("session.queue.list", `{"session_id":"`+s+`"}`)
	for i := range 8 {
		if got := get(t, queue, fmt.Sprintf("/result/queue/%d/text", i)); got != fmt.Sprintf("steer %d", i) {
			t.Errorf("place %d has %q", i+1, got)
		}
	}
	if got := get(t, queue, "/result/queue/8/text"); got != "last" {
		t.Errorf("at the end is %q", got)
	}
	close(k.hold)
}

// TestSteersOfSessions: a text that waits for the worker of one session holds up no other.
func TestSteersOfSessions(t *testing.T) {
	k := newKit()
	k.hold, k.away = make(chan struct{}), true
	p := open(t, front.Options{SteerWait: time.Hour}, k)
	busy, idle := p.session(""), p.session("")
	p.call("session.send", `{"session_id":"`+busy+`","text":"begin"}`)
	<-k.begun
	p.send(onSession("1", "session.steer", busy, `,"text":"wait"`), onSession("2", "session.steer", idle, `,"text":"begin"`))
	if got := p.answer("2"); get(t, got, "/result/status") != "started" || p.count(`"id":1,`) != 0 {
		t.Errorf("%s; the other one: %d", got, p.count(`"id":1,`))
	}
	close(k.hold)
	if got := p.answer("1"); get(t, got, "/result/session_id") != busy {
		t.Error(got)
	}
}

// TestSteersInHistory: a text that the worker took stands before what it said in the end,
// however soon that comes.
func TestSteersInHistory(t *testing.T) {
	k := newKit()
	k.hold, k.hasty = make(chan struct{}), true
	p := open(t, front.Options{}, k)
	for i := range 20 {
		s := p.session("")
		p.call("session.send", `{"session_id":"`+s+`","text":"begin"}`)
		if got := p.call("session.steer", `{"session_id":"`+s+`","text":"stop"}`); get(t, got, "/result/status") != "steered" {
			t.Fatal(got)
		}
		p.event("session.completed", s, 0)
		got := p.call("history.get", `{"session_id":"`+s+`"}`)
		for n, want := range []string{"begin", "stop", "did it stop"} {
			if text := get(t, got, fmt.Sprintf("/result/messages/%d/text", n)); text != want {
				t.Fatalf("session %d: message %d is %q, should be %q", i, n, text, want)
			}
		}
	}
	close(k.hold)
}

// TestInterruptAtOnce: an interrupt right behind commands reaches them all, also one that
// waits for its place, and none that comes after it or is of another session.
func TestInterruptAtOnce(t *testing.T) {
	k := newKit()
	p := open(t, front.Options{MaxParallel: 1}, k)
	s, other := p.session(""), p.session("")
	p.send(
		onSession("1", "command.execute", s, `,"raw_command":"/block"`), onSession("2", "command.execute", s, `,"raw_command":"/block"`),
		onSession("3", "command.execute", other, `,"raw_command":"/echo"`), onSession("4", "session.interrupt", s, ""),
		onSession("5", "command.execute", s, `,"raw_command":"/echo"`))
	if got := p.answer("4"); get(t, got, "/result/commands") != "2" || get(t, got, "/result/interrupted") != "false" {
		t.Error(got)
	}
	for _, id := range []string{"1", "2"} {
		if got := p.answer(id); get(t, got, "/error/data/code") != "cancelled" || get(t, got, "/error/code") != "-32603" {
			t.Error(got)
		}
	}
	for _, id := range []string{"3", "5"} {
		if got := p.answer(id); get(t, got, "/result/success") != "true" {
			t.Error(got)
		}
	}
}

// TestManyWait: thousands of commands wait for their place without a goroutine each, and an
// interrupt ends them all, with one answer each.
func TestManyWait(t *testing.T) {
	k := newKit()
	p := open(t, front.Options{MaxParallel: 1}, k)
	s := p.session("")
	const n = 2000
	lines := make([]string, n)
	for i := range lines {
		lines[i] = onSession(fmt.Sprint(i), "command.execute", s, `,"raw_command":"/block"`)
	}
	p.send(lines...)
	got := p.call("limits.get", "")
	if get(t, got, "/result/requests/used") != fmt.Sprint(n+1) || runtime.NumGoroutine() > 500 {
		t.Errorf("%d goroutines; %s", runtime.NumGoroutine(), got)
	}
	if got := p.call("session.interrupt", `{"session_id":"`+s+`"}`); get(t, got, "/result/commands") != fmt.Sprint(n) {
		t.Error(got)
	}
	p.answer("0")
	answers := make(map[string]int)
	for _, l := range p.all() {
		if strings.Contains(l, `"code":"cancelled"`) {
			answers[raw(t, l, "/id")]++
		}
	}
	for i := range n {
		if answers[fmt.Sprint(i)] != 1 {
			t.Fatalf("command %d has %d answers", i, answers[fmt.Sprint(i)])
		}
	}
}

// TestCommandsDoNotHoldUpOthers: lists, and texts for workers, come through while commands
// have all of their places.
func TestCommandsDoNotHoldUpOthers(t *testing.T) {
	k := newKit()
	p := open(t, front.Options{MaxParallel: 1, MaxLine: 12345}, k)
	s := p.session("")
	p.send(onSession("1", "command.execute", s, `,"raw_command":"/block"`))
	<-k.begun
	for _, method := range []string{"state.get", "tools.list", "skills.list"} {
		if got := p.call(method, ""); get(t, got, "/error") != "" {
			t.Error(got)
		}
	}
	if got := p.call("session.steer", `{"session_id":"`+s+`","text":"x"}`); get(t, got, "/result/status") != "started" {
		t.Error(got)
	}
	got := p.call("limits.get", "")
	for pointer, want := range map[string]string{
		"parallel/used": "1", "parallel/limit": "1", "commands_running": "1", "line_bytes": "12345", "sessions_kept/used": "1", "sessions_kept/limit": "10000",
	} {
		if is := get(t, got, "/result/"+pointer); is != want {
			t.Errorf("%s is %q, should be %s", pointer, is, want)
		}
	}
	p.call("session.interrupt", `{"session_id":"`+s+`"}`)
	p.answer("1")
}

// TestUseEndsWithTheAnswer: a request that was answered is not counted any more.
func TestUseEndsWithTheAnswer(t *testing.T) {
	p := open(t, front.Options{}, newKit())
	p.linger = time.Millisecond // long enough for the next request to come
	for i := range 10 {
		p.send(request(fmt.Sprint(i), "tools.list", ""))
		p.answer(fmt.Sprint(i))
		p.send(request(fmt.Sprintf(`"l%d"`, i), "limits.get", ""))
		if got := p.answer(fmt.Sprintf(`"l%d"`, i)); get(t, got, "/result/requests/used") != "1" {
			t.Fatalf("after %d: %s", i, got)
		}
	}
}

// TestGivenTitle: a title that the client gave outlives the history, and the host.
func TestGivenTitle(t *testing.T) {
	opts := front.Options{Store: state(t, t.TempDir())}
	p := open(t, opts, newKit())
	s := p.session(`{"title":" My\n title"}`)
	p.call("session.send", `{"session_id":"`+s+`","text":"other words"}`)
	p.event("session.status", "idle", 0)
	p.close()
	p = open(t, opts, newKit())
	p.call("history.clear_session", `{"session_id":"`+s+`"}`)
	if got := p.call("session.get", `{"session_id":"`+s+`"}`); get(t, got, "/result/title") != "My" || get(t, got, "/result/message_count") != "0" {
		t.Error(got)
	}
}

// TestUselessRequests: what changes nothing, or cannot, is told.
func TestUselessRequests(t *testing.T) {
	k := newKit()
	p := open(t, front.Options{}, k)
	s := p.session("")
	if got := p.call("session.queue.clear", `{"session_id":"`+s+`","message_id":"m"}`); get(t, got, "/error/data/field") != "message_id" {
		t.Error(got)
	}
	if got := p.call("session.queue.clear", `{"session_id":"`+s+`"}`); get(t, got, "/result/cleared") != "0" {
		t.Error(got)
	}
	if got := p.call("model.select", `{"model":""}`); !strings.Contains(get(t, got, "/error/message"), "must be the id") || get(t, got, "/error/data/field") != "model" {
		t.Error(got)
	}
	if got := p.call("command.execute", `{"session_id":"`+s+`","raw_command":"/nope"}`); get(t, got, "/error/data/field") != "raw_command" || get(t, got, "/error/data/code") != "unknown_tool" {
		t.Error(got)
	}
	k.work = func(host.WorkerTask) *fleet.Result { return nil }
	p.call("session.send", `{"session_id":"`+s+`","text":"go"}`)
	if got := p.event("session.error", "no result", 0); get(t, got, "/params/payload/code") != "runtime_error" {
		t.Error(got)
	}
}

// TestImagesThatStay: images of a message that is refused are not kept, those that a worker
// looks at are not taken away, and one that is there already is not one too many.
func TestImagesThatStay(t *testing.T) {
	dir := t.TempDir()
	files := func() []string {
		all, err := filepath.Glob(filepath.Join(dir, ".a2e-images", "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	k := newKit()
	k.hold = make(chan struct{})
	p := open(t, front.Options{Workspace: dir}, k)
	s := p.session("")
	send := func(data string) string {
		return p.call("session.send", fmt.Sprintf(`{"session_id":%q,"text":"see","images":[%q]}`, s, dataURL(data)))
	}
	send(png)
	<-k.begun
	if got := send(png + "2"); get(t, got, "/error/data/code") != "session_busy" || len(files()) != 1 {
		t.Errorf("%s\nfiles: %v", got, files())
	}
	p.call("history.clear_session", `{"session_id":"`+s+`"}`)
	if len(files()) != 1 {
		t.Errorf("files: %v", files())
	}
	close(k.hold)
	p.event("session.status", "idle", 0)
	folder := filepath.Dir(files()[0])
	for i := range 99 {
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := send(png + "3"); get(t, got, "/error/data/field") != "images/0" || !strings.Contains(got, "one too many") {
		t.Error(got)
	}
	if got := send(png); get(t, got, "/result/status") != "started" {
		t.Error(got)
	}
}

// TestInterruptIsAnsweredFirst: who interrupts is told so before it is told of the end.
func TestInterruptIsAnsweredFirst(t *testing.T) {
	k := newKit()
	k.hold = make(chan struct{})
	p := open(t, front.Options{}, k)
	for i := range 50 {
		s := p.session("")
		p.call("session.send", `{"session_id":"`+s+`","text":"begin"}`)
		<-k.begun
		before := len(p.all())
		p.send(onSession(fmt.Sprint(i), "session.interrupt", s, ""))
		p.event("session.interrupted", s, 0)
		answered := false
		for _, l := range p.all()[before:] {
			answered = answered || strings.HasPrefix(l, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":`, i))
			if strings.Contains(l, "session.interrupted") && strings.Contains(l, s) && !answered {
				t.Fatalf("session %d: the event came first", i)
			}
		}
	}
}
