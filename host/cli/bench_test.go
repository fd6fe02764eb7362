package cli

import (
	"cmp"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"a2e/host/config"
	"a2e/host/dialect/httpd"
	"a2e/host/hosttest/must"
	"a2e/plugins"
)

// BenchmarkHTTPSession measures the memory of a session of MCP over HTTP after it was initialized, has listed its
// tools and called one. The HTTP connections of a client are not included.
func BenchmarkHTTPSession(b *testing.B) {
	const sessions = 200
	cfg, _, err := config.Load(config.Source{Dir: b.TempDir(), Available: plugins.Types()})
	must.OK(b, err)
	for b.Loop() {
		shared := plugins.NewShared(cfg, zerolog.Nop(), nil)
		server := httpd.New(sessionOptions(cfg, hostOptions(cfg, zerolog.Nop()), shared, true))
		webSession(b, server) // allocates what all sessions share
		heap, stacks := inUse()
		for range sessions {
			webSession(b, server)
		}
		heapAfter, stacksAfter := inUse()
		b.ReportMetric(float64(heapAfter-heap)/sessions/1024, "KiB-heap/session")
		b.ReportMetric(float64(stacksAfter-stacks)/sessions/1024, "KiB-stacks/session")
		server.Close(b.Context())
		must.OK(b, shared.Close())
	}
}

// webSession opens a session of MCP, lists its tools and calls one.
func webSession(b *testing.B, server http.Handler) {
	b.Helper()
	id := ""
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`,
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"}}}`,
	} {
		req := httptest.NewRequest("POST", "http://127.0.0.1/mcp", strings.NewReader(body))
		req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, " +
			"text/event-stream"}}
		if id != "" {
			req.Header.Set("Mcp-Session-Id", id)
		}
		answer := httptest.NewRecorder()
		server.ServeHTTP(answer, req)
		must.That(b, answer.Code == 200 && strings.Contains(answer.Body.String(), `"result"`), "%d %s", answer.Code,
			answer.Body)
		id = cmp.Or(id, answer.Header().Get("Mcp-Session-Id"))
	}
}

// inUse collects garbage, and returns the bytes of the live heap and of the stacks.
func inUse() (heap, stacks int64) {
	runtime.GC()
	time.Sleep(2 * time.Second) // the learning plugin stores its counts of calls after one second
	for range 4 {               // each collection halves the stacks
		runtime.GC()
	}
	runtime.GC()
	all := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(all)
	return int64(all[0].Value.Uint64()), int64(all[1].Value.Uint64())
}
