package exec

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
	"a2e/plugins/tools"
	"a2e/protocol"
)

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher() // children start through this test binary
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(runRole(role))
	}
	os.Exit(m.Run())
}

// patience is how long a test waits for an event that should happen at once.
const patience = time.Minute

// field has what children need: a workspace, a launcher and a log.
type field struct {
	t        testing.TB
	dir      string
	launcher *sandbox.Launcher
	log      *hosttest.Log
}

func newField(t testing.TB) *field {
	t.Helper()
	f := &field{t: t, dir: t.TempDir(), log: &hosttest.Log{}}
	f.launcher = must.Get(sandbox.New(sandbox.Options{Workspace: f.dir, Launcher: hosttest.Launcher(t)}))(t)
	t.Cleanup(func() {
		must.OK(t, f.launcher.Close())
		if t.Failed() {
			t.Logf("the log:\n%.5000s", f.log)
		}
	})
	return f
}

// plugin makes a plugin. If opts has no command, the child is this test binary in a role.
func (f *field) plugin(name, role string, opts Options, change ...func(*Plugin)) *Plugin {
	f.t.Helper()
	if opts.Command == nil {
		opts.Command = []string{must.Get(os.Executable())(f.t)}
		opts.Env = map[string]string{roleVariable: "child " + role, "GORACE": "atexit_sleep_ms=0"}
	}
	opts.StartTimeout = cmp.Or(opts.StartTimeout, patience)
	p := must.Get(New(name, opts, host.Env{
		Workspace: f.dir, Log: zerolog.New(f.log),
		Launcher: func() (*sandbox.Launcher, error) { return f.launcher, nil },
	}))(f.t)
	p.times.firstDelay = 5 * time.Millisecond
	for _, c := range change {
		c(p)
	}
	return p
}

// example copies an example of testdata into the workspace, and returns its name.
func (f *field) example(name string) string {
	f.t.Helper()
	must.OK(f.t, os.WriteFile(filepath.Join(f.dir, name), hosttest.ReadTestdata(f.t, "exec/"+name), 0o600))
	return name
}

// write makes an empty file in the workspace.
func (f *field) write(name string) {
	f.t.Helper()
	must.OK(f.t, os.WriteFile(filepath.Join(f.dir, name), nil, 0o600))
}

// ranked sets the priority of a plugin, as the config does.
type ranked struct {
	host.Plugin
	priority int
}

func (r ranked) Info() host.PluginInfo {
	info := r.Plugin.Info()
	info.Priority = r.priority
	return info
}

func (r ranked) Unwrap() host.Plugin { return r.Plugin }

// stage is a host and the test that talks to it.
type stage struct {
	*hosttest.Pair
	t testing.TB
}

// open makes a host without a session, and waits until all children have named what they serve. A
// handshake waits for that too, but only for a limited time.
func open(t testing.TB, plugins ...host.Plugin) *stage {
	t.Helper()
	s := &stage{hosttest.New(t, host.Options{Plugins: plugins, MaxParallel: 16}), t}
	for _, p := range plugins {
		if r, ok := p.(ranked); ok {
			p = r.Plugin
		}
		if own, ok := p.(*Plugin); ok {
			own.Ready(t.Context())
		}
	}
	return s
}

// newStage is open with a session.
func newStage(t testing.TB, plugins ...host.Plugin) *stage {
	t.Helper()
	s := open(t, plugins...)
	m := s.Handshake()
	must.Equal(t, m.Get("/ok"), "true", "no session: %s", m)
	return s
}

func builtin(t testing.TB) host.Plugin {
	t.Helper()
	return must.Get(tools.New("builtin", tools.DefaultOptions(), host.Env{Workspace: t.TempDir()}))(t)
}

// tool calls a tool; args is a JSON object.
func (s *stage) tool(name, args string) hosttest.Message {
	s.t.Helper()
	return s.Call(protocol.TypeToolCallReq, `{"tool_name":"`+name+`","arguments":`+args+`}`)
}

// hold begins a call that the child answers only after a cancel.
func (s *stage) hold() (id string) {
	s.t.Helper()
	id = s.Go(protocol.TypeToolCallReq, `{"tool_name":"hold","arguments":{},"streaming":true}`)
	s.Event(id)
	return id
}

// cancel cancels a request, which must end by that.
func (s *stage) cancel(id string) {
	s.t.Helper()
	s.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id))
	s.refused(s.Answer(id), protocol.CodeCancelled, "")
}

// refused checks the code of an error and a part of its message.
func (s *stage) refused(m hosttest.Message, code protocol.ErrorCode, says string) {
	s.t.Helper()
	must.That(s.t, m.Code == code && strings.Contains(m.Get("/message"), says), "should be refused as %s, %q: %s", code,
		says, m)
}

// clock is the time of a plugin; it stands still until a test moves it.
type clock struct{ passed, asked atomic.Int64 }

func (c *clock) rules(p *Plugin) {
	p.times.ping = 5 * time.Millisecond
	p.env.Now = func() time.Time {
		c.asked.Add(1)
		return time.Unix(1_000_000, c.passed.Load())
	}
}

// pass moves the time forward, and waits until the plugin has looked at its child several times.
func (c *clock) pass(t testing.TB, d time.Duration) {
	t.Helper()
	c.passed.Add(int64(d))
	looked := c.asked.Load() + 20
	hosttest.Eventually(t, "a look at the child", func() bool { return c.asked.Load() > looked })
}
