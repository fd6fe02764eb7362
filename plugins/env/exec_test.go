package env

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// execStage is an environment `exec` in a workspace of its own.
type execStage struct {
	*external
	t   testing.TB
	dir string
	log *hosttest.Log

	mu  sync.Mutex
	now time.Time // guarded by mu; does not advance by itself
}

// newExecStage returns a stage that runs the program of testdata in a mode, unless opts has another command.
func newExecStage(t testing.TB, mode string, opts ExecOptions) *execStage {
	t.Helper()
	s := &execStage{t: t, dir: t.TempDir(), log: &hosttest.Log{}, now: time.Unix(1_800_000_000, 0)}
	program := must.Get(os.ReadFile("testdata/exec_env.py"))(t)
	must.OK(t, os.WriteFile(filepath.Join(s.dir, "exec_env.py"), program, 0o600))
	if opts.Command == nil {
		opts.Command = []string{"python3", "exec_env.py", mode}
	}
	launcher := must.Get(sandbox.New(sandbox.Options{Workspace: s.dir, Launcher: hosttest.Launcher(t)}))(t)
	e := must.Get(newExec(opts, host.Env{
		Workspace: s.dir, Now: s.clock, Log: zerolog.New(s.log),
		Launcher: func() (*sandbox.Launcher, error) { return launcher, nil },
	}))(t)
	s.external = e.(*external)
	t.Cleanup(func() {
		err := errors.Join(s.Close(context.Background()), launcher.Close())
		assert.That(t, err == nil || errors.Is(err, os.ErrClosed), "%v", err)
	})
	return s
}

