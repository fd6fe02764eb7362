package mcp_test

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestShellClients: MCP Inspector's command line and mcporter, with which people try servers, find the host's own
// tools and those of a server behind it, over the pipe and over HTTP. Each command is a session of its own.
func TestShellClients(t *testing.T) {
	binary := hosttest.Program(t, "a2e")
	inspector := peer(t, "node_modules", "@modelcontextprotocol", "inspector-cli", "build", "index.js")
	porter := peer(t, "node_modules", "mcporter", "dist", "cli.js")
	greet := map[string]string{"greet": "arguments: [who]\n---\nSay hello to $who, in one line.\n"}
	dir := workDir(t, everythingServer(t), greet)
	// Inspector looks there for its own package.json, and uses it only if there is one
	must.OK(t, os.WriteFile(filepath.Join(dir, "..", "package.json"), []byte("{}"), 0o600))
	url := serveHTTP(t, dir, binary) + "/mcp"
	targets := map[string][2][]string{
		"pipe": {{inspector, binary, "mcp", "serve"}, {"--stdio", binary + " mcp serve", "--name", "a2e"}},
		"HTTP": {{inspector, url, "--transport", "http"}, {"--http-url", url, "--allow-http", "--name", "a2e"}},
	}
	const uri = "demo://resource/static/document/features.md"
	for name, c := range map[string]struct {
		args string // arguments after --method, for Inspector
		says string // a regular expression
	}{
		"Inspector lists tools":     {"tools/list", `(?s)"name": "all__get-sum".*"name": "read_file"`},
		"Inspector calls":           {"tools/call --tool-name all__get-sum --tool-arg a=40 b=2.5", `is 42\.5\.`},
		"Inspector sends Unicode":   {"tools/call --tool-name echo --tool-arg text=Zürich🎉", `Zürich🎉`},
		"Inspector lists resources": {"resources/list", `"uri": "(mcp://all/)?` + uri + `"`},
		"Inspector reads":           {"resources/read --uri " + uri, `"text": "# Everything Server`},
		"Inspector lists prompts":   {"prompts/list", `(?s)"name": "all__args-prompt".*"name": "greet"`},
		"Inspector gets a prompt":   {"prompts/get --prompt-name all__args-prompt --prompt-args city=Ulm", `in Ulm\?`},
		"Inspector gets a skill":    {"prompts/get --prompt-name greet --prompt-args who=Ada", `Say hello to Ada`},
		"Inspector errs":            {"tools/call --tool-name nope", `unknown tool .*nope`},
		"mcporter lists tools":      {"list --json", `(?s)"name": "all__get-sum".*"name": "read_file"`},
		"mcporter calls":            {"call all__get-sum a=40 b=2.5 --output json", `is 42\.5\.`},
		"mcporter sends Unicode":    {"call echo text=Zürich🎉 --output json", `"text": "Zürich🎉"`},
		"mcporter errs":             {"call nope --output json", `unknown tool .*nope`},
		"mcporter sends bad types":  {`call all__get-sum --args {"a":40,"b":"x"} --output json`, `"isError": true`},
	} {
		for way, target := range targets {
			t.Run(name+" by "+way, func(t *testing.T) {
				t.Parallel()
				words := strings.Fields(c.args)
				args := append(append(target[0], "--method"), words...)
				if strings.HasPrefix(name, "mcporter") {
					args = append([]string{porter, words[0]}, append(target[1], words[1:]...)...)
				}
				out, err := program(t, dir, "node", args...).CombinedOutput()
				fails := name == "Inspector errs" // mcporter exits with 0 in this case
				assert.That(t, regexp.MustCompile(c.says).Match(out) && (err != nil) == fails, "%v: %s", err, out)
			})
		}
	}
}

// serveHTTP starts a host that serves HTTP, and returns its address.
func serveHTTP(t *testing.T, dir, binary string) string {
	t.Helper()
	cmd := program(t, dir, binary, "serve", "--http", "127.0.0.1:0")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	told := must.Get(cmd.StderrPipe())(t)
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // the context of the test has ended the host
	for lines := bufio.NewScanner(told); lines.Scan(); {
		if _, address, ok := strings.Cut(lines.Text(), "listens on "); ok {
			return address
		}
	}
	t.Fatal("the host never said where it listens")
	return ""
}
