package e2e_test

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

// shMCP is an MCP server that needs only a shell. It lists the tools in $TOOLS.
const shMCP = `
TOOLS=${TOOLS:-'{"name":"add","inputSchema":{"type":"object"}}'}
while read -r line; do
  id=$(printf %s "$line" | sed -n 's/.*"id": *\([0-9]*\).*/\1/p')
  case $line in
  *'"initialize"'*)
    r='"protocolVersion":"2025-06-18","capabilities":{"tools":{},"resources":{},"prompts":{}}'
    r=$r',"serverInfo":{"name":"tiny server","version":"1.2"}'
    ;;
  *'"tools/list"'*) r="\"tools\":[$TOOLS]" ;;
  *'"resources/list"'*) r='"resources":[{"uri":"a://b","name":"the doc"}]' ;;
  *'"resources/templates/list"'*) r='"resourceTemplates":[]' ;;
  *'"prompts/list"'*) r='"prompts":[{"name":"greet"},{"name":"part"}]' ;;
  *) r= ;;
  esac
  [ -z "$id" ] || printf '{"jsonrpc":"2.0","id":%s,"result":{%s}}\n' "$id" "$r"
done
`

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

// TestMCPServe: an MCP client has the host's tools and files, from `a2e mcp serve` and from `a2e serve`, which speaks
// A2E as well.
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
			res, err := session.CallTool(t.Context(), &mcp.CallToolParams{
				Name:      "grep",
				Arguments: map[string]any{"pattern": "note"},
			})
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
			if read, err := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err != nil ||
				read.Contents[0].Text != "# note\n" {
				t.Errorf("%s: %v %v", uri, read, err)
			}
			assert.OK(t, session.Close())
			assert.Equal(t, cmd.ProcessState.ExitCode(), 0, "exit status")
		})
	}
}

// TestMCPServeToken: a client that starts `a2e mcp serve` needs no token. On the pipe of `a2e serve`, which A2E
// shares, it needs one.
func TestMCPServeToken(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "auth_token: hunter2\n")
	session, _ := mcpClient(t, dir, "mcp", "serve")
	assert.That(t, session.Ping(t.Context(), nil) == nil, "a2e mcp serve does not answer")
	cmd := command(t, dir, "./a2e")
	_, err := mcp.NewClient(&mcp.Implementation{Name: "tester", Version: "1"}, nil).
		Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	assert.That(t, err != nil && strings.Contains(err.Error(), "unauthorized") &&
		!strings.Contains(err.Error(), "hunter2"),
		"without the token: %v", err)
}

// TestMCPServeSignal: a signal ends the program once the running calls are answered.
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

