package jsonrpc_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/agent"
	front "a2e/host/dialect/jsonrpc"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// asking returns a kit whose worker asks for permission before a call, and then asks the user to fill in a form.
func asking() *kit {
	k := newKit()
	k.play = func(ctx context.Context, task agent.WorkerTask) *fleet.Result {
		told := "nobody is asked"
		if task.Talk.Permit != nil {
			call := agent.ModelCall{ID: "c1", Name: "echo", Arguments: jsontext.Value(`{"s":"x"}`)}
			told = fmt.Sprint(task.Talk.Permit(ctx, call))
		}
		var form protocol.MCPElicitResponse
		err := host.ServicesOf(ctx).Ask(ctx, protocol.TypeMCPElicitReq, &protocol.MCPElicitRequest{
			ServerID: "shop", Mode: "form", Message: "Colour?",
		}, &form)
		told += fmt.Sprintf("; %s %s %v", form.Action, form.Content.Text("colour"), err)
		return done(task, told)
	}
	return k
}

// TestQuestions: a client that offers to answer questions is asked before calls and for forms. Only the first answer
// to a question counts, and a question for which nobody waits any more is closed.
func TestQuestions(t *testing.T) {
	p := open(t, front.Options{}, asking())
	p.call("rpc.handshake", `{"client_name":"x","questions":["tool","form","more"]}`)
	s := p.session("")
	answer := func(question, more string) string {
		return p.on(s, "session.answer", fmt.Sprintf(`,"question_id":%q,%s`, get(t, question,
			"/params/payload/question_id"), more))
	}
	p.on(s, "session.send", `,"text":"go"`)
	q := p.event("session.question", s, 0)
	check(t, q, "/params/payload/kind", "tool", "/params/payload/call/name", "echo", "/params/payload/call/input/s",
		"x",
		"/params/payload/call/callId", "c1")
	check(t, answer(q, `"action":"maybe"`), "/error/data/field", "action")
	check(t, answer(q, `"action":"decline","reason":"not now"`), "/result/accepted", "true")
	check(t, answer(q, `"action":"accept"`), "/result/accepted", "false")
	q = p.event("session.question", s, 1)
	check(t, q, "/params/payload/kind", "form", "/params/payload/form/message", "Colour?")
	check(t, answer(q, `"action":"accept","content":{"colour":"red"}`), "/result/accepted", "true")
	p.idle(s, 0)
	assert.Contains(t, p.event("session.message.appended", "assistant", 0), "not allow this call: not now; accept red")

	p.on(s, "session.send", `,"text":"again"`)
	q = p.event("session.question", s, 2)
	p.on(s, "session.interrupt", "")
	closed := p.event("session.question.closed", s, 0)
	check(t, closed, "/params/payload/question_id", get(t, q, "/params/payload/question_id"))
	p.idle(s, 1)
	check(t, answer(q, `"action":"accept"`), "/result/accepted", "false")
}

// TestNoQuestions: a client that does not offer to answer questions is asked none.
func TestNoQuestions(t *testing.T) {
	p := open(t, front.Options{}, asking())
	s := p.session("")
	p.on(s, "session.send", `,"text":"go"`)
	p.idle(s, 0)
	assert.Contains(t, p.event("session.message.appended", "assistant", 0), "nobody is asked;   runtime_error")
	assert.Equal(t, p.count("session.question"), 0, "questions")
}
