package run

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// bench is a plugin: its tools are made up, its skill is whatever a test wants to run with
// a host around it.
type bench struct {
	run   func(ctx context.Context, emit host.Emitter) error
	calls chan protocol.ToolCallRequest
}

// Info implements host.Plugin.
func (b *bench) Info() host.PluginInfo {
	return host.PluginInfo{Name: "bench", Capability: protocol.CapSkill, Also: []protocol.Capability{protocol.CapTools}}
}

// Close implements host.Plugin.
func (b *bench) Close(context.Context) error { return nil }

// Routes implements host.Plugin.
func (b *bench) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeSkillCallReq, func(ctx context.Context, req *protocol.SkillCallRequest, emit host.Emitter) (*protocol.SkillCallResponse, error) {
			if err := b.run(ctx, emit); err != nil {
				return nil, err
			}
			return &protocol.SkillCallResponse{Name: req.Name, Data: &protocol.SkillResult{Success: true}}, nil
		}),
		host.Handle(protocol.TypeToolCallReq, b.tool),
	}
}

func (b *bench) tool(ctx context.Context, req *protocol.ToolCallRequest, _ host.Emitter) (*protocol.ToolCallResponse, error) {
	b.calls <- *req
	resp := &protocol.ToolCallResponse{Data: protocol.ToolResult{Success: true, ToolName: req.ToolName}}
	switch req.ToolName {
	case "add":
		resp.Data.Data = jsontext.Value(`{"sum":3}`)
	case "text":
		resp.Data.Data = jsontext.Value(`"plain"`)
	case "big":
		resp.Data.Data, _ = quoted(strings.Repeat("x", 64<<10), 1<<20)
	case "fails":
		resp.Data.Success, resp.Data.Error = false, new("no luck")
	case "wait":
		<-ctx.Done()
		return nil, context.Cause(ctx)
	default:
		return nil, protocol.Errorf(protocol.CodeToolDenied, "%s is withheld", req.ToolName)
	}
	return resp, nil
}

// inHost runs f as a skill of a host, and gives its answer.
func inHost(t *testing.T, f func(ctx context.Context, emit host.Emitter) error) (*hosttest.Pair, *bench, string) {
	t.Helper()
	b := &bench{run: f, calls: make(chan protocol.ToolCallRequest, 1000)}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{b}})
	p.Handshake()
	return p, b, p.Go(protocol.TypeSkillCallReq, `{"name":"x","streaming":true}`)
}

// canned is a model that says what a test wrote down.
type canned struct {
	replies []Reply
	seen    []Request
	fail    error
}

// Complete implements Model.
func (c *canned) Complete(_ context.Context, r Request) (*Reply, error) {
	r.Messages = slices.Clone(r.Messages)
	c.seen = append(c.seen, r)
	if len(c.replies) == 0 {
		if c.fail != nil {
			return nil, c.fail
		}
		return &Reply{Text: "again", Calls: []ToolCall{{Name: "add"}}}, nil
	}
	reply := c.replies[0]
	c.replies = c.replies[1:]
	return &reply, nil
}

func object(text string) protocol.Object {
	obj, err := protocol.ParseObject([]byte(text))
	if err != nil {
		panic(err)
	}
	return obj
}

func benchTools(names ...string) []protocol.ToolDefinition {
	var defs []protocol.ToolDefinition
	for _, name := range names {
		defs = append(defs, protocol.ToolDefinition{Name: name, Description: "does " + name, InputParameters: []protocol.ToolParameter{{Name: "a", Type: "integer", Required: true}}})
	}
	return defs
}

// looped runs Loop within a host.
func looped(t *testing.T, turns Turns) (*Result, []string, *bench, error) {
	t.Helper()
	var r *Result
	var loopErr error
	var h heard
	p, b, id := inHost(t, func(ctx context.Context, _ host.Emitter) error {
		turns.Services = host.ServicesOf(ctx)
		r, loopErr = Loop(ctx, turns, &h, h.event)
		return nil
	})
	p.Answer(id)
	return r, h.all(), b, loopErr
}

