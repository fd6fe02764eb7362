package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// chunk returns an event of a stream, as servers send it.
func chunk(delta string) string {
	return `data: {"choices":[{"index":0,"delta":` + delta + `,"finish_reason":null}]}`
}

const lastChunk = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`

// TestStream: each kind of answer, over real HTTP, gives the right events for the watcher, the right end of the run
// and the right number of requests.
func TestStream(t *testing.T) {
	t.Parallel()
	add := llm.Call{Name: "add", Arguments: `{"a":1}`}
	added := "\n1 call call_1 add {\"a\":1}\n1 result call_1 add true {\"sum\":3} \n1 calls 1 1\nround 2 of " +
		"4\nanswer ok"
	ok := llm.Text("ok").Used(3, 2)
	raw := func(lines ...string) llm.Reply { return llm.Reply{Raw: strings.Join(lines, "\n\n") + "\n\n"} }
	called := func(pieces ...string) llm.Reply {
		lines := []string{}
		for _, p := range pieces {
			lines = append(lines, chunk(`{"tool_calls":[`+p+`]}`))
		}
		return raw(append(lines, lastChunk, "data: [DONE]")...)
	}
	two := "round 1 of 4\n1 call a add {\"a\":1}\n1 result a add true {\"sum\":3} \n1 call b text {}\n1 result b " +
		"text true \"plain\" \n1 calls 2 2\nround 2 of 4\nanswer ok"
	for name, c := range map[string]struct {
		script []llm.Reply
		refuse []string
		turns  Turns
		says   string // the lines of the watcher
		ends   string // the end and the failure, or the error
		tokens Tokens // zero = estimated
		asked  int
	}{
		"text in pieces": {
			script: []llm.Reply{{
				Thoughts: []string{"h", "m"}, Text: []string{"he", "llo"}, Input: 7,
				Output: 3,
			}},
			says: "round 1 of 4\nthought h\nthought m\nanswer he\nanswer llo", ends: "done",
			tokens: Tokens{7, 3, false}, asked: 1,
		},
		"a call in pieces": {
			script: []llm.Reply{llm.Calls(add).Used(5, 5), ok}, says: "round 1 of 4" + added,
			ends: "done", tokens: Tokens{8, 7, false}, asked: 2,
		},
		"a whole call": {script: []llm.Reply{
			llm.Calls(llm.Call{Name: "add", Arguments: `{"a":1}`, Pieces: -1}),
			ok,
		}, says: "round 1 of 4" + added, ends: "done", asked: 2},
		"a call without index": {script: []llm.Reply{llm.Calls(llm.Call{
			Name: "add", Arguments: `{"a":1}`,
			NoIndex: true,
		}), ok}, says: "round 1 of 4" + added, ends: "done", asked: 2},
		"arguments as object": {script: []llm.Reply{llm.Calls(llm.Call{
			Name: "add", Arguments: `{"a":1}`,
			Object: true,
		}), ok}, says: "round 1 of 4" + added, ends: "done", asked: 2},
		"whole, not streamed": {script: []llm.Reply{
			{Calls: []llm.Call{add}, Whole: true},
			{Text: []string{"ok"}, Whole: true},
		}, says: "round 1 of 4" + added, ends: "done", asked: 2},
		"parallel calls": {script: []llm.Reply{llm.Calls(llm.Call{ID: "a", Name: "add", Arguments: `{"a":1}`},
			llm.Call{ID: "b", Name: "text"}), ok}, says: two, ends: "done", asked: 2},
		"pieces that alternate": {script: []llm.Reply{called(`{"index":0,"id":"a","function":{"name":"add","arguments":"{\"a\""}},{"index":1,"id":"b","function":{"name":"text","arguments":""}}`,
			`{"index":1,"function":{"arguments":"{"}},{"index":0,"function":{"arguments":":1}"}}`,
			`{"index":1,"function":{"arguments":"}"}}`), ok}, says: two, ends: "done", asked: 2},
		"the same index for all": {script: []llm.Reply{called(`{"index":0,"id":"a","function":{"name":"add","arguments":"{\"a\":1}"}}`, `{"index":0,"id":"b","function":{"name":"text","arguments":"{}"}}`), ok}, says: two, ends: "done", asked: 2},
		"no index, by id": {
			script: []llm.Reply{called(`{"id":"a","function":{"name":"add","arguments":"{\"a\":"}},{"id":"a","function":{"arguments":"1}"}},{"id":"b","function":{"name":"text","arguments":null}}`), ok},
			says:   two, ends: "done", asked: 2,
		},
		"bad arguments": {
			script: []llm.Reply{llm.Calls(llm.Call{Name: "add", Arguments: `{"a":`}), ok}, ends: "done",
			asked: 2,
			says: "round 1 of 4\n1 call call_1 add {}\n1 result call_1 add false null the arguments should be a " +
				"JSON object: parse_error: not valid JSON: at byte 5: the text ends where a value should be\n1 " +
				"calls 1 1\nround 2 of 4\nanswer ok",
		},
		"busy": {
			script: []llm.Reply{
				{Status: 429, RetryAfter: "0", Error: "slow down"},
				llm.Fail(500, "oh"), ok,
			}, says: "round 1 of 4\nanswer ok", ends: "done", tokens: Tokens{3, 2, false},
			asked: 3,
		},
		"always failing": {
			script: slices.Repeat([]llm.Reply{llm.Fail(500, "oh")}, maxModelTries),
			says:   "round 1 of 4", ends: "status 500 Internal Server Error: oh", asked: maxModelTries,
		},
		"cut": {
			script: []llm.Reply{{Text: []string{"o"}, Cut: true}, ok},
			says:   "round 1 of 4\nanswer o\nrestart\nanswer ok", ends: "done", asked: 2,
		},
		"cut without notice": {script: []llm.Reply{raw(chunk(`{"content":"o"}`)), ok}, says: "round 1 of 4\nanswer " +
			"o\nrestart\nanswer ok", ends: "done", asked: 2},
		"cut within a line": {
			script: []llm.Reply{{Raw: `data: {"choices":[{"delta":{"cont`}, ok},
			says:   "round 1 of 4\nanswer ok", ends: "done", tokens: Tokens{3, 2, false}, asked: 2,
		},
		"a stall": {
			script: []llm.Reply{{Text: []string{"o"}, Stall: true}, ok},
			says:   "round 1 of 4\nanswer o\nrestart\nanswer ok", ends: "done", asked: 2,
		},
		"a fault within": {
			script: []llm.Reply{{Text: []string{"o"}, Fault: "overloaded"}, ok},
			says:   "round 1 of 4\nanswer o\nrestart\nanswer ok", ends: "done", asked: 2,
		},
		"a lasting fault": {
			script: []llm.Reply{raw(`data: {"error":{"message":"too long for me","type":"invalid_request_error"}}`), raw(`data: {"error":{"message":"too long for me","type":"invalid_request_error"}}`)}, says: "round 1 of 4",
			ends: "the server says, within its answer: too long for me", asked: 2,
		}, // the second try is without stream_options
		"a fault as an event": {
			script: []llm.Reply{{Raw: "event: error\ndata: {\"message\":\"gone\"}\n\n"}, ok},
			says:   "round 1 of 4\nanswer ok", ends: "done", tokens: Tokens{3, 2, false}, asked: 2,
		},
		"a fault, no stream": {
			script: []llm.Reply{{Raw: `{"error":"no such thing"}`, Whole: true}, ok},
			says:   "round 1 of 4\nanswer ok", ends: "done", tokens: Tokens{3, 2, false}, asked: 2,
		},
		"odd but right": {
			script: []llm.Reply{{Raw: "\ufeff: hello\r\n\r\nevent: x\r\nid: 3\r\nretry: 5\r\n: ping\r\n" +
				`data: {"choices":[]}` + "\r\n\r\n" + chunk(`{"content":"o","error":null}`) + "\n" +
				chunk(`{"content":[{"type":"text","text":"k"}]}`) + "\r\n" +
				"data:{\"choices\":[{\"delta\":{\"reasoning\":\"t\"},\r\ndata: \"finish_reason\":\"stop\"}]}\r\n\r\n" +
				`data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}`}},
			says: "round 1 of 4\nanswer o\nanswer k\nthought t", ends: "done", tokens: Tokens{3, 2, false}, asked: 1,
		},
		"ends of lines are CR": {
			script: []llm.Reply{{Raw: strings.Join([]string{
				chunk(`{"content":"o"}`), "",
				"data: {\"choices\":[{\"delta\":", "data: {\"content\":\"k\"}}]}", "", lastChunk, "", "data: [DONE]", "",
				"",
			}, "\r")}},
			says: "round 1 of 4\nanswer o\nanswer k", ends: "done", asked: 1,
		},
		"an event of many lines": {script: []llm.Reply{{Raw: "data: {\"choices\":[\n" +
			strings.Repeat("data:\n", 700_000) + "data: {\"delta\":{\"content\":\"o\"},\"finish_reason\":7}]}\n\ndata: [DONE]\n\n"}}, says: "round 1 of 4\nanswer o", ends: "done", asked: 1},
		"two calls of one id": {script: []llm.Reply{called(`{"index":0,"id":"a","function":{"name":"add","arguments":"{\"a\":1}"}},{"index":1,"id":"a","function":{"name":"text","arguments":"{}"}}`), ok}, says: strings.NewReplacer("call b", "call call_2", "result b", "result call_2").Replace(two), ends: "done", asked: 2},
		"an error in the text": {
			script: []llm.Reply{raw(chunk(`{"content":"{\"error\": \"x\"}"}`), lastChunk)},
			says:   "round 1 of 4\nanswer {\"error\": \"x\"}", ends: "done", asked: 1,
		},
		"a huge line": {script: []llm.Reply{raw(chunk(`{"content":"` + strings.Repeat("x", maxModelAnswer) +
			`"}`))}, says: "round 1 of 4", ends: "the answer is larger than 8388608 bytes", asked: 1},
		"endless keep-alives": {
			script: []llm.Reply{{Raw: strings.Repeat(": ping\n", maxModelAnswer/7+1)}},
			says:   "round 1 of 4", ends: "the answer is larger than 8388608 bytes", asked: 1,
		},
		"nothing": {
			script: []llm.Reply{raw("data: [DONE]")}, says: "round 1 of 4",
			ends: "the answer is not of the form", asked: 1,
		},
		"no stream_options": {
			script: []llm.Reply{llm.Calls(add), ok}, refuse: []string{"stream_options"},
			says: "round 1 of 4" + added, ends: "done", asked: 2,
		},
		"a refusal": {
			script: []llm.Reply{{Refusal: "I will not"}},
			says:   "round 1 of 4\nanswer I will not", ends: "refused: the model declined: I will not", asked: 1,
		},
		"a filter": {
			script: []llm.Reply{{Text: []string{"so"}, Finish: "content_filter"}},
			says:   "round 1 of 4\nanswer so", ends: "refused: the model declined: so", asked: 1,
		},
		"at its own limit": {
			script: []llm.Reply{{Text: []string{"so"}, Finish: "length"}},
			says:   "round 1 of 4\nanswer so", ends: "done cut", asked: 1,
		},
		"tool that is not there": {
			script: []llm.Reply{llm.Calls(llm.Call{Name: "rm"}), ok}, ends: "done", asked: 2,
			says: "round 1 of 4\n1 call call_1 rm {}\n1 result call_1 rm false null there is no tool \"rm\" here; " +
				"these are: add, text\n1 calls 1 1\nround 2 of 4\nanswer ok",
		},
		"no turns left": {
			script: []llm.Reply{llm.Calls(add)}, turns: Turns{MaxTurns: 1},
			says: "round 1 of 1" + added[:strings.Index(added, "\nround")], ends: "max_turns: the model did not " +
				"finish within 1 turn (max_turns)", asked: 1,
		},
		"no budget left": {script: []llm.Reply{{
			Text: []string{"so"}, Calls: []llm.Call{add}, Input: 90,
			Output: 10,
		}}, turns: Turns{Budget: 100}, says: "round 1 of 4\nanswer so", ends: "token_budget: the " +
			"token budget of 100 is used up: 100 were spent", tokens: Tokens{90, 10, false}, asked: 1},
		"more than the budget": {
			script: []llm.Reply{{Text: []string{
				strings.Repeat("x", 100),
				strings.Repeat("x", 400),
			}, Stall: true}}, turns: Turns{Budget: 100},
			says: "round 1 of 4\nanswer " + strings.Repeat("x", 100) + "\nanswer " + strings.Repeat("x", 400),
			ends: "token_budget: the token budget of 100 was used up while the model answered", asked: 1,
		},
		"steps of the agent": {
			script: []llm.Reply{llm.Calls(add), llm.Calls(add), ok},
			turns: Turns{Agent: &fleet.Agent{
				AgentID: "kid", ToolScope: protocol.ToolsRestricted,
				Capabilities: []string{"add"}, MaxSteps: 1,
			}}, ends: "done", asked: 3,
			says: "round 1 of 4" + strings.TrimSuffix(added, "\nanswer ok") + "\n2 call call_1 add {\"a\":1}\n2 " +
				"result call_1 add false null tool_denied: the child agent \"kid\" has used its max_steps of 1\n2 " +
				"calls 1 1\nround 3 of 4\nanswer ok",
		},
		"scope of the agent": {
			script: []llm.Reply{llm.Calls(add), ok},
			turns: Turns{Agent: &fleet.Agent{
				AgentID: "kid", ToolScope: protocol.ToolsRestricted,
				Capabilities: []string{"text"},
			}}, ends: "done", asked: 2,
			says: "round 1 of 4\n1 call call_1 add {\"a\":1}\n1 result call_1 add false null there is no tool " +
				"\"add\" here; these are: text\n1 calls 1 1\nround 2 of 4\nanswer ok",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := llm.New(t, c.script...)
			s.Refuse = c.refuse
			o := EndpointOptions{URL: s.URL}
			if name == "a stall" {
				o.Timeout = 5 * time.Second // the second answer has as much time as the first
			}
			c.turns.Prompt, c.turns.Tools, c.turns.Model = "p", benchTools("add", "text"), connect(t, o)
			if c.turns.MaxTurns == 0 {
				c.turns.MaxTurns = 4
			}
			r, lines, _, err := looped(t, c.turns)
			ends := string(r.End)
			if r.Cut {
				ends += " cut"
			}
			if r.Failure != "" {
				ends += ": " + r.Failure
			}
			if err != nil {
				ends = err.Error()
			}
			assert.Diff(t, c.says, strings.Join(lines, "\n"))
			assert.That(t, (err != nil || ends == c.ends) && strings.Contains(ends, c.ends), "it ends with %s, want %s",
				ends, c.ends)
			assert.That(t, (c.tokens == (Tokens{}) || r.Tokens == c.tokens) && (c.tokens != (Tokens{}) || err != nil ||
				r.Tokens.Estimated), "it took %+v", r.Tokens)
			assert.Equal(t, len(s.Requests()), c.asked, "it was asked … times")
		})
	}
}

// TestEndlessLoop: a model that makes the same call again and again is told so, and is stopped at the end.
func TestEndlessLoop(t *testing.T) {
	s := llm.New(t)
	s.Answer(func(*llm.Request) llm.Reply { return llm.Calls(llm.Call{Name: "add", Arguments: `{"a":1}`}) })
	r, _, b, err := looped(t, Turns{
		Prompt: "p", Tools: benchTools("add"), MaxTurns: 100,
		Model: connect(t, EndpointOptions{URL: s.URL}),
	})
	if err != nil || r.End != EndRepeats || !strings.Contains(r.Failure,
		`made the same call with the same result 10 times, one after the other: add{"a":1}`) ||
		len(b.calls) != mostRepeats {
		t.Errorf("%+v, %v, %d calls", r, err, len(b.calls))
	}
	for i, asked := range s.Requests() {
		if told := strings.Contains(asked.Last("tool"), "Do something else"); told != (i >= tellRepeats) {
			t.Errorf("request %d: told is %v: %s", i, told, asked.Last("tool"))
		}
	}
}

// TestRequests: a request to the model has the whole conversation, images, the level of thinking, and the texts that
// the user sends meanwhile.
func TestRequests(t *testing.T) {
	s := llm.New(t, llm.Reply{Calls: []llm.Call{{Name: "add", Arguments: `{"a":1}`}}, Stall: true},
		llm.Reply{Text: []string{"fin"}, Stall: true}, llm.Text("all"))
	steer := make(chan Steering, 2)
	taken := make(chan bool, 2)
	go func() { // each text is sent while the model still answers
		for range 2 {
			s.AwaitStall(t)
			steer <- Steering{Text: "more", Taken: taken}
			s.Release()
			hosttest.Eventually(t, "the text is taken", func() bool { return len(steer) == 0 })
		}
	}()
	image := Image{Name: "a.png", MIME: "image/png", Data: []byte("x")}
	r, _, _, err := looped(t, Turns{
		System: "sys", Earlier: []Said{
			{Role: "user", Text: "hi", Images: []Image{image}},
			{Role: "assistant", Text: "ho"},
		}, Prompt: "p", Images: []Image{image, image},
		Tools: benchTools("add"), Model: connect(t, EndpointOptions{URL: s.URL, Thinking: "low"}), Name: "other",
		Thinking: "high", Steer: func() (all []Steering) {
			for len(steer) > 0 {
				all = append(all, <-steer)
			}
			return all
		},
	})
	must.That(t, err == nil && r.Text == "all" && r.Rounds == 3 && len(taken) == 2, "%+v, %v, %d taken", r, err,
		len(taken))
	var got []string
	for _, m := range s.Requests()[2].Messages {
		got = append(got, fmt.Sprintf("%s %s %v %v", m.Role, m.Text, m.Images, m.Calls))
	}
	url := "data:image/png;base64,eA=="
	diff := cmp.Diff([]string{
		"system sys [] []", "user hi [" + url + "] []", "assistant ho [] []", "user p [" + url + " " + url + "] []",
		`assistant  [] [{call_1 add {"a":1} 0 false false}]`,
		`tool {"sum":3} [] []`, "user more [] []", "assistant fin [] []", "user more [] []",
	}, got)
	assert.Equal(t, diff, "")
	if asked := s.Requests()[0]; asked.Model != "other" || asked.Effort != "high" ||
		!strings.Contains(asked.Body, `"stream_options":{"include_usage":true}`) {
		t.Errorf("%s", asked.Body)
	}
	plain := llm.New(t, llm.Text("a"), llm.Text("b"))
	for _, thinking := range []string{"", "off"} {
		_, err := connect(t, EndpointOptions{URL: plain.URL, Thinking: "off"}).Complete(t.Context(),
			Request{Thinking: thinking})
		assert.That(t, err == nil, "%v", err)
	}
	for _, asked := range plain.Requests() {
		assert.That(t, !strings.Contains(asked.Body, "reasoning") && !strings.Contains(asked.Body, `"tools"`), "%s",
			asked.Body)
	}
}

// onPiece calls a function for each piece of an answer.
type onPiece struct {
	Unwatched
	do func(text string)
}

// Piece implements Watcher.
func (o onPiece) Piece(_ PieceKind, text string) { o.do(text) }

// TestCancelWhileItStreams: if the caller goes away, the request ends at once and the result has the text so far.
func TestCancelWhileItStreams(t *testing.T) {
	s := llm.New(t, llm.Reply{Text: []string{"half of ", "it"}, Stall: true})
	gone := errors.New("gone")
	var r *Result
	p, _, id := inHost(t, func(ctx context.Context, _ host.Emitter) (err error) {
		ctx, cancel := context.WithCancelCause(ctx)
		ends := onPiece{do: func(text string) {
			if text == "it" {
				cancel(gone)
			}
		}}
		model := connect(t, EndpointOptions{URL: s.URL})
		if r, err = Loop(ctx, Turns{
			Services: host.ServicesOf(ctx), Prompt: "p", Model: model,
			Watch: ends,
		}); !errors.Is(err, gone) {
			t.Error(err)
		}
		return nil
	})
	p.Answer(id)
	assert.That(t, r.Text == "half of it" && r.Tokens.Output != 0 && r.Tokens.Estimated, "%+v", r)
	hosttest.Eventually(t, "the server sees that the client is gone", func() bool { return !s.Stalls() })
}

// TestCallsThatReadRunTogether: calls that only read run at the same time, and their events come in the order of the
// calls.
func TestCallsThatReadRunTogether(t *testing.T) {
	meet := make(chan struct{}, 2)
	model := &canned{replies: []Reply{{Calls: []ToolCall{
		{ID: "a", Name: "meet"},
		{ID: "b", Name: "meet"},
		{ID: "c", Name: "add"},
	}}, {Text: "ok"}}}
	b := &bench{calls: make(chan protocol.ToolCallRequest, 10), meet: meet}
	var h heard
	b.run = func(ctx context.Context, _ host.Emitter) error {
		_, err := Loop(ctx, Turns{
			Services: host.ServicesOf(ctx), Prompt: "p", Tools: benchTools("meet", "add"),
			Model: model, Watch: &h,
		})
		return err
	}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{b}})
	p.Handshake()
	p.Answer(p.Go(protocol.TypeSkillCallReq, `{"name":"x","streaming":true}`))
	if got := strings.Join(h.lines, "; "); got != `round 1 of 10; 1 call a meet {}; 1 result a meet true "met" ; 1 call b meet {}; 1 result b meet true "met" ; 1 call c add {}; 1 result c add true {"sum":3} ; 1 calls 3 3; round 2 of 10; answer ok` {
		t.Error(got)
	}
}

