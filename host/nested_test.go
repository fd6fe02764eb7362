package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// caller is a plugin whose requests run a function of the test in the context of a request. The name in a test/run or
// a chain request selects the function.
type caller struct {
	mu   sync.Mutex
	runs map[string]func(ctx context.Context, emit host.Emitter) error
	ctx  context.Context // context of Start, which belongs to no request
}

type callerRequest struct {
	Name string `json:"name"`
}

func (c *caller) Info() host.PluginInfo {
	return host.PluginInfo{Name: "caller", Capability: protocol.CapTest, Also: []protocol.Capability{
		protocol.CapChains,
		protocol.CapMCP,
	}}
}

func (c *caller) Start(ctx context.Context, _ *host.Services) error {
	c.ctx = ctx
	return nil
}

func (c *caller) Routes() []host.Route {
	return []host.Route{
		host.Handle("test/run", func(ctx context.Context, req *callerRequest, emit host.Emitter) (*callerRequest,
			error,
		) {
			return req, c.run(ctx, req.Name, emit)
		}),
		host.Handle(protocol.TypeChainReq, func(ctx context.Context, req *callerRequest,
			emit host.Emitter,
		) (*protocol.ChainResponse, error) {
			return &protocol.ChainResponse{}, c.run(ctx, req.Name, emit)
		}),
	}
}

func (c *caller) run(ctx context.Context, name string, emit host.Emitter) error {
	c.mu.Lock()
	run := c.runs[name]
	c.mu.Unlock()
	return run(ctx, emit)
}

func (c *caller) Close(context.Context) error { return nil }

// do runs a function in the context of a request and returns its error.
func (c *caller) do(t *testing.T, p *rawPipe, run func(ctx context.Context, emit host.Emitter) error) (err error) {
	t.Helper()
	c.mu.Lock()
	name := fmt.Sprint("run", len(c.runs))
	done := make(chan struct{})
	c.runs[name] = func(ctx context.Context, emit host.Emitter) error {
		defer close(done)
		err = run(ctx, emit)
		return nil
	}
	c.mu.Unlock()
	p.send(fmt.Sprintf(`{"type":"test/run","id":%q,"name":%q}`, name, name))
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s did not end", name)
	}
	p.wait("test/run/resp", fmt.Sprintf("%q", name))
	return err
}

// insideHost returns a caller, a lab, and a host with both of them and an open session.
func insideHost(t *testing.T, change func(*host.Options)) (*caller, *lab, *rawPipe) {
	t.Helper()
	c, l := &caller{runs: map[string]func(context.Context, host.Emitter) error{}}, newLab()
	opts := host.Options{Plugins: []host.Plugin{c, l}}
	if change != nil {
		change(&opts)
	}
	p := newRawPipe(t, opts)
	p.send(`{"type":"handshake/req","id":"h","agent_id":"a","agent_caps":["test","chains"]}`)
	p.wait("handshake/resp")
	return c, l, p
}

func callTool(ctx context.Context, name, args string, resp any, emit host.Emitter) error {
	obj, err := protocol.ParseObject([]byte(args))
	if err != nil {
		return err
	}
	return host.ServicesOf(ctx).Call(ctx, protocol.TypeToolCallReq, &protocol.ToolCallRequest{
		ToolName:  name,
		Arguments: obj,
	}, resp, emit)
}

// TestCallAnswers: a nested call decodes its answer into the type that the caller passes.
func TestCallAnswers(t *testing.T) {
	c, _, p := insideHost(t, nil)
	args := `{"n":9007199254740993,"s":"ü"}`
	var typed protocol.ToolCallResponse
	var obj protocol.Object
	var raw jsontext.Value
	for name, resp := range map[string]any{"struct": &typed, "object": &obj, "raw": &raw, "none": nil} {
		err := c.do(t, p, func(ctx context.Context, _ host.Emitter) error {
			return callTool(ctx, "echo", args, resp,
				nil)
		})
		assert.That(t, err == nil, "%s: %v", name, err)
	}
	data, _ := obj.Get("data")
	assert.That(t, string(typed.Data.Data) == args && strings.Contains(string(data), args) &&
		strings.Contains(string(raw), args),
		"the arguments came back as %s, %s, %s", typed.Data.Data, data, raw)
	var numb int
	err := c.do(t, p, func(ctx context.Context, _ host.Emitter) error {
		return callTool(ctx, "echo", args, &numb,
			nil)
	})
	assert.That(t, err != nil, "an object was decoded into a number")
}

