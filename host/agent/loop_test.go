package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// bench is a plugin with made-up tools. Its skill runs a function of the test within a host.
type bench struct {
	run   func(ctx context.Context, emit host.Emitter) error
	calls chan protocol.ToolCallRequest
	meet  chan struct{} // has room for two calls, which wait for each other
}

// DescribeTool implements host.ToolDescriber.
func (b *bench) DescribeTool(name string) (host.ToolDetail, bool) {
	return host.ToolDetail{ReadOnly: true}, name == "meet"
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
		host.Handle(protocol.TypeSkillCallReq, func(ctx context.Context, req *protocol.SkillCallRequest,
			emit host.Emitter,
		) (*protocol.SkillCallResponse, error) {
			if err := b.run(ctx, emit); err != nil {
				return nil, err
			}
			return &protocol.SkillCallResponse{Name: req.Name, Data: &protocol.SkillResult{Success: true}}, nil
		}),
		host.Handle(protocol.TypeToolCallReq, b.tool),
	}
}

func (b *bench) tool(ctx context.Context, req *protocol.ToolCallRequest, _ host.Emitter) (*protocol.ToolCallResponse,
	error,
) {
	b.calls <- *req
	resp := &protocol.ToolCallResponse{Data: protocol.ToolResult{Success: true, ToolName: req.ToolName}}
	switch req.ToolName {
	case "add":
		resp.Data.Data = jsontext.Value(`{"sum":3}`)
	case "text":
		resp.Data.Data = jsontext.Value(`"plain"`)
	case "part":
		resp.Data.Data, resp.Data.Truncated, resp.Data.Summary = jsontext.Value(`"begin"`), new(true),
			jsontext.Value(`"go on with offset 9"`)
	case "big":
		resp.Data.Data = protocol.AppendString(nil, strings.Repeat("x", 64<<10))
	case "fails":
		resp.Data.Success, resp.Data.Error = false, new("no luck")
	case "meet":
		b.meet <- struct{}{}
		for len(b.meet) < 2 {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(time.Millisecond):
			}
		}
		resp.Data.Data = jsontext.Value(`"met"`)
	case "wait":
		<-ctx.Done()
		return nil, context.Cause(ctx)
	default:
		return nil, protocol.Errorf(protocol.CodeToolDenied, "%s is withheld", req.ToolName)
	}
	return resp, nil
}

// inHost starts f as a skill of a host, and returns the id of the request.
func inHost(t *testing.T, f func(ctx context.Context, emit host.Emitter) error) (*hosttest.Pair, *bench, string) {
	t.Helper()
	b := &bench{run: f, calls: make(chan protocol.ToolCallRequest, 1000)}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{b}})
	p.Handshake()
	return p, b, p.Go(protocol.TypeSkillCallReq, `{"name":"x","streaming":true}`)
}

// canned is a model with prepared replies.
type canned struct {
	replies []Reply
	seen    []Request
	fail    error
	before  func(nth int, to Listener) // nil = do nothing before a reply
}

// Complete implements Model.
func (c *canned) Complete(ctx context.Context, r Request) (*Reply, error) {
	r.Messages = slices.Clone(r.Messages)
	c.seen = append(c.seen, r)
	if c.before != nil {
		c.before(len(c.seen), r.To)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if len(c.replies) == 0 {
		if c.fail != nil {
			return nil, c.fail
		}
		return &Reply{Text: "again", Calls: []ToolCall{{Name: "add"}}}, nil
	}
	reply := c.replies[0]
	c.replies = c.replies[1:]
	if reply.Text != "" {
		r.listener().Piece(PieceAnswer, reply.Text)
	}
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
		defs = append(defs, protocol.ToolDefinition{
			Name: name, Description: "does " + name,
			InputParameters: []protocol.ToolParameter{{Name: "a", Type: "integer", Required: true}},
		})
	}
	return defs
}

