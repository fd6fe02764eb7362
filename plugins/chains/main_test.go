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
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shed is a plugin with the tools, skills and programs of these tests.
//
//	echo    gives its arguments back          fail   reports a failure of its own
//	error   answers with an error             panic  panics
//	block   waits until it is stopped         gate   waits until the test opens the gate
//	again   runs a chain that calls it
//	exit    ends the goroutine                maybe  fails if its argument fail is true
type shed struct {
	gate chan struct{}

	mu      sync.Mutex // guards the fields below
	calls   []string   // name and arguments, in the order of their ends
	running int
	most    int // that ran at once
	begun   chan string
	records []host.CallRecord
}

func newShed() *shed { return &shed{gate: make(chan struct{}), begun: make(chan string, 1<<14)} }

func (s *shed) Info() host.PluginInfo {
	return host.PluginInfo{Name: "shed", Capability: protocol.CapTools, Also: []protocol.Capability{protocol.CapSkill}}
}

func (s *shed) Close(context.Context) error { return nil }

func (s *shed) Routes() []host.Route {
	return []host.Route{host.Handle(protocol.TypeToolCallReq, s.tool), host.Handle(protocol.TypeSkillCallReq, s.skill)}
}

// RecordCall implements host.Recorder.
func (s *shed) RecordCall(r host.CallRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = append(s.records, r)
}

// RunProc implements host.ProcRunner.
func (s *shed) RunProc(_ context.Context, run host.ProcRun) (*host.ProcResult, error) {
	if run.Cmd[0] == "false" {
		return &host.ProcResult{Stderr: "no\n", ExitCode: 1}, nil
	}
	return &host.ProcResult{Stdout: strings.Join(run.Cmd, " ") + run.Stdin}, nil
}

func (s *shed) enter(name string) {
	s.mu.Lock()
	s.running++
	s.most = max(s.most, s.running)
	s.mu.Unlock()
	s.begun <- name
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

func (s *shed) tool(ctx context.Context, req *protocol.ToolCallRequest, _ host.Emitter) (*protocol.ToolCallResponse, error) {
	s.enter(req.ToolName)
	defer s.leave(req.ToolName + string(req.Arguments.Raw()))
	resp := &protocol.ToolCallResponse{Data: protocol.ToolResult{Success: true, ToolName: req.ToolName, Data: jsontext.Value(req.Arguments.Raw())}}
	switch req.ToolName {
	case "echo":
	case "maybe": // fails if its arguments say so, and takes its time
		for range rand.IntN(20) {
			runtime.Gosched()
		}
		if fail, _ := req.Arguments.Get("fail"); fail.Kind() == 't' {
			return nil, protocol.Errorf(protocol.CodeToolError, "as it was told")
		}
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
	case "exit":
		runtime.Goexit()
	case "again":
		var answer protocol.Object
		list := []map[string]string{{"node_id": "a", "kind": "tool", "name": "again"}}
		if err := host.ServicesOf(ctx).Call(ctx, protocol.TypeChainReq, map[string]any{"nodes": list}, &answer, nil); err != nil {
			return nil, err
		}
		if ok, _ := answer.Get("success"); ok.Kind() == 'f' {
			failed, _ := answer.Get("error")
			why, err := protocol.ParseObject(failed)
			if err != nil {
				return nil, err
			}
			message, _ := why.Get("message")
			text, _ := message.Str()
			return nil, protocol.Errorf(protocol.CodeToolError, "%s", text)
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

func (s *shed) skill(_ context.Context, req *protocol.SkillCallRequest, _ host.Emitter) (*protocol.SkillCallResponse, error) {
	s.enter(req.Name)
	defer s.leave(req.Name)
	if req.Name == "broken" {
		why := "no model"
		return &protocol.SkillCallResponse{Name: req.Name, Data: &protocol.SkillResult{Error: &why}}, nil
	}
	return &protocol.SkillCallResponse{Name: req.Name, Data: &protocol.SkillResult{Success: true, Data: jsontext.Value(`{"hex":"` + hex.EncodeToString([]byte(req.Name)) + `"}`)}}, nil
}

// stage is a host with a chains plugin and a shed.
type stage struct {
	*hosttest.Pair
	t    testing.TB
	shed *shed
}

func newPlugin(t testing.TB, opts Options, workspace string) *Plugin {
	t.Helper()
	p, err := New("chains", opts, Env{Workspace: workspace, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newStage(t testing.TB, opts Options, workspace string) *stage {
	t.Helper()
	s := &stage{t: t, shed: newShed()}
	s.Pair = hosttest.New(t, host.Options{Plugins: []host.Plugin{newPlugin(t, opts, workspace), s.shed}})
	return s.shake()
}

// startStage is newStage for who calls Close.
func startStage(t testing.TB, opts Options) *stage {
	t.Helper()
	s := &stage{t: t, shed: newShed()}
	s.Pair = hosttest.Start(t, host.Options{Plugins: []host.Plugin{newPlugin(t, opts, "."), s.shed}})
	return s.shake()
}

func (s *stage) shake() *stage {
	if m := s.Handshake(protocol.CapChains); m.Get("/ok") != "true" {
		s.t.Fatalf("no session: %s", m.Line)
	}
	return s
}

// result is a chain/resp.
type result struct {
	ChainID     string                    `json:"chain_id"`
	Success     bool                      `json:"success"`
	Outputs     map[string]jsontext.Value `json:"outputs"`
	FinalOutput jsontext.Value            `json:"final_output"`
	NodesRun    int                       `json:"nodes_run"`
	Error       *struct {
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

// run sends a chain, which must be answered by chain/resp, and reads that.
func (s *stage) run(fields string) *result {
	s.t.Helper()
	return s.read(s.Call(protocol.TypeChainReq, fields))
}

func (s *stage) read(m hosttest.Message) *result {
	s.t.Helper()
	if m.Type != protocol.TypeChainResp {
		s.t.Fatalf("answered by %.2000s", m.Line)
	}
	res := new(result)
	m.Decode(s.t, res)
	return res
}

// text returns the outputs as one JSON text, sorted.
func (r *result) text(t testing.TB) string {
	t.Helper()
	raw, err := json.Marshal(r.Outputs, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// nodes returns the fields of a request with nodes, which are JSON without its braces.
func nodes(list ...string) string {
	return `{"nodes":[{` + strings.Join(list, "},{") + `}]}`
}

// events returns the phases of a request's events, in order.
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
