package jsonrpc_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/agent"
	front "a2e/host/dialect/jsonrpc"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/middleware"
	"a2e/host/state/store"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// pipe is a host in memory that speaks JSON-RPC, and its client.
type pipe struct {
	t    *testing.T
	in   *io.PipeWriter
	done chan struct{}

	linger time.Duration // how long each write of the host takes; set before the first

	mu      sync.Mutex
	partial []byte
	lines   []string
	calls   int
	news    chan struct{}
}

// patience is how long a pipe waits for something that should happen at once.
const patience = time.Minute

func open(t *testing.T, opts front.Options, plugins ...host.Plugin) *pipe {
	t.Helper()
	opts.Log = zerolog.Nop()
	if opts.Store == nil {
		opts.Store = state(t, t.TempDir())
	}
	return openHost(t, host.Options{
		Plugins: plugins, Dialects: []host.Dialect{front.New(opts)}, Limits: host.Limits{LineBytes: 1 << 16},
		Groups: host.Groups{"say": {"echo"}},
	})
}

// bounded is open for a host that runs only parallel requests at once and has these limits.
func bounded(t *testing.T, parallel int, limits host.Limits, plugins ...host.Plugin) *pipe {
	t.Helper()
	d := front.New(front.Options{Log: zerolog.Nop(), Store: state(t, t.TempDir())})
	return openHost(t, host.Options{
		Plugins: plugins, Dialects: []host.Dialect{d}, MaxParallel: parallel, Limits: limits,
	})
}

func openHost(t *testing.T, opts host.Options) *pipe {
	t.Helper()
	opts.Middleware = middleware.All()
	h := must.Get(host.New(opts))(t)
	in, w := io.Pipe()
	p := &pipe{t: t, in: w, done: make(chan struct{}), news: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = h.Serve(in, p)
		in.CloseWithError(io.ErrClosedPipe)
	}()
	t.Cleanup(p.close)
	return p
}

func (p *pipe) close() {
	p.in.Close()
	p.wait()
}

func (p *pipe) wait() {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Error("the host did not end")
	}
}

// Write appends the lines that the host writes.
func (p *pipe) Write(b []byte) (int, error) {
	defer func() { time.Sleep(p.linger) }() // after the client can read the line
	p.mu.Lock()
	defer p.mu.Unlock()
	p.partial = append(p.partial, b...)
	for {
		line, rest, ok := bytes.Cut(p.partial, []byte("\n"))
		if !ok {
			break
		}
		p.lines, p.partial = append(p.lines, string(line)), rest
	}
	close(p.news)
	p.news = make(chan struct{})
	return len(b), nil
}

func (p *pipe) send(lines ...string) {
	_, _ = io.WriteString(p.in, strings.Join(lines, "\n")+"\n")
}

// find waits for the nth line, counted from 0, for which match returns true.
func (p *pipe) find(what string, nth int, match func(string) bool) string {
	p.t.Helper()
	late := time.After(patience)
	for seen, n := 0, 0; ; {
		p.mu.Lock()
		for ; seen < len(p.lines); seen++ {
			if l := p.lines[seen]; match(l) {
				if n++; n > nth {
					p.mu.Unlock()
					return l
				}
			}
		}
		news := p.news
		p.mu.Unlock()
		select {
		case <-news:
		case <-late:
			p.t.Fatalf("no %s came; there is:\n%s", what, strings.Join(p.all(), "\n"))
		}
	}
}

func (p *pipe) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.lines...)
}

// answer waits for the answer with this id, given as JSON.
func (p *pipe) answer(id string) string {
	p.t.Helper()
	head := `{"jsonrpc":"2.0","id":` + id + `,`
	return p.find("answer to "+id, 0, func(l string) bool { return strings.HasPrefix(l, head) })
}

// call sends a request with a new id and returns its answer.
func (p *pipe) call(method, params string) string {
	p.t.Helper()
	p.mu.Lock()
	p.calls++
	id := fmt.Sprintf(`"call %d"`, p.calls)
	p.mu.Unlock()
	p.send(request(id, method, params))
	return p.answer(id)
}