// TestCallFaults: a nested call returns an error of the protocol, whatever the plugin does.
func TestCallFaults(t *testing.T) {
	c, _, p := insideHost(t, nil)
	for _, f := range []struct {
		tool, args string
		code       protocol.ErrorCode
		says       string
	}{
		{"panic", `{}`, protocol.CodeRuntimeError, "panicked"},
		{"gopanic", `{}`, protocol.CodeRuntimeError, "panicked"},
		{"bomb", `{}`, protocol.CodeRuntimeError, "panicked"}, // when its answer is encoded
		{"nan", `{}`, protocol.CodeRuntimeError, "cannot be encoded"},
		{"badraw", `{}`, protocol.CodeRuntimeError, "cannot be encoded"},
		{"noanswer", `{}`, protocol.CodeRuntimeError, "no answer"},
		{"nilerror", `{}`, protocol.CodeRuntimeError, ""},
		{"plainerror", `{}`, protocol.CodeRuntimeError, "it broke"},
		{"wrapped", `{}`, protocol.CodeToolDenied, "not allowed"},
		{"deadline", `{}`, protocol.CodeTimeout, ""},
		{"echo", `[]`, protocol.CodeSchemaViolation, ""},
	} {
		t.Run(f.tool, func(t *testing.T) {
			for _, inRequest := range []bool{true, false} {
				call := func(ctx context.Context, _ host.Emitter) error {
					return host.ServicesOf(ctx).Call(ctx, protocol.TypeToolCallReq,
						map[string]any{"tool_name": f.tool, "arguments": jsontext.Value(f.args)}, new(jsontext.Value),
						nil)
				}
				var err error
				if inRequest {
					err = c.do(t, p, call)
				} else {
					err = call(c.ctx, nil)
				}
				var own *protocol.Error
				if !errors.As(err, &own) || own == nil || own.Code != f.code ||
					!strings.Contains(own.Message, f.says) || strings.Contains(own.Message, "secret") {
					t.Errorf("in a request %v: %v", inRequest, err)
				}
			}
		})
	}
}

// TestCallRefuses: a nested call is refused for types that no plugin serves, without a host, and if the request is
// not an object.
func TestCallRefuses(t *testing.T) {
	c, _, _ := insideHost(t, nil)
	for _, typ := range []protocol.Type{
		protocol.TypePing, protocol.TypeHandshakeReq, protocol.TypeMemoryInitReq,
		protocol.TypeMCPSampleReq, "no/such", "",
	} {
		var own *protocol.Error
		err := host.ServicesOf(c.ctx).Call(c.ctx, typ, struct{}{}, nil, nil)
		assert.That(t, errors.As(err, &own) && own.Code == protocol.CodeCapabilityMissing, "%q: %v", typ, err)
	}
	err := host.ServicesOf(t.Context()).Call(t.Context(), protocol.TypeToolListReq, struct{}{}, nil, nil)
	assert.That(t, err != nil, "a call without a host was served")
	for _, req := range []any{[]int{1}, make(chan int), nil} {
		assert.Fails(t, host.ServicesOf(c.ctx).Call(c.ctx, protocol.TypeToolListReq, req, nil, nil), "",
			"the request %T was served", req)
	}
}

// TestCallPriority: a nested request goes to the same plugin as a request of the agent.
func TestCallPriority(t *testing.T) {
	high, low := newLab(), newLab()
	high.info.Name, high.info.Priority, high.owns = "high", 5, []string{"both", "above"}
	low.info.Name, low.owns = "low", []string{"both", "below"}
	c, _, _ := insideHost(t, func(o *host.Options) { o.Plugins = []host.Plugin{o.Plugins[0], low, high} })
	for name, want := range map[string]string{"both": "high", "above": "high", "below": "low"} {
		var resp protocol.ToolCallResponse
		err := callTool(c.ctx, name, `{}`, &resp, nil)
		assert.That(t, err == nil && resp.Data.ToolName == want, "%s was called in %s: %v", name, resp.Data.ToolName,
			err)
	}
	var own *protocol.Error
	if err := callTool(c.ctx, "none", `{}`, nil, nil); !errors.As(err, &own) || own.Code != protocol.CodeUnknownTool ||
		!strings.Contains(own.Message, "above, below, both") {
		t.Errorf("an unknown tool: %v", err)
	}
	var list protocol.ToolListResponse
	err := host.ServicesOf(c.ctx).Call(c.ctx, protocol.TypeToolListReq, &protocol.ToolListRequest{}, &list, nil)
	assert.That(t, err == nil && len(list.Tools) == 3, "the list has %d tools: %v", len(list.Tools), err)
}

