package link

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/sandboxtest"
	"a2e/host/sandbox"
	"a2e/protocol"
)

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher() // children start through this test binary
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(play(role))
	}
	goleak.VerifyTestMain(m)
}

// stage is a link of a test, with its workspace and log.
type stage struct {
	*Link
	t   testing.TB
	dir string
	log *hosttest.Log
}

// newEnv returns the Env of links, and its log.
func newEnv(t testing.TB) (Env, *hosttest.Log) {
	t.Helper()
	dir := t.TempDir()
	launcher := sandboxtest.New(t, sandbox.Options{Workspace: dir})
	log := &hosttest.Log{}
	return Env{Workspace: dir, Log: zerolog.New(log), Launcher: func() (*sandbox.Launcher, error) {
		return launcher,
			nil
	}}, log
}

// newStage opens a link that is closed at the end of the test. change, if not nil, changes its Env.
func newStage(t testing.TB, cfg Config, change func(*Env)) *stage {
	t.Helper()
	env, log := newEnv(t)
	if change != nil {
		change(&env)
	}
	if cfg.ID == "" {
		cfg.ID = "srv"
	}
	s := &stage{Link: Open(cfg, env), t: t, dir: env.Workspace, log: log}
	t.Cleanup(func() { must.OK(t, s.Close(context.Background())) })
	return s
}

// ping lets the link ping its server, and waits for the answer.
func (s *stage) ping() {
	s.t.Helper()
	c, err := s.connected(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	c.ask()
	hosttest.Eventually(s.t, "a ping", func() bool { return s.State().Latency > 0 })
}

// server returns the config of a server that is this test binary in a role.
func server(t testing.TB, role string) Config {
	t.Helper()
	path := must.Get(os.Executable())(t)
	return Config{ID: "srv", Command: path, Env: map[string]string{roleVar: role, "GORACE": "atexit_sleep_ms=0"}}
}

// tool calls a tool of the server, and returns the text of its result.
func (s *stage) tool(ctx context.Context, name string, args any) (string, error) {
	var text string
	err := s.Call(ctx, func(ctx context.Context, session *mcp.ClientSession) error {
		res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: args})
		if err == nil {
			text = res.Content[0].(*mcp.TextContent).Text
		}
		return err
	})
	return text, err
}

// must is like tool for a call that must succeed.
func (s *stage) must(name string, args any) string {
	s.t.Helper()
	text, err := s.tool(s.t.Context(), name, args)
	must.That(s.t, err == nil, "%s: %v\n%s", name, err, s.log)
	return text
}

// awaitFile waits until the server has made a file in the workspace.
func (s *stage) awaitFile(name string) {
	s.t.Helper()
	hosttest.Eventually(s.t, "the file "+name, func() bool {
		_, err := os.Stat(filepath.Join(s.dir, name))
		return err == nil
	})
}

// wantError checks the code of an error and that its text holds all the words.
func wantError(t testing.TB, err error, code protocol.ErrorCode, words ...string) *protocol.Error {
	t.Helper()
	var own *protocol.Error
	must.That(t, errors.As(err, &own) && own.Code == code, "error %v, want %s", err, code)
	for _, word := range words {
		assert.Contains(t, own.Message, word, "error …, want … in it")
	}
	return own
}

// roleVar is the variable that makes the test binary an MCP server.
const roleVar = "LINK_TEST_ROLE"

// play runs a server. The roles: `good`; `junk` also writes lines that are not messages; `deaf`
// continues after its input has ended, with a child in the role `sleep`; `hang` reads and never
// answers; `mute` answers nothing after the handshake; `gone` ends at once; `modern` does not know
// initialize; `loud` floods its stderr; `parrot` is playParrot.
func play(role string) int {
	switch role {
	case "hang":
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	case "gone":
		fmt.Fprintf(os.Stderr, "no config in %s\nwith %s", "/etc/none", os.Getenv("TOKEN"))
		return 4
	case "parrot":
		return playParrot()
	case "sleep":
		time.Sleep(time.Hour)
	case "loud":
		line := strings.Repeat("noise ", 1000) + "\n"
		for range 1000 {
			fmt.Fprint(os.Stderr, line)
		}
		fmt.Fprintln(os.Stderr, "quiet now")
	case "deaf":
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), roleVar+"=sleep")
		if err := child.Start(); err != nil {
			return 5
		}
	}
	out := io.WriteCloser(os.Stdout)
	switch role {
	case "junk", "mute":
		out = &odd{role: role}
	case "modern":
		return playModern()
	}
	err := newServer(nil, ".").Run(context.Background(), &mcp.IOTransport{Reader: os.Stdin, Writer: out})
	if role == "deaf" {
		time.Sleep(time.Hour)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return 1
	}
	return 0
}

// odd is the output of a server: `junk` adds lines to each message, `mute` drops all messages but the
// first.
type odd struct {
	role string
	n    int
}