// heard is a watcher that keeps each event as a line.
type heard struct{ lines []string }

func (h *heard) add(format string, args ...any) {
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *heard) Round(round, of int)               { h.add("round %d of %d", round, of) }
func (h *heard) Piece(kind PieceKind, text string) { h.add("%s %s", kind, text) }
func (h *heard) Restart()                          { h.add("restart") }
func (h *heard) ToolStarted(round int, c ModelCall) {
	h.add("%d call %s %s %s", round, c.ID, c.Name, c.Arguments)
}

func (h *heard) ToolEnded(round int, c ModelCall, r ModelResult) {
	h.add("%d result %s %s %v %s %s", round, c.ID, c.Name, r.OK, r.Result, r.Error)
}

func (h *heard) Calls(round int, calls []ModelCall, results []ModelResult) {
	h.add("%d calls %d %d", round, len(calls), len(results))
}

// looped runs Loop within a host, and returns its result and the lines of its watcher.
func looped(t *testing.T, turns Turns) (*Result, []string, *bench, error) {
	t.Helper()
	var r *Result
	var loopErr error
	var h heard
	p, b, id := inHost(t, func(ctx context.Context, _ host.Emitter) error {
		turns.Services, turns.Watch = host.ServicesOf(ctx), &h
		r, loopErr = Loop(ctx, turns)
		return nil
	})
	p.Answer(id)
	return r, h.lines, b, loopErr
}

func TestLoop(t *testing.T) {
	model := &canned{replies: []Reply{
		{
			Text: "let me see", Calls: []ToolCall{
				{ID: "c1", Name: "add", Arguments: object(`{"a":1}`)},
				{Name: "text"},
				{Name: "fails"},
				{Name: "secret"},
				{Name: "rm"},
				{Name: "add", Invalid: "no object"},
			},
			Tokens: Tokens{Input: 100, Output: 10},
		},
		{Text: "the sum is 3", Tokens: Tokens{Input: 200, Output: 20}},
	}}
	r, lines, b, err := looped(t, Turns{System: "be good", Prompt: "add", Tools: benchTools("add", "text", "fails",
		"secret"), Model: model})
	must.That(t, err == nil && r.Text == "the sum is 3" && r.Tokens == (Tokens{300, 30, false}) && r.End == EndDone &&
		r.Calls == 6 && r.Rounds == 2, "%+v, %v", r, err)
	want := []string{
		"round 1 of 10", "answer let me see",
		`1 call c1 add {"a":1}`, `1 result c1 add true {"sum":3} `,
		`1 call call_2 text {}`, `1 result call_2 text true "plain" `,
		`1 call call_3 fails {}`, `1 result call_3 fails false null no luck`,
		`1 call call_4 secret {}`, `1 result call_4 secret false null tool_denied: secret is withheld`,
		`1 call call_5 rm {}`, `1 result call_5 rm false null there is no tool "rm" here; these are: add, text, fails, secret`,
		`1 call call_6 add {}`, `1 result call_6 add false null no object`,
		"1 calls 6 6", "round 2 of 10", "answer the sum is 3",
	}
	assert.Diff(t, want, lines)
	assert.Equal(t, len(b.calls), 4, "… calls were made, of a tool that is not in the list as well")
	last := model.seen[1]
	var got []string
	for _, m := range last.Messages {
		got = append(got, fmt.Sprintf("%s %s %s", m.Role, m.Of.ID, m.Text))
	}
	diff := cmp.Diff([]string{
		"user  add", "assistant  let me see", `tool c1 {"sum":3}`, "tool call_2 plain", "tool call_3 error: no " +
			"luck\nnull", "tool call_4 error: tool_denied: secret is withheld",
		`tool call_5 error: there is no tool "rm" here; these are: add, text, fails, secret`,
		"tool call_6 error: no object",
	}, got)
	assert.That(t, diff == "" && last.System == "be good", "%v", diff)
	assert.Equal(t, string(last.Tools[0].Schema), `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}`)
}

