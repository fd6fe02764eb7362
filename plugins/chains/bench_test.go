package chains

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/host/state/store"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// BenchmarkChains compares chains of echo nodes (us/node) with the same number of single calls of echo (us/call).
func BenchmarkChains(b *testing.B) {
	const hello = `,"input":{"text":"hello"}`
	row := func(one func(i int) string) string {
		all := make([]string, 1000)
		for i := range all {
			if all[i] = fmt.Sprintf(`"node_id":"n%d",`, i) + toolEcho; i > 0 {
				all[i] += one(i)
			} else {
				all[i] += hello
			}
		}
		return strings.TrimSuffix(nodes(all...), "}")
	}
	items := `,"initial_input":{"xs":[` + strings.Repeat(`{"text":"hello"},`, 9_999) + `{"text":"hello"}]}`
	for _, bench := range []struct {
		name, fields string
		calls        int
	}{
		{"row", row(func(i int) string { return hello + fmt.Sprintf(`,"deps":["n%d"]`, i-1) }), 1000},
		{"row_reading", row(func(i int) string { return fmt.Sprintf(`,"input_map":{"text":"n%d.text"}`, i-1) }), 1000},
		{"side_by_side", row(func(int) string { return hello }), 1000},
		{"map", strings.TrimSuffix(nodes(`"node_id":"m","kind":"map","items_path":"input.xs","map_node":"i"`,
			`"node_id":"i",`+toolEcho+`,"input_map":{"text":"item.text"}`), "}") + items, 10_000},
	} {
		for _, streaming := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/events=%t", bench.name, streaming), func(b *testing.B) {
				box := must.Get(tools.New("tools", tools.DefaultOptions(), host.Env{
					Workspace: b.TempDir(),
					StateDir:  b.TempDir(),
				}))(b)
				p := hosttest.New(b, host.Options{Plugins: []host.Plugin{newPlugin(b, Options{}, b.TempDir()), box}})
				p.Handshake(protocol.CapChains, protocol.CapTools)
				var chain, calls time.Duration
				for b.Loop() {
					start := time.Now()
					m := p.Call(protocol.TypeChainReq, fmt.Sprintf(`%s,"streaming":%t}`, bench.fields, streaming))
					must.Equal(b, m.Get("/success"), "true", "%.300s", m.Line)
					chain += time.Since(start)
					start = time.Now()
					for range 100 {
						p.Call(protocol.TypeToolCallReq, `{"tool_name":"echo","arguments":{"text":"hello"}}`)
					}
					calls += time.Since(start)
				}
				b.ReportMetric(float64(chain.Microseconds())/float64(b.N*bench.calls), "us/node")
				b.ReportMetric(float64(calls.Microseconds())/float64(b.N*100), "us/call")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkJournal measures a row of 1,000 echo nodes without a journal, and with a journal where no node or every node
// may run twice. Its unit is us/node.
func BenchmarkJournal(b *testing.B) {
	for name, fields := range map[string]string{
		"none": "", "journal": `,"chain_id":"c","journal":true`,
		"idempotent": `,"chain_id":"c","journal":true`,
	} {
		b.Run(name, func(b *testing.B) {
			all := make([]string, 1000)
			for i := range all {
				all[i] = fmt.Sprintf(`"node_id":"n%d","idempotent":%t,"input":{"text":"hello"},"deps":["n%d"],`, i,
					name == "idempotent", max(0, i-1)) + toolEcho
			}
			all[0] = `"node_id":"n0","input":{"text":"hello"},` + toolEcho
			dir := b.TempDir()
			s := must.Get(store.Open(b.Context(), dir+"/s/"+store.FileName,
				store.Options{Parts: []store.Part{Part()}}))(b)
			defer s.Close()
			p := must.Get(New("chains", Options{}, host.Env{
				Workspace: dir,
				Store:     func(context.Context) (store.Store, error) { return s, nil },
			}))(b)
			box := must.Get(tools.New("tools", tools.DefaultOptions(), host.Env{Workspace: dir, StateDir: dir}))(b)
			pair := hosttest.New(b, host.Options{Plugins: []host.Plugin{p, box}})
			pair.Handshake(protocol.CapChains, protocol.CapTools)
			var took time.Duration
			for b.Loop() {
				start := time.Now()
				m := pair.Call(protocol.TypeChainReq, strings.TrimSuffix(nodes(all...),
					"}")+fields+`,"streaming":false}`)
				took += time.Since(start)
				must.Equal(b, m.Get("/success"), "true", "%.300s", m.Line)
			}
			b.ReportMetric(float64(took.Microseconds())/float64(b.N*1000), "us/node")
			b.ReportMetric(0, "ns/op")
		})
	}
}