func TestLoop(t *testing.T) {
	model := &canned{replies: []Reply{
		{Text: "let me see", Calls: []ToolCall{{ID: "c1", Name: "add", Arguments: object(`{"a":1}`)}, {Name: "text"}, {Name: "fails"}, {Name: "secret"}, {Name: "rm"}, {Name: "add", Invalid: "no object"}}, Tokens: Tokens{Input: 100, Output: 10}},
		{Text: "the sum is 3", Tokens: Tokens{Input: 200, Output: 20}},
	}}
	r, lines, b, err := looped(t, Turns{System: "be good", Prompt: "add", Tools: benchTools("add", "text", "fails", "secret"), Model: model})
	if err != nil || string(r.Data) != `"the sum is 3"` || r.Tokens != (Tokens{300, 30, false}) || r.Failed {
		t.Fatalf("%+v %s, %v", r, r.Data, err)
	}
	want := []string{
		"status turn 1 of 10", "log info  let me see",
		`event tool_call {"turn":1,"id":"c1","tool_name":"add","arguments":{"a":1}}`, `event tool_result {"turn":1,"id":"c1","tool_name":"add","success":true,"result":"{\"sum\":3}"}`,
		`event tool_call {"turn":1,"id":"call_2","tool_name":"text","arguments":{}}`, `event tool_result {"turn":1,"id":"call_2","tool_name":"text","success":true,"result":"plain"}`,
		`event tool_call {"turn":1,"id":"call_3","tool_name":"fails","arguments":{}}`, `event tool_result {"turn":1,"id":"call_3","tool_name":"fails","success":false,"result":"error: no luck\nnull"}`,
		`event tool_call {"turn":1,"id":"call_4","tool_name":"secret","arguments":{}}`, `event tool_result {"turn":1,"id":"call_4","tool_name":"secret","success":false,"result":"error: tool_denied: secret is withheld"}`,
		`event tool_call {"turn":1,"id":"call_5","tool_name":"rm","arguments":{}}`, `event tool_result {"turn":1,"id":"call_5","tool_name":"rm","success":false,"result":"error: there is no tool \"rm\" here; these are: add, text, fails, secret"}`,
		`event tool_call {"turn":1,"id":"call_6","tool_name":"add","arguments":{}}`, `event tool_result {"turn":1,"id":"call_6","tool_name":"add","success":false,"result":"error: no object"}`,
		"status turn 2 of 10",
	}
	if asLines(lines) != asLines(want) {
		t.Errorf("events:\n%s\nwant:\n%s", asLines(lines), asLines(want))
	}
	if len(b.calls) != 4 {
		t.Errorf("%d calls were made, of a tool that is not in the list as well", len(b.calls))
	}
	last := model.seen[1]
	if len(last.Messages) != 8 || last.Messages[1].Role != RoleAssistant || last.Messages[2].Text != `{"sum":3}` || last.Messages[2].Of.ID != "c1" || last.System != "be good" {
		t.Errorf("the model saw %+v", last)
	}
	if schema := string(last.Tools[0].Schema); schema != `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}` {
		t.Error(schema)
	}
}

// TestLoopEnds: a model that goes on and on, that fails, and a caller that goes away.
func TestLoopEnds(t *testing.T) {
	r, _, b, err := looped(t, Turns{Prompt: "p", Tools: benchTools("add"), MaxTurns: 3, Model: &canned{}})
	if err != nil || !r.Failed || !strings.Contains(r.Failure, "3 turns") || len(b.calls) != 3 || !r.Tokens.Estimated || r.Tokens.Input == 0 || r.Tokens.Output == 0 {
		t.Errorf("%+v, %v, %d calls", r, err, len(b.calls))
	}
	broken := protocol.Errorf(protocol.CodeSkillError, "broken")
	if _, _, _, err := looped(t, Turns{Prompt: "p", Model: &canned{replies: []Reply{{Calls: []ToolCall{{Name: "x"}}}}, fail: broken}}); !errors.Is(err, broken) {
		t.Error(err)
	}
	gone := errors.New("gone")
	p, b, id := inHost(t, func(ctx context.Context, _ host.Emitter) error {
		ctx, cancel := context.WithCancelCause(ctx)
		stop := time.AfterFunc(20*time.Millisecond, func() { cancel(gone) })
		defer stop.Stop()
		_, err := Loop(ctx, Turns{Services: host.ServicesOf(ctx), Prompt: "p", Tools: benchTools("wait"), Model: &canned{replies: []Reply{{Calls: []ToolCall{{Name: "wait"}}}}}}, nil, nil)
		if !errors.Is(err, gone) {
			t.Error(err)
		}
		return nil
	})
	p.Answer(id)
	if len(b.calls) != 1 {
		t.Error(len(b.calls))
	}
}

