package e2e_test

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/protocol"
	"a2e/protocol/client"
)

// benchHost starts the program with a config and opens a session.
func benchHost(b *testing.B, dir, config string, wanted ...protocol.Capability) *client.Client {
	b.Helper()
	must.OK(b, os.WriteFile(filepath.Join(dir, "a2e.yaml"), []byte(config), 0o600))
	host := must.Get(client.Spawn(b.Context(), command(b, dir, "./a2e", "--config", "a2e.yaml"), client.Options{}))(b)
	b.Cleanup(func() { _ = host.Close() })
	must.Get(host.Handshake(b.Context(), "bench", wanted, ""))(b)
	return host
}

// ask makes a call that has to succeed, and returns the response.
func ask[Resp any](b *testing.B, host *client.Client, typ protocol.Type, req any) (resp Resp) {
	b.Helper()
	must.OK(b, host.Call(b.Context(), typ, req, &resp))
	return resp
}

func parsed(b *testing.B, format string, args ...any) protocol.Object {
	b.Helper()
	obj := must.Get(protocol.ParseObject(fmt.Appendf(nil, format, args...)))(b)
	return obj
}

// BenchmarkEntries measures storing and finding with 100,000 entries in the memory; -short has 2,000. The words are
// as unevenly frequent as those of a language.
func BenchmarkEntries(b *testing.B) {
	const batch, words = 500, 20
	many := 100_000
	if testing.Short() {
		many = 2_000
	}
	host := benchHost(b, workDir(b), fmt.Sprintf("plugins: {memory: {semantic_limit: %d}}\n", 10*many),
		protocol.CapMemory)
	memory := ask[protocol.MemoryInitResponse](b, host, protocol.TypeMemoryInitReq,
		&protocol.MemoryInitRequest{Namespace: "bench"}).MemoryID
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.1, 5, 20_000-1)
	text := func(n int) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf("w%xq", zipf.Uint64()*2654435761%1_000_003)
		}
		return strings.Join(all, " ")
	}
	stored := 0
	store := func(b *testing.B, n int) {
		req := &protocol.MemoryStoreRequest{MemoryID: memory}
		for range n {
			req.Entries = append(req.Entries, parsed(b,
				`{"key":{"n":%d},"content":{"text":%q},"tier":"semantic","tags":["rare%d","common%d"]}`, stored,
				text(words), stored%1000, stored%3))
			stored++
		}
		resp := ask[protocol.MemoryStoreResponse](b, host, protocol.TypeMemoryStoreReq, req)
		must.Equal(b, len(resp.Stored), n, "… of … entries were stored: %q", resp.Errors)
	}
	for stored < many {
		store(b, batch)
	}
	find := func(make func() protocol.MemoryRetrieveRequest) func(*testing.B) {
		return func(b *testing.B) {
			for b.Loop() {
				req := make()
				req.MemoryID, req.Limit, req.Tier = memory, 10, protocol.TierSemantic
				ask[protocol.MemoryRetrieveResponse](b, host, protocol.TypeMemoryRetrieveReq, &req)
			}
		}
	}
	b.Run("store", func(b *testing.B) {
		for b.Loop() {
			store(b, 1)
		}
	})
	b.Run("key", find(func() protocol.MemoryRetrieveRequest {
		return protocol.MemoryRetrieveRequest{MemorySelection: protocol.MemorySelection{Keys: []protocol.Object{parsed(b, `{"n":%d}`, random.IntN(stored))}}}
	}))
	b.Run("rare-tag", find(func() protocol.MemoryRetrieveRequest {
		return protocol.MemoryRetrieveRequest{MemorySelection: protocol.MemorySelection{Tags: []string{fmt.Sprint("rare", random.IntN(1000))}}}
	}))
	b.Run("common-tag", find(func() protocol.MemoryRetrieveRequest {
		return protocol.MemoryRetrieveRequest{MemorySelection: protocol.MemorySelection{Tags: []string{fmt.Sprint("common", random.IntN(3))}}}
	}))
	b.Run("newest", find(func() protocol.MemoryRetrieveRequest { return protocol.MemoryRetrieveRequest{} }))
	for _, n := range []int{2, 4, 8} {
		b.Run(fmt.Sprint("search-", n), find(func() protocol.MemoryRetrieveRequest { return protocol.MemoryRetrieveRequest{Query: text(n)} }))
	}
}

// BenchmarkBridge measures a call of an MCP server's tool through the program, beside a direct call of the same
// server and a call of a built-in tool.
func BenchmarkBridge(b *testing.B) {
	dir := workDir(b)
	self := filepath.Join(dir, "a2e")
	host := benchHost(b, dir, fmt.Sprintf("mcpServers: {peer: {command: %q, args: [mcp, serve]}}\n", self),
		protocol.CapTools, protocol.CapMCP)
	direct := must.Get(mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(b.Context(),
		&mcp.CommandTransport{Command: command(b, workDir(b), self, "mcp", "serve")}, nil))(b)
	defer direct.Close()
	b.Run("direct", func(b *testing.B) {
		for b.Loop() {
			res, err := direct.CallTool(b.Context(), &mcp.CallToolParams{
				Name:      "echo",
				Arguments: map[string]any{"text": "x"},
			})
			must.That(b, err == nil && !res.IsError, "%v %v", res, err)
		}
	})
	for name, tool := range map[string]string{"bridged": "peer__echo", "built-in": "echo"} {
		b.Run(name, func(b *testing.B) {
			req := &protocol.ToolCallRequest{ToolName: tool, Arguments: parsed(b, `{"text":"x"}`), Timeout: 60}
			for b.Loop() {
				resp := ask[protocol.ToolCallResponse](b, host, protocol.TypeToolCallReq, req)
				must.That(b, resp.Data.Success, "%+v", resp.Data)
			}
		})
	}
}

