package mcp

import (
	"strings"
	"testing"

	"a2e/protocol"
)

// everythingRoots answers what the server asks after its handshake.
func everythingRoots(t *testing.T, r *real) {
	r.reply(protocol.TypeMCPRootListResp, r.question(protocol.TypeMCPRootListReq), `{"roots":[{"uri":"file:///srv/one","name":"one"},{"uri":"file:///srv/two"}]}`)
	r.pushed(methodLog, "2 root(s) received")
	text := r.result("get-roots-list", `{}`).Get("/data/data/content/0/text")
	if !strings.Contains(text, "(2 total)") || !strings.Contains(text, "1. one\n   URI: file:///srv/one") || !strings.Contains(text, "file:///srv/two") {
		t.Errorf("the roots: %s", text)
	}
}

// everythingSubscriptions listens to one resource, and hears of that one only.
func everythingSubscriptions(t *testing.T, r *real) {
	const uri = "demo://resource/dynamic/text/9"
	id := r.Go(protocol.TypeMCPResourceSubscribeReq, `{"uri":`+quoted(uri)+`}`)
	holds(t, r.Answer(id), map[string]string{"/ok": "true"})
	r.result("toggle-subscriber-updates", `{}`)
	push := r.pushed(methodUpdated)
	holds(t, push, map[string]string{"/server_id": "all", "/params/uri": uri, "/req_id": id})
	r.result("toggle-subscriber-updates", `{}`)
}

// everythingLogging turns the messages of the server on: one comes at once, of any level,
// and those below `info` do not arrive.
func everythingLogging(t *testing.T, r *real) {
	r.pushed(methodLog, "Received Subscribe Resource request") // from the test before
	heard := false
	for i := 0; i < 100 && !heard || i%2 == 1; i++ { // in the end it is off again
		r.result("toggle-simulated-logging", `{}`)
		for _, m := range r.Messages() {
			if m.Type != protocol.TypeMCPServerPush || m.Get("/method") != methodLog {
				continue
			}
			heard = heard || strings.Contains(m.Get("/params/data"), "-level message") || strings.Contains(m.Get("/params/data"), "level-message")
			if m.Get("/params/level") == "debug" {
				t.Fatalf("a message below the level: %s", m.Line)
			}
		}
	}
	if !heard {
		t.Error("no message came")
	}
}

func everythingSampling(t *testing.T, r *real) {
	id := r.call("trigger-sampling-request", `{"prompt":"say it","maxTokens":12}`, "")
	q := r.question(protocol.TypeMCPSampleReq)
	holds(t, q, map[string]string{
		"/server_id": "all", "/messages/0/role": "user", "/messages/0/content/text": "Resource trigger-sampling-request context: say it",
		"/system_prompt": "You are a helpful test server.", "/max_tokens": "12", "/temperature": "0.7",
	})
	r.reply(protocol.TypeMCPSampleResp, q, `{"role":"assistant","content":{"type":"text","text":"I said it"},"model":"m-1","stop_reason":"endTurn"}`)
	text := r.succeeded(id).Get("/data/data/content/0/text")
	for _, word := range []string{`"I said it"`, `"model": "m-1"`, `"stopReason": "endTurn"`} {
		if !strings.Contains(text, word) {
			t.Errorf("the server got no %s: %s", word, text)
		}
	}
	id = r.call("trigger-sampling-request", `{"prompt":"no"}`, "")
	r.reply(protocol.TypeMCPSampleResp, r.question(protocol.TypeMCPSampleReq), `{"error":"no budget"}`)
	if m := r.Answer(id); m.Get("/data/success") != "false" || !strings.Contains(m.Get("/data/error"), "no budget") {
		t.Errorf("a refusal: %s", m.Line)
	}
}

