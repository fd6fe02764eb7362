//go:build unix

package e2e_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
)

const approveChain = `
nodes:
- {node_id: go, kind: approve, message: "Publish?"}
- {node_id: end, kind: tool, name: echo, input: {text: published}, deps: [go]}
`

const ctrlC = "\x03"

// typed runs a command on a terminal. For each pair of talk it waits until the terminal shows the first text, and
// types the second.
func typed(t *testing.T, dir string, args []string, talk ...[2]string) (shown string, code int) {
	t.Helper()
	cmd := command(t, dir, "./a2e", args...)
	cmd.Env = append(cmd.Env, "TERM=xterm")
	terminal := must.Get(pty.StartWithSize(cmd, &pty.Winsize{Rows: 30, Cols: 200}))(t)
	defer terminal.Close()
	var text strings.Builder
	buf := make([]byte, 4096)
	for from := 0; ; {
		n, err := terminal.Read(buf) // fails once the command has ended
		text.Write(buf[:n])
		if len(talk) > 0 {
			if at := strings.Index(text.String()[from:], talk[0][0]); at >= 0 {
				from = text.Len()
				keys := talk[0][1]
				if keys != ctrlC {
					keys += "\n"
				}
				must.Get(io.WriteString(terminal, keys))(t)
				talk = talk[1:]
			}
		}
		if err != nil {
			break
		}
	}
	_ = cmd.Wait() // the caller checks the exit status
	must.That(t, len(talk) == 0, "%q was not asked: %q", talk, text.String())
	return text.String(), cmd.ProcessState.ExitCode()
}

// TestChainApprovalOnATerminal: a chain asks the person at its terminal for approval, and does not fail at once.
func TestChainApprovalOnATerminal(t *testing.T) {
	t.Parallel()
	dir := chainDir(t, map[string]string{"deploy.yaml": approveChain})
	for _, tc := range []struct {
		answers []string
		code    int
		says    string
	}{
		{[]string{"y"}, 0, `"text": "published"`},
		{[]string{"what", "YES"}, 0, `"text": "published"`},
		{[]string{"n"}, 1, "it was denied (agent)"},
		{[]string{""}, 1, "it was denied (agent)"},
	} {
		var talk [][2]string
		for _, answer := range tc.answers {
			talk = append(talk, [2]string{"Publish? [y/N]", answer})
		}
		shown, code := typed(t, dir, []string{"chain", "run", "deploy.yaml"}, talk...)
		assert.That(t, code == tc.code && strings.Contains(shown, tc.says), "%q: exit status %d: %q", tc.answers, code,
			shown)
	}
}

// TestChainApprovalInterrupted: Ctrl-C at the question ends the line of the question, before the command says how the
// chain ended.
func TestChainApprovalInterrupted(t *testing.T) {
	t.Parallel()
	dir := chainDir(t, map[string]string{"deploy.yaml": approveChain})
	shown, code := typed(t, dir, []string{"chain", "run", "deploy.yaml"}, [2]string{"Publish? [y/N] ", ctrlC})
	assert.That(t, code == 130 && strings.Contains(shown, "Publish? [y/N] ^C\r\n"), "exit status %d: %q", code, shown)
}

// TestChainApprovalFromElsewhere: in a pipe the command that approves the chain from elsewhere is printed once, and
// the chain waits.
func TestChainApprovalFromElsewhere(t *testing.T) {
	t.Parallel()
	dir := chainDir(t, map[string]string{"deploy.yaml": approveChain})
	cmd := command(t, dir, "./a2e", "chain", "run", "deploy.yaml", "-q")
	log := must.Get(os.Create(filepath.Join(dir, "log")))(t)
	defer log.Close()
	var stdout strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, log
	must.OK(t, cmd.Start())
	line := regexp.MustCompile(`(?m)a2e (chain approve deploy-[0-9a-f]{8} --node go) \(--deny refuses\)$`)
	var said []string
	poll.Eventually(t, "the command is said", func() bool {
		said = line.FindStringSubmatch(string(must.Get(os.ReadFile(log.Name()))(t)))
		return said != nil
	})
	var kept []struct {
		Timeout int `json:"timeout"`
	}
	must.OK(t, json.Unmarshal([]byte(run(t, dir, nil, "chain", "list", "--json").want(t, 0, "").stdout), &kept))
	assert.That(t, len(kept) == 1 && kept[0].Timeout == 7*24*3600, "the time for a person to decide: %+v", kept)
	r := run(t, dir, nil, strings.Fields(said[1])...)
	assert.That(t, r.code == 0, "approve: %+v", r)
	err := cmd.Wait()
	text := string(must.Get(os.ReadFile(log.Name()))(t))
	assert.That(t, err == nil && stdout.String() == "{\n  \"text\": \"published\"\n}\n", "%v, %q, %q", err,
		stdout.String(), text)
	assert.Equal(t, strings.Count(text, "waits for approval: Publish?"), 1, text)
}

// TestChainApprovalWithinALimit: --timeout also holds while the chain waits for approval, and the list does not call
// the chain waiting afterwards.
func TestChainApprovalWithinALimit(t *testing.T) {
	t.Parallel()
	dir := chainDir(t, map[string]string{"deploy.yaml": approveChain})
	run(t, dir, nil, "chain", "run", "deploy.yaml", "-q", "--timeout", "1", "--id", "x").want(t, 1,
		"within its timeout")
	assert.Contains(t, run(t, dir, nil, "chain", "list").want(t, 0, "").stdout, "\nx      timeout  0 of 2 nodes "+
		"done, not approved: Publish?\n")
	assert.Contains(t, run(t, dir, nil, "chain", "show", "x").want(t, 0, "").stdout, "not approved")
}

// TestServerAsksOnATerminal: the person at the terminal answers what an MCP server asks the user, or a model.
func TestServerAsksOnATerminal(t *testing.T) {
	t.Parallel()
	peers := must.Get(filepath.Abs(root + "/testdata/peers/node_modules"))(t)
	script := filepath.Join(peers, "@modelcontextprotocol/server-everything/dist/index.js")
	dir := chainDir(t, map[string]string{"c.yaml": fmt.Sprintf("mcpServers: {all: {command: node, args: [%q], read: "+
		"[%q]}}\n", script, peers)})
	call := func(tool string, args ...string) []string {
		return append([]string{"-c", "c.yaml", "tools", "call", "--timeout", "60", "all__" + tool}, args...)
	}
	shown, code := typed(t, dir, call("trigger-sampling-request", "prompt=say hello"),
		[2]string{"say hello", "hello there"}, [2]string{"> ", ""})
	assert.That(t, code == 0 && strings.Contains(shown, "hello there"), "exit status %d: %q", code, shown)
	shown, code = typed(t, dir, call("trigger-elicitation-request"), [2]string{"required:", "Ada"},
		[2]string{"y or n", "\x04"})
	assert.That(t, strings.Contains(shown, "all asks: ") && strings.Contains(shown, "cancelled"), "exit status %d: %q",
		code, shown)
}
