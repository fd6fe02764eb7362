//lint:file-ignore SA1019 MCP 2026-07-28 begins to retire sampling; clients offer it.

package mcp_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/hosttest"
)

// peersDir is where `make tools` puts the programs of others; beside them are the scripts
// that drive them.
const peersDir = "../../../testdata/peers"

// peer returns the absolute path of a part of them, which must be there.
func peer(t *testing.T, parts ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(append([]string{peersDir}, parts...)...))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v: run make tools", err)
	}
	return path
}

// buildBinary builds the program as users run it.
func buildBinary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a2e")
	if err := hosttest.BuildProgram("a2e", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// workDir makes a workspace, which is home as well, with these skills by name and the user's
// own config, which no client has to name.
func workDir(t *testing.T, servers string, skills map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		"note.md": "# note\n",
		".config/a2e/config.yaml": "plugins:\n  - {name: tools, type: tools}\n  - {name: memory, type: memory}\n" +
			"  - {name: skills, type: skill, metadata: {skills_path: skills}}\n  - {name: mcp, type: mcp, metadata: {servers: " + servers + "}}\n",
	}
	for name, text := range skills {
		files[filepath.Join("skills", name, "SKILL.md")] = "---\nname: " + name + "\ndescription: Says something.\n" + text
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// program prepares a program in a workspace.
func program(t *testing.T, dir, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_STATE_HOME=", "XDG_CONFIG_HOME=", "A2E_CONFIG=")
	return cmd
}

// TestReferenceClients: the clients that MCP's own SDKs make find in `a2e mcp serve` what
// they look for. The scripts say what that is.
func TestReferenceClients(t *testing.T) {
	binary := buildBinary(t)
	everything := fmt.Sprintf("{all: {command: node, args: [%q], read: [%q]}}",
		peer(t, "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js"), peer(t, "node_modules"))
	greet := map[string]string{"greet": "arguments: [who]\n---\nSay hello to $who, in one line.\n"}
	for _, c := range []struct{ name, program, script, last string }{
		{"TypeScript", "node", "client.mjs", "asked"}, {"Python", peer(t, "venv", "bin", "python3"), "client.py", "pinned"},
	} {
		t.Run(c.name, func(t *testing.T) {
			peer(t, "node_modules", "@modelcontextprotocol", "sdk")
			cmd := program(t, workDir(t, everything, greet), c.program, peer(t, c.script), binary)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), c.last) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		t.Run("what can be asked in "+version, func(t *testing.T) {
			t.Parallel()
			mirrored(t, workDir(t, everything, nil), binary, version)
		})
	}
	t.Run("conformance", func(t *testing.T) { conformance(t, binary) })
}

// mirrored: a server behind the host has the tools that ask the client for what the client
// offers, and no others.
func mirrored(t *testing.T, dir, binary, version string) {
	opts := &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}}
	if tools := askingTools(t, connectTo(t, dir, binary, version, opts)); len(tools) > 0 {
		t.Errorf("a client that cannot be asked is offered %v", tools)
	}
	opts.CreateMessageHandler = func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
		return &mcp.CreateMessageResult{Role: "assistant", Model: "m", Content: &mcp.TextContent{Text: "it is heard"}}, nil
	}
	opts.Capabilities.Elicitation = &mcp.ElicitationCapabilities{URL: &mcp.URLElicitationCapabilities{}}
	session := connectTo(t, dir, binary, version, opts)
	if tools := askingTools(t, session); !slices.Equal(tools, []string{"trigger-elicitation-request", "trigger-sampling-request", "trigger-url-elicitation"}) {
		t.Errorf("a client with sampling and URLs is offered %v", tools)
	}
	res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "all__trigger-sampling-request", Arguments: map[string]any{"prompt": "hi"}})
	if said, _ := json.Marshal(res); err != nil || res.IsError || !strings.Contains(string(said), "it is heard") {
		t.Errorf("sampling: %v %s", err, said)
	}
}

// connectTo connects a client to a host of its own.
func connectTo(t *testing.T, dir, binary, version string, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "tester", Version: "1"}, opts).
		Connect(t.Context(), &mcp.CommandTransport{Command: program(t, dir, binary, "mcp", "serve")}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	if got := session.InitializeResult().ProtocolVersion; got != version {
		t.Errorf("the version is %s", got)
	}
	return session
}

// askingTools returns the tools of server-everything that ask the client, once it has them all.
func askingTools(t *testing.T, session *mcp.ClientSession) (asking []string) {
	t.Helper()
	hosttest.Eventually(t, "the server has its tools", func() bool {
		asking = nil
		complete := false
		for tool, err := range session.Tools(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			name, _ := strings.CutPrefix(tool.Name, "all__")
			if complete = complete || name == "simulate-research-query"; strings.HasPrefix(name, "trigger-") && !strings.HasSuffix(name, "-operation") || name == "get-roots-list" {
				asking = append(asking, name)
			}
		}
		return complete
	})
	slices.Sort(asking)
	return asking
}

// conformance runs the server scenarios of @modelcontextprotocol/conformance, by a bridge
// from HTTP, on the host with the server behind it that they want. All have to pass.
func conformance(t *testing.T, binary string) {
	dir := workDir(t, `{fixture: {url: "http://127.0.0.1:${FIXTURE_PORT}/fixture"}}`, nil)
	peer(t, "node_modules", "@modelcontextprotocol", "conformance")
	port := startBridge(t, dir, binary)
	out, err := program(t, dir, "node", peer(t, "conformance.mjs"), "server", "--url", "http://127.0.0.1:"+port+"/mcp", "--suite", "all").CombinedOutput()
	_, summary, ok := strings.Cut(string(out), "=== SUMMARY ===")
	if err != nil || !ok {
		t.Errorf("%v: %s%s", err, summary, out[max(0, len(out)-3000):])
	}
	if passed := strings.Count(summary, "✓"); passed < 32 {
		t.Errorf("only %d scenarios passed:%s", passed, summary)
	}
}

// startBridge starts the bridge and gives its port.
func startBridge(t *testing.T, dir, binary string) string {
	t.Helper()
	bridge := program(t, dir, "node", peer(t, "bridge.mjs"), binary)
	out, err := bridge.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs := &strings.Builder{}
	bridge.Stderr = errs
	if err := bridge.Start(); err != nil {
		t.Fatalf("%v: install Node.js, then run make tools", err)
	}
	t.Cleanup(func() {
		_ = bridge.Process.Kill() // the hosts that it started end with their input
		_ = bridge.Wait()         // it was killed
		if t.Failed() {
			t.Logf("the bridge said: %s", errs)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	port, ok := strings.CutPrefix(strings.TrimSpace(line), "port ")
	if !ok {
		t.Fatalf("the bridge says %q %v: run make tools", line, err)
	}
	return port
}
