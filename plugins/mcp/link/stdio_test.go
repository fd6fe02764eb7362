package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/guard/redact"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

func TestStdio(t *testing.T) {
	cfg := server(t, "good")
	cfg.Env["TOKEN"] = "s3cret-value"
	var states sync.Map
	var asked atomic.Value
	s := newStage(t, cfg, func(e *Env) {
		e.Setup = func(c *mcp.Client) {
			c.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
				return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
					asked.Store(method)
					return next(ctx, method, req)
				}
			})
		}
		e.Changed = func(l *Link) { states.Store(l.State().Status, true) }
	})
	assert.Equal(t, s.must("echo", echoArgs{"hallo"}), "hallo", "echo")
	assert.Equal(t, s.must("env", echoArgs{"TOKEN"}), "s3cret-value", "TOKEN is … there")
	got := s.must("env", echoArgs{"HOME"})
	assert.That(t, got != os.Getenv("HOME"), "HOME is the host's: %q", got)
	s.ping()
	st := s.State()
	if st.Status != Connected || st.PID <= 0 || st.Restarts != 0 || st.Server.Name != "test" ||
		st.Instructions != "be kind" || st.ProtocolVersion != legacy || st.LastError != "" || st.Transport != Stdio {
		t.Errorf("%+v", st)
	}
	if s.must("back", echoArgs{}); asked.Load() != "ping" {
		t.Errorf("the middleware saw %v", asked.Load())
	}
	_, err := s.tool(t.Context(), "fail", echoArgs{"s3cret-value"})
	own := wantError(t, err, protocol.CodeMCPProtocolError, "it broke: "+redact.Text)
	assert.That(t, own.Detail["code"] == int64(-32050) && own.Detail["server_id"] == "srv" &&
		fmt.Sprintf("%s", own.Detail["data"]) == `{"why":"`+redact.Text+`"}`, "detail %v", own.Detail)
	if _, ok := own.Detail["data"].(jsontext.Value); !ok {
		t.Errorf("data is a %T", own.Detail["data"])
	}
	err = s.Call(t.Context(), func(ctx context.Context, cs *mcp.ClientSession) error {
		return cs.Subscribe(ctx, &mcp.SubscribeParams{URI: "file:///x"})
	})
	wantError(t, err, protocol.CodeMCPCapabilityMissing)
	must.OK(t, s.Close(t.Context()))
	_, err = s.tool(t.Context(), "echo", echoArgs{})
	wantError(t, err, protocol.CodeMCPServerUnavailable, "was closed")
	_, ok := states.Load(Closed)
	assert.That(t, ok && s.State().Status == Closed, "nobody was told of the end")
	assert.That(t, !strings.Contains(s.log.String(), "s3cret"), "a secret is in the log: %s", s.log)
}

func TestJunk(t *testing.T) {
	s := newStage(t, server(t, "junk"), func(e *Env) { e.Now = func() time.Time { return time.Unix(1_000_000, 0) } })
	for i := range 3 {
		assert.Equal(t, s.must("echo", echoArgs{strconv.Itoa(i)}), strconv.Itoa(i), "echo")
	}
	st := s.State()
	assert.That(t, st.Junk == 4*7+1 && st.Restarts == 0, "%d pieces of junk, %d restarts", st.Junk, st.Restarts)
	if n := strings.Count(s.log.String(), "skipped"); n != 1 { // at most one in a second
		t.Errorf("%d lines of log", n)
	}
}

func TestHangsInInitialize(t *testing.T) {
	cfg := server(t, "hang")
	cfg.ConnectTimeout = 300 * time.Millisecond
	s := newStage(t, cfg, nil)
	_, err := s.Session(t.Context())
	own := wantError(t, err, protocol.CodeMCPServerUnavailable, "did not complete the MCP handshake within 300ms",
		"it is tried again in")
	assert.That(t, own.Retryable && own.Detail["server_id"] == "srv" && own.Detail["state"] == string(Reconnecting) &&
		own.Detail["retry_after"] != nil, "detail %v", own.Detail)
	st := s.State()
	assert.That(t, st.PID == 0 && st.Failures != 0, "%+v", st)
	began := time.Now()
	if err := s.Close(t.Context()); err != nil || time.Since(began) > hosttest.Patience {
		t.Errorf("close: %v", err)
	}
}

func TestEndsAtOnce(t *testing.T) {
	cfg := server(t, "gone")
	cfg.Env["TOKEN"] = "top-secret"
	s := newStage(t, cfg, nil)
	_, err := s.tool(t.Context(), "echo", echoArgs{})
	wantError(t, err, protocol.CodeMCPServerUnavailable, "exit status 4", "no config in /etc/none", "with "+redact.Text)
	assert.That(t, !strings.Contains(s.log.String(), "top-secret"), "a secret is in the log: %s", s.log)
}