// TestCallNesting: a request that calls itself ends with an error, at a depth of 17.
func TestCallNesting(t *testing.T) {
	c, _, p := insideHost(t, nil)
	depth := 0
	c.runs["deep"] = func(ctx context.Context, _ host.Emitter) error {
		depth++
		return host.ServicesOf(ctx).Call(ctx, "test/run", &callerRequest{Name: "deep"}, nil, nil)
	}
	p.send(`{"type":"test/run","id":"deep","name":"deep"}`)
	p.wait(`"error"`, "something calls itself")
	assert.Equal(t, depth, 17, "it went … deep")
}

// TestCallStops: a nested request ends when its own timeout is over, and when the request around it is cancelled.
func TestCallStops(t *testing.T) {
	c, l, p := insideHost(t, nil)
	limited := &protocol.ToolCallRequest{ToolName: "block", Timeout: 1}
	var own *protocol.Error
	if err := host.ServicesOf(c.ctx).Call(c.ctx, protocol.TypeToolCallReq, limited, nil, nil); !errors.As(err, &own) ||
		own.Code != protocol.CodeTimeout || !strings.Contains(own.Message, "its timeout of 1s") {
		t.Errorf("after its time: %v", err)
	}
	<-l.begun
	ended := make(chan error, 1)
	c.runs["wait"] = func(ctx context.Context, _ host.Emitter) error {
		err := callTool(ctx, "block", `{}`, nil, nil)
		ended <- err
		return err
	}
	p.send(`{"type":"test/run","id":"w","name":"wait"}`)
	<-l.begun
	p.send(`{"type":"cancel","req_id":"w"}`)
	err := <-ended
	assert.That(t, errors.As(err, &own) && own.Code == protocol.CodeCancelled, "after a cancel: %v", err)
	p.wait(`"cancelled"`, `"w"`)
	ctx, cancel := context.WithCancelCause(c.ctx)
	cancel(protocol.Errorf(protocol.CodeMemoryFull, "its own cause"))
	err = callTool(ctx, "block", `{}`, nil, nil)
	assert.That(t, errors.As(err, &own) && own.Code == protocol.CodeMemoryFull, "with a cause: %v", err)
}

// detailed is a tool whose error says how far it came when its time was over.
func detailed(ctx context.Context, _ *lab, _ labArgs, _ host.Emitter) (*labAnswer, error) {
	<-ctx.Done()
	return nil, protocol.Errorf(protocol.CodeTimeout, "half of it is done")
}

// TestCallKeepsDetail guards against losing the plugin's own error for a call whose timeout was over.
func TestCallKeepsDetail(t *testing.T) {
	c, l, _ := insideHost(t, nil)
	l.tools["detailed"] = detailed
	err := host.ServicesOf(c.ctx).Call(c.ctx, protocol.TypeToolCallReq, &protocol.ToolCallRequest{
		ToolName: "detailed",
		Timeout:  1,
	}, nil, nil)
	assert.Fails(t, err, "half of it is done")
}

// notes collects events.
type notes struct {
	host.Mute
	mu    sync.Mutex
	heard []string
}

func (n *notes) Status(message string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard = append(n.heard, message)
}

func (n *notes) Streaming() bool { return true }

