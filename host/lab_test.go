package host_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"go.uber.org/goleak"

	"a2e/host"
	"a2e/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lab is the plugin of these tests. Its tools misbehave in all the ways that tools can.
type lab struct {
	info  host.PluginInfo
	owns  []string      // names of the tools that it has; nil = all
	gate  chan struct{} // calls of block and stubborn wait until it is closed
	begun chan string   // gets the id argument of each call of block and stubborn
	tools map[string]labTool

	mu     sync.Mutex // guards the fields below
	closed int
}

func newLab() *lab {
	return &lab{
		info:  host.PluginInfo{Name: "lab", Capability: protocol.CapTools},
		gate:  make(chan struct{}),
		begun: make(chan string, 4096),
		tools: labTools(),
	}
}

func (l *lab) Info() host.PluginInfo { return l.info }

func (l *lab) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeToolCallReq, l.call),
		host.List(protocol.TypeToolListReq, l.list, func(dst, src *protocol.ToolListResponse) {
			for _, d := range src.Tools {
				if !slices.ContainsFunc(dst.Tools,
					func(have protocol.ToolDefinition) bool { return have.Name == d.Name }) {
					dst.Tools = append(dst.Tools, d)
				}
			}
		}),
	}
}

func (l *lab) Close(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed++
	return nil
}

func (l *lab) list(context.Context, *protocol.ToolListRequest, host.Emitter) (*protocol.ToolListResponse, error) {
	resp := &protocol.ToolListResponse{}
	for _, name := range l.owns {
		resp.Tools = append(resp.Tools, protocol.ToolDefinition{
			Name: name, Description: "of " + l.info.Name,
			Version: "1.0.0",
		})
	}
	return resp, nil
}

// labAnswer is a tool/call/resp whose result can have any type.
type labAnswer struct {
	Data      any     `json:"data"`
	CreatedAt float64 `json:"created_at"`

	echo *protocol.Object // if not nil: the data of the result; Data is then the name of the plugin
}

// AppendJSON implements protocol.Appender.
func (a *labAnswer) AppendJSON(dst []byte) ([]byte, error) {
	if a.echo == nil {
		type plain labAnswer
		return protocol.AppendJSON(dst, (*plain)(a))
	}
	dst = append(dst, `{"data":{"success":true,"tool_name":"`...)
	dst = append(append(dst, a.Data.(string)...), `","data":`...)
	dst, err := protocol.AppendJSON(dst, *a.echo)
	return append(dst, `,"duration_ms":0},"created_at":1}`...), err
}

func result(tool string, data string) *labAnswer {
	return &labAnswer{CreatedAt: 1, Data: protocol.ToolResult{
		Success: true, ToolName: tool,
		Data: jsontext.Value(data),
	}}
}

// oddResult returns an answer with data that may fail to encode.
func oddResult(data any) *labAnswer {
	return &labAnswer{CreatedAt: 1, Data: map[string]any{
		"success": true, "tool_name": "odd", "data": data,
		"duration_ms": 0,
	}}
}

// bomb panics when it is encoded.
type bomb struct{}

func (bomb) MarshalJSON() ([]byte, error) { panic("bomb") }

// labArgs are the arguments that the tools read.
type labArgs struct {
	ID string  `json:"id"`
	MS float64 `json:"ms"`
	N  int     `json:"n"`
}

func (l *lab) call(ctx context.Context, req *protocol.ToolCallRequest, emit host.Emitter) (*labAnswer, error) {
	if l.owns != nil && !slices.Contains(l.owns, req.ToolName) {
		unknown := protocol.Errorf(protocol.CodeUnknownTool, "no tool %q", req.ToolName)
		return nil, host.NotKnown(unknown, req.ToolName, l.owns)
	}
	tool, ok := l.tools[req.ToolName]
	if !ok { // "echo", and all names without an entry
		return &labAnswer{echo: &req.Arguments, Data: l.info.Name}, nil
	}
	var args labArgs
	if err := req.Arguments.Decode(&args); err != nil {
		return nil, err
	}
	return tool(ctx, l, args, emit)
}

type labTool func(ctx context.Context, l *lab, args labArgs, emit host.Emitter) (*labAnswer, error)

