package plugins_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/config"
	"a2e/plugins"
)

// repeated is an input of the same lines over and over, after a handshake.
type repeated struct {
	head  string
	block []byte
	at    int
	left  int // blocks
}

func (r *repeated) Read(p []byte) (int, error) {
	if r.head != "" {
		n := copy(p, r.head)
		r.head = r.head[n:]
		return n, nil
	}
	if r.left == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.block[r.at:])
	if r.at += n; r.at == len(r.block) {
		r.at = 0
		r.left--
	}
	return n, nil
}

// serveLines runs a host with every plugin on b.N requests in memory: what is
// left of the bench's figures when pipes and the client are taken away.
func serveLines(b *testing.B, line string) {
	const batch = 64
	var block strings.Builder
	for i := range batch {
		fmt.Fprintf(&block, line+"\n", i)
	}
	cfg := config.Default(config.Source{Available: plugins.Types(), Getenv: func(string) string { return "" }})
	cfg.Workspace = b.TempDir()
	made, err := plugins.New(cfg, plugins.Deps{})
	if err != nil {
		b.Fatal(err)
	}
	h, err := host.New(host.Options{Plugins: made})
	if err != nil {
		b.Fatal(err)
	}
	in := &repeated{head: `{"type":"handshake/req","id":"h","agent_caps":["tools","env"]}` + "\n", block: []byte(block.String()), left: b.N/batch + 1}
	b.ReportAllocs()
	b.ResetTimer()
	if err := h.Serve(in, io.Discard); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkPing(b *testing.B) {
	serveLines(b, `{"a2e":"1.0","type":"ping","id":"0123456789abcdef%016x"}`)
}

func BenchmarkEcho(b *testing.B) {
	for _, size := range []int{100, 10 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			serveLines(b, `{"a2e":"1.0","type":"tool/call/req","id":"0123456789abcdef%016x","tool_name":"echo","arguments":{"text":"`+strings.Repeat("x", size)+`"}}`)
		})
	}
}
