package cli_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
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

func textOf(t *testing.T, path ...string) string {
	t.Helper()
	return string(must.Get(os.ReadFile(filepath.Join(path...)))(t))
}

// Servers come into the folder's config and out of it. One that was trusted stays so: what this
// command changes is what its owner typed.
func TestMCPAddAndRemove(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	run(t, dir, nil, "mcp", "add", "files", "--", "npx", "-y", "@scope/x", ".").want(t, 0, "next: a2e trust")
	assert.Equal(t, textOf(t, dir, "a2e.yaml"), "mcpServers:\n  files:\n    command: npx\n    args: [-y, \"@scope/x\", .]\n")
	out := run(t, dir, nil, "mcp", "remove", "files").want(t, 0, "removed: files")
	assert.That(t, !strings.Contains(out.stderr, "trusted"), "nobody trusted it: %s", out.stderr)

	writeConfig(t, dir, "# mine\nhost_id: x # me\n")
	run(t, dir, nil, "mcp", "add", "gh", "--env", "TOKEN", "--env", "KEY=abc123secret", "--", "gh-mcp").want(t, 0, "the value of KEY is now in that file")
	run(t, dir, nil, "mcp", "add", "web", "--url", "https://x.example.org/mcp", "--header", "Authorization: Bearer ${T}").want(t, 0, "it was trusted, and stays trusted with this change")
	assert.Equal(t, textOf(t, dir, "a2e.yaml"), "# mine\nhost_id: x # me\nmcpServers:\n  gh:\n    command: gh-mcp\n    env:\n      TOKEN: \"${TOKEN}\"\n      KEY: abc123secret\n"+
		"  web:\n    url: \"https://x.example.org/mcp\"\n    headers:\n      Authorization: \"Bearer ${T}\"\n")
	assert.Contains(t, run(t, dir, nil, "trust", "--list").want(t, 0, "").stdout, "trusted")
	run(t, dir, nil, "mcp", "remove", "gg").want(t, 1, `there is no MCP server "gg"; did you mean "gh"? there are: gh, web`)
	run(t, dir, nil, "mcp", "remove", "gh").want(t, 0, "removed: gh")
	run(t, dir, nil, "mcp", "remove", "web").want(t, 0, "removed: web")
	assert.Equal(t, textOf(t, dir, "a2e.yaml"), "# mine\nhost_id: x # me\nmcpServers: {}\n")

	writeFile(t, dir, "a2e.yaml", "host_id: y\n") // not as it was trusted
	out = run(t, dir, nil, "mcp", "add", "--no-try", "files", "--", "npx").want(t, 0, "next: a2e trust")
	assert.Contains(t, run(t, dir, nil, "trust", "--list").want(t, 0, "").stdout, "changed")
}

// Each mistake is told, and changes nothing.
func TestMCPAddMistakes(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeFile(t, dir, "broken.yaml", "mcpServers: {")
	writeFile(t, dir, "off.yaml", "plugins: {mcp: false}\n")
	writeFile(t, dir, "list.yaml", "mcpServers: [{server_id: a, command: b}]\n")
	writeConfig(t, dir, "mcpServers: {a: {command: b}}\n")
	must.OK(t, os.Mkdir(filepath.Join(dir, "folder"), 0o755))
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"mcp add", 2, "<name>"},
		{"mcp add b", 2, "a2e mcp add b -- npx -y @scope/server"},
		{"mcp add a -- b", 1, `has an MCP server "a" already; remove it first (a2e mcp remove a)`},
		{"mcp add a/b -- b", 2, `"a-b" would do`},
		{"mcp add a__b -- b", 2, "which parts the server from the tool"},
		{"mcp add b -- npx|-y|foo", 2, "a2e mcp add b -- npx -y foo"},
		{"mcp add b --url x.org", 2, "should begin with https:// or http://"},
		{"mcp add b --url https://x.org -- b", 2, "--url: a command stands behind --"},
		{"mcp add b --header A:b -- b", 2, "--header is for --url"},
		{"mcp add b --url https://x.org --env A", 2, "--env is for a command"},
		{"mcp add b --url https://x.org --header A", 2, "Authorization: Bearer ${TOKEN}"},
		{"mcp add b --url https://x.org --header Host:x", 2, "the header Host cannot be set"},
		{"mcp add b --env A-B=1 -- b", 2, "should be letters, digits and _"},
		{"mcp add b --env A=1 --env A=2 -- b", 2, "A is given twice"},
		{"mcp add b --user -c a2e.yaml -- b", 2, "--user: --config names a file"},
		{"mcp add b -c broken.yaml -- b", 3, "broken.yaml:2:1: not valid YAML"},
		{"mcp add b -c off.yaml -- b", 3, "off.yaml:1: the plugin mcp is switched off"},
		{"mcp add b -c list.yaml -- b", 3, "put this there:\nb:\n  command: b"},
		{"mcp add b -c folder -- b", 3, "not a regular file"},
		{"mcp add b -c gone/x.yaml -- b", 1, "no such file"},
		{"mcp remove a -c list.yaml", 3, "the servers are a list here"},
		{"mcp remove a -c none.yaml", 3, "there is no config none.yaml"},
	} {
		args := strings.Fields(c.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "|", " ")
		}
		run(t, dir, nil, args...).want(t, c.code, c.says)
	}
	for name, want := range map[string]string{"a2e.yaml": "mcpServers: {a: {command: b}}\n", "broken.yaml": "mcpServers: {", "off.yaml": "plugins: {mcp: false}\n"} {
		assert.Equal(t, textOf(t, dir, name), want, name)
	}
}