// TestLoopObject: an answer that should be an object.
func TestLoopObject(t *testing.T) {
	fence := "```json\n{\"a\": 1}\n```"
	for name, c := range map[string]struct {
		replies []Reply
		max     int
		data    string
		failure string
	}{
		"at once":      {[]Reply{{Text: `{"a":1}`}}, 5, `{"a":1}`, ""},
		"in a fence":   {[]Reply{{Text: fence}}, 5, `{"a": 1}`, ""},
		"second try":   {[]Reply{{Text: "here it is"}, {Text: `{"a":2}`}}, 5, `{"a":2}`, ""},
		"never":        {[]Reply{{Text: "no"}, {Text: "[1]"}}, 2, "", "should be a JSON object"},
		"too large":    {[]Reply{{Text: `{"a":"` + strings.Repeat("x", 2<<20) + `"}`}}, 2, "", "the largest result"},
		"too deep":     {[]Reply{{Text: strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000)}}, 1, "", "should be a JSON object"},
		"key is twice": {[]Reply{{Text: `{"a":1,"a":2}`}}, 1, "", "should be a JSON object"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _, _, err := looped(t, Turns{Prompt: "p", MaxTurns: c.max, Object: true, Model: &canned{replies: c.replies}})
			if err != nil || string(r.Data) != c.data || r.Failed != (c.failure != "") || !strings.Contains(r.Failure, c.failure) {
				t.Errorf("%+v %s, %v", r, r.Data, err)
			}
		})
	}
}

// TestLoopBounds: a conversation does not grow without end, whatever tools and model say.
func TestLoopBounds(t *testing.T) {
	model := &canned{}
	for range 3 {
		model.replies = append(model.replies, Reply{Text: strings.Repeat("t", 100<<10), Calls: slices.Repeat([]ToolCall{{Name: "big", Arguments: object(`{"a":"` + strings.Repeat("y", 40<<10) + `"}`)}}, 20)})
	}
	model.replies = append(model.replies, Reply{Calls: []ToolCall{{Name: "big", Arguments: object(`{"a":"` + strings.Repeat("y", 100<<10) + `"}`)}}}, Reply{Text: strings.Repeat("\x00", 1<<20), Cut: true})
	r, _, b, err := looped(t, Turns{Prompt: "p", Tools: benchTools("big"), MaxTurns: 100, Model: model})
	if err != nil || !r.Truncated || len(r.Data) > defaultOutputBytes {
		t.Fatalf("%v, %d bytes", err, len(r.Data))
	}
	if len(b.calls) != 3*maxCalls {
		t.Errorf("%d calls", len(b.calls))
	}
	for i, seen := range model.seen {
		if size := sizeOf(seen.Messages); size > maxContext {
			t.Errorf("turn %d: %d bytes", i, size)
		}
		if seen.Messages[0].Text != "p" {
			t.Errorf("turn %d: the prompt is gone", i)
		}
	}
}

// sampled answers the host's requests for samples, the way an agent does.
func sampled(t *testing.T, turns Turns, answers ...string) (*Result, []string, error) {
	t.Helper()
	var r *Result
	var loopErr error
	p, _, id := inHost(t, func(ctx context.Context, _ host.Emitter) error {
		turns.Services = host.ServicesOf(ctx)
		turns.Model = NewSampling(turns.Services)
		r, loopErr = Loop(ctx, turns, nil, nil)
		return nil
	})
	var asked []string
	for i, answer := range answers {
		m := p.Wait(fmt.Sprintf("sample %d", i), func(m hosttest.Message) bool {
			return m.Type == protocol.TypeMCPSampleReq && !slices.Contains(asked, string(m.Line))
		})
		asked = append(asked, string(m.Line))
		p.Send(strings.ReplaceAll(answer, "REQ", m.ID))
	}
	p.Answer(id)
	return r, asked, loopErr
}

// said makes an agent's answer of text.
func said(text string) string {
	raw, _ := json.Marshal(text)
	return `{"a2e":"1.0","type":"mcp/sample/resp","id":"a` + fmt.Sprint(len(text)) + `","req_id":"REQ","content":{"type":"text","text":` + string(raw) + `},"model":"m","stop_reason":"endTurn"}`
}

