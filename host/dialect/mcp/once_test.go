package mcp_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"a2e/host"
	front "a2e/host/dialect/mcp"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/property"
	"a2e/protocol"
)

// TestCancel: a cancelled request ends without an answer, whether it runs or waits.
func TestCancel(t *testing.T) {
	l := newLab()
	p := serve(t, front.Options{}, atOnce(1, onlyMCP(l))).open()
	p.send(callTool(`"runs"`, "block", `{}`), callTool(`"waits"`, "block", `{}`), callTool(`7`, "block", `{}`))
	<-l.begun
	p.send(request("", "notifications/cancelled", `{"requestId":"\u0077aits"}`),
		request("", "notifications/cancelled", `{"requestId":"7"}`))
	p.send(request("", "notifications/cancelled", `{"requestId":"runs","reason":"enough"}`))
	<-l.begun // 7 is not the same id as "7", so request 7 runs now
	close(l.gate)
	check(t, p.answer(`7`), 0)
	p.end()
	for id, want := range map[string]int{`"waits"`: 0, `"runs"`: 0, `7`: 1} {
		assert.Equal(t, len(p.answers(id)), want, "%s has … answers", id)
	}
}

// TestStubborn: a handler that does not stop loses its slot when its request is cancelled, and sends nothing after
// that.
func TestStubborn(t *testing.T) {
	l := newLab()
	p := serve(t, front.Options{}, atOnce(1, onlyMCP(l))).open()
	p.send(request(`1`, "logging/setLevel", `{"level":"debug"}`), request(`2`, "tools/call",
		`{"name":"stubborn","_meta":{"progressToken":12345678901234567890}}`))
	<-l.begun
	p.send(request("", "notifications/cancelled", `{"requestId":2}`))
	check(t, p.call(`3`, "tools/call", `{"name":"echo"}`), 0)
	close(l.gate)
	p.end()
	for _, l := range p.said() {
		assert.That(t, l.Method == "" && string(l.ID) != "2", "after it was cancelled: %s", l)
	}
}

// TestProgressToken guards against progress tokens whose bytes change, such as numbers that lose digits.
func TestProgressToken(t *testing.T) {
	p := serve(t, front.Options{}, onlyMCP(newLab())).open()
	for i, token := range []string{`12345678901234567890`, `"\u0061"`, `1.50`} {
		id := fmt.Sprint(i)
		p.call(id, "tools/call", `{"name":"progress","_meta":{"progressToken":`+token+`}}`)
		events, answered := 0, false
		for _, l := range p.said() {
			answered = answered || string(l.ID) == id
			if strings.HasPrefix(string(l.Params), `{"progressToken":`+token+`,`) {
				if events++; answered {
					t.Errorf("after the answer: %s", l)
				}
			}
		}
		assert.Equal(t, events, 4, "%s: … events", token)
	}
}

// TestListsWhileCallsRun: lists are answered while calls have all slots.
func TestListsWhileCallsRun(t *testing.T) {
	l := newLab()
	p := serve(t, front.Options{}, atOnce(2, onlyMCP(l))).open()
	for i := range 20 {
		p.send(callTool(fmt.Sprint(i), "block", `{}`))
	}
	<-l.begun
	<-l.begun
	for i, method := range []string{"tools/list", "prompts/list", "resources/templates/list", "ping"} {
		check(t, p.call(fmt.Sprint(100+i), method, ""), 0)
	}
	assert.Equal(t, len(l.begun), 0, "… calls more than there are slots for have begun")
	close(l.gate)
	for i := range 20 {
		p.answer(fmt.Sprint(i))
	}
}

