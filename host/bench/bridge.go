package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	quickBridge = 50
	bridgedID   = "peer" // of the server in the host
)

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
func measureBridge(ctx context.Context, t *target, dir string, n int) (report *ways, err error) {
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
	report = &ways{Ways: []*way{
		{What: "an MCP server, directly", once: callDirectly(direct)},
		{What: "the same through A2E and MCP", once: callBridged(host, bridgedID+"__echo")},
		{What: "a built-in tool through A2E", once: callBridged(host, "echo")},
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

func callDirectly(session *mcp.ClientSession) func(context.Context, int) (time.Duration, error) {
	return func(ctx context.Context, _ int) (time.Duration, error) {
		begin := time.Now()
		res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": "x"}})
		if err == nil && (res.IsError || len(res.Content) == 0) {
			err = fmt.Errorf("echo gave %+v", res)
		}
		return time.Since(begin), err
	}
}

func callBridged(host *client.Client, tool string) func(context.Context, int) (time.Duration, error) {
	return func(ctx context.Context, _ int) (time.Duration, error) {
		begin := time.Now()
		args, err := protocol.ParseObject([]byte(`{"text":"x"}`))
		if err != nil {
			return 0, err
		}
		var resp protocol.ToolCallResponse
		err = host.Call(ctx, protocol.TypeToolCallReq, &protocol.ToolCallRequest{ToolName: tool, Arguments: args, Timeout: 30}, &resp)
		if err == nil && !resp.Data.Success {
			err = fmt.Errorf("%s failed: %+v", tool, resp.Data)
		}
		return time.Since(begin), err
	}
}
