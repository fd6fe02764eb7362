package mcp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.uber.org/goleak"

	"a2e/host"
	front "a2e/host/dialect/mcp"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/middleware"
	"a2e/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long these tests wait for something that should happen at once.
const patience = time.Minute

// pipe is a host in memory that speaks MCP, with the text that it has written.
type pipe struct {
	t    testing.TB
	in   *io.PipeWriter
	copy io.Writer // gets a copy of the host's output; nil = no copy
	done chan struct{}

	mu   sync.Mutex // guards the fields below
	text []byte
}

// serve starts a host with these plugins. It ends with the test.
func serve(t testing.TB, mcp front.Options, opts host.Options) *pipe {
	return serveTo(t, mcp, opts, nil)
}

func serveTo(t testing.TB, mcp front.Options, opts host.Options, to io.Writer) *pipe {
	t.Helper()
	opts.Dialects = append(opts.Dialects, front.New(mcp))
	opts.Middleware = middleware.All()
	h := must.Get(host.New(opts))(t)
	in, w := io.Pipe()
	p := &pipe{t: t, in: w, done: make(chan struct{}), copy: to}
	go func() {
		defer close(p.done)
		assert.OK(t, h.Serve(in, p))
		in.CloseWithError(io.ErrClosedPipe)
	}()
	t.Cleanup(p.end)
	return p
}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	p.text = append(p.text, b...)
	p.mu.Unlock()
	if p.copy != nil {
		_, _ = p.copy.Write(b)
	}
	return len(b), nil
}

// end closes the input and waits for the host.
func (p *pipe) end() {
	p.in.Close()
	select {
	case <-p.done:
	case <-time.After(patience):
		buf := make([]byte, 1<<20)
		p.t.Fatalf("the host did not end; it said\n%s\n%s", p.text, buf[:runtime.Stack(buf, true)])
	}
}

func (p *pipe) send(lines ...string) { _, _ = io.WriteString(p.in, strings.Join(lines, "\n")+"\n") }

// line is a line of the host, with the members that these tests use.
type line struct {
	Type   string         `json:"type"` // of an A2E message
	ReqID  string         `json:"req_id"`
	ID     jsontext.Value `json:"id"`
	Method string         `json:"method"`
	Params jsontext.Value `json:"params"`
	Result jsontext.Value `json:"result"`
	Error  *struct {
		Code    int            `json:"code"`
		Message string         `json:"message"`
		Data    jsontext.Value `json:"data"`
	} `json:"error"`

	text string
}

// String returns the line as the host has written it.
func (l line) String() string { return l.text }

// code returns the code of an error, or 0 for a result.
func (l line) code() int {
	if l.Error == nil {
		return 0
	}
	return l.Error.Code
}

// anyCode means that check does not compare the code.
const anyCode = 1

// check compares the code of an answer (0 = a result) and fails for each part that the answer does not contain.
func check(t testing.TB, l line, code int, parts ...string) {
	t.Helper()
	if code != anyCode && l.code() != code {
		t.Errorf("code %d, should be %d: %s", l.code(), code, l)
	}
	for _, part := range parts {
		assert.Contains(t, l.text, part, "no … in %s", l)
	}
}

// said returns the lines that the host has written so far.
func (p *pipe) said() (all []line) {
	p.t.Helper()
	p.mu.Lock()
	text := bytes.Clone(p.text)
	p.mu.Unlock()
	for one := range bytes.Lines(text) {
		if !bytes.HasSuffix(one, []byte("\n")) {
			break
		}
		l := line{text: strings.TrimSuffix(string(one), "\n")}
		if err := json.Unmarshal(one, &l); err != nil && one[0] != '[' && !strings.Contains(l.text, `"a2e"`) {
			p.t.Fatalf("%v in %q", err, one)
		}
		all = append(all, l)
	}
	return all
}

// wait waits for the first line for which matches returns true.
func (p *pipe) wait(what string, matches func(line) bool) (found line) {
	p.t.Helper()
	p.until(what, func() bool {
		all := p.said()
		i := slices.IndexFunc(all, matches)
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	})
	return found
}

