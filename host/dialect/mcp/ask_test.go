package mcp_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	front "a2e/host/dialect/mcp"
	"a2e/protocol"
)

// TestLogging: the client gets log messages once it has said of which level.
func TestLogging(t *testing.T) {
	p := serve(t, front.Options{}, onlyMCP(newLab())).open()
	notes := func(from int) (all []string) {
		for _, l := range p.said()[from:] {
			if l.Method != "" {
				all = append(all, strings.TrimPrefix(l.Method, "notifications/")+string(l.Params))
			}
		}
		return all
	}
	p.call(`1`, "tools/call", `{"name":"progress"}`)
	if all := notes(0); all != nil {
		t.Errorf("heard without having asked: %q", all)
	}
	log := func(level, logger, data string) string {
		return fmt.Sprintf(`message{"level":%q,"logger":%q,"data":%q}`, level, logger, data)
	}
	at := func(pct, message string) string {
		return `progress{"progressToken":"p","progress":` + pct + `,"total":100,"message":"` + message + `"}`
	}
	for i, c := range []struct {
		level string
		want  []string
	}{
		{"warning", []string{at("0", "at 0"), at("10", "at 10"), at("33.5", "at 33.5"), at("100", "at 250"), log("warning", "progress/stderr", "careful")}},
		{"info", []string{
			at("0", "at 0"), at("10", "at 10"), log("info", "progress", "at 5"), log("info", "progress", "at 10"), at("33.5", "at 33.5"), at("100", "at 250"),
			log("warning", "progress/stderr", "careful"), log("info", "progress", "bad \ufffd UTF-8"), log("info", "progress", "busy"),
		}},
	} {
		if l := p.call(fmt.Sprint(100+i), "logging/setLevel", `{"level":"`+c.level+`"}`); string(l.Result) != "{}" {
			t.Errorf("%s: %s", c.level, l)
		}
		from := len(p.said())
		p.call(fmt.Sprint(200+i), "tools/call", `{"name":"progress","_meta":{"progressToken":"p"}}`)
		if got := notes(from); !slices.Equal(got, c.want) {
			t.Errorf("%s: heard\n%s\nshould be\n%s", c.level, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// TestLogsOfServers: what an MCP server behind the host logs reaches the client under that
// server's name, of the levels that it asked for, and nothing else of what is pushed does.
func TestLogsOfServers(t *testing.T) {
	p := serve(t, front.Options{}, onlyMCP(newLab())).open()
	call := 0
	push := func(args string) (heard string) {
		from := len(p.said())
		call++
		p.call(fmt.Sprint(call), "tools/call", `{"name":"push","arguments":`+args+`}`)
		for _, l := range p.said()[from:] {
			if l.Method != "" {
				heard += l.Method + string(l.Params)
			}
		}
		return heard
	}
	const careful = `{"method":"notifications/message","level":"warning","data":{"n":[9007199254740993]}}`
	if heard := push(careful); heard != "" {
		t.Errorf("heard without having asked: %s", heard)
	}
	p.call(`"level"`, "logging/setLevel", `{"level":"notice"}`)
	for args, want := range map[string]string{
		careful: `notifications/message{"level":"warning","logger":"srv","data":{"n":[9007199254740993]}}`,
		`{"method":"notifications/message","level":"notice","logger":"db","data":"x"}`: `notifications/message{"level":"notice","logger":"srv/db","data":"x"}`,
		`{"method":"notifications/message","level":"alert","logger":5}`:                `notifications/message{"level":"alert","logger":"srv","data":null}`,
		`{"method":"notifications/message","level":"info","data":"x"}`:                 "",
		`{"method":"notifications/message","data":"x"}`:                                "",
		`{"method":"notifications/resources/updated","level":"alert","uri":"a://b"}`:   "",
	} {
		if heard := push(args); heard != want {
			t.Errorf("%s: heard %s, want %s", args, heard, want)
		}
	}
}

// asking opens a session of a client that offers something and has the tool ask it the
// agent something; it gives the question.
func asking(t *testing.T, offers string, typ protocol.Type, body string) (p *pipe, question line) {
	t.Helper()
	p = serve(t, front.Options{}, onlyMCP(newLab()))
	p.call(`"i"`, "initialize", `{"protocolVersion":"2025-11-25","capabilities":`+offers+`}`)
	p.send(callTool(`"call"`, "ask", fmt.Sprintf(`{"type":%q,"body":%s}`, typ, body)))
	return p, p.wait("the question, or the answer to the call", func(l line) bool { return l.Method != "" || string(l.ID) == `"call"` })
}

// TestAsking: what plugins ask the agent reaches the client's sampling, roots and
// elicitation, as it is.
func TestAsking(t *testing.T) {
	all := `{"sampling":{},"roots":{},"elicitation":{"form":{}}}`
	block := `{"type":"text","text":"hi","x-own":[9007199254740993]}`
	sample := `{"server_id":"s","mcp_request_id":"7","messages":[{"role":"user","content":` + block + `}],"system_prompt":"be brief","max_tokens":5,"temperature":0.5,` +
		`"stop_sequences":["."],"model_preferences":{"hints":[{"name":"h"}]},"metadata":{"m":1}}`
	sampled := `{"messages":[{"role":"user","content":` + block + `}],"systemPrompt":"be brief","maxTokens":5,"temperature":0.5,"stopSequences":["."],"includeContext":"none",` +
		`"modelPreferences":{"hints":[{"name":"h"}]},"metadata":{"m":1}}`
	form := `{"server_id":"s","mode":"form","message":"who?","requested_schema":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}`
	asked := `{"mode":"form","message":"who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}`
	for _, c := range []struct {
		typ            protocol.Type
		body           string
		method, params string // what the client is asked
		answer         string // what it answers, as members
		want           string // part of what the plugin gets
	}{
		{protocol.TypeMCPSampleReq, sample, "sampling/createMessage", sampled, `"result":{"role":"assistant","model":"m","stopReason":"endTurn","content":` + block + `}`,
			`{"server_id":"s","mcp_request_id":"7","role":"assistant","content":` + block + `,"model":"m","stop_reason":"endTurn","error":""}`},
		{protocol.TypeMCPSampleReq, sample, "sampling/createMessage", sampled, `"result":{"role":"assistant","model":"m","content":[` + block + `,{}]}`, `"content":` + block},
		{protocol.TypeMCPSampleReq, sample, "sampling/createMessage", sampled, `"result":{"role":"assistant","model":"m","content":[]}`, `"content":{}`},
		{protocol.TypeMCPSampleReq, sample, "sampling/createMessage", sampled, `"result":{"role":5}`, "did not answer as it should"},
		{protocol.TypeMCPSampleReq, sample, "sampling/createMessage", sampled, `"error":{"code":-1,"message":"the user said no"}`, "mcp_sampling_refused: the MCP client refused: the user said no"},
		{protocol.TypeMCPRootListReq, `{"server_id":"s"}`, "roots/list", `{}`, `"result":{"roots":[{"uri":"file:///x","name":"x"}]}`, `"roots":[{"uri":"file:///x","name":"x"}]`},
		{protocol.TypeMCPRootListReq, `{}`, "roots/list", `{}`, `"result":{}`, `"roots":[]`},
		{protocol.TypeMCPElicitReq, form, "elicitation/create", asked, `"result":{"action":"accept","content":{"name":"me"}}`, `"action":"accept","content":{"name":"me"}`},
		{protocol.TypeMCPElicitReq, form, "elicitation/create", asked, `"result":{"action":"decline"}`, `"action":"decline","content":{}`},
		{protocol.TypeMCPElicitReq, form, "elicitation/create", asked, `"result":{"action":"accept","content":{"name":5}}`, "does not match"},
	} {
		p, question := asking(t, all, c.typ, c.body)
		if question.Method != c.method || string(question.Params) != c.params {
			t.Errorf("asked\n%s\nshould be %s\n%s", question, c.method, c.params)
			continue
		}
		p.send(`{"jsonrpc":"2.0","id":` + string(question.ID) + `,` + c.answer + `}`)
		if got := p.answer(`"call"`); !strings.Contains(strings.ReplaceAll(got.text, `\"`, `"`), c.want) {
			t.Errorf("%s\nwas told to the plugin as\n%s\nshould have\n%s", c.answer, got, c.want)
		}
	}
	for _, c := range []struct {
		offers     string
		typ        protocol.Type
		body, want string
	}{
		{`{}`, protocol.TypeMCPSampleReq, `{}`, "offers no sampling"},
		{`{"sampling":null}`, protocol.TypeMCPSampleReq, `{}`, "offers no sampling"},
		{`{}`, protocol.TypeMCPRootListReq, `{}`, "offers no roots"},
		{`{}`, protocol.TypeMCPElicitReq, `{}`, "offers no elicitation"},
		{`{"elicitation":{"url":{}}}`, protocol.TypeMCPElicitReq, form, "offers no elicitation by form"},
		{all, protocol.TypeMCPElicitReq, `{"mode":"url","message":"?","url":"https://x"}`, "offers no elicitation by url"},
		{all, protocol.TypeMCPElicitReq, `{"mode":"form","message":"?","requested_schema":{"type":"object","$ref":"#"}}`, "refers to itself"}, // which nothing would hold an answer against
		{all, protocol.TypePing, `{}`, "cannot be asked"},
	} {
		if _, got := asking(t, c.offers, c.typ, c.body); !strings.Contains(got.text, c.want) {
			t.Errorf("%s of a client that offers %s: %s", c.typ, c.offers, got)
		}
	}
}

// TestAskingEnds: a call that is cancelled takes its question back.
func TestAskingEnds(t *testing.T) {
	p, question := asking(t, `{"roots":{}}`, protocol.TypeMCPRootListReq, `{}`)
	p.send(request("", "notifications/cancelled", `{"requestId":"call"}`))
	p.wait("the client is told", func(l line) bool {
		return l.Method == "notifications/cancelled" && string(l.Params) == `{"requestId":`+string(question.ID)+`}`
	})
	if p.end(); len(p.answers(`"call"`)) != 0 {
		t.Errorf("it was answered: %s", p.said())
	}
}