// TestLoopTellsOfCutResults guards against a model that takes a part of a result for the whole.
func TestLoopTellsOfCutResults(t *testing.T) {
	model := &canned{replies: []Reply{{Text: "read", Calls: []ToolCall{
		{ID: "c", Name: "part"},
		{ID: "d", Name: "text"},
	}}, {Text: "done"}}}
	_, _, _, err := looped(t, Turns{Prompt: "p", Tools: benchTools("part", "text"), Model: model})
	must.OK(t, err)
	got := model.seen[1].Messages
	assert.Equal(t, got[len(got)-2].Text, "begin\n(the result was cut: go on with offset 9)")
	assert.Equal(t, got[len(got)-1].Text, "plain")
}

// TestLoopEnds: Loop ends at MaxTurns, if the model fails, and if its caller goes away.
func TestLoopEnds(t *testing.T) {
	r, _, b, err := looped(t, Turns{Prompt: "p", Tools: benchTools("add"), MaxTurns: 3, Model: &canned{}})
	if err != nil || r.End != EndTurns || !strings.Contains(r.Failure, "3 turns") || len(b.calls) != 3 ||
		!r.Tokens.Estimated || r.Tokens.Input == 0 || r.Tokens.Output == 0 {
		t.Errorf("%+v, %v, %d calls", r, err, len(b.calls))
	}
	broken := protocol.Errorf(protocol.CodeSkillError, "broken")
	if _, _, _, err := looped(t, Turns{Prompt: "p", Model: &canned{
		replies: []Reply{{Calls: []ToolCall{{Name: "x"}}}},
		fail:    broken,
	}}); !errors.Is(err, broken) {
		t.Error(err)
	}
	gone, called := errors.New("gone"), make(chan struct{})
	p, b, id := inHost(t, func(ctx context.Context, _ host.Emitter) error {
		ctx, cancel := context.WithCancelCause(ctx)
		go func() {
			<-called
			cancel(gone)
		}()
		_, err := Loop(ctx, Turns{
			Services: host.ServicesOf(ctx), Prompt: "p", Tools: benchTools("wait"),
			Model: &canned{replies: []Reply{{Calls: []ToolCall{{Name: "wait"}}}}},
		})
		assert.Is(t, err, gone)
		return nil
	})
	hosttest.Eventually(t, "the call", func() bool { return len(b.calls) == 1 })
	close(called)
	p.Answer(id)
	assert.Equal(t, len(b.calls), 1)
}

// TestLoopAccept: if Accept refuses an answer, the model is told why and can answer again until its turns are used
// up.
func TestLoopAccept(t *testing.T) {
	for name, c := range map[string]struct {
		replies []Reply
		text    string
		end     End
	}{
		"at once":    {[]Reply{{Text: "good"}}, "good", EndDone},
		"second try": {[]Reply{{Text: "bad"}, {Text: "good"}}, "good", EndDone},
		"never":      {[]Reply{{Text: "bad"}, {Text: "worse"}}, "worse", EndWrong},
	} {
		model := &canned{replies: c.replies}
		r, _, _, err := looped(t, Turns{Prompt: "p", MaxTurns: 2, Model: model, Accept: func(text string) error {
			if text != "good" {
				return errors.New("should be good")
			}
			return nil
		}})
		assert.That(t, err == nil && r.Text == c.text && r.End == c.end &&
			(c.end == EndWrong) == (r.Failure == "should be good"),
			"%s: %+v, %v", name, r, err)
		last := model.seen[len(model.seen)-1].Messages
		assert.That(t, len(last) <= 1 || last[1].Text == "bad" && last[2].Text == "should be good",
			"%s: the model saw %+v", name, last)
	}
}