// answer waits for the answer to the request with this id, given as JSON.
func (p *pipe) answer(id string) line {
	p.t.Helper()
	return p.wait("the answer to "+id, func(l line) bool { return string(l.ID) == id && l.Method == "" })
}

// answers returns the answers to an id that have come so far.
func (p *pipe) answers(id string) (all []line) {
	for _, l := range p.said() {
		if string(l.ID) == id && l.Method == "" && l.Type == "" {
			all = append(all, l)
		}
	}
	return all
}

// call sends a request and waits for its answer.
func (p *pipe) call(id, method, params string) line {
	p.t.Helper()
	p.send(request(id, method, params))
	return p.answer(id)
}

func (p *pipe) until(what string, holds func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("never: %s; the host said\n%s", what, p.text)
		}
	}
}

// request returns the line of a request. id is JSON; "" = a notification.
func request(id, method, params string) string {
	line := `{"jsonrpc":"2.0","method":` + fmt.Sprintf("%q", method)
	if id != "" {
		line += `,"id":` + id
	}
	if params != "" {
		line += `,"params":` + params
	}
	return line + "}"
}

const hello = `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"tester","version":"1"}}`

// open initializes the session.
func (p *pipe) open() *pipe {
	p.t.Helper()
	if l := p.call(`"open"`, "initialize", hello); l.Error != nil {
		p.t.Fatalf("initialize: %s", l)
	}
	p.send(request("", "notifications/initialized", ""))
	return p
}

// callTool returns the line of a tools/call.
func callTool(id, name, args string) string {
	return request(id, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, name, args))
}

// lab is a plugin with skills, and with tools that misbehave in all the ways that tools can.
type lab struct {
	gate  chan struct{} // block and stubborn wait until it is closed
	begun chan string   // gets the argument "id" of each call of block and stubborn

	mu     sync.Mutex // guards the fields below
	tools  map[string]labTool
	skills []protocol.SkillDefinition
	ended  []string // agents whose session has ended
}

type labTool func(ctx context.Context, l *lab, args protocol.Object, emit host.Emitter) (*protocol.ToolResult, error)

func newLab() *lab {
	return &lab{gate: make(chan struct{}), begun: make(chan string, 10000), tools: labTools()}
}

func (l *lab) Info() host.PluginInfo {
	return host.PluginInfo{Name: "lab", Capability: protocol.CapTools, Also: []protocol.Capability{protocol.CapSkill}}
}

func (l *lab) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeToolListReq, l.list),
		host.Handle(protocol.TypeToolCallReq, l.call),
		host.Handle(protocol.TypeSkillDiscoverReq, func(context.Context, *protocol.SkillDiscoverRequest,
			host.Emitter,
		) (*protocol.SkillDiscoverResponse, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			return &protocol.SkillDiscoverResponse{Skills: slices.Clone(l.skills)}, nil
		}),
		host.Handle(protocol.TypeSkillCallReq, l.skill),
	}
}

func (l *lab) Close(context.Context) error { return nil }

func (l *lab) EndSession(_ context.Context, s *host.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = append(l.ended, s.AgentID)
}

func (l *lab) list(context.Context, *protocol.ToolListRequest, host.Emitter) (*protocol.ToolListResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	resp := &protocol.ToolListResponse{}
	for name := range l.tools {
		resp.Tools = append(resp.Tools, protocol.ToolDefinition{Name: name, Description: "tool " + name})
	}
	return resp, nil
}

// DescribeTool implements host.ToolDescriber.
func (l *lab) DescribeTool(name string) (host.ToolDetail, bool) {
	switch name {
	case "odd":
		return host.ToolDetail{InputSchema: jsontext.Value(`{"type":"string"}`), OutputSchema: jsontext.Value(`true`)},
			true
	case "mcpcut":
		return host.ToolDetail{OutputSchema: jsontext.Value(
			`{"type":"object","properties":{"content":{"type":"array"},"structuredContent":{"type":"object","required":["a"]}},"required":["content"]}`)}, true
	case "rich":
		return host.ToolDetail{
			Title: "Rich", InputSchema: jsontext.Value(`{"properties":{"n":{"type":"integer"}}}`),
			OutputSchema: jsontext.Value(`{"type":"object","required":["n"]}`), ReadOnly: true, OpenWorld: true,
		}, true
	}
	return host.ToolDetail{}, false
}

