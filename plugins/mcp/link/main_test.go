package link

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"a2e/host/hosttest"
	"a2e/host/sandbox"
	"a2e/host/sandbox/sandboxtest"
	"a2e/protocol"
)

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher() // children start through this test binary
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(play(role))
	}
	goleak.VerifyTestMain(m)
}

// stage is a link of a test, with what it needs.
type stage struct {
	*Link
	t   testing.TB
	dir string
	log *hosttest.Log
}

// newEnv makes what links need.
func newEnv(t testing.TB) (Env, *hosttest.Log) {
	t.Helper()
	dir := t.TempDir()
	launcher := sandboxtest.New(t, sandbox.Options{Workspace: dir})
	log := &hosttest.Log{}
	return Env{Workspace: dir, Log: zerolog.New(log), Launcher: func() (*sandbox.Launcher, error) { return launcher, nil }}, log
}

// newStage opens a link that is closed with the test. change may complete both.
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
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// ping has the server asked for a sign of life, and waits for that.
func (s *stage) ping() {
	s.t.Helper()
	c, err := s.connected(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	c.ask()
	hosttest.Eventually(s.t, "a ping", func() bool { return s.State().Latency > 0 })
}

// server is the config of this test binary in a role.
func server(t testing.TB, role string) Config {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Config{ID: "srv", Command: path, Env: map[string]string{roleVar: role, "GORACE": "atexit_sleep_ms=0"}}
}

// tool calls a tool of the server.
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

// must calls a tool that answers.
func (s *stage) must(name string, args any) string {
	s.t.Helper()
	text, err := s.tool(s.t.Context(), name, args)
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", name, err, s.log)
	}
	return text
}

// wantError checks the code of an error and that its text holds all the words.
func wantError(t testing.TB, err error, code protocol.ErrorCode, words ...string) *protocol.Error {
	t.Helper()
	var own *protocol.Error
	if !errors.As(err, &own) || own.Code != code {
		t.Fatalf("error %v, want %s", err, code)
	}
	for _, word := range words {
		if !strings.Contains(own.Message, word) {
			t.Errorf("error %q, want %q in it", own.Message, word)
		}
	}
	return own
}