// TestLoopBounds: a conversation stays within the window, however much tools and model say.
func TestLoopBounds(t *testing.T) {
	model := &canned{}
	for range 3 {
		model.replies = append(model.replies, Reply{
			Text: strings.Repeat("t", 100<<10),
			Calls: slices.Repeat([]ToolCall{{
				Name:      "big",
				Arguments: object(`{"a":"` + strings.Repeat("y", 40<<10) + `"}`),
			}}, 20),
		})
	}
	model.replies = append(model.replies, Reply{Calls: []ToolCall{{
		Name:      "big",
		Arguments: object(`{"a":"` + strings.Repeat("y", 100<<10) + `"}`),
	}}}, Reply{
		Text: strings.Repeat("\x00", 2<<20),
		Cut:  true,
	})
	r, _, b, err := looped(t, Turns{Prompt: "p", Tools: benchTools("big"), MaxTurns: 100, Model: model})
	must.That(t, err == nil && r.Cut && len(r.Text) <= maxFinalText, "%v, %d bytes", err, len(r.Text))
	assert.Equal(t, len(b.calls), 3*maxCalls, "… calls")
	for i, seen := range model.seen {
		size := sizeOf(seen.Messages)
		assert.That(t, size <= usualWindow*bytesPerToken, "turn %d: %d bytes", i, size)
		assert.Equal(t, seen.Messages[0].Text, "p", "turn %d: the prompt is gone", i)
	}
}

