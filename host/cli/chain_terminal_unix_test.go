//go:build unix

package cli_test

import (
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"io"
	"strings"
	"testing"

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