func (l *lab) call(ctx context.Context, req *protocol.ToolCallRequest, emit host.Emitter) (*protocol.ToolCallResponse,
	error,
) {
	l.mu.Lock()
	tool := l.tools[req.ToolName]
	l.mu.Unlock()
	if tool == nil {
		return nil, host.NotKnown(
			protocol.Errorf(protocol.CodeUnknownTool, "unknown tool %q", req.ToolName), req.ToolName, []string{"echo"})
	}
	res, err := tool(ctx, l, req.Arguments, emit)
	if err != nil {
		return nil, err
	}
	return &protocol.ToolCallResponse{Data: *res}, nil
}

// skill runs a skill: the answer has the arguments in its prompt.
func (l *lab) skill(_ context.Context, req *protocol.SkillCallRequest, _ host.Emitter) (*protocol.SkillCallResponse,
	error,
) {
	if req.Name == "broken" {
		why := "it is broken"
		return &protocol.SkillCallResponse{Data: &protocol.SkillResult{Error: &why}}, nil
	}
	data := jsontext.Value(`{"tools":[],"files":["skill://s/a"],"instructions":` +
		string(protocol.AppendString(nil, "do "+string(req.Arguments.Raw()))) + `}`)
	return &protocol.SkillCallResponse{Data: &protocol.SkillResult{Success: true, Data: data}}, nil
}

func give(data string) labTool {
	return func(context.Context, *lab, protocol.Object, host.Emitter) (*protocol.ToolResult, error) {
		return &protocol.ToolResult{Success: true, Data: jsontext.Value(data)}, nil
	}
}

func fail(err error) labTool {
	return func(context.Context, *lab, protocol.Object, host.Emitter) (*protocol.ToolResult, error) {
		return nil, err
	}
}

func labTools() map[string]labTool {
	return map[string]labTool{
		"echo": func(_ context.Context, _ *lab, args protocol.Object, _ host.Emitter) (*protocol.ToolResult, error) {
			return &protocol.ToolResult{Success: true, Data: slices.Clone(args.Raw())}, nil
		},
		"rich":   give(`{"n":9007199254740993}`),
		"odd":    give(`[1,2]`),
		"text":   give(`"just text"`),
		"file":   give(`{"content":"line 1\nline 2","lines":2}`),
		"null":   give(`null`),
		"mcp":    give(`{"content":[{"type":"text","text":""},{"type":"image","data":"AAAA","mimeType":"image/png","x-own":[1]}],"structuredContent":{"a":1}}`),
		"notmcp": give(`{"content":[{"type":"video"}]}`),
		"failed": func(context.Context, *lab, protocol.Object, host.Emitter) (*protocol.ToolResult, error) {
			why := "exit status 3"
			return &protocol.ToolResult{Data: jsontext.Value(`{"stderr":"no such file"}`), Error: &why}, nil
		},
		"summary": func(context.Context, *lab, protocol.Object, host.Emitter) (*protocol.ToolResult, error) {
			return &protocol.ToolResult{
				Success: true, Data: jsontext.Value(`{"a":[1]}`),
				Summary: jsontext.Value(`"only the first"`),
			}, nil
		},
		"cut": func(context.Context, *lab, protocol.Object, host.Emitter) (*protocol.ToolResult, error) {
			return &protocol.ToolResult{Success: true, Data: jsontext.Value(`{"n":null}`), Truncated: new(true)}, nil
		},
		"mcpfail": func(context.Context, *lab, protocol.Object, host.Emitter) (*protocol.ToolResult, error) {
			why := "it broke"
			return &protocol.ToolResult{
				Data:  jsontext.Value(`{"content":[{"type":"text","text":"it broke"}]}`),
				Error: &why, Summary: jsontext.Value(`"it broke"`),
			}, nil
		},
		"mcpcut": func(context.Context, *lab, protocol.Object, host.Emitter) (*protocol.ToolResult, error) {
			return &protocol.ToolResult{
				Success: true, Data: jsontext.Value(`{"content":[{"type":"text","text":"the start"}],"spilled":"/x"}`),
				Summary: jsontext.Value(`"cut: the rest is elsewhere"`), Truncated: new(true),
			}, nil
		},
		"denied":    fail(protocol.Errorf(protocol.CodeToolDenied, "not allowed")),
		"violation": fail(protocol.Violation(protocol.FieldError{Path: "/arguments/x", Message: "is required"})),
		"late":      fail(protocol.Errorf(protocol.CodeTimeout, "took too long")),
		"down":      fail(protocol.Errorf(protocol.CodeMCPServerUnavailable, "the server is down")),
		"busy":      fail(protocol.Errorf(protocol.CodeOverloaded, "too much").With("n", 5)),
		"badDetail": fail(protocol.Errorf(protocol.CodeOverloaded, "too much").With("n", make(chan int))),
		"panic": func(context.Context, *lab, protocol.Object, host.Emitter) (*protocol.ToolResult, error) {
			panic("a secret")
		},
		"goexit": func(context.Context, *lab, protocol.Object, host.Emitter) (*protocol.ToolResult, error) {
			runtime.Goexit()
			return nil, nil
		},
		"block":    block,
		"stubborn": stubborn,
		"progress": progress,
		"ask":      ask,
		"push":     push,
	}
}

