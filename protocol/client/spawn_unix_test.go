//go:build unix

package client_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
	"a2e/protocol/client"
)

// spawn starts a shell script as a host. Each script writes the line {"type":"ready"}
// when it is set up; spawn waits for it.
func spawn(t *testing.T, ctx context.Context, script string, opts client.Options) (*client.Client, *exec.Cmd) {
	t.Helper()
	ready := make(chan struct{})
	first := true
	opts.OnLine = func([]byte) {
		if first {
			close(ready)
		}
		first = false
	}
	cmd := exec.Command("sh", "-c", script)
	c := must.Get(client.Spawn(ctx, cmd, opts))(t)
	t.Cleanup(func() { c.Close() })
	<-ready
	assert.Equal(t, c.PID(), cmd.Process.Pid, "PID")
	return c, cmd
}

const ready = `echo '{"type":"ready"}'; `

// TestCloseEscalates: Close ends a host by the end of its stdin, then by SIGTERM, then by SIGKILL. In
// each case, a wait that the host uses is long, and a wait that it lets pass is short.
func TestCloseEscalates(t *testing.T) {
	const long, short = time.Minute, 50 * time.Millisecond
	for _, tt := range []struct {
		name, script string
		exit, term   time.Duration
		code         int
		signal       syscall.Signal
	}{
		{"ends well", ready + `cat >/dev/null`, long, long, 0, 0},
		{"ends with a status", ready + `cat >/dev/null; exit 7`, long, long, 7, 0},
		{"ended before", ready + `exit 3`, long, long, 3, 0},
		{"ends at SIGTERM", ready + `exec sleep 600`, short, long, -1, syscall.SIGTERM},
		{"handles SIGTERM", `trap 'exit 9' TERM; ` + ready + `while :; do sleep 0.02; done`, short, long, 9, 0},
		{
			"ignores SIGTERM", `trap '' TERM; ` + ready + `while :; do sleep 0.02; done`, short, short, -1,
			syscall.SIGKILL,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, cmd := spawn(t, t.Context(), tt.script, client.Options{ExitWait: tt.exit, TermWait: tt.term})
			err := c.Close()
			if (err == nil) != (tt.code == 0) || cmd.ProcessState.ExitCode() != tt.code {
				t.Errorf("%v, status %d; should be %d", err, cmd.ProcessState.ExitCode(), tt.code)
			}
			var exit *exec.ExitError
			assert.That(t, err == nil || errors.As(err, &exit), "%v is no *exec.ExitError", err)
			got := cmd.ProcessState.Sys().(syscall.WaitStatus)
			assert.That(t, got.Signaled() == (tt.signal != 0) && (!got.Signaled() || got.Signal() == tt.signal),
				"ended by %v, should be %v", cmd.ProcessState, tt.signal)
			again := c.Close()
			assert.That(t, errors.Is(again, err) && c.Wait() == err, "a second Close gives %v, the first %v", again,
				err)
			if err := c.Call(t.Context(), protocol.TypePing, nil, nil); !errors.Is(err, client.ErrClosed) ||
				errors.Is(err, os.ErrClosed) {
				t.Errorf("a call after an orderly end of the output: %v", err)
			}
		})
	}
}

// TestLastWords: the client reads the last line of a host that ends, even if a grandchild holds its
// streams open.
func TestLastWords(t *testing.T) {
	var stderr bytes.Buffer
	cmd := exec.Command("sh", "-c", `read line; sleep 600 & echo $! >&2; echo '{"type":"pong","req_id":"1","uptime_seconds":2}'`)
	cmd.Stderr = &stderr
	cmd.Env = append(os.Environ(), "LANG=C")
	c := must.Get(client.Spawn(t.Context(), cmd, client.Options{ExitWait: time.Minute}))(t)
	uptime, err := c.Ping(t.Context())
	assert.That(t, err == nil && uptime == 2*time.Second, "%v, %v", uptime, err)
	assert.OK(t, c.Wait())
	assert.OK(t, c.Close())
	pid := must.Get(strconv.Atoi(string(bytes.TrimSpace(stderr.Bytes()))))(t)
	grandchild := must.Get(os.FindProcess(pid))(t)
	assert.OK(t, grandchild.Kill())
}

// TestSlowReader: a client that reads late still gets everything that the host wrote before its end.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	held := make(chan struct{})
	hold := sync.OnceFunc(func() {
		close(held)
		time.Sleep(2 * time.Second)
	})
	cmd := exec.Command("sh", "-c", ready+`read line; echo '{"type":"pong","req_id":"1","uptime_seconds":2}'`)
	c := must.Get(client.Spawn(t.Context(), cmd, client.Options{OnLine: func([]byte) { hold() }}))(t)
	<-held
	uptime, err := c.Ping(t.Context())
	assert.That(t, err == nil && uptime == 2*time.Second, "%v, %v", uptime, err)
	assert.OK(t, c.Close())
}

func TestContextKills(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, cmd := spawn(t, ctx, `trap '' TERM; `+ready+`while :; do sleep 0.02; done`, client.Options{})
	cancel()
	err := c.Wait()
	assert.That(t, err != nil && !cmd.ProcessState.Success(), "Wait: %v", err)
	_, err = client.Spawn(ctx, exec.Command("sh"), client.Options{})
	assert.That(t, errors.Is(err, context.Canceled), "Spawn with an ended context: %v", err)
}

func TestSpawnRefuses(t *testing.T) {
	_, err := client.Spawn(t.Context(), exec.Command("./no-such-program"), client.Options{})
	assert.That(t, errors.Is(err, os.ErrNotExist), "a program that is missing: %v", err)
	cmd := exec.Command("sh", "-c", "exit 0")
	cmd.Stdout = os.Stderr
	_, err = client.Spawn(t.Context(), cmd, client.Options{})
	assert.That(t, err != nil, "a command with a Stdout of its own was started")
}
