package jsonrpc_test

import (
	"strings"
	"testing"

	front "a2e/host/dialect/jsonrpc"
)

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
		if get(t, got, "/result/sessions/0/title") != "the title" || get(t, got, "/result/sessions/0/model") != "big" || get(t, got, "/result/sessions/0/message_count") != "6" {
			t.Error(got)
		}
	}
}
