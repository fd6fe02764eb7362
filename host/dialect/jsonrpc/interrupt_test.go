package jsonrpc_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"a2e/host"
	front "a2e/host/dialect/jsonrpc"
	"a2e/protocol/fleet"
)

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
		if got := p.answer("5"); get(t, got, "/result/cleared") != "3" {
			t.Errorf("%s: %s", how, got)
		}
		close(k.hold)
		for _, id := range []string{"3", "4"} {
			if got := p.answer(id); get(t, got, "/error/data/code") != "cancelled" {
				t.Errorf("%s: %s", how, got)
			}
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
	if got := p.answer("2"); get(t, got, "/result/status") != "queued" || get(t, got, "/result/position") != "1" {
		t.Error(got)
	}
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
			if got := p.answer(id); get(t, got, "/error/code") != "-32603" || get(t, got, "/error/data/code") != "cancelled" {
				t.Error(got)
			}
		}
		p.send(cancel(id))
	}
	if got := p.call("limits.get", ""); get(t, got, "/result/requests/used") != "1" {
		t.Error(got)
	}
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
	if got := p.call("limits.get", ""); get(t, got, "/result/requests/used") != "1" {
		t.Error(got)
	}
	cancelled, overloaded, batches := p.count(`"code":"cancelled"`)-1, p.count(`"code":"overloaded"`), p.count("batch_not_supported")
	if cancelled+overloaded < n || cancelled > 100 || batches != n {
		t.Errorf("%d cancelled, %d overloaded, %d batches", cancelled, overloaded, batches)
	}
}
