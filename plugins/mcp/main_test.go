package mcp

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/sandboxtest"
	"a2e/host/hosttest/stores"
	"a2e/host/sandbox"
	"a2e/host/state/store"
	"a2e/protocol"
)

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher() // children start through this test binary
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(play(role))
	}
	goleak.VerifyTestMain(m)
}

// newEnv returns the Env of a plugin, and its log.
func newEnv(t testing.TB) (host.Env, *hosttest.Log) {
	t.Helper()
	dir := t.TempDir()
	log := &hosttest.Log{}
	return host.Env{Workspace: dir, Log: zerolog.New(log), Launcher: sandboxtest.For(t,
		sandbox.Options{Workspace: dir})}, log
}

// openStore opens the store in a file, which the test closes.
func openStore(t testing.TB, path string) store.Opener {
	t.Helper()
	s := stores.Open(t, path, Part())
	return func(context.Context) (store.Store, error) { return s, nil }
}

func newFile(t testing.TB) string { return filepath.Join(t.TempDir(), store.FileName) }

// child returns the config of a server that is this test binary in a role. more has further options:
// names and values in turn.
func child(t testing.TB, role string, more ...any) map[string]any {
	t.Helper()
	path := must.Get(os.Executable())(t)
	cfg := map[string]any{"command": path, "env": map[string]any{roleVar: role, "GORACE": "atexit_sleep_ms=0"}}
	for i := 0; i < len(more); i += 2 {
		cfg[more[i].(string)] = more[i+1]
	}
	return cfg
}

// withEnv adds a variable to the config of a child.
func withEnv(cfg map[string]any, name, value string) map[string]any {
	cfg["env"].(map[string]any)[name] = value
	return cfg
}

// stage is a host with an mcp plugin and a session.
type stage struct {
	*hosttest.Pair
	t      testing.TB
	plugin *Plugin
	log    *hosttest.Log
	dir    string // the workspace
}

// newStage opens a host with servers, by id. change, if not nil, changes the options and the Env of the
// plugin.
func newStage(t testing.TB, servers map[string]any, change func(*Options, *host.Env), more ...host.Plugin) *stage {
	t.Helper()
	env, log := newEnv(t)
	opts := DefaultOptions()
	if servers != nil {
		opts.Servers = servers
	}
	if change != nil {
		change(&opts, &env)
	}
	plugin := must.Get(New("mcp", opts, env))(t)
	plugin.firstWait = hosttest.Patience // a busy machine may take many seconds to start a server
	plugin.rootsWait = hosttest.Patience
	s := &stage{t: t, plugin: plugin, log: log, dir: env.Workspace}
	s.Pair = hosttest.New(t, host.Options{Plugins: append([]host.Plugin{plugin}, more...)})
	s.Handshake(protocol.CapMCP, protocol.CapTools)
	return s
}

// one opens a host with one server `srv` that has everything.
func one(t testing.TB) *stage {
	t.Helper()
	return newStage(t, map[string]any{"srv": child(t, "full")}, nil)
}

// ask sends a request, expects its response and reads it.
func (s *stage) ask(typ protocol.Type, fields string, resp any) hosttest.Message {
	s.t.Helper()
	m := s.Call(typ, fields)
	info, _ := protocol.Lookup(typ)
	must.That(s.t, m.Type == info.Response, "%s %s was answered by %.1000s\nlog: %s", typ, fields, m.Line, s.log)
	if resp != nil {
		m.Decode(s.t, resp)
	}
	return m
}

// callFields makes the fields of a tool call.
func callFields(tool, args, more string) string {
	return fmt.Sprintf(`{"tool_name":%q,"arguments":%s%s}`, tool, args, more)
}

// tool calls a tool, which must succeed, and returns the first text of its result.
func (s *stage) tool(name, args string) string {
	s.t.Helper()
	m := s.ask(protocol.TypeToolCallReq, callFields(name, args, ""), nil)
	must.That(s.t, m.Get("/data/success") == "true", "%s %s: %s", name, args, m.Line)
	return m.Get("/data/data/content/0/text")
}

// toolNames returns the names of all tools.
func (s *stage) toolNames() []string {
	s.t.Helper()
	var resp protocol.ToolListResponse
	s.ask(protocol.TypeToolListReq, `{}`, &resp)
	names := []string{}
	for _, t := range resp.Tools {
		names = append(names, t.Name)
	}
	return names
}

// row returns the entry of a server in the response to mcp/server/list/req, or nil.
func (s *stage) row(id string) map[string]any {
	s.t.Helper()
	var resp struct {
		Servers []map[string]any `json:"servers"`
	}
	s.ask(protocol.TypeMCPServerListReq, `{}`, &resp)
	for _, row := range resp.Servers {
		if row["server_id"] == id {
			return row
		}
	}
	return nil
}

// reply answers a request of the host.
func (s *stage) reply(typ protocol.Type, to hosttest.Message, fields string) {
	s.t.Helper()
	s.Send(hosttest.Request(typ, s.NewID(), fmt.Sprintf(`{"req_id":%q,%s`, to.ID, strings.TrimPrefix(fields, "{"))))
}

// asks waits for the n-th request of the host of a type.
func (s *stage) asks(typ protocol.Type, n int) hosttest.Message {
	s.t.Helper()
	seen := 0
	return s.Wait(string(typ), func(m hosttest.Message) bool {
		if m.Type == typ {
			seen++
		}
		return m.Type == typ && seen == n
	})
}

// pushed waits for a push of a method that contains the words.
func (s *stage) pushed(method string, words ...string) hosttest.Message {
	s.t.Helper()
	return s.Wait("a push of "+method, func(m hosttest.Message) bool {
		if m.Type != protocol.TypeMCPServerPush || m.Get("/method") != method {
			return false
		}
		for _, word := range words {
			if !strings.Contains(string(m.Line), word) {
				return false
			}
		}
		return true
	})
}

func quoted(v any) string {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic(err)
	}
	return string(b)
}
