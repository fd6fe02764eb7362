package e2e_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// hello opens a session with two capabilities.
const hello = `{"type":"handshake/req","id":"h","agent_id":"test","agent_caps":["tools","env"]}`

// live is a running host and its pipes.
type live struct {
	t      testing.TB
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	pipe   io.Closer // the pipe that stdout reads
	stderr bytes.Buffer
	passed map[string]map[string]any // by req_id: answers that were read, but not asked for yet
}

// start runs the binary in dir. The host ends with the test at the latest.
func start(t testing.TB, dir string, args ...string) *live {
	t.Helper()
	return startCommand(t, command(t, dir, "./a2e", args...))
}

// startCommand starts a command that is prepared, like start.
func startCommand(t testing.TB, cmd *exec.Cmd) *live {
	t.Helper()
	l := &live{t: t, cmd: cmd, passed: map[string]map[string]any{}}
	l.cmd.Stderr = &l.stderr
	var err error
	if l.stdin, err = l.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := l.cmd.StdoutPipe()
	must.OK(t, err)
	l.stdout, l.pipe = bufio.NewReader(stdout), stdout
	must.OK(t, l.cmd.Start())
	t.Cleanup(func() {
		_ = l.cmd.Process.Kill()
		_ = l.cmd.Wait()
	})
	return l
}

func (l *live) send(lines ...string) {
	l.t.Helper()
	if _, err := io.WriteString(l.stdin, strings.Join(lines, "\n")+"\n"); err != nil {
		l.t.Fatal(err)
	}
}

// next reads one line, which must be a protocol message.
func (l *live) next() map[string]any {
	l.t.Helper()
	line, err := l.stdout.ReadBytes('\n')
	if err != nil {
		l.t.Fatalf("no further line: %v; stderr: %s", err, l.stderr.String())
	}
	var m map[string]any
	if err := json.Unmarshal(line, &m); err != nil || m["type"] == nil || m["a2e"] != "1.0" {
		l.t.Fatalf("no protocol line: %q", line)
	}
	return m
}

// answer reads up to the answer of a request, and returns it. Answers to other requests are kept for later calls,
// events are dropped.
func (l *live) answer(id string) map[string]any {
	l.t.Helper()
	if m := l.passed[id]; m != nil {
		delete(l.passed, id)
		return m
	}
	for {
		switch m := l.next(); {
		case m["type"] == "invoke/event":
		case m["req_id"] == id:
			return m
		case !strings.HasSuffix(m["type"].(string), "/event"):
			l.passed[fmt.Sprint(m["req_id"])] = m
		}
	}
}

// exit waits for the end of the host, and returns the exit status.
func (l *live) exit() int {
	l.t.Helper()
	_ = l.cmd.Wait()
	return l.cmd.ProcessState.ExitCode()
}

// call returns a tool/call/req line.
func call(id, tool, args string) string {
	return fmt.Sprintf(`{"type":"tool/call/req","id":%q,"tool_name":%q,"arguments":%s}`, id, tool, args)
}

// processes counts the processes with a word in their command line.
func processes(t *testing.T, word string) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must.OK(t, err)
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), word) {
			n++
		}
	}
	return n
}

// mark returns a number of seconds to sleep that no other test uses.
func mark() string { return fmt.Sprintf("86%09d.5", time.Now().UnixNano()%1e9) }

// tree returns a call that starts sleeping descendants of every kind, all with the mark in their command line.
func tree(id, mark string) string {
	script := fmt.Sprintf("setsid sleep %[1]s & (sleep %[1]s & sleep %[1]s &) ; nohup sleep %[1]s & sleep %[1]s", mark)
	return call(id, "run_command", fmt.Sprintf(`{"command":["sh","-c",%q]}`, script))
}

// TestTheEndOfTheHostIsThatOfEveryDescendant: however the host ends, all processes that a call has started end with
// it.
func TestTheEndOfTheHostIsThatOfEveryDescendant(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, l *live) (code int){
		"killed": func(t *testing.T, l *live) int {
			_ = l.cmd.Process.Kill()
			return -1
		},
		"terminated": func(t *testing.T, l *live) int {
			_ = l.cmd.Process.Signal(syscall.SIGTERM)
			got := l.answer("t")
			assert.That(t, got["code"] == "timeout" && got["retryable"] == true, "the call that was cut off got %v",
				got)
			return 0
		},
		"interrupted twice": func(t *testing.T, l *live) int {
			must.OK(t, l.cmd.Process.Signal(syscall.SIGINT),
				l.cmd.Process.Signal(syscall.SIGTERM)) // two equal signals at once count as one
			return 130
		},
		"stdout closed": func(t *testing.T, l *live) int {
			l.answer("h")
			l.pipe.Close() // the host must notice without a write: stdin stays open, and the call runs
			return 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, m := start(t, workDir(t)), mark()
			l.send(hello, tree("t", m))
			hosttest.Eventually(t, "the tree stands", func() bool { return processes(t, m) >= 5 })
			want := end(t, l)
			if code := l.exit(); code != want || strings.Contains(l.stderr.String(), "panic") {
				t.Errorf("exit status %d, want %d; stderr %s", code, want, l.stderr.String())
			}
			hosttest.Eventually(t, "the tree is gone", func() bool { return processes(t, m) == 0 })
		})
	}
}