func labTools() map[string]labTool {
	fail := func(err error) labTool {
		return func(context.Context, *lab, labArgs, host.Emitter) (*labAnswer, error) { return nil, err }
	}
	give := func(data any) labTool {
		return func(context.Context, *lab, labArgs, host.Emitter) (*labAnswer, error) { return oddResult(data), nil }
	}
	var typedNil *protocol.Error
	return map[string]labTool{
		"panic": func(context.Context, *lab, labArgs, host.Emitter) (*labAnswer, error) {
			panic("a secret of the plugin")
		},
		"goexit": func(context.Context, *lab, labArgs, host.Emitter) (*labAnswer, error) {
			runtime.Goexit()
			return nil, nil
		},
		"gopanic":     goPanic,
		"sleep":       sleep,
		"nap":         nap,
		"block":       block,
		"stubborn":    stubborn,
		"stream":      stream,
		"huge":        huge,
		"ask":         ask,
		"derived":     derived,
		"plainerror":  fail(errors.New("it broke")),
		"nilerror":    fail(typedNil),
		"wrapped":     fail(fmt.Errorf("outer: %w", protocol.Errorf(protocol.CodeToolDenied, "not allowed"))),
		"deadline":    fail(context.DeadlineExceeded),
		"baddetail":   fail(protocol.Errorf(protocol.CodeToolError, "odd").With("odd", make(chan int))),
		"bombdetail":  fail(protocol.Errorf(protocol.CodeToolError, "odd").With("odd", bomb{})),
		"badmessage":  fail(errors.New("not \xff UTF-8")),
		"noanswer":    func(context.Context, *lab, labArgs, host.Emitter) (*labAnswer, error) { return nil, nil },
		"nan":         give(math.NaN()),
		"chan":        give(make(chan int)),
		"bomb":        give(bomb{}),
		"badraw":      give(jsontext.Value(`{"a":`)),
		"badutf8":     give("a\xffb"),
		"oddprogress": oddProgress,
	}
}

func goPanic(ctx context.Context, _ *lab, _ labArgs, _ host.Emitter) (*labAnswer, error) {
	host.Go(ctx, func() { panic("in a goroutine") })
	<-ctx.Done()
	return nil, ctx.Err()
}

func sleep(ctx context.Context, _ *lab, args labArgs, _ host.Emitter) (*labAnswer, error) {
	select {
	case <-time.After(time.Duration(args.MS * float64(time.Millisecond))):
		return result("sleep", "null"), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// nap ignores its context.
func nap(_ context.Context, _ *lab, args labArgs, _ host.Emitter) (*labAnswer, error) {
	time.Sleep(time.Duration(args.MS * float64(time.Millisecond)))
	return result("nap", "null"), nil
}

func block(ctx context.Context, l *lab, args labArgs, _ host.Emitter) (*labAnswer, error) {
	l.begun <- args.ID
	select {
	case <-l.gate:
		return result("block", `{"id":"`+args.ID+`"}`), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func stubborn(_ context.Context, l *lab, args labArgs, emit host.Emitter) (*labAnswer, error) {
	l.begun <- args.ID
	<-l.gate
	emit.Status("after the gate")
	return result("stubborn", "null"), nil
}

func stream(_ context.Context, _ *lab, args labArgs, emit host.Emitter) (*labAnswer, error) {
	emit.Progress(0, "begin")
	emit.Status("working <&>")
	emit.Log("info", "one line\u2028\x00", "stdout")
	emit.Log("info", "no stream", "")
	emit.Artifact("a.txt", "text/plain", []byte("hello"), true)
	for range args.N {
		emit.Status(strings.Repeat("x", 1000))
	}
	emit.Progress(250, "more than all")
	return result("stream", fmt.Sprint(emit.Streaming())), nil
}

func oddProgress(_ context.Context, _ *lab, _ labArgs, emit host.Emitter) (*labAnswer, error) {
	emit.Progress(math.NaN(), "lost")
	emit.Status("bad \xff UTF-8")
	return result("oddprogress", "null"), nil
}

func huge(_ context.Context, _ *lab, args labArgs, _ host.Emitter) (*labAnswer, error) {
	return result("huge", `"`+strings.Repeat("h", args.N)+`"`), nil
}

func ask(ctx context.Context, _ *lab, _ labArgs, _ host.Emitter) (*labAnswer, error) {
	var resp protocol.MCPSampleResponse
	if err := host.ServicesOf(ctx).Ask(ctx, protocol.TypeMCPSampleReq, &protocol.MCPSampleRequest{ServerID: "lab"},
		&resp); err != nil {
		return nil, err
	}
	return result("ask", fmt.Sprintf("%q", resp.Model)), nil
}

// derived waits, in a goroutine, on a context that it derived from its own.
func derived(ctx context.Context, _ *lab, _ labArgs, _ host.Emitter) (*labAnswer, error) {
	sub, stop := context.WithCancel(context.WithValue(ctx, labArgs{}, 1))
	defer stop()
	done := make(chan error)
	go func() {
		<-sub.Done()
		done <- context.Cause(sub)
	}()
	return nil, <-done
}

// procs is a plugin whose routes are immediate.
type procs struct {
	gate chan struct{}
}

func (p *procs) Info() host.PluginInfo {
	return host.PluginInfo{Name: "procs", Capability: protocol.CapProc}
}

func (p *procs) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeProcKillReq, func(_ context.Context, req *protocol.ProcKillRequest,
			_ host.Emitter,
		) (*protocol.ProcKillResponse, error) {
			switch req.ProcID {
			case "slow":
				<-p.gate
			case "panic":
				panic("kill")
			case "goexit":
				runtime.Goexit()
			}
			return &protocol.ProcKillResponse{OK: true}, nil
		}),
	}
}

func (p *procs) Close(context.Context) error { return nil }

// tool returns the fields of a tool/call/req.
func tool(name, args string) string {
	return fmt.Sprintf(`{"tool_name":%q,"arguments":%s}`, name, args)
}