// BenchmarkFleet measures how long a refused task of the fleet protocol takes, and a task whose worker does nothing,
// beside the start of that worker alone.
func BenchmarkFleet(b *testing.B) {
	host := start(b, workDir(b), "worker", "--", "true")
	n := 0
	task := func(required, status string) func(*testing.B) {
		return func(b *testing.B) {
			for b.Loop() {
				n++
				host.send(fmt.Sprintf(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"t%d"},"requirements":{"required_capabilities":[%s]},"brief":"begin"}`, n, required))
				line, err := "", error(nil)
				for err == nil && !strings.Contains(line, "TASK_RESULT") {
					line, err = host.stdout.ReadString('\n')
				}
				must.That(b, err == nil && strings.Contains(line, status), "the task should be %s: %v %s", status, err,
					line)
			}
		}
	}
	b.Run("refused", task(`"none such"`, `"blocked"`))
	b.Run("done", task("", `"done"`))
	b.Run("bare-start", func(b *testing.B) {
		for b.Loop() {
			must.OK(b, exec.Command("true").Run())
		}
	})
}

// BenchmarkMCPOverHTTP measures calls of echo by the SDK's client, to this host at /mcp and to a server on the same
// SDK, from one session and from 16 at once.
func BenchmarkMCPOverHTTP(b *testing.B) {
	peer := command(b, b.TempDir(), hosttest.Program(b, "a2e/host/hosttest/peers/mcpecho"), "127.0.0.1:0")
	out := must.Get(peer.StdoutPipe())(b)
	must.OK(b, peer.Start())
	b.Cleanup(func() {
		_ = peer.Process.Kill()
		_ = peer.Wait()
	})
	line := must.Get(bufio.NewReader(out).ReadString('\n'))(b)
	for _, c := range []struct{ name, url string }{
		{"a2e", serveWeb(b, "").url + "/mcp"},
		{"sdk", strings.TrimSpace(line)},
	} {
		for _, sessions := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/sessions=%d", c.name, sessions), func(b *testing.B) { benchEcho(b, c.url, sessions) })
		}
	}
}

// benchEcho makes b.N calls from sessions that run at once.
func benchEcho(b *testing.B, url string, sessions int) {
	took := make([]time.Duration, b.N)
	var next atomic.Int64
	var all sync.WaitGroup
	all.Add(sessions)
	begin := make(chan struct{})
	for range sessions {
		session := must.Get(mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(b.Context(),
			&mcp.StreamableClientTransport{Endpoint: url}, nil))(b)
		defer session.Close()
		go func() {
			defer all.Done()
			<-begin
			for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
				began := time.Now()
				if _, err := session.CallTool(b.Context(), &mcp.CallToolParams{
					Name:      "echo",
					Arguments: map[string]any{"text": strings.Repeat("x", 100)},
				}); err != nil {
					b.Error(err)
				}
				took[i] = time.Since(began)
			}
		}()
	}
	b.ResetTimer()
	close(begin)
	all.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
	b.ReportMetric(float64(took[b.N/2].Microseconds()), "µs-p50")
}

// BenchmarkMCPPipe measures the processor time of a request on the program's pipe, with 32 requests open, beside that
// of a server on the official SDK. The program lists all of its tools, that server one.
func BenchmarkMCPPipe(b *testing.B) {
	peer := hosttest.Program(b, "a2e/host/hosttest/peers/mcpecho")
	for method, params := range map[string]string{
		"tools/list": `{}`, "tools/call": `{"name":"echo","arguments":{"text":"x"}}`,
	} {
		line := fmt.Sprintf(`{"jsonrpc":"2.0","id":%%d,"method":%q,"params":%s}`+"\n", method, params)
		b.Run(method+"/a2e", func(b *testing.B) { benchPipe(b, command(b, workDir(b), "./a2e", "mcp", "serve"), line) })
		b.Run(method+"/sdk", func(b *testing.B) { benchPipe(b, command(b, b.TempDir(), peer), line) })
	}
}

// benchPipe sends a line b.N times, each time with another id.
func benchPipe(b *testing.B, cmd *exec.Cmd, line string) {
	in := must.Get(cmd.StdinPipe())(b)
	out := bufio.NewReaderSize(must.Get(cmd.StdoutPipe())(b), 1<<20)
	must.OK(b, cmd.Start())
	_, _ = fmt.Fprintln(in, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)
	must.Get(out.ReadBytes('\n'))(b)
	_, _ = fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	onTheirWay := make(chan struct{}, 32)
	go func() {
		for i := range b.N {
			onTheirWay <- struct{}{}
			_, _ = fmt.Fprintf(in, line, i)
		}
	}()
	b.ResetTimer()
	for range b.N {
		answer := must.Get(out.ReadSlice('\n'))(b)
		must.That(b, bytes.Contains(answer[:min(len(answer), 100)], []byte(`"result"`)), "%s", answer)
		<-onTheirWay
	}
	b.StopTimer()
	in.Close()
	must.OK(b, cmd.Wait())
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	b.ReportMetric(float64(used.Microseconds())/float64(b.N), "µs-CPU/op")
}