func everythingElicitation(t *testing.T, r *real) {
	for _, c := range []struct{ name, answer, want string }{
		{"accepted", `{"action":"accept","content":{"name":"Ada","integer":7,"untitledMultipleSelectEnum":["Piano"]}}`, "- Name: Ada"},
		{"declined", `{"action":"decline"}`, "User declined"},
		{"cancelled", `{"action":"cancel"}`, "User cancelled"},
		{"by an error", ``, "User declined"},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := r.call("trigger-elicitation-request", `{}`, "")
			q := r.question(protocol.TypeMCPElicitReq)
			holds(t, q, map[string]string{
				"/mode": "form", "/message": "Please provide inputs for the following fields:", "/requested_schema/required": `["name"]`,
				"/requested_schema/properties/titledSingleSelectEnum/oneOf/0/title": "Superman", "/requested_schema/properties/integer/default": "42",
				"/requested_schema/properties/legacyTitledEnum/enumNames/0": "Cats",
			})
			if c.answer == "" { // an agent that does not know the request
				r.reply(protocol.TypeError, q, `{"code":"unknown_type","message":"what is that?","retryable":false}`)
			} else {
				r.reply(protocol.TypeMCPElicitResp, q, c.answer)
			}
			if line := string(r.succeeded(id).Line); !strings.Contains(line, c.want) {
				t.Errorf("the server got %s", line)
			}
		})
	}
}

// everythingUnanswered: an agent that says nothing until the call has no more time has
// declined, and the server goes on.
func everythingUnanswered(t *testing.T, r *real) {
	id := r.call("trigger-elicitation-request", `{}`, `,"timeout":1`)
	r.question(protocol.TypeMCPElicitReq)
	if m := r.Answer(id); m.Code != protocol.CodeTimeout {
		t.Errorf("%s", m.Line)
	}
	r.sent(`"action":"decline"`)
	r.result("echo", `{"message":"on"}`)
}

// everythingURLElicitation sends the user to a page, by a request and by an error.
func everythingURLElicitation(t *testing.T, r *real) {
	id := r.call("trigger-url-elicitation", `{"url":"https://example.com/pay","elicitationId":"e-1"}`, "")
	q := r.question(protocol.TypeMCPElicitReq)
	holds(t, q, map[string]string{"/mode": "url", "/url": "https://example.com/pay", "/message": "Please open the link to complete this action."})
	r.reply(protocol.TypeMCPElicitResp, q, `{"action":"accept"}`)
	if line := string(r.succeeded(id).Line); !strings.Contains(line, "User completed the URL elicitation flow") {
		t.Errorf("the server got %s", line)
	}
	const byError = `{"url":"https://example.com/pay","elicitationId":"e-2","errorPath":true}`
	refusal := r.refused(protocol.TypeToolCallReq, callFields("all__trigger-url-elicitation", byError, ""), protocol.CodeMCPProtocolError)
	holds(t, refusal, map[string]string{"/detail/code": "-32042", "/detail/data/elicitations/0/url": "https://modelcontextprotocol.io"})
	id = r.call("trigger-url-elicitation", byError, "") // the page was opened, as far as the server knows
	q = r.question(protocol.TypeMCPElicitReq)
	holds(t, q, map[string]string{"/url": "https://example.com/pay"})
	r.reply(protocol.TypeMCPElicitResp, q, `{"action":"cancel"}`)
	if line := string(r.succeeded(id).Line); !strings.Contains(line, "User cancelled the URL elicitation") {
		t.Errorf("the server got %s", line)
	}
}

func everythingProgress(t *testing.T, r *real) {
	id := r.call("trigger-long-running-operation", `{"duration":0.1,"steps":4}`, `,"streaming":true`)
	m := r.succeeded(id)
	holds(t, m, map[string]string{"/data/data/content/0/text": "Long running operation completed. Duration: 0.1 seconds, Steps: 4."})
	var told []string
	for _, m := range r.Messages() {
		if m.ReqID == id && m.Get("/kind") == "progress" {
			told = append(told, m.Get("/data/pct"))
		}
	}
	if got := strings.Join(told, " "); got != "25 50 75 100" && got != "25 50 75" { // the last one may come too late
		t.Errorf("progress: %v", told)
	}
}

// everythingCancellation cancels a call of an hour, and the server goes on serving.
func everythingCancellation(t *testing.T, r *real) {
	id := r.call("trigger-long-running-operation", `{"duration":3600,"steps":360000}`, `,"streaming":true`)
	r.Event(id) // it is under way
	r.Go(protocol.TypeCancel, `{"req_id":`+quoted(id)+`}`)
	if m := r.Answer(id); m.Code != protocol.CodeCancelled {
		t.Errorf("%s", m.Line)
	}
	r.sent(`"notifications/cancelled"`)
	holds(t, r.result("echo", `{"message":"still"}`), map[string]string{"/data/data/content/0/text": "Echo: still"})
}