func (l *lab) begin(args protocol.Object) {
	l.begun <- args.Text("id")
}

func block(ctx context.Context, l *lab, args protocol.Object, _ host.Emitter) (*protocol.ToolResult, error) {
	l.begin(args)
	select {
	case <-l.gate:
		return &protocol.ToolResult{Success: true, Data: jsontext.Value(`"done"`)}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// stubborn ignores its context and runs on after it has ended.
func stubborn(_ context.Context, l *lab, args protocol.Object, emit host.Emitter) (*protocol.ToolResult, error) {
	l.begin(args)
	<-l.gate
	emit.Progress(50, "after the gate")
	emit.Status("after the gate")
	return &protocol.ToolResult{Success: true}, nil
}

func progress(_ context.Context, _ *lab, _ protocol.Object, emit host.Emitter) (*protocol.ToolResult, error) {
	for _, pct := range []float64{0, 10, 5, 10, 33.5, 250} {
		emit.Progress(pct, fmt.Sprint("at ", pct))
	}
	emit.Log("warn", "careful", "stderr")
	emit.Log("debug", "detail", "")
	emit.Log("odd", "bad \xff UTF-8", "")
	emit.Status("busy")
	emit.Artifact("a", "text/plain", []byte("x"), true)
	return &protocol.ToolResult{Success: true, Data: jsontext.Value(fmt.Sprint(emit.Streaming()))}, nil
}

// ask sends the agent a request of the type in its argument "type", and returns the answer.
func ask(ctx context.Context, _ *lab, args protocol.Object, _ host.Emitter) (*protocol.ToolResult, error) {
	name := args.Text("type")
	body, _ := args.Get("body")
	var answer protocol.Object
	if err := host.ServicesOf(ctx).Ask(ctx, protocol.Type(name), jsontext.Value(body), &answer); err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "%w", err)
	}
	return &protocol.ToolResult{Success: true, Data: answer.Raw()}, nil
}

// push pushes its arguments as a notification of an MCP server behind the host.
func push(ctx context.Context, _ *lab, args protocol.Object, _ host.Emitter) (*protocol.ToolResult, error) {
	params := map[string]jsontext.Value{}
	if err := json.Unmarshal(args.Raw(), &params); err != nil {
		return nil, err
	}
	delete(params, "method")
	news := map[string]any{"server_id": "srv", "method": args.Text("method"), "params": params}
	raw, err := json.Marshal(news, json.Deterministic(true))
	if err != nil {
		return nil, err
	}
	var told protocol.MCPServerPush
	if err := json.Unmarshal(raw, &told); err != nil {
		return nil, err
	}
	err = host.ServicesOf(ctx).Push(protocol.TypeMCPServerPush, &told)
	if !errors.Is(err, host.ErrStreamClosed) { // no agent speaks A2E, so Push returns this error
		return nil, err
	}
	return &protocol.ToolResult{Success: true}, nil
}