// TestCallEvents: the events of a nested request go to its caller and not to the agent.
func TestCallEvents(t *testing.T) {
	c, _, p := insideHost(t, nil)
	n := &notes{}
	assert.OK(t, c.do(t, p, func(ctx context.Context, _ host.Emitter) error {
		return callTool(ctx, "stream", `{"n":2}`,
			nil, n)
	}))
	assert.That(t, len(n.heard) == 3 && n.heard[0] == "working <&>", "heard %d: %.100q", len(n.heard), n.heard)
	said := strings.Join(p.said(), "\n")
	assert.That(t, !strings.Contains(said, "invoke/event"), "the agent heard of it: %s", said)
}

// TestEmit: events of a plugin's own type are numbered, and reach the agent only for the agent's own request.
func TestEmit(t *testing.T) {
	c := &caller{runs: map[string]func(context.Context, host.Emitter) error{}}
	event := func(ctx context.Context, id string) {
		host.Emit(ctx, protocol.TypeChainEvent, func(seq int) any {
			return map[string]any{"node_id": id, "phase": "start", "output": nil, "error": "", "seq": seq}
		})
	}
	c.runs["outer"] = func(ctx context.Context, _ host.Emitter) error {
		event(ctx, "first")
		if err := host.ServicesOf(ctx).Call(ctx, protocol.TypeChainReq, map[string]any{"name": "inner"}, nil,
			nil); err != nil {
			return err
		}
		event(ctx, "second")
		return nil
	}
	c.runs["inner"] = func(ctx context.Context, _ host.Emitter) error {
		event(ctx, "of the inner one")
		return nil
	}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{c}}) // the pair checks the numbers of the events
	p.Handshake(protocol.CapChains)
	for id, streaming := range map[string]bool{"loud": true, "quiet": false} {
		p.Send(hosttest.Request(protocol.TypeChainReq, id,
			fmt.Sprintf(`{"name":"outer","nodes":[],"initial_input":{},"streaming":%v}`, streaming)))
		wantCode(t, p.Answer(id), "")
		var heard []string
		for _, m := range p.Messages() {
			if m.ReqID == id && m.IsEvent() {
				heard = append(heard, m.Get("/node_id")+m.Get("/seq"))
			}
		}
		want := map[bool][]string{true: {"first0", "second1"}}[streaming]
		assert.That(t, slices.Equal(heard, want), "%s: heard %q, should be %q", id, heard, want)
	}
	event(c.ctx, "of no request")
	event(t.Context(), "of no host")
}

// TestAskWithoutMCP: a plugin that asks the agent's model gets the answer even if the session did not name the
// capability mcp, because the answer belongs to the question.
func TestAskWithoutMCP(t *testing.T) {
	c, _, p := insideHost(t, nil)
	for _, answer := range []struct{ line, want string }{
		{`{"type":"mcp/sample/resp","id":"x","req_id":%q,"model":"m1"}`, "m1"},
		// An answer may also have the type of its question.
		{`{"type":"mcp/sample/req","id":"x","req_id":%q,"model":"m2"}`, "m2"},
		{
			`{"type":"error","id":"x","req_id":%q,"code":"mcp_sampling_refused","message":"no"}`,
			"mcp_sampling_refused: no",
		},
		{
			`{"type":"mcp/sample/resp","id":"x","model":"\ud800","req_id":%q}`,
			"parse_error: the line is not valid JSON: at byte 44: half of a surrogate pair",
		},
	} {
		asked := len(askedIDs(p))
		got := make(chan string, 1)
		go func() {
			var resp protocol.MCPSampleResponse
			err := host.ServicesOf(c.ctx).Ask(c.ctx, protocol.TypeMCPSampleReq,
				&protocol.MCPSampleRequest{ServerID: "s"}, &resp)
			if err != nil {
				got <- err.Error()
				return
			}
			got <- resp.Model
		}()
		p.until("the question", func() bool { return len(askedIDs(p)) > asked })
		id := askedIDs(p)[asked]
		p.send(fmt.Sprintf(answer.line, "no such id"), fmt.Sprintf(answer.line, id), fmt.Sprintf(answer.line, id))
		select {
		case said := <-got:
			assert.Equal(t, said, answer.want)
		case <-time.After(patience):
			t.Fatalf("the answer %s did not arrive: %s", answer.line, p.said())
		}
	}
}