// TestTextOfManyCallsIsReadOnce: a text with very many calls is read in time proportional to its length, and only one
// call more than the most that a turn may have is kept.
func TestTextOfManyCallsIsReadOnce(t *testing.T) {
	said, calls := callsIn("first\n" + strings.Repeat("{\"tool\":\"x\",\"arguments\":{}}\n\n", 300_000))
	assert.That(t, said == "first" && len(calls) == maxCalls+1, "%.40q, %d calls", said, len(calls))
	if said, calls = callsIn(strings.Repeat("\n", 1<<20) + "{\"tool\":\"x\"}"); said != "" || len(calls) != 1 {
		t.Errorf("%.40q, %d calls", said, len(calls))
	}
}

// TestNamesAndIDsOfCallsAreBounded: names and ids of calls in the conversation are bounded, because a name of
// megabytes would be sent again with each turn, and stand in each event.
func TestNamesAndIDsOfCallsAreBounded(t *testing.T) {
	model, long := &canned{}, strings.Repeat("n", 2<<20)
	for range 3 {
		model.replies = append(model.replies, Reply{Calls: []ToolCall{
			{ID: long, Name: long, Arguments: object(`{"a":1}`)}, {
				ID: strings.Repeat("i", 1000), Name: "add",
				Arguments: object(`{"a":1}`),
			},
		}})
	}
	model.replies = append(model.replies, Reply{Text: "done"})
	r, lines, b, err := looped(t, Turns{Prompt: "p", Tools: benchTools("add"), Model: model})
	must.That(t, err == nil && r.Text == "done" && len(b.calls) == 3, "%v %+v, %d calls", err, r, len(b.calls))
	for i, line := range lines {
		assert.That(t, len(line) <= 64<<10, "event %d has %d bytes: %.100s", i, len(line), line)
	}
	held := 0
	for _, m := range model.seen[len(model.seen)-1].Messages {
		held += len(m.Text) + len(m.Of.ID) + len(m.Of.Name)
		for _, c := range m.Calls {
			held += len(c.ID) + len(c.Name)
		}
	}
	assert.That(t, held <= 64<<10, "the conversation holds %d bytes", held)
	of := model.seen[1].Messages[3].Of
	assert.That(t, of.Name == "add" && len(of.ID) == 1000, "the id of a call is not its own: %.50s %d", of.Name,
		len(of.ID))
}

