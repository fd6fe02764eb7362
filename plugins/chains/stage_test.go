package chains

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/protocol"
)

// shed is a plugin with the tools, skills and programs of these tests.
//
//	echo    returns its arguments             fail         reports a failure of its own
//	error   answers with an error             panic        panics
//	block   waits until it is stopped         gate         waits until the test opens the gate
//	again   runs a chain that calls again     part         returns its arguments as a cut result
//	large   returns a text of n bytes         timeout      returns its time limit in seconds
//	maybe   fails if its argument fail is true, or in as many first calls as times says
//	flaky   fails its first calls, as many as its argument fail says, and then returns the number of the call
//	correlation   returns its correlation id
type shed struct {
	gate chan struct{}

	mu      sync.Mutex // guards the fields below
	calls   []string   // name and arguments, in the order in which the calls end
	running int
	most    int // the most that ran at once
	begun   chan string
	records []host.CallOutcome
	tries   map[string]int // calls of flaky and of maybe, by their arguments
}

func newShed() *shed {
	return &shed{gate: make(chan struct{}), begun: make(chan string, 1<<14), tries: map[string]int{}}
}

func (s *shed) Info() host.PluginInfo {
	return host.PluginInfo{Name: "shed", Capability: protocol.CapTools, Also: []protocol.Capability{protocol.CapSkill}}
}

func (s *shed) Close(context.Context) error { return nil }

func (s *shed) Routes() []host.Route {
	return []host.Route{host.Handle(protocol.TypeToolCallReq, s.tool), host.Handle(protocol.TypeSkillCallReq, s.skill)}
}

// CountCall implements host.CallCounter.
func (s *shed) CountCall(r host.CallOutcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = append(s.records, r)
}

// RunProc implements child.ProcRunner.
func (s *shed) RunProc(_ context.Context, run child.ProcRun) (*child.ProcResult, error) {
	switch run.Cmd[0] {
	case "yes":
		return &child.ProcResult{Stdout: "y\ny\n", Truncated: true}, nil
	case "false":
		return &child.ProcResult{Stderr: "no\n", ExitCode: 1}, nil
	}
	return &child.ProcResult{Stdout: strings.Join(run.Cmd, " ") + run.Stdin}, nil
}

func (s *shed) enter(name string) {
	s.mu.Lock()
	s.running++
	s.most = max(s.most, s.running)
	s.mu.Unlock()
	select {
	case s.begun <- name:
	default: // the channel is full: no test reads that many
	}
}

func (s *shed) leave(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	s.calls = append(s.calls, what)
}

func (s *shed) done() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.calls...)
}

// try returns the number of calls with these arguments so far, this one included.
func (s *shed) try(args protocol.Object) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries[string(args.Raw())]++
	return s.tries[string(args.Raw())]
}