func (s *execStage) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *execStage) pass(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

// begin starts an episode; options is a JSON object.
func (s *execStage) begin(seed int64, options string) *execWorld {
	s.t.Helper()
	w, err := s.Reset(s.t.Context(), Reset{
		Seed: seed, Options: execObject(s.t, options),
		Push: func(*protocol.EnvStatePush) {},
	})
	must.OK(s.t, err)
	return w.(*execWorld)
}

func execObject(t testing.TB, text string) protocol.Object {
	t.Helper()
	return must.Get(protocol.ParseObject([]byte(text)))(t)
}

// act takes a step, which must succeed.
func (s *execStage) act(w *execWorld, action string) Outcome {
	s.t.Helper()
	out, err := w.Step(s.t.Context(), Action{Whole: execObject(s.t, action)})
	must.OK(s.t, err)
	return out
}

// refused takes a step, which must fail with this code.
func (s *execStage) refused(w *execWorld, action string, code protocol.ErrorCode) *protocol.Error {
	s.t.Helper()
	_, err := w.Step(s.t.Context(), Action{Whole: execObject(s.t, action)})
	return execCode(s.t, err, code)
}

// execCode checks the code of an error and returns the error as a *protocol.Error. The code "" stands for an error that
// is not a *protocol.Error.
func execCode(t testing.TB, err error, code protocol.ErrorCode) *protocol.Error {
	t.Helper()
	var e *protocol.Error
	switch isOwn := errors.As(err, &e); {
	case code == "" && err != nil && !isOwn:
		return &protocol.Error{Message: err.Error()}
	case !isOwn || e.Code != code:
		t.Fatalf("error %v, want %q", err, code)
	}
	return e
}

// state returns one member of a world's state as JSON.
func (s *execStage) state(w *execWorld, key string) string {
	s.t.Helper()
	raw, err := w.AppendState(s.t.Context(), nil)
	must.OK(s.t, err)
	val, _ := execObject(s.t, string(raw)).Get(key)
	return string(val)
}

// notes returns the lines that the program wrote into a file.
func (s *execStage) notes(name string) []string {
	text, err := os.ReadFile(filepath.Join(s.dir, name))
	must.That(s.t, err == nil || os.IsNotExist(err), "%v", err)
	lines := strings.Split(string(text), "\n")
	return lines[:len(lines)-1]
}

// await waits until a file has this many lines.
func (s *execStage) await(name string, lines int) {
	s.t.Helper()
	hosttest.Eventually(s.t, name, func() bool { return len(s.notes(name)) >= lines })
}

func TestExecEpisode(t *testing.T) {
	s := newExecStage(t, "", ExecOptions{EnvName: "world"})
	s.grace = hosttest.Patience
	must.That(t, s.Name() == "world" && len(s.notes("starts")) == 0, "%s started before its first use: %v", s.Name(),
		s.notes("starts"))
	var all sync.WaitGroup
	for range 20 { // many first requests at once wait for one start of the program
		all.Go(func() {
			if _, err := s.Reset(t.Context(), Reset{Push: func(*protocol.EnvStatePush) {}}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	space, err := s.Space(t.Context())
	must.That(t, err == nil && strings.Join(space.Types, " ") == "add die hold release" &&
		space.State["type"] == "object", "space %+v, %v", space, err)
	a, b := s.begin(7, `{}`), s.begin(8, `{}`)
	out := s.act(a, `{"type":"add","value":2}`)
	assert.That(t, out.Reward == 0.25 && !out.Done && !out.Truncated && fmt.Sprintf("%s",
		out.Info["seen"]) == "12345678901234567890", "%+v", out)
	out = s.act(b, `{"type":"add","value":92}`)
	assert.That(t, out.Done && !out.Truncated, "at 100: %+v", out)
	out = s.act(b, `{"type":"add","value":-101}`)
	assert.That(t, !out.Done && out.Truncated, "below 0: %+v", out)
	for key, want := range map[string]string{"count": "9", "long": "9007199254740993", "small": "1e-07"} {
		got := s.state(a, key)
		assert.That(t, got == want, "state %s is %s, want %s", key, got, want)
	}
	if pic, err := a.Render(t.Context(), "text"); err != nil || string(pic) != `{"mode": "text", "text": "9"}` {
		t.Errorf("render %s, %v", pic, err)
	}
	assert.That(t, s.act(a, `{"type":"torn"}`).Reward == 2, "an answer that came byte by byte was lost")
	if err := a.Close(t.Context()); err != nil || s.notes("closed")[0] != "e20" {
		t.Errorf("close: %v, %v", err, s.notes("closed"))
	}
	n := s.notes("starts")
	assert.That(t, len(n) == 1, "%d programs for all of it", len(n))
	// The program must end because its input ends, not by a signal.
	if err := s.Close(t.Context()); err != nil || len(s.notes("ended")) != 1 {
		t.Errorf("close: %v, %v", err, s.notes("ended"))
	}
	if _, err = s.Reset(t.Context(), Reset{}); !errors.Is(err, errExecClosed) {
		t.Errorf("reset after close: %v", err)
	}
}

func TestExecAnswersInAnyOrder(t *testing.T) {
	s := newExecStage(t, "", ExecOptions{})
	a, b := s.begin(1, `{}`), s.begin(2, `{}`)
	held := make(chan error, 1)
	go func() {
		out, err := a.Step(t.Context(), Action{Whole: execObject(t, `{"type":"hold"}`)})
		if err == nil && out.Reward != 1 {
			err = fmt.Errorf("outcome %+v", out)
		}
		held <- err
	}()
	s.await("held", 1)
	s.act(b, `{"type":"add","value":1}`)
	select {
	case err := <-held:
		t.Fatalf("the step held back was answered: %v", err)
	default:
	}
	s.act(b, `{"type":"release"}`)
	assert.OK(t, <-held)
	x, y := s.state(a, "count"), s.state(b, "count")
	assert.That(t, x == "2" && y == "3", "counts %s and %s", x, y)
}

// TestExecPush: a push right after the first observation finds its episode, and the host asks for the state again.
func TestExecPush(t *testing.T) {
	s := newExecStage(t, "", ExecOptions{})
	got := make(chan *protocol.EnvStatePush, 1)
	w := must.Get(s.Reset(t.Context(), Reset{
		Seed: 3, Options: execObject(t, `{"how":"push"}`),
		Push: func(p *protocol.EnvStatePush) { got <- p },
	}))(t)
	p := <-got
	assert.That(t, p.EventType == "tick" && p.Reason == "time" && *p.Reward == 0.5 && p.Terminal &&
		fmt.Sprintf("%s", p.Delta["count"]) == "9007199254740993" && p.RewardInfo == nil, "%+v", p)
	count := s.state(w.(*execWorld), "count")
	assert.That(t, count == "4", "count %s after the push", count)
}

// TestExecSandbox: the program sees of the machine only what its options allow. A command with a slash is relative to
// the workspace; `read` and `cwd` open folders, and `env` sets variables.
func TestExecSandbox(t *testing.T) {
	outside := t.TempDir()
	secret := filepath.Join(outside, "granted", "file")
	must.OK(t, os.Mkdir(filepath.Dir(secret), 0o700), os.WriteFile(secret, []byte("data"), 0o600))
	for name, tc := range map[string]struct {
		opts ExecOptions
		want string
	}{
		"closed":  {want: `"FileNotFoundError"`},
		"granted": {ExecOptions{Read: []string{filepath.Dir(secret)}}, `"data"`},
		"in cwd":  {ExecOptions{Cwd: filepath.Dir(secret)}, `"data"`},
	} {
		t.Run(name, func(t *testing.T) {
			opts := tc.opts
			opts.Command, opts.Env = []string{"bin/start"}, map[string]string{"A2E_TEST": "yes"}
			s := newExecStage(t, "", opts)
			start := filepath.Join(s.dir, "bin/start")
			must.OK(t, os.Mkdir(filepath.Dir(start), 0o700), os.Symlink("/bin/sh", start))
			s.opts.Command = []string{"bin/start", "-c", "cd '" + s.dir + "' && exec python3 exec_env.py \"$0\""}
			w := s.begin(1, `{}`)
			s.act(w, fmt.Sprintf(`{"type":"read","path":%q}`, secret))
			got := strings.ReplaceAll(s.state(w, "value")+s.state(w, "problem"), "%!s(<nil>)", "")
			// Without namespaces the file can be seen, but not read.
			shut := name == "closed" && got == `"PermissionError"`
			assert.That(t, got == tc.want || shut || name == "closed" && runtime.GOOS != "linux", "reads %s, want %s",
				got, tc.want)
			if s.act(w, `{"type":"env","name":"A2E_TEST"}`); s.state(w, "value") != `"yes"` {
				t.Errorf("environment: %s", s.state(w, "value"))
			}
			assert.Equal(t, s.notes("starts")[0], start, "argv[0]")
		})
	}
}

func TestExecOptions(t *testing.T) {
	launcher := func() (*sandbox.Launcher, error) { return nil, errors.New("none") }
	for text, want := range map[string]string{
		`{}`:                                "command is missing",
		`{command: []}`:                     "command is missing",
		`{command: [""]}`:                   "command is missing",
		`{command: [a], timeout: -1}`:       "0 or more seconds",
		`{command: [a], start_timeout: -1}`: "0 or more seconds",
		`{command: [a]}`:                    "",
		`{command: [a], timeout: 1m, start_timeout: 2.5, network_disabled: false, restart: false, cwd: x, env: {A: b}, read: [y], env_name: z}`: "",
	} {
		parsed, err := config.ParseOptions("a2e.yaml", []byte(text), nil)
		must.OK(t, err)
		var opts ExecOptions
		if err := parsed.Decode(&opts); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		e, err := newExec(opts, host.Env{Workspace: t.TempDir(), Launcher: launcher})
		assert.That(t, (want == "") == (err == nil) && (err == nil || strings.Contains(err.Error(), want)),
			"%s: %v, want %q", text, err, want)
		if err != nil {
			continue
		}
		_, err = e.Reset(t.Context(), Reset{})
		assert.That(t, err != nil, "%s: began without a launcher", text)
		assert.OK(t, e.Close(t.Context()))
	}
	_, err := newExec(ExecOptions{Command: []string{"a"}}, host.Env{})
	assert.That(t, err != nil, "made without a launcher")
}

func TestExecNetwork(t *testing.T) {
	for _, tc := range []struct {
		disabled *bool
		want     sandbox.Network
	}{{nil, sandbox.NetworkNone}, {new(true), sandbox.NetworkNone}, {new(false), sandbox.NetworkHost}} {
		s := newExecStage(t, "", ExecOptions{NetworkDisabled: tc.disabled})
		program := s.program()
		program.Command = []string{"sh"}
		policy, err := program.Policy()
		assert.That(t, err == nil && policy.Network == tc.want, "network %q, %v", policy.Network, err)
		policy.DirFile.Close()
	}
}