func TestSampling(t *testing.T) {
	turns := Turns{System: "sys", Prompt: "add it", Tools: benchTools("add", "text")}
	use := `{"a2e":"1.0","type":"mcp/sample/resp","id":"u","req_id":"REQ","content":{"type":"tool_use","id":"t1","name":"text","input":{}}}`
	r, asked, err := sampled(t, turns, said("I shall\n```json\n{\"tool\":\"add\",\"arguments\":{\"a\":1}}\n```"), use, said("done: 3"))
	if err != nil || string(r.Data) != `"done: 3"` || !r.Tokens.Estimated {
		t.Fatalf("%+v, %v", r, err)
	}
	for i, parts := range [][]string{
		{`"system_prompt":"sys\n\nYou may call these tools:`, `"metadata":{"tools":[{"name":"add","description":"does add","input_schema":{"type":"object"`, `"messages":[{"content":{"text":"add it","type":"text"},"role":"user"}]`},
		{`{\"tool\":\"add\",\"result\":\"{\\\"sum\\\":3}\"}`, `I shall\n{\"tool\":\"add\",\"arguments\":{\"a\":1}}`},
		{`{\"tool\":\"text\",\"result\":\"plain\"}`},
	} {
		for _, part := range parts {
			if !strings.Contains(asked[i], part) {
				t.Errorf("request %d has no %s: %s", i, part, asked[i])
			}
		}
	}
	for name, answer := range map[string]string{
		"error message": `{"a2e":"1.0","type":"error","id":"e","req_id":"REQ","code":"runtime_error","message":"no model here"}`,
		"error field":   `{"a2e":"1.0","type":"mcp/sample/resp","id":"e","req_id":"REQ","error":"no model here"}`,
		"no text":       `{"a2e":"1.0","type":"mcp/sample/resp","id":"e","req_id":"REQ","content":{"type":"image","data":"x"}}`,
		"nothing":       `{"a2e":"1.0","type":"mcp/sample/resp","id":"e","req_id":"REQ"}`,
	} {
		if _, _, err := sampled(t, turns, answer); codeOf(err) != protocol.CodeMCPSamplingRefused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCallsIn reads the ways in which models write calls.
func TestCallsIn(t *testing.T) {
	one := `{"tool":"a","arguments":{"x":1}}`
	for name, c := range map[string]struct{ text, said, calls string }{
		"one":            {one, "", "a{\"x\":1}"},
		"two":            {one + "\n\n" + `{"tool":"b"}`, "", "a{\"x\":1} b{}"},
		"behind words":   {"First this.\n" + one, "First this.", "a{\"x\":1}"},
		"in a fence":     {"So:\n```json\n" + one + "\n```", "So:", "a{\"x\":1}"},
		"bare fence":     {"```\n" + one + "\n```", "", "a{\"x\":1}"},
		"over lines":     {"So:\n```\n{\n \"tool\": \"a\",\n \"arguments\": {\"x\": 1}\n}\n```", "So:", "a{\"x\": 1}"},
		"none":           {"just words", "just words", ""},
		"other object":   {`{"a":1}`, `{"a":1}`, ""},
		"in the middle":  {one + "\nand that was it", one + "\nand that was it", ""},
		"tool no text":   {`{"tool":5}`, `{"tool":5}`, ""},
		"bad arguments":  {`{"tool":"a","arguments":[1]}`, "", "a!"},
		"null arguments": {`{"tool":"a","arguments":null}`, "", "a{}"},
		"empty":          {"", "", ""},
	} {
		saidText, calls := callsIn(c.text)
		var got []string
		for _, call := range calls {
			if call.Invalid != "" {
				got = append(got, call.Name+"!")
			} else {
				got = append(got, call.Name+string(call.Arguments.Raw()))
			}
		}
		if saidText != c.said || strings.Join(got, " ") != c.calls {
			t.Errorf("%s: %q, %v", name, saidText, got)
		}
	}
}

// What a run took reaches whoever called the skill.
func TestLoopTellsWhatItTook(t *testing.T) {
	call := []ToolCall{{Name: "add", Arguments: object(`{"a":1}`)}}
	for _, c := range []struct {
		replies []Reply
		turns   int
		want    string
	}{
		{[]Reply{{Calls: call, Tokens: Tokens{Input: 100, Output: 7}}, {Text: "done", Tokens: Tokens{Input: 120, Output: 3}}}, 0, "turns: 2, tool calls: 1, tokens read: 220, written: 10"},
		{[]Reply{{Text: "four"}}, 0, "turns: 1, tool calls: 0, tokens read: about 22, written: about 1"},
		{[]Reply{{Calls: call, Tokens: Tokens{Input: 1, Output: 1}}}, 1, "turns: 1, tool calls: 1, tokens read: 1, written: 1"},
	} {
		r, _, _, err := looped(t, Turns{System: "s", Prompt: "p", Tools: benchTools("add"), MaxTurns: c.turns, Model: &canned{replies: c.replies}})
		if err != nil || r.Summary != c.want {
			t.Errorf("%v: %q, want %q", err, r.Summary, c.want)
		}
	}
}

// A server may report any number.
func TestReportedTokensAddUp(t *testing.T) {
	if n := reported(math.MaxInt); n+n+n < n {
		t.Errorf("%d overflows", n)
	}
	if n := reported(-5); n != 0 {
		t.Errorf("%d", n)
	}
	if _, err := readChat(protocol.Value(`{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":9223372036854775807}}`), newWireNames(nil)); err != nil {
		t.Error(err)
	}
}