func (o *odd) Write(p []byte) (int, error) {
	o.n++
	var b bytes.Buffer
	switch {
	case o.role == "junk":
		b.WriteString("Server is starting…\n[1,2]\n{\"jsonrpc\":\"2.0\"}\n{}\n\n{\"half\n\x00\xff\n")
		if o.n == 1 {
			b.Write(bytes.Repeat([]byte("x"), maxLine+2))
			b.WriteString("\n  ")
		}
		b.Write(p)
	case o.n == 1: // mute
		b.Write(p)
	}
	if _, err := os.Stdout.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (o *odd) Close() error { return os.Stdout.Close() }

// playModern is a server that refuses initialize, and answers other requests as the SDK does.
func playModern() int {
	r, w := io.Pipe()
	lines := bufio.NewScanner(os.Stdin)
	go func() {
		defer w.Close()
		for lines.Scan() {
			line := lines.Bytes()
			if msg, err := jsonrpc.DecodeMessage(line); err == nil {
				if req, ok := msg.(*jsonrpc.Request); ok && req.Method == "initialize" {
					refused, _ := os.ReadFile("refused")
					_ = os.WriteFile("refused", append(refused, 'x'), 0o600)
					answer, _ := jsonrpc.EncodeMessage(&jsonrpc.Response{
						ID:    req.ID,
						Error: &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "no such method"},
					})
					os.Stdout.Write(append(answer, '\n'))
					continue
				}
			}
			w.Write(append(bytes.Clone(line), '\n'))
		}
	}()
	_ = newServer(nil, ".").Run(context.Background(), &mcp.IOTransport{Reader: r, Writer: os.Stdout})
	return 0
}

type echoArgs struct {
	Text string `json:"text"`
}

// newServer makes a well-behaved server with the tools echo, pid, env, fail (a JSON-RPC error), sleep
// (until it is cancelled, or stop is closed; it writes the files sleeping and cancelled in dir), die,
// spam (sends the given number of notifications; the size of the file spam in dir is the number so
// far), back (pings the client) and ask (elicitation).
func newServer(stop <-chan struct{}, dir string) *mcp.Server {
	note := func(name string) { _ = os.WriteFile(filepath.Join(dir, name), nil, 0o600) }
	s := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1.2"}, &mcp.ServerOptions{Instructions: "be kind"})
	add := func(name string, f func(ctx context.Context, req *mcp.CallToolRequest, text string) (string, error)) {
		mcp.AddTool(s, &mcp.Tool{Name: name}, func(ctx context.Context, req *mcp.CallToolRequest,
			in echoArgs,
		) (*mcp.CallToolResult, any, error) {
			text, err := f(ctx, req, in.Text)
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, err
		})
	}
	add("echo", func(_ context.Context, _ *mcp.CallToolRequest, text string) (string, error) { return text, nil })
	add("pid", func(context.Context, *mcp.CallToolRequest, string) (string, error) {
		return strconv.Itoa(os.Getpid()), nil
	})
	add("env", func(_ context.Context, _ *mcp.CallToolRequest, text string) (string, error) {
		return os.Getenv(text), nil
	})
	add("fail", func(_ context.Context, _ *mcp.CallToolRequest, text string) (string, error) {
		return "", &jsonrpc.Error{Code: -32050, Message: "it broke: " + text, Data: []byte(`{"why":"` + text + `"}`)}
	})
	add("sleep", func(ctx context.Context, _ *mcp.CallToolRequest, _ string) (string, error) {
		note("sleeping")
		select {
		case <-ctx.Done():
		case <-stop:
		}
		note("cancelled")
		return "", ctx.Err()
	})
	add("die", func(context.Context, *mcp.CallToolRequest, string) (string, error) {
		fmt.Fprintln(os.Stderr, "out of coffee")
		os.Exit(3)
		return "", nil
	})
	add("spam", func(ctx context.Context, req *mcp.CallToolRequest, text string) (string, error) {
		note("spam")
		return spam(ctx, req, text, filepath.Join(dir, "spam"))
	})
	add("back", func(ctx context.Context, req *mcp.CallToolRequest, _ string) (string, error) {
		return "", req.Session.Ping(ctx, nil)
	})
	add("ask", func(ctx context.Context, req *mcp.CallToolRequest, _ string) (string, error) {
		res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "which one?"})
		if err != nil {
			return "", err
		}
		return res.Action, nil
	})
	return s
}

// spam sends notifications of 1 KiB each: text is their number, and the size of the file count is the
// number so far.
func spam(ctx context.Context, req *mcp.CallToolRequest, text, count string) (string, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return "", err
	}
	for i := range n {
		note := &mcp.ProgressNotificationParams{
			ProgressToken: "x", Progress: float64(i),
			Message: strings.Repeat(" ", 1024),
		}
		if err := req.Session.NotifyProgress(ctx, note); err != nil {
			return "", err
		}
		_ = os.Truncate(count, int64(i+1))
	}
	return "sent", nil
}