func TestEndOfStdinLetsCallsFinishAndLeavesNothing(t *testing.T) {
	t.Parallel()
	l := start(t, workDir(t))
	m := mark()
	l.send(hello, call("t", "run_command", fmt.Sprintf(`{"command":["sh","-c","(setsid sleep %s &) ; sleep 0.2; echo done"]}`, m)))
	l.stdin.Close()
	got := l.answer("t")
	assert.That(t, got["type"] == "tool/call/resp", "answer %v", got)
	assert.Equal(t, l.exit(), 0, "exit status")
	hosttest.Eventually(t, "what the call left is gone", func() bool { return processes(t, m) == 0 })
}

func TestTokenShowsNowhere(t *testing.T) {
	t.Parallel()
	const token = "s3cr3t-t0ken-of-the-test"
	dir := workDir(t)
	config := "auth_token: ${A2E_AUTH_TOKEN}\nstate_dir: state\naudit: {path: audit.jsonl}\n"
	writeConfig(t, dir, config)
	cmd := command(t, dir, "./a2e", "serve", "--log-level", "trace")
	cmd.Env = append(cmd.Env, "A2E_AUTH_TOKEN="+token)
	cmd.Stdin = strings.NewReader(strings.Join([]string{
		`{"type":"handshake/req","id":"1","agent_caps":["tools"],"auth_token":"wrong"}`,
		`{"type":"handshake/req","id":"2","agent_caps":["tools"],"auth_token":"` + token + `","agent_id":7}`,
		`{"type":"handshake/req","id":"3","agent_caps":["tools"],"auth_token":"` + token + `"}`,
		call("4", "run_command", `{"command":["sh","-c","env; cat /proc/self/environ; cat /proc/1/environ"]}`),
		call("5", "run_command", `{"command":["sh","-c","exit 3"],"auth_token":"`+token+`"}`),
		`{"type":"handshake/req","id":"6","auth_token":["` + token + `"]}`,
	}, "\n"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	must.OK(t, err)
	assert.That(t, bytes.Contains(out, []byte(`"reason":"auth_failed"`)) && bytes.Contains(out, []byte(`PATH=`)),
		"the session did not go as planned:\n%s", out)
	trail := must.Get(os.ReadFile(filepath.Join(dir, "state", "audit.jsonl")))(t)
	for name, text := range map[string]string{
		"stdout": string(out), "stderr": stderr.String(),
		"audit": string(trail),
	} {
		assert.That(t, !strings.Contains(text, token), "the token is in %s:\n%s", name, text)
	}
	if check, err := command(t, dir, "./a2e", "--log-level", "trace", "check").CombinedOutput(); err == nil ||
		strings.Contains(string(check), token) {
		t.Errorf("check without the variable: %v\n%s", err, check)
	}
}

// TestAuditTrailIsVerified: each request has an entry in the audit trail and a line in the log, and `a2e check
// --audit` finds a changed entry.
func TestAuditTrailIsVerified(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "state_dir: state\naudit: {}\n")
	cmd := command(t, dir, "./a2e", "--log-level", "info")
	var log strings.Builder
	cmd.Stderr = &log
	cmd.Stdin = strings.NewReader(strings.Join([]string{
		hello, call("a", "echo", `{"text":"x"}`), call("b", "nope", `{}`),
		`{"type":"tool/call/req","id":"c","tool_name":"echo","arguments":{"text":"x"},"correlation_id":"turn-7"}`,
	}, "\n"))
	must.Get(cmd.Output())(t)
	file := filepath.Join(dir, "state", "audit.jsonl")
	text := must.Get(os.ReadFile(file))(t)
	for _, want := range []string{
		`"req_id":"h",.*"success":true,.*"type":"handshake/req"`,
		`"req_id":"a",.*"success":true,.*"type":"tool/call/req","capability":"tools","name":"echo"`,
		`"req_id":"b",.*"success":false,.*"error_code":"unknown_tool"`,
		`"req_id":"c","correlation_id":"turn-7",.*"success":true`,
	} {
		assert.That(t, regexp.MustCompile(want).Match(text), "no entry is like %s:\n%s", want, text)
	}
	for _, want := range []string{
		`"type":"handshake/req","req_id":"h","ms":[0-9.]+,"outcome":"ok"`,
		`"type":"tool/call/req","name":"echo","req_id":"a","ms":[0-9.]+,"outcome":"ok"`,
		`"type":"tool/call/req","name":"nope","req_id":"b","ms":[0-9.]+,"outcome":"unknown_tool"`,
	} {
		assert.That(t, regexp.MustCompile(want).MatchString(log.String()), "no line of the log is like %s:\n%s", want,
			&log)
	}
	if out, err := command(t, dir, "./a2e", "check", "--audit", file).CombinedOutput(); err != nil {
		t.Errorf("check: %v\n%s", err, out)
	}
	must.OK(t, os.WriteFile(file, bytes.Replace(text, []byte("handshake/req"), []byte("handshake/reQ"), 1), 0o600))
	out, err := command(t, dir, "./a2e", "check", "--audit", file).CombinedOutput()
	exit, ok := err.(*exec.ExitError)
	assert.That(t, ok && exit.ExitCode() == 1, "a changed entry was not found: %v\n%s", err, out)
}