// event waits for the nth event, counted from 0, of a type that contains a text.
func (p *pipe) event(typ, has string, nth int) string {
	p.t.Helper()
	return p.find("event "+typ+" "+has, nth, func(l string) bool {
		return strings.HasPrefix(l, `{"jsonrpc":"2.0","method":"event","params":{"type":"`+typ+`","timestamp":"`) &&
			strings.Contains(l, has)
	})
}

func (p *pipe) count(has string) (n int) {
	for _, l := range p.all() {
		if strings.Contains(l, has) {
			n++
		}
	}
	return n
}

func request(id, method, params string) string {
	line := `{"jsonrpc":"2.0"`
	if id != "" {
		line += `,"id":` + id
	}
	line += `,"method":"` + method + `"`
	if params != "" {
		line += `,"params":` + params
	}
	return line + "}"
}

// get returns the value at a JSON Pointer: a string as its text, other values as JSON.
func get(t *testing.T, line, pointer string) string {
	t.Helper()
	val := raw(t, line, pointer)
	if text, ok := protocol.Value(val).Str(); ok {
		return text
	}
	return val
}

// check compares values in a line with the expected ones. want alternates between pointers and values. A pointer that
// ends with ~ means that the value has to contain the text.
func check(t *testing.T, line string, want ...string) {
	t.Helper()
	for i := 0; i < len(want); i += 2 {
		pointer, part := strings.CutSuffix(want[i], "~")
		is := line
		if pointer != "" {
			is = get(t, line, pointer)
		}
		if part && !strings.Contains(is, want[i+1]) || !part && is != want[i+1] {
			t.Errorf("%s is %q, should be %q, in %s", want[i], is, want[i+1], line)
		}
	}
}

// raw returns the value at a JSON Pointer as JSON, or "" if there is none.
func raw(t *testing.T, line, pointer string) string {
	t.Helper()
	val := jsontext.Value(line)
	for token := range jsontext.Pointer(pointer).Tokens() {
		if i := 0; val.Kind() == '[' {
			var list []jsontext.Value
			_ = json.Unmarshal(val, &list)
			if _, err := fmt.Sscan(token, &i); err != nil || i >= len(list) {
				return ""
			}
			val = list[i]
			continue
		}
		var m map[string]jsontext.Value
		if json.Unmarshal(val, &m) != nil {
			return ""
		}
		val = m[token]
	}
	return string(val)
}

// session creates a session and returns its id.
func (p *pipe) session(params string) string {
	p.t.Helper()
	id := get(p.t, p.call("session.create", params), "/result/session_id")
	must.That(p.t, id != "", "no session")
	return id
}

// on sends a request about a session and returns its answer.
func (p *pipe) on(session, method, more string) string {
	p.t.Helper()
	return p.call(method, fmt.Sprintf(`{"session_id":%q%s}`, session, more))
}

// idle waits until a session is ready for the nth time, counted from 0.
func (p *pipe) idle(session string, nth int) {
	p.t.Helper()
	p.event("session.status", `"pending":false,"session_id":"`+session+`"`, nth)
}

// story returns, in short form, the answers and events for a session after the first since lines.
func (p *pipe) story(session string, since int) (told []string) {
	for _, l := range p.all()[since:] {
		switch typ := get(p.t, l, "/params/type"); {
		case typ == "" && strings.Contains(l, session):
			told = append(told, "answer")
		case get(p.t, l, "/params/payload/session_id") == session:
			about := ""
			for _, member := range []string{
				"/status_label", "/message/kind", "/message/text", "/chunk/thoughts/0",
				"/chunk/answerText", "/data/call/name", "/data/executed/name", "/data/executed/0/name",
				"/partial_output", "/answer_length", "/stage",
			} {
				if is := get(p.t, l, "/params/payload"+member); is != "" {
					about += " " + is
				}
			}
			told = append(told, strings.TrimPrefix(typ, "session.")+about)
		}
	}
	return told
}

// kit is a plugin with tools, a skill and workers.
type kit struct {
	play  func(ctx context.Context, task agent.WorkerTask) *fleet.Result // what a worker does; nil = it says "did NAME"
	begun chan string                                                    // briefs of the tasks that began
	ended chan string                                                    // agents whose session has ended
}

func newKit() *kit { return &kit{begun: make(chan string, 1000), ended: make(chan string, 1000)} }

