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
		check(t, p.answer(fmt.Sprint(10+i)), "/result/position", fmt.Sprint(i+1))
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
	check(t, p.answer("1"), "/result/session_id", busy)
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
	check(t, p.answer("4"), "/result/commands", "2", "/result/interrupted", "false")
	for _, id := range []string{"1", "2"} {
		check(t, p.answer(id), "/error/data/code", "cancelled", "/error/code", "-32603")
	}
	for _, id := range []string{"3", "5"} {
		check(t, p.answer(id), "/result/success", "true")
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
	check(t, p.call("session.interrupt", `{"session_id":"`+s+`"}`), "/result/commands", fmt.Sprint(n))
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
		check(t, p.call(method, ""), "/error", "")
	}
	check(t, p.call("session.steer", `{"session_id":"`+s+`","text":"x"}`), "/result/status", "started")
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
	check(t, p.call("session.get", `{"session_id":"`+s+`"}`), "/result/title", "My", "/result/message_count", "0")
}

// TestUselessRequests: what changes nothing, or cannot, is told.
func TestUselessRequests(t *testing.T) {
	k := newKit()
	p := open(t, front.Options{}, k)
	s := p.session("")
	check(t, p.call("session.queue.clear", `{"session_id":"`+s+`","message_id":"m"}`), "/error/data/field", "message_id")
	check(t, p.call("session.queue.clear", `{"session_id":"`+s+`"}`), "/result/cleared", "0")
	check(t, p.call("model.select", `{"model":""}`), "/error/message~", "must be the id", "/error/data/field", "model")
	check(t, p.call("command.execute", `{"session_id":"`+s+`","raw_command":"/nope"}`), "/error/data/field", "raw_command", "/error/data/code", "unknown_tool")
	k.work = func(host.WorkerTask) *fleet.Result { return nil }
	p.call("session.send", `{"session_id":"`+s+`","text":"go"}`)
	check(t, p.event("session.error", "no result", 0), "/params/payload/code", "runtime_error")
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
	check(t, send(png+"3"), "/error/data/field", "images/0", "~", "one too many")
	check(t, send(png), "/result/status", "started")
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

// TestSteersTakenBack: texts that were to steer a worker are no message after all when the
// queue is cleared behind them, whether they wait for the worker or for each other.
func TestSteersTakenBack(t *testing.T) {
	for _, how := range []string{"session.interrupt", "session.queue.clear"} {
		k := newKit()
		k.hold, k.away = make(chan struct{}), true
		p := open(t, front.Options{SteerWait: time.Hour}, k)
		s := p.session("")
		p.send(onSession("1", "session.send", s, `,"text":"begin"`), onSession("2", "session.send", s, `,"text":"later","enqueue":true`))
		<-k.begun
		p.send(onSession("3", "session.steer", s, `,"text":"a"`), onSession("4", "session.steer", s, `,"text":"b"`), onSession("5", how, s, `,"clear_queue":true`))
		check(t, p.answer("5"), "/result/cleared", "3")
		close(k.hold)
		for _, id := range []string{"3", "4"} {
			check(t, p.answer(id), "/error/data/code", "cancelled")
		}
		p.event("session.status", `"idle"`, 0)
		if got := p.call("history.get", `{"session_id":"`+s+`"}`); get(t, got, "/result/messages/0/text") != "begin" || p.count(`"role":"user"`) != 2 { // one event, one in the history
			t.Errorf("%s: %s", how, got)
		}
		p.close()
	}
}

// TestSendAfterInterrupt: who has interrupted a message need not wait for its end to send
// the next one, nor say that it may wait.
func TestSendAfterInterrupt(t *testing.T) {
	k := newKit()
	release := make(chan struct{})
	k.work = func(task host.WorkerTask) *fleet.Result {
		<-release // it is slow to stop
		return fleet.NewResult(task.Task.TaskID, fleet.StatusDone)
	}
	p := open(t, front.Options{}, k)
	s := p.session("")
	p.call("session.send", `{"session_id":"`+s+`","text":"one"}`)
	<-k.begun
	p.send(onSession("1", "session.interrupt", s, ""), onSession("2", "session.send", s, `,"text":"two"`))
	check(t, p.answer("2"), "/result/status", "queued", "/result/position", "1")
	close(release)
	p.event("session.message.appended", `"text":"two"`, 0)
	p.event("session.status", `"idle"`, 0)
}

// TestCancelRequest: $/cancelRequest ends a request that runs or waits, whose one answer says
// so, and nothing else.
func TestCancelRequest(t *testing.T) {
	k := newKit()
	p := open(t, front.Options{MaxParallel: 1}, k)
	s := p.session("")
	cancel := func(id string) string { return request("", "$/cancelRequest", `{"id":`+id+`}`) }
	block := func(id string) string { return onSession(id, "command.execute", s, `,"raw_command":"/block"`) }
	for i, id := range []string{"7", `"7"`, "-1.50e3", `"caf\u00e9"`, "null", "123456789012345678901234567890"} {
		p.send(block(id))
		<-k.begun
		waits := fmt.Sprintf(`"waits %d"`, i)
		p.send(block(waits), cancel(`"of nobody"`), cancel(waits), cancel(waits))
		p.answer(waits)
		p.send(request("", "$/cancelRequest", ""), cancel("{}"), request(`"mine"`, "$/cancelRequest", `{"id":`+id+`}`))
		if n := p.count(`"id":` + id + `,`); n != 0 {
			t.Errorf("%s was stopped by what does not mean it", id)
		}
		p.send(cancel(strings.Replace(id, `\u00e9`, "é", 1)))
		for _, id := range []string{id, waits} {
			check(t, p.answer(id), "/error/code", "-32603", "/error/data/code", "cancelled")
		}
		p.send(cancel(id))
	}
	check(t, p.call("limits.get", ""), "/result/requests/used", "1")
	if n := p.count(`"data":{"code":"cancelled"`); n != 12 {
		t.Errorf("%d answers say cancelled", n)
	}
}

// TestCancelFlood: requests that are taken back while they wait are bounded like all others,
// and a batch of any size is one error.
func TestCancelFlood(t *testing.T) {
	k := newKit()
	p := open(t, front.Options{MaxParallel: 1, MaxQueue: 100}, k)
	s := p.session("")
	p.send(onSession(`"first"`, "command.execute", s, `,"raw_command":"/block"`))
	<-k.begun
	const n = 300
	for i := range n {
		p.send(onSession(fmt.Sprint(i), "command.execute", s, `,"raw_command":"/block"`), "[{}]")
		p.call("limits.get", "") // now it waits for its place
		p.send(request("", "$/cancelRequest", fmt.Sprintf(`{"id":%d}`, i)))
	}
	p.send(request("", "$/cancelRequest", `{"id":"first"}`))
	p.answer(`"first"`)
	check(t, p.call("limits.get", ""), "/result/requests/used", "1")
	cancelled, overloaded, batches := p.count(`"code":"cancelled"`)-1, p.count(`"code":"overloaded"`), p.count("batch_not_supported")
	if cancelled+overloaded < n || cancelled > 100 || batches != n {
		t.Errorf("%d cancelled, %d overloaded, %d batches", cancelled, overloaded, batches)
	}
}
