package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/protocol"
	"a2e/protocol/client"
)

// bridgeCase measures what it costs to reach the tool of an MCP server through the first
// target, against calling the same server directly with the Go SDK. The server is the
// target's own `mcp serve`. A host without the capability mcp is left out.
const bridgeCase = "bridge"

const (
	bridgeCalls = 2_000 // of each way, one after the other
	quickBridge = 200
	bridgedID   = "peer" // of the server in the host
)

// bridgeReport is the cost of one call of a tool that does nothing, in each way.
type bridgeReport struct {
	Ways []*bridgeWay `json:"ways"`
}

// bridgeWay is one way to the tool. Its calls take turns with those of the other ways.
type bridgeWay struct {
	What  string  `json:"what"`
	P50   float64 `json:"p50_us"`
	P99   float64 `json:"p99_us"`
	Times float64 `json:"times"` // its median, of that of the first way

	call func(context.Context) error
	took []float64
}

// benchBridge runs bridgeCase.
func benchBridge(ctx context.Context, r *runner, rep *report) (err error) {
	t := r.targets[0]
	if t.dialect.name != a2eDialect().name {
		return nil
	}
	n := bridgeCalls
	if r.opts.Quick {
		n = quickBridge
	}
	rep.Bridge, err = measureBridge(ctx, t, r.dir, n)
	return err
}

// measureBridge starts the server twice, once behind the host, and calls each n times. The
// report is nil where the host has no capability mcp.
func measureBridge(ctx context.Context, t *target, dir string, n int) (report *bridgeReport, err error) {
	hostConfig, serverConfig, err := bridgeConfigs(t, dir)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(t.command[0], t.command[1:]...)
	cmd.Dir, cmd.Env = dir, append(t.strange(os.Environ()), "A2E_CONFIG="+hostConfig)
	host, err := client.Spawn(ctx, cmd, client.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	hello, err := host.Handshake(ctx, "bench", []protocol.Capability{protocol.CapTools, protocol.CapMCP}, "")
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(hello.AcceptedCaps, func(c protocol.CapabilityRow) bool { return c.Capability == protocol.CapMCP && c.Enabled }) {
		return nil, nil
	}
	server := exec.Command(t.command[0], "mcp", "serve")
	server.Dir, server.Env = dir, append(t.strange(os.Environ()), "A2E_CONFIG="+serverConfig)
	direct, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: server}, nil)
	if err != nil {
		return nil, fmt.Errorf("its own mcp serve: %w", err)
	}
	defer func() { err = errors.Join(err, direct.Close()) }()
	report = &bridgeReport{Ways: []*bridgeWay{
		{What: "an MCP server, directly", call: callDirectly(direct)},
		{What: "the same through A2E and MCP", call: callBridged(host, bridgedID+"__echo")},
		{What: "a built-in tool through A2E", call: callBridged(host, "echo")},
	}}
	return report, report.measure(ctx, n)
}

// bridgeConfigs writes the configs of the host and of the server behind it.
func bridgeConfigs(t *target, dir string) (host, server string, err error) {
	folder := filepath.Join(dir, "bridge")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", "", err
	}
	host, server = filepath.Join(folder, "host.yaml"), filepath.Join(folder, "server.yaml")
	tools := "plugins:\n  - {name: tools, type: tools}\n"
	behind := fmt.Sprintf("  - {name: mcp, type: mcp, metadata: {servers: {%s: {command: %q, args: [mcp, serve], env: {A2E_CONFIG: %q}, read: [%q]}}}}\n",
		bridgedID, t.command[0], server, folder)
	for name, text := range map[string]string{server: tools, host: tools + behind} {
		if err := os.WriteFile(name, fmt.Appendf(nil, "state_dir: %q\n%s", name+".state", text), 0o600); err != nil {
			return "", "", err
		}
	}
	return host, server, nil
}

func callDirectly(session *mcp.ClientSession) func(context.Context) error {
	return func(ctx context.Context) error {
		res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": "x"}})
		if err == nil && (res.IsError || len(res.Content) == 0) {
			err = fmt.Errorf("echo gave %+v", res)
		}
		return err
	}
}

func callBridged(host *client.Client, tool string) func(context.Context) error {
	return func(ctx context.Context) error {
		args, err := protocol.ParseObject([]byte(`{"text":"x"}`))
		if err != nil {
			return err
		}
		var resp protocol.ToolCallResponse
		err = host.Call(ctx, protocol.TypeToolCallReq, &protocol.ToolCallRequest{ToolName: tool, Arguments: args, Timeout: 30}, &resp)
		if err == nil && !resp.Data.Success {
			err = fmt.Errorf("%s failed: %+v", tool, resp.Data)
		}
		return err
	}
}

// measure times n calls of each way, in turn. The first ones are not counted: they wait
// for connections.
func (b *bridgeReport) measure(ctx context.Context, n int) error {
	for i := range n + 1 {
		for _, w := range b.Ways {
			begin := time.Now()
			if err := w.call(ctx); err != nil {
				return fmt.Errorf("%s: %w", w.What, err)
			}
			if i > 0 {
				w.took = append(w.took, time.Since(begin).Seconds()*1e6)
			}
		}
	}
	for _, w := range b.Ways {
		slices.Sort(w.took)
		w.P50, w.P99 = w.took[len(w.took)/2], w.took[len(w.took)*99/100]
		w.Times = w.P50 / b.Ways[0].P50
	}
	return nil
}

// writeBridge prints a line for each way.
func (r *report) writeBridge(w io.Writer) error {
	if r.Bridge == nil {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\none call of a tool\tp50\tp99\ttimes the direct call\t\n")
	for _, b := range r.Bridge.Ways {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t\n", b.What, format(b.P50, "us"), format(b.P99, "us"), ratioText(b.Times))
	}
	return t.Flush()
}