// TestTooMuch: calls for which the queue has no room are refused at once.
func TestTooMuch(t *testing.T) {
	l := newLab()
	p := serve(t, front.Options{}, host.Options{
		Plugins: []host.Plugin{l}, Only: true, MaxParallel: 1, Limits: host.Limits{Queue: 10, QueueBytes: 100_000},
	}).open()
	p.send(callTool(`"first"`, "block", `{}`))
	<-l.begun
	p.send(callTool(`"large"`, "block", `{"x":"`+strings.Repeat("x", 100_000)+`"}`))
	check(t, p.answer(`"large"`), -32000, `"overloaded"`, `"retryable":true`)
	for i := range 30 {
		p.send(callTool(fmt.Sprint(i), "block", `{}`))
	}
	p.answer("29")
	p.send(request("", "notifications/cancelled", `{"requestId":3}`)) // after the cancel there is room for one call
	p.send(callTool(`"more"`, "block", `{}`), callTool(`"toomany"`, "block", `{}`))
	p.answer(`"toomany"`)
	assert.Equal(t, len(p.answers(`"more"`)), 0, "there was no room after a cancel")
	close(l.gate)
	p.answer(`"more"`)
	p.end()
	refused := 0
	for i := range 30 {
		got := p.answers(fmt.Sprint(i))
		if i == 3 && len(got) == 0 {
			continue
		}
		if len(got) != 1 {
			t.Errorf("%d has %d answers", i, len(got))
		} else if got[0].code() == -32000 {
			refused++
		}
	}
	assert.Equal(t, refused, 20, "… were refused, should be 20")
}