// A link is followed, the file keeps its rights, and the user's own file is this user's alone.
func TestMCPAddWritesWhereItShould(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("there are no such rights")
	}
	dir := workDir(t)
	writeFile(t, dir, "real.yaml", "host_id: x\n")
	must.OK(t, os.Chmod(filepath.Join(dir, "real.yaml"), 0o640))
	must.OK(t, os.Symlink("real.yaml", filepath.Join(dir, "link.yaml")))
	run(t, dir, nil, "mcp", "add", "a", "-c", "link.yaml", "--", "b").want(t, 0, "added: a")
	assert.Contains(t, textOf(t, dir, "real.yaml"), "host_id: x\nmcpServers:\n  a:\n")
	assert.Equal(t, must.Get(os.Stat(filepath.Join(dir, "real.yaml")))(t).Mode().Perm(), 0o640)
	assert.That(t, must.Get(os.Lstat(filepath.Join(dir, "link.yaml")))(t).Mode()&os.ModeSymlink != 0, "the link was replaced")

	out := run(t, dir, nil, "mcp", "add", "a", "--user", "--", "b").want(t, 0, "added: a")
	assert.That(t, !strings.Contains(out.stderr, "a2e trust"), "%s", out.stderr)
	own := filepath.Join(dir, ".config", "a2e", "config.yaml")
	assert.Equal(t, must.Get(os.Stat(own))(t).Mode().Perm(), 0o600)
	run(t, dir, nil, "check").want(t, 0, "")
	run(t, dir, nil, "mcp", "remove", "a", "--user").want(t, 0, "removed: a")
}

// Of several that change a config at once each is told what became of its change.
func TestMCPAddAtOnce(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	var all sync.WaitGroup
	var added atomic.Int64
	for i := range 6 {
		all.Go(func() {
			if run(t, dir, nil, "mcp", "add", fmt.Sprint("s", i), "--", "b").code == 0 {
				added.Add(1)
			}
		})
	}
	all.Wait()
	assert.Equal(t, int64(strings.Count(textOf(t, dir, "a2e.yaml"), "command: b")), added.Load())
}

// The folder's own config that is a link may lead to any file.
func TestMCPAddFollowsNoLinkOfTheFolder(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeFile(t, dir, "other", "host_id: x\n")
	must.OK(t, os.Symlink("other", filepath.Join(dir, "a2e.yaml")))
	run(t, dir, nil, "init", "--force").want(t, 3, "a2e.yaml is a link")
	run(t, dir, nil, "mcp", "add", "a", "--", "b").want(t, 3, "a2e.yaml is a link")
	assert.Equal(t, textOf(t, dir, "other"), "host_id: x\n")
}

// slowMCP is an MCP server that needs longer to start than most.
const slowMCP = `
import json, sys, time
time.sleep(6)
lists = {"tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}, "prompts/list": {"prompts": [{"name": "p"}]},
    "resources/list": {"resources": [{"uri": "x://r", "name": "r"}]},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "x://{t}", "name": "t"}]}}
for line in sys.stdin:
    m = json.loads(line)
    result = lists.get(m["method"], {})
    if m["method"] == "initialize":
        result = {"protocolVersion": m["params"]["protocolVersion"], "serverInfo": {"name": "slow", "version": "1"},
            "capabilities": {"tools": {}, "prompts": {}, "resources": {}}}
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": result}), flush=True)
`

// TestMCPServeWaitsForServers: the first lists of a client have what a server offers that is still starting; one that
// cannot start is not waited for.
func TestMCPServeWaitsForServers(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]string{
		"tools/list": "slow__t", "prompts/list": "slow__p", "resources/list": "x://r", "resources/templates/list": "x://{t}",
	} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			dir := workDir(t)
			writeFile(t, dir, "slow.py", slowMCP)
			writeConfig(t, dir, "mcpServers: {slow: {command: python3, args: [slow.py]}, none: {command: ./none}}\n")
			l := start(t, dir, "mcp", "serve")
			must.Get(io.WriteString(l.stdin, fmt.Sprintf(mcpHello, "tester", "")+"\n"))(t)
			must.Get(l.stdout.ReadString('\n'))(t)
			must.Get(io.WriteString(l.stdin, `{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`+"\n"))(t)
			answer := ""
			for !strings.Contains(answer, `"id":1,`) {
				answer = must.Get(l.stdout.ReadString('\n'))(t)
			}
			assert.Contains(t, answer, want)
		})
	}
}

// TestMCPServeParallel: as many calls run at once as the page says, and as the config says where it does.
func TestMCPServeParallel(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]int{"": 16, "max_parallel: 2\n": 2} {
		dir := workDir(t)
		if config != "" {
			writeConfig(t, dir, config)
		}
		l := start(t, dir, "mcp", "serve")
		lines := fmt.Sprintf(mcpHello, "tester", "") + "\n"
		for i := range want + 2 {
			lines += fmt.Sprintf(`{"jsonrpc":"2.0","id":"%d","method":"tools/call","params":{"name":"run_command","arguments":`+
				`{"command":["sh","-c","echo > begun.%d; until [ -e go ]; do sleep 0.05; done"]}}}`+"\n", i, i)
		}
		must.Get(io.WriteString(l.stdin, lines))(t)
		begun := func() int { return len(must.Get(filepath.Glob(filepath.Join(dir, "begun.*")))(t)) }
		hosttest.Eventually(t, "the calls begin", func() bool { return begun() >= want })
		must.Get(io.WriteString(l.stdin, `{"jsonrpc":"2.0","id":"list","method":"tools/list"}`+"\n"))(t)
		for line := ""; !strings.Contains(line, `"id":"list"`); {
			line = must.Get(l.stdout.ReadString('\n'))(t)
		}
		assert.Equal(t, begun(), want, "%q: … calls run at once", config)
		writeFile(t, dir, "go", "")
		hosttest.Eventually(t, "the others begin", func() bool { return begun() == want+2 })
	}
}
