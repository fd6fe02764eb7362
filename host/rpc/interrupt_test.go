package rpc_test

import (
	"testing"
	"time"

	"a2e/host"
	"a2e/host/rpc"
	"a2e/protocol/fleet"
)

// TestSteersTakenBack: texts that were to steer a worker are no message after all when the
// queue is cleared behind them, whether they wait for the worker or for each other.
func TestSteersTakenBack(t *testing.T) {
	for _, how := range []string{"session.interrupt", "session.queue.clear"} {
		k := newKit()
		k.hold, k.away = make(chan struct{}), true
		p := open(t, rpc.Options{SteerWait: time.Hour}, k)
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
	p := open(t, rpc.Options{}, k)
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