// TestHint: if a program cannot see its own files in the sandbox, the error names the file and its
// folder.
func TestHint(t *testing.T) {
	script := filepath.Join(t.TempDir(), "server.sh")
	must.OK(t, os.WriteFile(script, []byte("exit 7"), 0o600))
	s := newStage(t, Config{Command: "sh", Args: []string{script}}, nil)
	_, err := s.Session(t.Context())
	wantError(t, err, protocol.CodeMCPServerUnavailable, "exit status", "may not see "+script,
		"the sandbox hides "+filepath.Dir(script))
}

// TestCause: of all text that a program writes before its end, the error has the line that names the
// cause.
func TestCause(t *testing.T) {
	for name, c := range map[string]struct{ words, want string }{
		"nothing": {"", ""},
		"Python": {
			"starting\nTraceback (most recent call last):\n  File \"a.py\", line 1\n    import mcp\n" +
				"ModuleNotFoundError: No module named 'mcp'\n",
			"ModuleNotFoundError: No module named 'mcp'",
		},
		"two tracebacks": {
			"Traceback (most recent call last):\n  a\nKeyError: 'X'\n\n" +
				"During handling of the above exception, another exception occurred:\n\n" +
				"Traceback (most recent call last):\n  b\npkg.errors.ConfigError: X is not set\n",
			"pkg.errors.ConfigError: X is not set",
		},
		"python -m": {"/usr/bin/python3: No module named x\n", "/usr/bin/python3: No module named x"},
		"Node.js": {
			"node:internal/modules/cjs/loader:1148\n  throw err;\n  ^\n\n" +
				"Error: Cannot find module '/x/y.js'\n    at Module._resolveFilename (node:internal:1)\n" +
				"  code: 'MODULE_NOT_FOUND',\n  requireStack: []\n}\n\nNode.js v20.20.2\n",
			"Error: Cannot find module '/x/y.js'",
		},
		"npm": {
			"npm error code E404\nnpm error 404 Not Found - GET https://r.example.org/x\nnpm error 404\n" +
				"npm error 404 tarball, folder, http url, or git url.\nnpm notice\nnpm error A complete log: /x.log\n",
			"npm error 404 Not Found - GET https://r.example.org/x",
		},
		"npm, no network": {
			"npm error code ENOTFOUND\nnpm error syscall getaddrinfo\nnpm error errno ENOTFOUND\n" +
				"npm error network request to https://r.example.org/x failed\n",
			"npm error network request to https://r.example.org/x failed",
		},
		"a key": {"Error: API_KEY is required\nUsage: x [options]\n  --help\n", "Error: API_KEY is required"},
		"a failure": {
			"loading\nconfig.json could not be read\n" + strings.Repeat("bye\n", 30), "config.json could not be read",
		},
		"only words": {"one\ntwo\n", "one two"},
	} {
		assert.Equal(t, cause(c.words), c.want, name)
	}
}

func TestCannotStart(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no such program": {Command: "a2e-no-such-program"},
		"no such file":    {Command: "./none"},
		"no such folder":  {Command: "sh", Dir: "none"},
		"no such host":    {URL: "http://127.0.0.1:1/mcp"},
		"neither":         {},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, cfg, nil)
			_, err := s.Session(t.Context())
			wantError(t, err, protocol.CodeMCPServerUnavailable)
		})
	}
}

func TestModern(t *testing.T) {
	s := newStage(t, server(t, "modern"), nil)
	if got := s.must("echo", echoArgs{"x"}); got != "x" || s.State().ProtocolVersion <= legacy {
		t.Errorf("echo gave %q in version %s", got, s.State().ProtocolVersion)
	}
	_, err := s.tool(t.Context(), "die", echoArgs{})
	wantError(t, err, protocol.CodeMCPTransportError)
	hosttest.Eventually(t, "a new connection", func() bool { return s.State().Restarts == 1 })
	if info, err := os.Stat(filepath.Join(s.dir, "refused")); err != nil || info.Size() != 1 {
		t.Errorf("initialize was tried again: %v, %v", info, err)
	}
}

// TestDiesMidCall: a server that dies fails only its own calls, and is started again.
func TestDiesMidCall(t *testing.T) {
	s, other := newStage(t, server(t, "good"), nil), newStage(t, server(t, "good"), nil)
	waiting, well := make(chan error, 1), make(chan error, 1)
	for _, x := range []struct {
		s   *stage
		err chan error
	}{{s, waiting}, {other, well}} {
		x.s.must("echo", echoArgs{})
		go func() {
			_, err := x.s.tool(t.Context(), "sleep", echoArgs{})
			x.err <- err
		}()
		x.s.awaitFile("sleeping")
	}
	_, err := s.tool(t.Context(), "die", echoArgs{})
	own := wantError(t, err, protocol.CodeMCPTransportError, "exit status 3", "out of coffee", "may have been served")
	assert.That(t, own.Retryable && own.Detail["server_id"] == "srv", "%+v", own)
	wantError(t, <-waiting, protocol.CodeMCPTransportError, "exit status 3")
	hosttest.Eventually(t, "a new connection", func() bool {
		st := s.State()
		return st.Status == Connected && st.Restarts == 1
	})
	assert.Equal(t, s.must("echo", echoArgs{"again"}), "again", "echo")
	assert.Equal(t, other.State().Restarts, 0, "the other one was started anew")
	assert.OK(t, other.Close(t.Context()))
	wantError(t, <-well, protocol.CodeMCPTransportError, "the host closes the connection")
}

