package jsonrpc_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	front "a2e/host/dialect/jsonrpc"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// onSession makes the line of a request on a session.
func onSession(id, method, session, more string) string {
	return request(id, method, fmt.Sprintf(`{"session_id":%q%s}`, session, more))
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
		check(t, p.answer(id), "/error/data/reason", "cancelled", "/error/code", "-32000")
	}
	for _, id := range []string{"3", "5"} {
		check(t, p.answer(id), "/result/output/success", "true")
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
		if strings.Contains(l, `"reason":"cancelled"`) {
			answers[raw(t, l, "/id")]++
		}
	}
	for i := range n {
		must.Equal(t, answers[fmt.Sprint(i)], 1, "command %d has … answers", i)
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
	check(t, p.on(s, "session.send", `,"text":"x"`), "/result/accepted", "true")
	p.idle(s, 0)
	got := p.call("limits.get", "")
	for pointer, want := range map[string]string{
		"commands/used": "1", "commands/limit": "1", "line_bytes": "12345", "history/used": "1", "history/limit": "10000",
	} {
		assert.Equal(t, get(t, got, "/result/"+pointer), want, "%s", pointer)
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
		got := p.answer(fmt.Sprintf(`"l%d"`, i))
		must.Equal(t, get(t, got, "/result/requests/used"), "1", "after %d: %s", i, got)
	}
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
		assert.Equal(t, p.count(`"id":`+id+`,`), 0, "%s was stopped by what does not mean it", id)
		p.send(cancel(strings.Replace(id, `\u00e9`, "é", 1)))
		for _, id := range []string{id, waits} {
			check(t, p.answer(id), "/error/code", "-32000", "/error/data/reason", "cancelled")
		}
		p.send(cancel(id))
	}
	hosttest.Eventually(t, "the last notification is done with", func() bool { return get(t, p.call("limits.get", ""), "/result/requests/used") == "1" })
	assert.Equal(t, p.count(`"data":{"reason":"cancelled"`), 12, "… answers say cancelled")
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
	hosttest.Eventually(t, "what was cancelled leaves", func() bool { return get(t, p.call("limits.get", ""), "/result/requests/used") == "1" })
	cancelled, overloaded, batches := p.count(`"reason":"cancelled"`)-1, p.count(`"reason":"overloaded"`), p.count("batch_not_supported")
	// The first that finds no room is not waited for: one or another is taken back before it waits, and leaves its room.
	assert.That(t, cancelled+overloaded >= n && cancelled < 150 && batches == n,
		"%d cancelled, %d overloaded, %d batches", cancelled, overloaded, batches)
}