// askedIDs returns the ids of the questions that the host has sent.
func askedIDs(p *rawPipe) (ids []string) {
	for _, line := range p.said() {
		if _, rest, ok := strings.Cut(line, `"type":"mcp/sample/req","id":"`); ok {
			ids = append(ids, rest[:strings.IndexByte(rest, '"')])
		}
	}
	return ids
}

// TestAskEnds: a question ends with its context. It is not sent if there is no host or no session.
func TestAskEnds(t *testing.T) {
	c, _, p := insideHost(t, nil)
	ctx, cancel := context.WithCancelCause(c.ctx)
	reason := errors.New("enough")
	go func() {
		for len(askedIDs(p)) == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel(reason)
	}()
	assert.Is(t, host.ServicesOf(ctx).Ask(ctx, protocol.TypeMCPSampleReq, &protocol.MCPSampleRequest{},
		new(jsontext.Value)), reason)
	err := host.ServicesOf(t.Context()).Ask(t.Context(), protocol.TypeMCPSampleReq, struct{}{}, new(jsontext.Value))
	assert.That(t, err != nil, "a question without a host was answered")
	alone := &caller{}
	newRawPipe(t, host.Options{Plugins: []host.Plugin{alone}}).end()
	err = host.ServicesOf(alone.ctx).Ask(alone.ctx, protocol.TypeMCPSampleReq, struct{}{}, new(jsontext.Value))
	assert.That(t, err != nil && strings.Contains(err.Error(), "no agent"), "without a session: %v", err)
}

// TestPushAfterHandshake guards against news that are sent before the answer to the handshake, which agents expect as
// the first line. Here the news are pushed while the host makes that answer.
func TestPushAfterHandshake(t *testing.T) {
	c := &caller{}
	var pushing atomic.Bool
	var pushes sync.WaitGroup
	news := func() error {
		return host.ServicesOf(c.ctx).Push(protocol.TypeMCPServerPush, &protocol.MCPServerPush{ServerID: "s"})
	}
	p := newRawPipe(t, host.Options{Plugins: []host.Plugin{c}, Now: func() time.Time {
		if c.ctx != nil && pushing.CompareAndSwap(false, true) {
			done := make(chan struct{})
			pushes.Go(func() {
				defer close(done)
				if errors.Is(news(), host.ErrStreamClosed) {
					pushing.Store(false) // there is no session yet: the next call of Now pushes again
				}
			})
			select {
			case <-done:
			case <-time.After(20 * time.Millisecond): // the push waits for the answer to the handshake
			}
		}
		return time.Now()
	}})
	for _, id := range []string{"h1", "h2"} {
		before := len(p.said())
		if before == 1 { // before the first line, said returns one empty line
			before = 0
		}
		pushing.Store(false)
		p.send(fmt.Sprintf(`{"type":"handshake/req","id":%q,"agent_caps":["mcp"]}`, id))
		p.wait("handshake/resp", id)
		p.until("news", func() bool {
			return strings.Contains(strings.Join(p.said()[before:], " "),
				"mcp/server/push")
		})
		assert.Contains(t, p.said()[before], "handshake/resp", "%s: the first line", id)
	}
	pushes.Wait()
	p.end()
	assert.Is(t, news(), host.ErrStreamClosed, "after the end")
	assert.Is(t, host.ServicesOf(t.Context()).Push(protocol.TypeMCPServerPush, struct{}{}), host.ErrStreamClosed,
		"without a host")
}

// TestPushNeedsTheCapability: news of MCP servers do not go to an agent that did not ask for the capability mcp,
// because it may take them for an error.
func TestPushNeedsTheCapability(t *testing.T) {
	c := &caller{}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{c}})
	news := func() error {
		return host.ServicesOf(c.ctx).Push(protocol.TypeMCPServerPush, &protocol.MCPServerPush{ServerID: "s"})
	}
	p.Handshake(protocol.CapTest)
	assert.Is(t, news(), host.ErrStreamClosed, "without mcp")
	p.Handshake(protocol.CapTest, protocol.CapMCP)
	assert.OK(t, news())
	p.Wait("the news", func(m hosttest.Message) bool { return m.Type == protocol.TypeMCPServerPush })
	if n := strings.Count(fmt.Sprint(p.Messages()), "mcp/server/push"); n != 1 {
		t.Errorf("%d pushes: %s", n, p.Messages())
	}
}
