//go:build unix

package e2e_test

import (
	"io"
	"regexp"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestLogTellsOfChildrenAndDenials: at the level debug the log has the start and end of each child, and each denial.
// At the level info it has neither.
func TestLogTellsOfChildrenAndDenials(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]int{"debug": 1, "info": 0} {
		host := start(t, workDir(t), "serve", "--log-level", level)
		host.send(`{"type":"handshake/req","id":"h","agent_caps":["tools"]}`, call("t", "read_file",
			`{"path":"../canary"}`))
		host.answer("t")
		host.send(call("r", "run_command", `{"command":["sh","-c","exit 3"]}`))
		host.answer("r")
		must.OK(t, host.stdin.Close())
		_, _ = io.Copy(io.Discard, host.stdout)
		assert.Equal(t, host.exit(), 0, "the host ends with")
		for _, line := range []string{
			`"type":"tool/call/req","name":"read_file","text":"[^\n]*leads out of the workspace[^\n]*"message":"denied"`,
			`"name":"[^"\n]*/\w*sh","pid":\d+,[^\n]*"message":"a child process was started"`,
			`"name":"[^"\n]*/\w*sh","text":"exit status 3","pid":\d+,"ms":[^\n]*"message":"a child process has ended"`,
		} {
			got := len(regexp.MustCompile(line).FindAllString(host.stderr.String(), -1))
			assert.Equal(t, got, want, "lines like %s at the level %s of\n%s", line, level, host.stderr.String())
		}
	}
}