// sampled runs Loop with the agent as its model, and answers each request for a sample in turn.
func sampled(t *testing.T, turns Turns, answers ...string) (*Result, []string, error) {
	t.Helper()
	var r *Result
	var loopErr error
	p, _, id := inHost(t, func(ctx context.Context, _ host.Emitter) error {
		turns.Services = host.ServicesOf(ctx)
		turns.Model = NewSampling(turns.Services)
		r, loopErr = Loop(ctx, turns)
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

// said returns an agent's answer with a text.
func said(text string) string {
	raw, _ := json.Marshal(text)
	return `{"a2e":"1.0","type":"mcp/sample/resp","id":"a` + fmt.Sprint(len(text)) +
		`","req_id":"REQ","content":{"type":"text","text":` + string(raw) + `},"model":"m","stop_reason":"endTurn"}`
}

func TestSampling(t *testing.T) {
	turns := Turns{System: "sys", Prompt: "add it", Tools: benchTools("add", "text")}
	use := `{"a2e":"1.0","type":"mcp/sample/resp","id":"u","req_id":"REQ","content":{"type":"tool_use","id":"t1","name":"text","input":{}}}`
	r, asked, err := sampled(t, turns, said("I shall\n```json\n{\"tool\":\"add\",\"arguments\":{\"a\":1}}\n```"), use,
		said("done: 3"))
	must.That(t, err == nil && r.Text == "done: 3" && r.Tokens.Estimated, "%+v, %v", r, err)
	for i, parts := range [][]string{
		{
			`"system_prompt":"sys\n\nYou may call these tools:`,
			`"metadata":{"tools":[{"name":"add","description":"does add","input_schema":{"type":"object"`,
			`"messages":[{"content":{"text":"add it","type":"text"},"role":"user"}]`,
		},
		{`{\"tool\":\"add\",\"result\":\"{\\\"sum\\\":3}\"}`, `I shall\n{\"tool\":\"add\",\"arguments\":{\"a\":1}}`},
		{`{\"tool\":\"text\",\"result\":\"plain\"}`},
	} {
		for _, part := range parts {
			assert.Contains(t, asked[i], part, "request %d has no", i)
		}
	}
	for name, answer := range map[string]string{
		"error message": `{"a2e":"1.0","type":"error","id":"e","req_id":"REQ","code":"runtime_error","message":"no model here"}`,
		"error field":   `{"a2e":"1.0","type":"mcp/sample/resp","id":"e","req_id":"REQ","error":"no model here"}`,
		"no text":       `{"a2e":"1.0","type":"mcp/sample/resp","id":"e","req_id":"REQ","content":{"type":"image","data":"x"}}`,
		"nothing":       `{"a2e":"1.0","type":"mcp/sample/resp","id":"e","req_id":"REQ"}`,
	} {
		_, _, err := sampled(t, turns, answer)
		assert.Equal(t, codeOf(err), protocol.CodeMCPSamplingRefused, "%s: %v", name, err)
	}
}

// TestCallsIn: calls are found in all the forms in which models write them as text.
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
		assert.That(t, saidText == c.said && strings.Join(got, " ") == c.calls, "%s: %q, %v", name, saidText, got)
	}
}

// TestLoopTellsWhatItTook: the summary of a run has its turns, calls and tokens.
func TestLoopTellsWhatItTook(t *testing.T) {
	call := []ToolCall{{Name: "add", Arguments: object(`{"a":1}`)}}
	for _, c := range []struct {
		replies []Reply
		turns   int
		want    string
	}{
		{[]Reply{{Calls: call, Tokens: Tokens{Input: 100, Output: 7}}, {
			Text:   "done",
			Tokens: Tokens{Input: 120, Output: 3},
		}}, 0, "turns: 2, tool calls: 1, tokens read: 220, written: 10"},
		{[]Reply{{Text: "four"}}, 0, "turns: 1, tool calls: 0, tokens read: about 22, written: about 1"},
		{[]Reply{{Calls: call, Tokens: Tokens{Input: 1, Output: 1}}}, 1, "turns: 1, tool calls: 1, tokens read: 1, " +
			"written: 1"},
	} {
		r, _, _, err := looped(t, Turns{
			System: "s", Prompt: "p", Tools: benchTools("add"), MaxTurns: c.turns,
			Model: &canned{replies: c.replies},
		})
		if err != nil || r.Summary() != c.want {
			t.Errorf("%v: %q, want %q", err, r.Summary(), c.want)
		}
	}
}

// TestReportedTokens: whatever a server reports as tokens, the answer is used; values that are not numbers count as
// none.
func TestReportedTokens(t *testing.T) {
	for usage, want := range map[string]Tokens{
		`{"prompt_tokens":3,"completion_tokens":2}`:         {Input: 3, Output: 2},
		`{"prompt_tokens":10.0,"completion_tokens":5.5}`:    {Input: 10, Output: 5},
		`{"prompt_tokens":-10,"completion_tokens":-1e999}`:  {},
		`{"prompt_tokens":1e999,"completion_tokens":9e300}`: {Input: 1 << 40, Output: 1 << 40},
		`{"prompt_tokens":99999999999999999999999}`:         {Input: 1 << 40},
		`{"prompt_tokens":"10","completion_tokens":null}`:   {},
		`{"prompt_tokens":[1],"completion_tokens":7}`:       {Output: 7},
		`"none"`: {}, `null`: {}, `[]`: {}, ``: {},
	} {
		got := reported(jsontext.Value(usage))
		assert.That(t, got == want, "%s: %+v, want %+v", usage, got, want)
	}
}

// codeOf returns the code of a protocol.Error, or "" for another error.
func codeOf(err error) protocol.ErrorCode {
	if e := (*protocol.Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestLoopWindow: a conversation stays within the window of the model, if the window is known.
func TestLoopWindow(t *testing.T) {
	model := &canned{replies: append(slices.Repeat([]Reply{{Calls: []ToolCall{{Name: "big"}}}}, 4), Reply{Text: "ok"})}
	_, _, _, err := looped(t, Turns{Prompt: "p", Tools: benchTools("big"), Window: 15_000, Model: model})
	must.That(t, err == nil, "%v", err)
	for i, seen := range model.seen {
		size := sizeOf(seen.Messages)
		assert.That(t, size <= 15_000*3 && (i != 1 || size >= 32<<10), "request %d: %d bytes", i, size)
	}
}