// TestInterruptedCommands: Ctrl-C ends a command that waits for a server or a tool, with exit status 130.
func TestInterruptedCommands(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	config := `{mcpServers: {slow: {command: sh, args: [-c, "echo > ready; sleep 60"]}}, plugins: {tools: {allowed_commands: [sh]}}}`
	must.OK(t, os.WriteFile(filepath.Join(dir, "slow.yaml"), []byte(config), 0o600))
	for _, args := range [][]string{
		{"tools", "call", "slow__x"},
		{"tools", "list"},
		{"mcp", "list"},
		{"tools", "call", "run_command", `command=["sh","-c","echo > ready; sleep 60"]`},
	} {
		_ = os.Remove(filepath.Join(dir, "ready"))
		cmd := command(t, dir, "./a2e", append([]string{"--config", "slow.yaml"}, args...)...)
		must.OK(t, cmd.Start())
		defer func() { _ = cmd.Process.Kill() }() // fails if it has ended
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

// TestMCPAddAndRemove: `mcp add` and `mcp remove` change nothing else in .mcp.json. A file that was trusted stays
// trusted, as its owner typed the change.
func TestMCPAddAndRemove(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	run(t, dir, nil, "mcp", "add", "--no-try", "files", "--read", "/srv", "--", "npx", "-y", "@scope/x", ".").want(t, 0,
		"trusted as it is")
	assert.Equal(t, textOf(t, dir, ".mcp.json"), `{
  "mcpServers": {
    "files": {
      "command": "npx",
      "args": [
        "-y",
        "@scope/x",
        "."
      ],
      "read": [
        "/srv"
      ]
    }
  }
}
`)
	run(t, dir, nil, "mcp", "remove", "files").want(t, 0, "removed: files")
	assert.Equal(t, textOf(t, dir, ".mcp.json"), "{\n  \"mcpServers\": {}\n}\n")

	const others = "{\n\t\"zeta\": 1.50,\n\t\"mcpServers\": {\n\t\t\"z\": {\n\t\t\t\"command\": " +
		"\"x\",\n\t\t\t\"note\": \"<é>\"\n\t\t}\n\t},\n\t\"alpha\": {}\n}\n"
	writeFile(t, dir, ".mcp.json", others)
	run(t, dir, nil, "mcp", "add", "--no-try", "a", "--", "npx").want(t, 0, "next: a2e trust")
	run(t, dir, nil, "mcp", "list").want(t, 0, "not trusted (it has changed since `a2e trust`), so it is not used; "+
		"it asks for mcpServers.z, mcpServers.a: `a2e trust` shows all of it and accepts it")
	assert.Contains(t, textOf(t, dir, ".mcp.json"), "\t\t},\n\t\t\"a\": {\n\t\t\t\"command\": "+
		"\"npx\"\n\t\t}\n\t},\n\t\"alpha\"")
	run(t, dir, nil, "mcp", "remove", "a").want(t, 0, "removed: a").want(t, 0, "next: a2e trust")
	assert.Equal(t, textOf(t, dir, ".mcp.json"), others)

	writeFile(t, dir, ".mcp.json", "")
	run(t, dir, nil, "trust").want(t, 3, "not valid JSON")
	writeFile(t, dir, ".mcp.json", `{"mcpServers": null}`)
	run(t, dir, nil, "mcp", "add", "--no-try", "a", "--", "npx").want(t, 0, "added: a")
	must.OK(t, os.Remove(filepath.Join(dir, ".mcp.json")))
	run(t, dir, nil, "mcp", "add", "--no-try", "gh", "--env", "TOKEN", "--env", "KEY=abc123secret", "--",
		"gh-mcp").want(t, 0, "the value of KEY is now in that file")
	run(t, dir, nil, "mcp", "add", "--no-try", "bare", "http://127.0.0.1:1/mcp").want(t, 0, "")
	servers := string(must.Get(os.ReadFile(filepath.Join(dir, ".mcp.json")))(t))
	assert.That(t, strings.Contains(servers, `"url": "http://127.0.0.1:1/mcp"`), "a URL became %s", servers)
	run(t, dir, nil, "mcp", "remove", "bare").want(t, 0, "")
	run(t, dir, nil, "mcp", "add", "--no-try", "web", "--url", "https://x.example.org/mcp", "--header",
		"Authorization: Bearer ${T}").want(t, 0, "it was trusted, and stays trusted with this change")
	text := textOf(t, dir, ".mcp.json")
	for _, want := range []string{`"TOKEN": "${TOKEN}"`, `"type": "http"`, `"Authorization": "Bearer ${T}"`} {
		assert.Contains(t, text, want)
	}
	assert.Contains(t, run(t, dir, nil, "trust", "--list").want(t, 0, "").stdout, "trusted")
	run(t, dir, nil, "mcp", "remove", "gg").want(t, 1,
		`there is no MCP server "gg"; did you mean "gh"? there are: gh, web`)
}

// TestServersOfAllFiles: servers in .mcp.json are used even if other entries there do not fit. Of servers with one
// name that of the config wins, then that of .mcp.json, then that of the user.
func TestServersOfAllFiles(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeFile(t, dir, "s.sh", shMCP)
	writeFile(t, dir, "a2e.yaml", "mcpServers: {one: {command: sh, args: [s.sh, config]}}\n")
	writeFile(t, dir, ".mcp.json", `{"inputs": 3, "mcpServers": {
		"one": {"command": "sh", "args": ["s.sh", "file"]}, "two": {"type": "stdio", "command": "sh", "args": ["${NONE:-s.sh}"], "env": {"A_TOKEN": "hush-hush-81174"}},
		"a2e": {"command": "/usr/bin/a2e", "args": ["mcp", "serve"]},
		"unset": {"command": "sh", "env": {"K": "${A2E_TEST_UNSET}"}},
		"odd": {"type": "ws", "url": "wss://x"}, "argz": {"command": "sh", "argz": []}}}`)
	put(t, dir, block{
		mark: "with: .config/a2e/mcp.json",
		text: `{"mcpServers": {"two": {"command": "gone"}, "three": {"command": "sh", "args": ["s.sh"]}}}`,
	})
	out := run(t, dir, nil, "mcp", "list").want(t, 1, "a2e.yaml: not trusted").want(t, 1, ".mcp.json: not trusted")
	assert.That(t, strings.Contains(out.stdout, "three  ") && strings.Contains(out.stderr,
		"it asks for mcpServers.one, mcpServers.two, mcpServers.a2e"), "%s%s", out.stdout, out.stderr)
	out = run(t, dir, nil, "trust").want(t, 0, "trusted until it changes: ")
	out.has(t, "a2e.yaml, once it is trusted:", ".mcp.json, once it is trusted:", "mcpServers.unset.env.K: "+
		"\"${A2E_TEST_UNSET}\"", "A2E_TEST_UNSET")
	assert.That(t, !strings.Contains(out.stdout+out.stderr, "hush"), "%s", out.stdout)
	out = run(t, dir, nil, "mcp", "list").want(t, 0,
		`.mcp.json:4:3: the MCP server "unset" is left out: unset.env.K: the variable A2E_TEST_UNSET is not set`).
		want(t, 0, `.mcp.json:5:3: the MCP server "odd" is left out: `).want(t, 0,
		`argz: unknown option of a server: did you mean "args"?`)
	out.has(t, "one     connected", "two     connected", "three   connected")
	assert.Equal(t, strings.Count(out.stdout, "connected"), 3)
	run(t, dir, nil, "mcp", "add", "one", "--", "b").want(t, 1, `.mcp.json has an MCP server "one" already`)
	run(t, dir, nil, "mcp", "remove", "one").want(t, 0, "removed: one")
	run(t, dir, nil, "mcp", "remove", "one").want(t, 1, `is not in .mcp.json but in a2e.yaml:1:14; take it out there`)
	run(t, dir, nil, "mcp", "add", "one", "--", "b").want(t, 1,
		`a2e.yaml:1:14: there is an MCP server "one" already, which wins`)
	run(t, dir, nil, "mcp", "add", "--no-try", "three", "--", "b").want(t, 0, "added: three") // it wins over the user's

	writeFile(t, dir, "named.yaml", "host_id: x\n")
	out = run(t, dir, nil, "-c", "named.yaml", "mcp", "list")
	assert.That(t, strings.Contains(out.stdout, "two  ") && !strings.Contains(out.stdout, "one  "), "%s", out.stdout)
	writeFile(t, dir, "list.yaml", "plugins: [{name: tools, type: tools}]\n")
	run(t, dir, nil, "-c", "list.yaml", "mcp", "list").want(t, 3, "no plugin of the config provides mcp")
}

// TestMCPAddMistakes: each mistake is reported, and changes no file.
func TestMCPAddMistakes(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeFile(t, dir, "broken.yaml", "mcpServers: {")
	writeFile(t, dir, "off.yaml", "plugins: {mcp: false}\n")
	const text = `{"mcpServers": {"a": {"command": "b"}}}`
	writeFile(t, dir, ".mcp.json", text)
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
		{"mcp add b -c broken.yaml -- b", 3, "broken.yaml:2:1: not valid YAML"},
		{"mcp add b -c off.yaml -- b", 3, "the plugin mcp is switched off"},
		{"mcp remove b", 1, `there is no MCP server "b"`},
	} {
		args := strings.Fields(c.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "|", " ")
		}
		run(t, dir, nil, args...).want(t, c.code, c.says)
	}
	assert.Equal(t, textOf(t, dir, ".mcp.json"), text)
	for _, text := range []string{"{", "[]", `{"mcpServers": []}`, `{"mcpServers": {"a": {}, "a": {}}}`, "// a\n{}"} {
		writeFile(t, dir, ".mcp.json", text)
		run(t, dir, nil, "mcp", "add", "b", "--", "b").want(t, 3, ".mcp.json: it should be JSON such as")
		assert.Equal(t, textOf(t, dir, ".mcp.json"), text)
	}
	must.OK(t, os.Remove(filepath.Join(dir, ".mcp.json")), os.Mkdir(filepath.Join(dir, ".mcp.json"), 0o755))
	run(t, dir, nil, "mcp", "add", "b", "--", "b").want(t, 3, "not a regular file")
}