// holding returns a kit whose workers each wait for a value of the channel.
func holding() (*kit, chan struct{}) {
	k, hold := newKit(), make(chan struct{})
	k.play = func(ctx context.Context, task agent.WorkerTask) *fleet.Result {
		task.Talk.Watch.Round(1, 5)
		task.Talk.Watch.Piece(agent.PieceAnswer, "half")
		k.begun <- task.Brief
		select {
		case <-hold:
			return done(task, "")
		case <-ctx.Done():
			return nil
		}
	}
	return k, hold
}

func done(task agent.WorkerTask, summary string) *fleet.Result {
	r := fleet.NewResult(task.Task.TaskID, fleet.StatusDone)
	r.Summary, r.TokensSpent = summary, 7
	return r
}

func (k *kit) Info() host.PluginInfo {
	return host.PluginInfo{Name: "kit", Capability: protocol.CapTools, Also: []protocol.Capability{protocol.CapSkill}}
}
func (k *kit) Close(context.Context) error { return nil }
func (k *kit) EndSession(_ context.Context, s *host.Session) {
	select {
	case k.ended <- s.AgentID:
	default:
	}
}

func (k *kit) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeToolListReq, func(context.Context, *protocol.ToolListRequest,
			host.Emitter,
		) (*protocol.ToolListResponse, error) {
			return &protocol.ToolListResponse{Tools: []protocol.ToolDefinition{{
				Name:            "echo",
				InputParameters: []protocol.ToolParameter{{Name: "s", Type: "string"}},
			}}}, nil
		}),
		host.Handle(protocol.TypeSkillDiscoverReq, func(context.Context, *protocol.SkillDiscoverRequest,
			host.Emitter,
		) (*protocol.SkillDiscoverResponse, error) {
			return &protocol.SkillDiscoverResponse{Skills: []protocol.SkillDefinition{{
				Name:        "cook",
				Description: "Cooks.", FilePath: new("/skills/cook/SKILL.md"),
			}}}, nil
		}),
		host.Handle(protocol.TypeToolCallReq, k.call),
	}
}

func (k *kit) call(ctx context.Context, req *protocol.ToolCallRequest, emit host.Emitter) (*protocol.ToolCallResponse,
	error,
) {
	switch req.ToolName {
	case "echo":
		emit.Log("info", "hello", "stdout")
		return &protocol.ToolCallResponse{Data: protocol.ToolResult{
			Success: true, ToolName: req.ToolName,
			Data: bytes.Clone(req.Arguments.Raw()),
		}}, nil
	case "fail":
		why := "it broke"
		return &protocol.ToolCallResponse{Data: protocol.ToolResult{Error: &why}}, nil
	case "deny":
		return nil, protocol.Errorf(protocol.CodeToolDenied, "it is denied")
	case "panic":
		panic("ouch")
	case "block":
		k.begun <- "block"
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return nil, host.NotKnown(
		protocol.Errorf(protocol.CodeUnknownTool, "unknown tool %q", req.ToolName), req.ToolName, []string{"echo"})
}

func (k *kit) Workers() []agent.WorkerInfo {
	return []agent.WorkerInfo{
		{Name: "small", Mode: "oneshot", MaxTasks: 2, Healthy: true},
		{
			Name: "big", Mode: "llm", Model: "m2", MaxTasks: 1, Healthy: true, ContextWindow: 8000, Thinking: "low",
			KeyFor: "https://llm.example", ServedBy: func(_ context.Context, model string) ([]string, bool, error) {
				return []string{"One", "Two"}, model != "m2", nil
			},
		},
	}
}

func (k *kit) RunTask(ctx context.Context, task agent.WorkerTask) (*fleet.Result, error) {
	name := task.Worker
	if name == "" {
		name = "small"
	}
	task.Started(name)
	if k.play == nil {
		k.begun <- task.Brief
		task.Output("stdout", "did "+name)
		return done(task, "did "+name), nil
	}
	r := k.play(ctx, task)
	if r == nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return r, nil
}

func state(t *testing.T, dir string) store.Opener {
	t.Helper()
	s := stores.Open(t, dir+"/"+store.FileName, front.Part())
	return func(context.Context) (store.Store, error) { return s, nil }
}
