//go:build unix

package cli_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"

	"github.com/creack/pty"
)

// On a terminal the nodes are drawn in place, while the result alone goes to stdout.
func TestChainRunOnATerminal(t *testing.T) {
	t.Parallel()
	dir := chainDir(t, map[string]string{"greet.yaml": greetChain})
	terminal, stderr, err := pty.Open()
	must.OK(t, err)
	defer terminal.Close()
	cmd := command(t, dir, "./a2e", "chain", "run", "greet.yaml", "name=ada")
	var stdout strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, stderr
	shown := make(chan string)
	go func() {
		text, _ := io.ReadAll(terminal) // ends in an error when the other end is closed
		shown <- string(text)
	}()
	err = cmd.Run()
	stderr.Close()
	text := <-shown
	assert.That(t, err == nil && stdout.String() == "{\n  \"text\": \"hello ada\"\n}\n", "%v, %q", err, stdout.String())
	if !strings.Contains(text, "✓\x1b[0m join") || !strings.Contains(text, "2 of 2 nodes done") || !strings.Contains(text, "\x1b[3A") {
		t.Errorf("the terminal got %q", text)
	}
}

// On a terminal the person is asked what a chain waits for, before it goes on.
func TestChainResumeOnATerminal(t *testing.T) {
	t.Parallel()
	dir := chainDir(t, map[string]string{"c.yaml": `
nodes:
- {node_id: slow, kind: proc, name: sh, input: {args: [-c, "touch begun; sleep 600"]}}
- {node_id: go, kind: approve, message: "Go on?", timeout: 1, deps: [slow]}
`})
	killed := command(t, dir, "./a2e", "chain", "run", "c.yaml", "--id", "x", "-q")
	must.OK(t, killed.Start())
	poll.Eventually(t, "the node runs", func() bool {
		_, err := os.Stat(filepath.Join(dir, "begun"))
		return err == nil
	})
	must.OK(t, killed.Process.Kill())
	_ = killed.Wait() // it was killed
	poll.Eventually(t, "its children have gone too", func() bool {
		return strings.Contains(run(t, dir, nil, "chain", "list").stdout, "interrupted")
	})
	on := func(typed string, args ...string) string {
		terminal, tty, err := pty.Open()
		must.OK(t, err)
		defer terminal.Close()
		cmd := command(t, dir, "./a2e", append([]string{"chain", "resume", "x"}, args...)...)
		cmd.Stdin, cmd.Stderr = tty, tty
		must.Get(io.WriteString(terminal, typed))(t)
		shown := make(chan string)
		go func() {
			text, _ := io.ReadAll(terminal) // ends in an error when the other end is closed
			shown <- string(text)
		}()
		out, _ := cmd.Output()
		tty.Close()
		return <-shown + string(out)
	}
	got := on("\nwhat\ndone\n")
	assert.That(t, strings.Count(got, "slow was under way") == 1 && strings.Contains(got, "nobody knows"), "left open: %q", got)
	got = on("what\ndone\n")
	assert.That(t, strings.Count(got, "slow was under way") == 2 && strings.Contains(got, "nobody decided"), "decided: %q", got)
	got = on("maybe\ny\n")
	assert.That(t, strings.Count(got, "go: Go on? (y/n)") == 2 && strings.HasSuffix(got, "\"by\": \"person\"\n}\n"), "approved: %q", got)
}
