package cli_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// mcpClient starts the binary as an MCP client does, and connects to it.
func mcpClient(t *testing.T, dir string, args ...string) (*mcp.ClientSession, *exec.Cmd) {
	t.Helper()
	cmd := command(t, dir, "./a2e", args...)
	session, err := mcp.NewClient(&mcp.Implementation{Name: "tester", Version: "1"}, nil).
		Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	must.OK(t, err)
	t.Cleanup(func() { _ = session.Close() })
	return session, cmd
}

// TestMCPServe: an MCP client has the host's tools and files, whether the host speaks
// nothing else or A2E beside.
func TestMCPServe(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"mcp serve": {"mcp", "serve"}, "serve": nil} {
		t.Run(name, func(t *testing.T) {
			dir := workDir(t)
			must.OK(t, os.WriteFile(filepath.Join(dir, "note.md"), []byte("# note\n"), 0o644))
			session, cmd := mcpClient(t, dir, args...)
			info := session.InitializeResult().ServerInfo
			assert.That(t, info.Name == "a2e" && info.Version != "", "the server is %+v", info)
			names := map[string]bool{}
			for tool, err := range session.Tools(t.Context(), nil) {
				must.OK(t, err)
				names[tool.Name] = true
			}
			assert.That(t, names["read_file"] && names["run_command"] && names["echo"], "the tools are %v", names)
			res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "grep", Arguments: map[string]any{"pattern": "note"}})
			must.That(t, err == nil && !res.IsError, "grep: %v %v", err, res)
			structured, _ := json.Marshal(res.StructuredContent)
			assert.That(t, strings.Contains(string(structured), `"path":"note.md"`), "grep found %s", structured)
			uri := ""
			for r, err := range session.Resources(t.Context(), nil) {
				must.OK(t, err)
				if r.Name == "note.md" {
					uri = r.URI
				}
			}
			if read, err := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err != nil || read.Contents[0].Text != "# note\n" {
				t.Errorf("%s: %v %v", uri, read, err)
			}
			assert.OK(t, session.Close())
			assert.Equal(t, cmd.ProcessState.ExitCode(), 0, "exit status")
		})
	}
}

// TestMCPServeToken: whoever starts `a2e mcp serve` is its client and needs no token, on a
// pipe that A2E shares it does.
func TestMCPServeToken(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "auth_token: hunter2\n")
	session, _ := mcpClient(t, dir, "mcp", "serve")
	assert.That(t, session.Ping(t.Context(), nil) == nil, "a2e mcp serve does not answer")
	cmd := command(t, dir, "./a2e")
	_, err := mcp.NewClient(&mcp.Implementation{Name: "tester", Version: "1"}, nil).
		Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	assert.That(t, err != nil && strings.Contains(err.Error(), "unauthorized") && !strings.Contains(err.Error(), "hunter2"),
		"without the token: %v", err)
}

// TestMCPServeSignal: a signal ends it, with what runs answered.
func TestMCPServeSignal(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	cmd := command(t, dir, "./a2e", "mcp", "serve")
	stdin, err := cmd.StdinPipe()
	must.OK(t, err)
	out := must.Get(os.Create(filepath.Join(dir, "out")))(t)
	defer out.Close()
	cmd.Stdout = out
	must.OK(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()
	_, _ = io.WriteString(stdin, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`+"\n"+
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_command","arguments":{"command":["sh","-c","echo ready > ready; sleep 60"]}}}`+"\n")
	hosttest.Eventually(t, "the command runs", func() bool { return exists(filepath.Join(dir, "ready")) })
	must.OK(t, cmd.Process.Signal(os.Interrupt))
	assert.OK(t, cmd.Wait())
	text := must.Get(os.ReadFile(out.Name()))(t)
	assert.Contains(t, string(text), `{"jsonrpc":"2.0","id":2,"`, "the call was not answered: %s", text)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestInterruptedCommands: Ctrl-C ends what waits for a server or a tool, with 130.
func TestInterruptedCommands(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	config := `{mcpServers: {slow: {command: sh, args: [-c, "echo > ready; sleep 60"]}}, plugins: {tools: {allowed_commands: [sh]}}}`
	must.OK(t, os.WriteFile(filepath.Join(dir, "slow.yaml"), []byte(config), 0o600))
	for _, args := range [][]string{
		{"tools", "call", "slow__x"}, {"tools", "list"}, {"mcp", "list"},
		{"tools", "call", "run_command", `command=["sh","-c","echo > ready; sleep 60"]`},
	} {
		_ = os.Remove(filepath.Join(dir, "ready"))
		cmd := command(t, dir, "./a2e", append([]string{"--config", "slow.yaml"}, args...)...)
		must.OK(t, cmd.Start())
		defer func() { _ = cmd.Process.Kill() }() // it may have ended
		hosttest.Eventually(t, "it waits", func() bool { return exists(filepath.Join(dir, "ready")) })
		must.OK(t, cmd.Process.Signal(os.Interrupt))
		if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
			t.Errorf("%v ended with %v", args, cmd.ProcessState)
		}
	}
}
