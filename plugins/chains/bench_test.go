package chains

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// looper is a plugin that calls echo in a loop from within the host, as a chain does but
// without one.
type looper struct{}

func (looper) Info() host.PluginInfo {
	return host.PluginInfo{Name: "loop", Capability: protocol.CapSkill}
}
func (looper) Close(context.Context) error { return nil }

func (looper) Routes() []host.Route {
	return []host.Route{host.Handle(protocol.TypeSkillCallReq, func(ctx context.Context, req *protocol.SkillCallRequest, _ host.Emitter) (*protocol.SkillCallResponse, error) {
		for range benchNodes(req.Name) {
			c := &call{kind: KindTool, name: "echo", args: []byte(`{"text":"hello"}`), timeout: 30}
			var answer protocol.Object
			if err := host.ServicesOf(ctx).Call(ctx, protocol.TypeToolCallReq, c, &answer, nil); err != nil {
				return nil, err
			}
		}
		return &protocol.SkillCallResponse{Data: &protocol.SkillResult{Success: true, Data: jsontext.Value("null")}}, nil
	})}
}

func benchNodes(text string) (n int) {
	_, _ = fmt.Sscan(text, &n)
	return n
}

// pipe is a host whose answers are read as lines.
type pipe struct {
	b     *testing.B
	in    *io.PipeWriter
	lines *bufio.Reader
	done  chan error
}

func newPipe(b *testing.B) *pipe {
	b.Helper()
	boxed, err := tools.New("tools", tools.DefaultOptions(), tools.Env{Workspace: b.TempDir(), StateDir: b.TempDir(), Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	h, err := host.New(host.Options{Plugins: []host.Plugin{newPlugin(b, Options{}, b.TempDir()), boxed, looper{}}})
	if err != nil {
		b.Fatal(err)
	}
	in, w := io.Pipe()
	out, answers := io.Pipe()
	p := &pipe{b, w, bufio.NewReaderSize(out, 1<<20), make(chan error, 1)}
	go func() {
		p.done <- h.Serve(in, answers)
		answers.Close()
	}()
	p.call(`{"a2e":"1.0","type":"handshake/req","id":"h","agent_id":"a","agent_caps":["chains","tools","skill"]}`, `"ok":true`)
	b.Cleanup(func() {
		w.Close()
		go io.Copy(io.Discard, p.lines)
		if err := <-p.done; err != nil {
			b.Error(err)
		}
	})
	return p
}

// call sends one line and waits for its answer, which must hold a text.
func (p *pipe) call(line, want string) {
	p.b.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.b.Fatal(err)
	}
	for {
		answer, err := p.lines.ReadString('\n')
		if err != nil {
			p.b.Fatal(err)
		}
		if strings.Contains(answer, `"type":"chain/event"`) {
			continue
		}
		if !strings.Contains(answer, want) {
			p.b.Fatalf("answered by %.500s", answer)
		}
		return
	}
}

// BenchmarkChains measures chains of echo against calling echo as often, one by one: by
// the agent, and by a plugin within the host. us/node is the time of the chain for one
// node, over/inside how much of it is the chain's own.
func BenchmarkChains(b *testing.B) {
	list := func(n int, one func(i int) string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = one(i)
		}
		return strings.Join(all, ",")
	}
	const n, items = 1_000, 10_000
	for _, bench := range []struct {
		name   string
		nodes  int
		fields string
	}{
		{"row_1000", n, list(n, func(i int) string {
			next := ""
			if i < n-1 {
				next = fmt.Sprintf(`,"next_node":"n%d"`, i+1)
			}
			return fmt.Sprintf(`{"node_id":"n%d","kind":"tool","name":"echo","input":{"text":"hello"}%s}`, i, next)
		})},
		{"row_1000_reading", n, list(n, func(i int) string {
			if i == 0 {
				return `{"node_id":"n0","kind":"tool","name":"echo","input":{"text":"hello"}}`
			}
			return fmt.Sprintf(`{"node_id":"n%d","kind":"tool","name":"echo","input_map":{"text":"n%d.text"}}`, i, i-1)
		})},
		{"side_by_side_1000", n, list(n, func(i int) string {
			return fmt.Sprintf(`{"node_id":"n%d","kind":"tool","name":"echo","input":{"text":"hello"}}`, i)
		})},
		{"map_10000", items, `{"node_id":"m","kind":"map","items_path":"input.xs","map_node":"i"},{"node_id":"i","kind":"tool","name":"echo","input_map":{"text":"item.text"}}`},
		{"map_10000_one_by_one", items, `{"node_id":"m","kind":"map","items_path":"input.xs","map_node":"i","max_parallel":1},{"node_id":"i","kind":"tool","name":"echo","input_map":{"text":"item.text"}}`},
	} {
		for _, streaming := range []bool{false, true} {
			name := bench.name
			if streaming {
				name += "_events"
			}
			b.Run(name, func(b *testing.B) {
				p := newPipe(b)
				input := `{}`
				if strings.HasPrefix(bench.name, "map") {
					input = `{"xs":[` + list(items, func(int) string { return `{"text":"hello"}` }) + `]}`
				}
				chain := fmt.Sprintf(`{"a2e":"1.0","type":"chain/req","id":"c","streaming":%t,"initial_input":%s,"nodes":[%s]}`, streaming, input, bench.fields)
				loop := fmt.Sprintf(`{"a2e":"1.0","type":"skill/call/req","id":"s","name":"%d","streaming":false}`, bench.nodes)
				var chains, calls, inside time.Duration
				for b.Loop() {
					start := time.Now()
					p.call(chain, `"success":true`)
					chains += time.Since(start)
					start = time.Now()
					for range bench.nodes {
						p.call(`{"a2e":"1.0","type":"tool/call/req","id":"t","tool_name":"echo","arguments":{"text":"hello"}}`, `"success":true`)
					}
					calls += time.Since(start)
					start = time.Now()
					p.call(loop, `"success":true`)
					inside += time.Since(start)
				}
				each := func(d time.Duration) float64 {
					return float64(d.Nanoseconds()) / 1e3 / float64(b.N) / float64(bench.nodes)
				}
				b.ReportMetric(each(chains), "us/node")
				b.ReportMetric(each(calls), "us/call")
				b.ReportMetric(each(inside), "us/inside")
				b.ReportMetric(each(chains)-each(inside), "us/over")
				b.ReportMetric(chains.Seconds()/calls.Seconds(), "chain/calls")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