// TestArgumentsOfCallsAreNotHeldTwice: the results of calls do not keep the arguments, so that arguments that are
// removed from the conversation no longer take memory.
func TestArgumentsOfCallsAreNotHeldTwice(t *testing.T) {
	model := &canned{}
	for i := range 4 {
		call := ToolCall{
			ID: fmt.Sprint(i), Name: "add",
			Arguments: object(`{"a":"` + strings.Repeat("y", 60<<10) + `"}`),
		}
		model.replies = append(model.replies, Reply{Calls: []ToolCall{call}})
	}
	model.replies = append(model.replies, Reply{Text: "done"})
	_, _, _, err := looped(t, Turns{Prompt: "p", Tools: benchTools("add"), Model: model})
	must.That(t, err == nil, "%v", err)
	for _, m := range model.seen[len(model.seen)-1].Messages {
		if m.Role == RoleTool && (m.Of.Arguments.Len() != 0 || m.Of.ID == "") {
			t.Errorf("a result holds %d bytes of arguments of the call %q", len(m.Of.Arguments.Raw()), m.Of.ID)
		}
	}
}

// TestWrongArgumentsAreToldInShort: an error about a model's arguments is no longer than the result of a tool may be.
func TestWrongArgumentsAreToldInShort(t *testing.T) {
	model := &canned{replies: []Reply{
		{Calls: []ToolCall{{Name: "add", Invalid: strings.Repeat("x", 1<<20)}}},
		{Text: "done"},
	}}
	_, _, _, err := looped(t, Turns{Prompt: "p", Tools: benchTools("add"), Model: model})
	must.That(t, err == nil, "%v", err)
	text := model.seen[1].Messages[2].Text
	assert.That(t, len(text) <= maxToolResult+100, "%d bytes", len(text))
	_, wrong := argumentsOf(protocol.Value(strings.Repeat("[", 1<<20)))
	assert.That(t, len(wrong) != 0 && len(wrong) <= 1000, "%d bytes: %.200s", len(wrong), wrong)
}