// TestDrain: at the end of the input the host finishes the requests that run and that wait. At a shutdown without
// time it answers all of them with an error.
func TestDrain(t *testing.T) {
	t.Run("end of input", func(t *testing.T) {
		l := newLab()
		p := serve(t, front.Options{}, atOnce(1, onlyMCP(l))).open()
		p.send(callTool("1", "block", `{}`), callTool("2", "echo", `{}`), callTool("3", "block", `{}`))
		<-l.begun
		p.in.Close()
		close(l.gate)
		p.end()
		for _, id := range []string{"1", "2", "3"} {
			got := p.answers(id)
			assert.That(t, len(got) == 1 && got[0].Error == nil, "%s: %s", id, got)
		}
	})
	t.Run("shutdown", func(t *testing.T) {
		l := newLab()
		p := serve(t, front.Options{}, host.Options{Plugins: []host.Plugin{l}, MaxParallel: 2}).open()
		p.send(callTool("1", "block", `{}`), callTool("2", "stubborn", `{}`), callTool("3", "block", `{}`))
		<-l.begun
		<-l.begun
		p.send(`{"type":"shutdown","timeout":0}`)
		<-p.done
		close(l.gate)
		for _, id := range []string{"1", "2", "3"} {
			got := p.answers(id)
			assert.That(t, len(got) == 1 && got[0].code() == -32000 && strings.Contains(got[0].text, "shut down"),
				"%s: %s", id, got)
		}
	})
	t.Run("while the client is asked", func(t *testing.T) {
		p := serve(t, front.Options{}, onlyMCP(newLab()))
		p.call(`0`, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{"roots":{}}}`)
		p.send(callTool(`"asks"`, "ask", `{"type":"mcp/root/list/req","body":{}}`))
		p.wait("the question", func(l line) bool { return l.Method == "roots/list" })
		p.in.Close()
		<-p.done
		if got := p.answers(`"asks"`); len(got) != 1 || !strings.Contains(got[0].text,
			"closed its side") { // the question did not wait until the end of the drain
			t.Errorf("%s", got)
		}
	})
	t.Run("never initialized", func(t *testing.T) {
		p := serve(t, front.Options{}, onlyMCP(newLab()))
		p.end()
		if len(p.said()) != 0 {
			t.Errorf("it said %s", p.said())
		}
	})
}

// TestAnswersToQuestions: answers of the client that are late, repeated or for no question have no effect.
func TestAnswersToQuestions(t *testing.T) {
	p := serve(t, front.Options{}, onlyMCP(newLab()))
	p.call(`"i"`, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{"roots":{}}}`)
	asks := func() (ids []string) {
		for _, l := range p.said() {
			if l.Method == "roots/list" {
				ids = append(ids, string(l.ID))
			}
		}
		return ids
	}
	for i, c := range []struct{ answer, want string }{
		{`"result":{"roots":[{"uri":"file:///x","name":"x"}]}`, `"uri":"file:///x"`},
		{`"error":{"code":5,"message":"no roots"}`, "no roots"},
		{`"error":5`, "a malformed error"},
		{`"result":5`, "did not answer as it should"},
		{`"result":null`, ""},
		{`"result":{"roots":[{"uri":"\ud800"}]}`, "half of a surrogate pair"},
	} {
		id := fmt.Sprint(i)
		p.send(callTool(id, "ask", `{"type":"mcp/root/list/req","body":{}}`))
		p.until("the question", func() bool { return len(asks()) == i+1 })
		number := asks()[i]
		for _, as := range []string{`"x` + number[1:], "99", "1", `"a2e-99"`, "null", number, number} {
			p.send(`{"jsonrpc":"2.0","id":` + as + `,` + c.answer + `}`)
		}
		check(t, p.answer(id), anyCode, c.want)
	}
}

// TestOnce: whatever a client sends, in whatever order, each request is answered once, and no event comes after its
// answer.
func TestOnce(t *testing.T) {
	property.Check(t, func(rt *rapid.T) {
		l := newLab()
		release := sync.OnceFunc(func() { close(l.gate) })
		defer release() // stubborn tools end with this
		seed := rapid.Uint64().Draw(rt, "seed")
		random := rand.New(rand.NewPCG(seed, 1))
		shared := rapid.Bool().Draw(rt, "shared")
		opts := onlyMCP(l)
		opts.Only = !shared
		opts.MaxParallel, opts.Limits.Queue = 1+random.IntN(4), 1+random.IntN(60)
		p := serve(t, front.Options{}, opts)
		if random.IntN(10) > 0 {
			p.open()
			p.send(request(`"level"`, "logging/setLevel", `{"level":"debug"}`))
		} else if shared {
			p.send(request(`"open"`, "server/discover", ""))
		}
		steps := rapid.IntRange(1, 80).Draw(rt, "steps")
		var ids []string
		cancelled := map[string]bool{}
		nulls := 0
		for i := range steps {
			id := []string{fmt.Sprint(i), fmt.Sprintf(`"s%d"`, i), fmt.Sprintf("%d00000000000000000000",
				i+1)}[random.IntN(3)]
			wanted, null := step(p, random, id, ids, cancelled)
			if wanted {
				ids = append(ids, id)
			}
			nulls += null
			if i == steps/2 && random.IntN(2) == 0 {
				release()
			}
		}
		if shared && random.IntN(2) == 0 {
			p.send(`{"type":"shutdown","timeout":0}`)
		} else {
			release()
			p.in.Close()
		}
		<-p.done
		checkOnce(rt, p, ids, cancelled, nulls)
	})
}

// step sends a line. It returns whether the line is a request that must be answered, and how many answers without an
// id it causes.
func step(p *pipe, random *rand.Rand, id string, before []string, cancelled map[string]bool) (wanted bool, nulls int) {
	tools := []string{"echo", "rich", "panic", "goexit", "progress", "denied", "block", "stubborn", "none", "mcp"}
	switch random.IntN(10) {
	case 0, 1, 2, 3:
		p.send(request(id, "tools/call", fmt.Sprintf(`{"name":%q,"_meta":{"progressToken":%s}}`,
			tools[random.IntN(len(tools))], id)))
	case 4:
		methods := []string{
			"tools/list", "prompts/list", "ping", "no/such", "resources/list", "initialize",
			"tools/call", "resources/read",
		}
		p.send(request(id, methods[random.IntN(len(methods))], []string{"", "{}", "[]", "5"}[random.IntN(4)]))
	case 5, 6:
		if len(before) > 0 {
			id := before[random.IntN(len(before))]
			cancelled[id] = true
			p.send(request("", "notifications/cancelled", fmt.Sprintf(`{"requestId":%s}`, id)))
		}
		return false, 0
	case 7:
		p.send(request("", "notifications/progress", `{"progressToken":1,"progress":1}`),
			`{"jsonrpc":"2.0","id":1,"result":{}}`)
		return false, 0
	case 8:
		p.send(`{"jsonrpc":"2.0","id":{},"method":"ping"}`)
		return false, 1
	default:
		p.send(request(id, "tools/call", `{"name":"echo","arguments":{"x":[1,2,{"y":"ü\u0000"}]}}`))
	}
	return true, 0
}

func checkOnce(t *rapid.T, p *pipe, ids []string, cancelled map[string]bool, nulls int) {
	t.Helper()
	answered := map[string]int{}
	for _, l := range p.said() {
		switch {
		case l.Method == "notifications/progress":
			token, _, _ := strings.Cut(strings.TrimPrefix(string(l.Params), `{"progressToken":`), ",")
			assert.That(t, answered[token] <= 0 && slices.Contains(ids, token), "an event of no request under way: %s",
				l)
		case l.Method == "" && l.Type == "":
			answered[string(l.ID)]++
		}
	}
	for _, id := range ids {
		assert.That(t, answered[id] == 1 || cancelled[id] && answered[id] == 0, "%s has %d answers", id, answered[id])
		delete(answered, id)
	}
	assert.Equal(t, answered["null"], nulls, "… answers have no id")
	delete(answered, "null")
	delete(answered, `"open"`)
	delete(answered, `"level"`)
	assert.That(t, len(answered) == 0, "answers to nothing: %v", answered)
}

// shelf is a plugin whose tools "write" and "read" claim the same file. "write" waits for gate, "stubborn" for let.
type shelf struct {
	begun     chan string
	gate, let chan struct{}
}

func newShelf() *shelf {
	return &shelf{begun: make(chan string, 9), gate: make(chan struct{}), let: make(chan struct{})}
}

func (*shelf) Info() host.PluginInfo {
	return host.PluginInfo{Name: "shelf", Capability: protocol.CapTools}
}

func (*shelf) Close(context.Context) error { return nil }

func (s *shelf) call(
	ctx context.Context, r *protocol.ToolCallRequest, _ host.Emitter,
) (*protocol.ToolCallResponse, error) {
	host.HandOff(ctx)
	s.begun <- r.ToolName
	switch r.ToolName {
	case "write":
		<-s.gate
	case "stubborn":
		<-s.let
	}
	return &protocol.ToolCallResponse{
		Data: protocol.ToolResult{Success: true, Summary: protocol.AppendString(nil, r.ToolName)},
	}, nil
}

func (s *shelf) Routes() []host.Route {
	return []host.Route{host.Handle(protocol.TypeToolCallReq,
		s.call).Claims(func(call protocol.Object) []protocol.Claim {
		if name := call.Text("tool_name"); name != "write" && name != "read" {
			return nil
		}
		return []protocol.Claim{host.FileClaim("file", protocol.Exclusive)}
	})}
}

// odd returns a call with a member that MCP does not have, so the go-sdk has to handle it.
func odd(id, name string) string {
	return request(id, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":{},"odd":1}`, name))
}

// TestCallsKeepOrder: calls that claim the same file take effect in the order in which they came, whether the host
// passes them directly to the plugin or through the go-sdk.
func TestCallsKeepOrder(t *testing.T) {
	s := newShelf()
	p := serve(t, front.Options{}, host.Options{Plugins: []host.Plugin{s}, Only: true, MaxParallel: 8}).open()
	p.send(callTool("1", "write", `{}`))
	assert.Equal(t, <-s.begun, "write", "the first that began")
	p.send(odd("2", "read"), callTool("3", "read", `{}`), odd("4", "free"), callTool("5", "free", `{}`))
	assert.Equal(t, <-s.begun+<-s.begun, "freefree", "what began beside it")
	p.answer("4")
	p.answer("5")
	close(s.gate)
	for _, id := range []string{"1", "2", "3"} {
		check(t, p.answer(id), 0)
	}
}

// TestIDUsedAgain: the id of a cancelled request can be used again, even while its handler still runs.
func TestIDUsedAgain(t *testing.T) {
	s := newShelf()
	p := serve(t, front.Options{}, host.Options{Plugins: []host.Plugin{s}, Only: true, MaxParallel: 8}).open()
	p.send(odd("7", "stubborn"))
	<-s.begun
	p.send(request("", "notifications/cancelled", `{"requestId":7}`))
	refused := 0
	p.until("the second call", func() bool { // the second call is refused until the first is given up
		p.send(odd("7", "write"))
		p.until("a sign of it", func() bool { return len(s.begun) > 0 || len(p.answers("7")) > refused })
		refused = len(p.answers("7"))
		return len(s.begun) > 0
	})
	close(s.let)
	p.call("8", "tools/call", `{"name":"free","odd":1}`) // the go-sdk gets the late result before this answer
	assert.Equal(t, len(p.answers("7")), refused, "… answers before the second call was done")
	close(s.gate)
	p.until("its answer", func() bool { return len(p.answers("7")) > refused })
	check(t, p.answers("7")[refused], 0, "write")
}