func (s *shed) tool(ctx context.Context, req *protocol.ToolCallRequest, _ host.Emitter) (*protocol.ToolCallResponse,
	error,
) {
	s.enter(req.ToolName)
	defer s.leave(req.ToolName + string(req.Arguments.Raw()))
	resp := &protocol.ToolCallResponse{Data: protocol.ToolResult{
		Success: true, ToolName: req.ToolName,
		Data: jsontext.Value(req.Arguments.Raw()),
	}}
	switch req.ToolName {
	case "echo":
	case "part":
		resp.Data.Truncated = new(true)
	case "maybe": // fails if its arguments say so, and yields a random number of times
		for range rand.IntN(20) {
			runtime.Gosched()
		}
		times, _ := req.Arguments.Get("times") // number of failures before the first success
		n, _ := times.Int()
		if fail, _ := req.Arguments.Get("fail"); fail.Kind() == 't' || n > 0 && s.try(req.Arguments) <= n {
			return nil, protocol.Errorf(protocol.CodeToolError, "as it was told")
		}
	case "flaky":
		var args struct {
			Fail  int                `json:"fail"`
			Code  protocol.ErrorCode `json:"code"`
			After float64            `json:"after"`
		}
		_ = req.Arguments.Decode(&args)
		n := s.try(req.Arguments)
		if n <= args.Fail {
			return nil, protocol.Errorf(args.Code, "call %d", n).With("retry_after", args.After)
		}
		resp.Data.Data = jsontext.Value(fmt.Sprintf(`{"call":%d}`, n))
	case "timeout":
		resp.Data.Data = jsontext.Value(fmt.Sprint(req.Timeout))
	case "correlation":
		resp.Data.Data = protocol.AppendString(nil, req.CorrelationID)
	case "large":
		n, _ := req.Arguments.Get("n")
		size, _ := n.Int()
		resp.Data.Data = protocol.AppendString(nil, strings.Repeat("x", size))
	case "fail":
		why, code := "it is broken", 3
		resp.Data.Success, resp.Data.Error, resp.Data.ExitCode = false, &why, &code
	case "error":
		return nil, protocol.Errorf(protocol.CodeOverloaded, "busy").With("limit", 1)
	case "panic":
		panic("oh")
	case "again":
		var answer protocol.Object
		list := []map[string]string{{"node_id": "a", "kind": "tool", "name": "again"}}
		if err := host.ServicesOf(ctx).Call(ctx, protocol.TypeChainReq, map[string]any{"nodes": list}, &answer,
			nil); err != nil {
			return nil, err
		}
		if ok, _ := answer.Get("success"); ok.Kind() == 'f' {
			failed, _ := answer.Get("error")
			why, err := protocol.ParseObject(failed)
			if err != nil {
				return nil, err
			}
			return nil, protocol.Errorf(protocol.CodeToolError, "%s", why.Text("message"))
		}
	case "block":
		<-ctx.Done()
		return nil, context.Cause(ctx)
	case "gate":
		select {
		case <-s.gate:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	default:
		return nil, protocol.Errorf(protocol.CodeUnknownTool, "unknown tool %q", req.ToolName)
	}
	return resp, nil
}

func (s *shed) skill(_ context.Context, req *protocol.SkillCallRequest, _ host.Emitter) (*protocol.SkillCallResponse,
	error,
) {
	s.enter(req.Name)
	defer s.leave(req.Name)
	if req.Name == "broken" {
		why := "no model"
		return &protocol.SkillCallResponse{Name: req.Name, Data: &protocol.SkillResult{Error: &why}}, nil
	}
	return &protocol.SkillCallResponse{Name: req.Name, Data: &protocol.SkillResult{
		Success:   true,
		Truncated: new(req.Name == "part"), Data: jsontext.Value(`{"hex":"` + hex.EncodeToString([]byte(req.Name)) +
			`"}`),
	}}, nil
}

// stage is a host with a chains plugin and a shed.
type stage struct {
	*hosttest.Pair
	t    testing.TB
	shed *shed
}

func newPlugin(t testing.TB, opts Options, workspace string) *Plugin {
	t.Helper()
	return must.Get(New("chains", opts, host.Env{Workspace: workspace}))(t)
}

func newStage(t testing.TB, opts Options, workspace string) *stage {
	t.Helper()
	return stageOn(t, opts, host.Env{Workspace: workspace}, hosttest.New)
}

// startStage is newStage for tests that call Close themselves.
func startStage(t testing.TB, opts Options, kept store.Opener) *stage {
	t.Helper()
	return stageOn(t, opts, host.Env{Workspace: ".", Store: kept}, hosttest.Start)
}

// stageOn begins a host whose plugin has this environment.
func stageOn(t testing.TB, opts Options, env host.Env, begin func(testing.TB, host.Options) *hosttest.Pair) *stage {
	t.Helper()
	s := &stage{t: t, shed: newShed()}
	s.Pair = begin(t, host.Options{Plugins: []host.Plugin{must.Get(New("chains", opts, env))(t), s.shed}})
	m := s.Handshake(protocol.CapChains)
	must.That(t, m.Get("/ok") == "true", "no session: %s", m.Line)
	return s
}

// memoryStore returns a store in memory.
func memoryStore(t testing.TB) store.Opener {
	kept := stores.Memory(t, Part())
	return func(context.Context) (store.Store, error) { return kept, nil }
}

// result has the fields of a chain/resp.
type result struct {
	ChainID     string                    `json:"chain_id"`
	Success     bool                      `json:"success"`
	Outputs     map[string]jsontext.Value `json:"outputs"`
	FinalOutput jsontext.Value            `json:"final_output"`
	NodesRun    int                       `json:"nodes_run"`
	Cached      []string                  `json:"cached"`
	Truncated   []string                  `json:"truncated"`
	Handled     []struct {
		NodeID string `json:"node_id"`
		Code   string `json:"code"`
		By     string `json:"handled_by"`
	} `json:"handled"`
	Error *struct {
		Code      string         `json:"code"`
		Message   string         `json:"message"`
		NodeID    string         `json:"node_id"`
		Cause     string         `json:"cause"`
		Retryable bool           `json:"retryable"`
		Detail    jsontext.Value `json:"detail"`
		Running   []string       `json:"running"`
		Failed    []struct {
			NodeID  string `json:"node_id"`
			Item    *int   `json:"item"`
			Message string `json:"message"`
		} `json:"failed"`
	} `json:"error"`
}

// run sends a chain and returns its answer, which must be a chain/resp.
func (s *stage) run(fields string) *result {
	s.t.Helper()
	return s.read(s.Call(protocol.TypeChainReq, fields))
}

func (s *stage) read(m hosttest.Message) *result {
	s.t.Helper()
	must.That(s.t, m.Type == protocol.TypeChainResp, "answered by %.2000s", m.Line)
	res := new(result)
	m.Decode(s.t, res)
	return res
}

// text returns the outputs as one JSON text, sorted by node.
func (r *result) text(t testing.TB) string {
	t.Helper()
	raw := must.Get(json.Marshal(r.Outputs, json.Deterministic(true)))(t)
	return string(raw)
}

// nodes returns the fields of a request with the given nodes. Each node is a JSON object without its braces.
func nodes(list ...string) string {
	return `{"nodes":[{` + strings.Join(list, "},{") + `}]}`
}

// events returns the node, phase and index of each event of a request, in order.
func (s *stage) events(id string) (all []string) {
	for _, m := range s.Messages() {
		if m.Type == protocol.TypeChainEvent && m.ReqID == id {
			var e struct {
				NodeID string `json:"node_id"`
				Phase  string `json:"phase"`
				Data   struct {
					Index jsontext.Value `json:"index"`
				} `json:"data"`
			}
			m.Decode(s.t, &e)
			all = append(all, strings.TrimSpace(e.NodeID+" "+e.Phase+" "+string(e.Data.Index)))
		}
	}
	return all
}