// TestMute: a server that does not answer pings is ended and started again. Its call ends earlier, by
// its own limit.
func TestMute(t *testing.T) {
	cfg := server(t, "mute")
	cfg.PingEvery, cfg.CallTimeout = 2*time.Second, 50*time.Millisecond // the call ends long before the ping
	s := newStage(t, cfg, nil)
	_, err := s.tool(t.Context(), "echo", echoArgs{})
	wantError(t, err, protocol.CodeTimeout, "within 50ms")
	hosttest.Eventually(t, "a new connection", func() bool { return s.State().Restarts > 0 })
	assert.Contains(t, s.log.String(), "did not answer a ping")
}

func TestCancelReachesServer(t *testing.T) {
	s := newStage(t, server(t, "good"), nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.tool(ctx, "sleep", echoArgs{})
		done <- err
	}()
	s.awaitFile("sleeping")
	mine := errors.New("mine")
	cancel(mine)
	assert.Is(t, <-done, mine, "error")
	s.awaitFile("cancelled")
	assert.Equal(t, s.State().Restarts, 0, "the connection was lost")
}

// TestDeaf: Close kills a server that does not end with its input, and the children of the server.
func TestDeaf(t *testing.T) {
	s := newStage(t, server(t, "deaf"), nil)
	s.must("echo", echoArgs{})
	proc, err := os.FindProcess(s.State().PID)
	if err == nil {
		err = proc.Signal(syscall.Signal(0))
	}
	must.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // no time to end by itself
	must.OK(t, s.Close(ctx))
	if err := proc.Signal(syscall.Signal(0)); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("the process %d is there: %v", proc.Pid, err)
	}
	assert.OK(t, s.Close(t.Context()))
}

// TestFlood: notifications of a server wait in its pipe, not in the host's memory, and none is lost.
func TestFlood(t *testing.T) {
	const all = 1000
	hold := make(chan struct{})
	var heard atomic.Int64
	cfg := server(t, "good")
	cfg.PingEvery = 20 * time.Millisecond // a server whose output waits must not count as dead
	s := newStage(t, cfg, func(e *Env) {
		e.Client = func() *mcp.ClientOptions {
			return &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context,
				req *mcp.ProgressNotificationClientRequest,
			) {
				<-hold
				if req.Params.Progress != float64(heard.Load()) {
					t.Errorf("message %v in place of %d", req.Params.Progress, heard.Load())
				}
				heard.Add(1)
			}}
		}
	})
	done := make(chan error, 1)
	go func() {
		_, err := s.tool(t.Context(), "spam", echoArgs{strconv.Itoa(all)})
		done <- err
	}()
	sent := func() int64 {
		info, err := os.Stat(filepath.Join(s.dir, "spam"))
		if err != nil {
			return 0
		}
		return info.Size()
	}
	// The messages of 1 KiB in three windows, in the pipe's 64 KiB and in the reader's 64 KiB.
	const most = 3*windowNotes + 2*64 + 10
	hosttest.Eventually(t, "a full pipe", func() bool { return sent() >= 2*windowNotes })
	for last := int64(-1); last != sent(); time.Sleep(50 * time.Millisecond) {
		if last = sent(); last > most {
			t.Fatalf("%d messages got through, at most %d should", last, most)
		}
	}
	close(hold)
	must.OK(t, <-done)
	hosttest.Eventually(t, "all messages", func() bool { return heard.Load() == all })
	assert.Equal(t, s.State().Restarts, 0, "it was started anew")
}

// TestStderr: the host reads a flood of stderr, which neither fills the log nor shows a secret.
func TestStderr(t *testing.T) {
	cfg := server(t, "loud")
	cfg.Env["NOISE_TOKEN"] = "noise noise noise "
	s := newStage(t, cfg, func(e *Env) {
		e.Now = func() time.Time { return time.Unix(1_000_000, 0) } // stands still: the log is limited by the second
	})
	s.must("echo", echoArgs{})
	text := s.log.String()
	n := strings.Count(text, "the MCP server says")
	assert.That(t, n >= 100 && n <= 1000, "%d lines in the log", n)
	if strings.Contains(text, "noise n") || !strings.Contains(text, redact.Text) {
		t.Errorf("%.3000q … %q", text, text[max(0, len(text)-300):])
	}
	for line := range strings.Lines(text) {
		must.That(t, len(line) <= maxStderr+1000, "a line of %d bytes", len(line))
	}
}

func TestAsks(t *testing.T) {
	s := newStage(t, server(t, "good"), func(e *Env) {
		e.Client = func() *mcp.ClientOptions {
			return &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult,
				error,
			) {
				return &mcp.ElicitResult{Action: "decline"}, nil
			}}
		}
	})
	var all sync.WaitGroup
	for range 2 * maxAsked {
		all.Go(func() {
			got, err := s.tool(t.Context(), "ask", echoArgs{})
			assert.Equal(t, got, "decline", "%v", err)
		})
	}
	all.Wait()
}