// TestMCPAddWritesWhereItShould: the user's own file is readable for the user alone, and .mcp.json is written into
// the workspace.
func TestMCPAddWritesWhereItShould(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	out := run(t, dir, nil, "mcp", "add", "--no-try", "a", "--user", "--", "b").want(t, 0, "added: a")
	assert.That(t, !strings.Contains(out.stderr, "a2e trust"), "%s", out.stderr)
	own := filepath.Join(dir, ".config", "a2e", "mcp.json")
	if runtime.GOOS != "windows" {
		assert.Equal(t, must.Get(os.Stat(own))(t).Mode().Perm(), 0o600)
	}
	run(t, dir, nil, "mcp", "list").want(t, 1, "a is not connected")
	run(t, dir, nil, "mcp", "remove", "a", "--user").want(t, 0, "removed: a")

	must.OK(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	writeFile(t, dir, "c.yaml", "workspace: sub\n")
	run(t, dir, nil, "-c", "c.yaml", "mcp", "add", "--no-try", "a", "--", "b").want(t, 0, "sub/.mcp.json")
	run(t, dir, nil, "-c", "c.yaml", "mcp", "list").want(t, 1, "a is not connected")
	writeFile(t, filepath.Join(dir, "sub"), ".mcp.json", `{"mcpServers": {"c": {"command": "b"}}}`)
	run(t, dir, nil, "-c", "c.yaml", "mcp", "list").want(t, 0, "`a2e trust sub` shows all of it and accepts it")
	run(t, dir, nil, "trust", "sub").want(t, 0, "sub/.mcp.json")
	run(t, dir, nil, "-c", "c.yaml", "mcp", "list").want(t, 1, "c is not connected")
	run(t, dir, nil, "trust", "--remove", "sub").want(t, 0, "no longer trusted")
	run(t, dir, nil, "-c", "c.yaml", "mcp", "list").want(t, 0, "nobody has run")
}

// TestMCPAddAtOnce: of several commands that add a server at once, each has its server in the file or fails.
func TestMCPAddAtOnce(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	var all sync.WaitGroup
	var added atomic.Int64
	for i := range 6 {
		all.Go(func() {
			if run(t, dir, nil, "mcp", "add", "--no-try", fmt.Sprint("s", i), "--", "b").code == 0 {
				added.Add(1)
			}
		})
	}
	all.Wait()
	assert.Equal(t, int64(strings.Count(textOf(t, dir, ".mcp.json"), `"command": "b"`)), added.Load())
}

// TestNoLinkOfTheFolderIsWrittenThrough: no command writes through a link in the folder, which may lead to any file.
func TestNoLinkOfTheFolderIsWrittenThrough(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeFile(t, dir, "other", "{}")
	for _, name := range folderFiles {
		must.OK(t, os.Symlink("other", filepath.Join(dir, name)))
	}
	run(t, dir, nil, "init", "--force").want(t, 3, "a2e.yaml is a link")
	run(t, dir, nil, "mcp", "add", "a", "--", "b").want(t, 3, ".mcp.json is a link")
	assert.Equal(t, textOf(t, dir, "other"), "{}")
}

// folderFiles are the files of a folder that are used once they are trusted.
var folderFiles = []string{"a2e.yaml", ".mcp.json"}
