package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

func TestProcessesRun(t *testing.T) {
	s := newStage(t, DefaultOptions())
	must.OK(t, os.Mkdir(filepath.Join(s.dir, "sub"), 0o755))
	long := strings.Repeat("é", maxLine/2) // exactly as long as a line may be
	for _, tc := range []struct {
		name   string
		cmd    []string
		more   []any
		stdin  string
		want   []string
		status protocol.ProcState
		fails  string
	}{
		{
			name: "lines", cmd: []string{"bash", "-c", "echo one; echo; echo two"},
			want: []string{"stdout one", "stdout ", "stdout two", "stdout code 0"}, status: "completed",
		},
		{
			name: "stderr and a status", cmd: []string{"bash", "-c", "echo oops >&2; exit 3"},
			want: []string{"stderr oops", "stderr code 3"}, status: "failed", fails: "exit status 3",
		},
		{name: "no output", cmd: []string{"bash", "-c", ":"}, want: []string{"stdout code 0"}, status: "completed"},
		{
			name: "a signal of its own", cmd: []string{"bash", "-c", "kill -SEGV $$"}, want: []string{"stderr code 139"},
			status: "failed", fails: "segmentation",
		},
		{
			name: "stdin", cmd: []string{"cat"}, stdin: "x\ny", want: []string{"stdout x", "stdout+ y", "stdout code 0"},
			status: "completed",
		},
		{
			name: "no stdin", cmd: []string{"cat"}, more: []any{"stdin_mode", "null"}, want: []string{"stdout code 0"},
			status: "completed",
		},
		{
			name: "cwd", cmd: []string{"bash", "-c", `basename "$(pwd)"; basename "$PWD"`}, more: []any{"cwd", "sub"},
			want: []string{"stdout sub", "stdout sub", "stdout code 0"}, status: "completed",
		},
		{
			name: "env", cmd: []string{"bash", "-c", `echo "$A|$B|$C|$D"`}, more: []any{
				"env",
				map[string]any{"A": "x y", "B": 1.5, "C": true, "D": ""},
			},
			want: []string{"stdout x y|1.5|true|", "stdout code 0"}, status: "completed",
		},
		{
			name: "a long line", cmd: []string{"cat"}, stdin: long + "\n" + long + "x\n",
			want: []string{"stdout " + long, "stdout " + long + "x", "stdout code 0"}, status: "completed",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := s.spawn(tc.cmd, tc.more...)
			if tc.stdin != "" {
				p.write(tc.stdin, true)
			}
			assert.Slice(t, texts(p.end()), tc.want)
			st := s.status(p.id)
			if st.Status != tc.status || !strings.Contains(strings.ToLower(st.Error), tc.fails) ||
				(st.Error == "") != (tc.fails == "") || st.ProcID != p.id || st.Procs != nil {
				t.Errorf("status %+v, want %s %q", st, tc.status, tc.fails)
			}
		})
	}
}

func TestRefusedSpawns(t *testing.T) {
	opts := DefaultOptions()
	opts.AllowedCommands = []string{"bash", "echo", "no-such-program"}
	opts.EnvAllow = []string{"OK", "TERM"}
	s := newStage(t, opts)
	must.OK(t, os.Symlink(t.TempDir(), filepath.Join(s.dir, "out")))
	for _, tc := range []struct{ name, fields, says string }{
		{"no command", `{"cmd":[]}`, "cmd is empty"},
		{"an empty name", `{"cmd":[""]}`, "it is empty; allowed are: bash, echo"},
		{"not allowed", `{"cmd":["python3"]}`, "not on the allow list; allowed are: bash, echo"},
		{"a path", `{"cmd":["/bin/bash"]}`, "bare program name"},
		{"a path into the workspace", `{"cmd":["./bash"]}`, "bare program name"},
		{"not there", `{"cmd":["no-such-program"]}`, "does not have it"},
		{"a NUL", `{"cmd":["echo","a\u0000b"]}`, "word 1 of cmd has a NUL"},
		{"a folder outside", `{"cmd":["echo"],"cwd":"../x"}`, "leads out of the workspace"},
		{"an absolute folder", `{"cmd":["echo"],"cwd":"/tmp"}`, "outside"},
		{"a link outside", `{"cmd":["echo"],"cwd":"out"}`, "leads out of the workspace"},
		{"not a folder", `{"cmd":["echo"],"cwd":"missing"}`, "does not exist"},
		{"a steering variable", `{"cmd":["echo"],"env":{"LD_PRELOAD":"x"}}`, `"LD_PRELOAD" is refused`},
		{"a variable not allowed", `{"cmd":["echo"],"env":{"OTHER":"x"}}`, "not in env_allow of the config, which " +
			"has: OK, TERM"},
		{"a variable that is not a name", `{"cmd":["echo"],"env":{"a=b":"x"}}`, "ASCII letters"},
		{"another session", `{"cmd":["echo"],"session_id":"other"}`, "not that of this session"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var resp protocol.ProcSpawnResponse
			m := s.Call(protocol.TypeProcSpawnReq, tc.fields)
			m.Decode(t, &resp)
			assert.That(t, m.Type == protocol.TypeProcSpawnResp && !resp.OK && resp.ProcID == "" && resp.PID == 0 &&
				strings.Contains(resp.Error, tc.says), "%s, want ok:false and %q", m.Line, tc.says)
		})
	}
	// a spawn that avoids each of these mistakes
	p := s.spawn([]string{"bash", "-c", "echo $OK"}, "env", map[string]string{"OK": "fine"}, "cwd", ".")
	got := texts(p.end())
	assert.Equal(t, got[0], "stdout fine", "%v", got)
	all := s.status("")
	assert.Equal(t, len(all.Procs), 1, "refused spawns are listed: %+v", all)
}

func TestWrongSpawns(t *testing.T) {
	s := newStage(t, DefaultOptions())
	for _, tc := range []struct{ fields, path, says string }{
		{`{"cmd":["echo"],"stdin_mode":"file"}`, "/stdin_mode", `should be "pipe" or "null"`},
		{`{"cmd":["echo"],"timeout":-1}`, "/timeout", "seconds"},
		{`{"cmd":["echo"],"env":{"A/B":null}}`, "/env/A~1B", "a text, a number or a boolean"},
		{`{"cmd":["echo"],"env":{"A":["x"]}}`, "/env/A", "a text"},
		{`{"cmd":["echo"],"metadata":{"pty":"yes"}}`, "/metadata/pty", "boolean"},
		{`{"cmd":["echo"],"metadata":{"pty":true,"cols":70000}}`, "/metadata/cols", "1 to 65535"},
		{`{"cmd":["echo"],"metadata":{"pty":true,"rows":-1}}`, "/metadata/rows", "1 to 65535"},
		{`{"cmd":["echo",1]}`, "/cmd/1", "string"},
	} {
		s.Refused(protocol.TypeProcSpawnReq, tc.fields, protocol.CodeSchemaViolation, tc.path+": ", tc.says)
	}
}

// TestTimeouts: a process is ended after its own timeout, or after that of the config.
func TestTimeouts(t *testing.T) {
	opts := DefaultOptions()
	opts.Timeout = 0.1
	s := newStage(t, opts)
	own := s.bash("trap '' TERM INT; sleep 1000", "timeout", 1)
	configured := s.bash("sleep 1000")
	for _, p := range []*proc{own, configured} {
		assert.Slice(t, texts(p.end()), []string{"killed"})
		st := s.status(p.id)
		assert.That(t, st.Status == protocol.ProcTimedOut && strings.Contains(st.Error, "timeout"), "%+v", st)
	}
}

// TestLongTimeouts: a timeout that is too long for a time.Duration counts as no limit.
func TestLongTimeouts(t *testing.T) {
	s := newStage(t, Options{Timeout: 1e300})
	for _, timeout := range []int{0, 1 << 53} {
		p := s.bash("echo up", "timeout", timeout)
		assert.Slice(t, texts(p.end()), []string{"stdout up", "stdout code 0"})
	}
}

func TestMaxProcs(t *testing.T) {
	opts := DefaultOptions()
	opts.MaxProcs = 2
	s := newStage(t, opts)
	procs := []*proc{s.spawn([]string{"cat"}), s.spawn([]string{"cat"})}
	m := s.Refused(protocol.TypeProcSpawnReq, `{"cmd":["cat"]}`, protocol.CodeProcLimit, "max_procs") // a third
	m.Has(t, "/retryable", "true")
	s.Call(protocol.TypeProcSpawnReq, `{"cmd":["not-allowed"]}`).Has(t, "/ok", "false")
	procs[0].write("", true)
	procs[0].end()
	// the place is free once the last event is sent
	third := s.spawn([]string{"cat"})
	s.Refused(protocol.TypeProcSpawnReq, `{"cmd":["cat"]}`, protocol.CodeProcLimit) // a fourth
	third.kill("SIGKILL")
	procs[1].kill("SIGKILL")
}

// TestGrandchildDoesNotHoldTheEnd: a process that leaves a grandchild with its streams open still has
// its end.
func TestGrandchildDoesNotHoldTheEnd(t *testing.T) {
	s := newStage(t, DefaultOptions())
	p := s.bash("sleep 1000 & echo done")
	assert.Slice(t, texts(p.end()), []string{"stdout done", "stdout code 0"})
}

func TestStatusOfAll(t *testing.T) {
	s := newStage(t, DefaultOptions())
	if all := s.status(""); all.Status != protocol.ProcCompleted || all.Procs == nil || len(all.Procs) != 0 ||
		all.ProcID != "" {
		t.Errorf("of none: %+v", all)
	}
	begun := float64(time.Now().Add(-time.Minute).Unix())
	one := s.bash("exit 4")
	one.end()
	two := s.spawn([]string{"cat", strings.Repeat("é", 10_000)}) // ends: there is no such file
	two.end()
	three := s.spawn([]string{"cat"})
	all := s.status("")
	must.That(t, all.Status == protocol.ProcRunning && len(all.Procs) == 3, "%+v", all)
	for i, want := range []struct {
		p     *proc
		cmd   []string
		state protocol.ProcState
		code  int
	}{
		{one, []string{"bash", "-c", "exit 4"}, "failed", 4},
		{two, nil, "failed", 1},
		{three, []string{"cat"}, "running", -1},
	} {
		got := all.Procs[i]
		switch {
		case got.ProcID != want.p.id, got.PID != want.p.pid, got.State != want.state, got.StartedAt < begun,
			want.cmd != nil && !slices.Equal(got.Cmd, want.cmd):
			t.Errorf("%+v, want %+v", got, want)
		case want.code < 0 != (got.ExitCode == nil), got.ExitCode != nil && *got.ExitCode != want.code:
			t.Errorf("exit code %v, want %d", got.ExitCode, want.code)
		}
	}
	size := len(strings.Join(all.Procs[1].Cmd, ""))
	assert.That(t, size <= maxShown+10, "%d bytes of a long command are kept", size)
	st := s.status("p9-procs")
	assert.That(t, st.Status == protocol.ProcNotFound && st.Error != "" && st.ProcID == "p9-procs",
		"of an unknown one: %+v", st)
	three.kill("SIGKILL")
	assert.Equal(t, s.status("").Status, protocol.ProcCompleted, "after the last")
}

func TestOptions(t *testing.T) {
	good := newPlugin(t, "x", t.TempDir(), DefaultOptions()).env
	nowhere, unable := good, good
	nowhere.Workspace, unable.Launcher = filepath.Join(t.TempDir(), "missing"), nil
	for says, tc := range map[string]struct {
		opts Options
		env  host.Env
	}{
		"allowed_commands": {Options{AllowedCommands: []string{"/bin/sh"}}, good},
		"env_allow":        {Options{EnvAllow: []string{"LD_PRELOAD"}}, good},
		"timeout":          {Options{Timeout: -1}, good},
		"launcher":         {Options{}, unable},
		"workspace":        {Options{}, nowhere},
	} {
		_, err := New("mine", tc.opts, tc.env)
		assert.That(t, err != nil && strings.Contains(err.Error(), says) && strings.Contains(err.Error(), `"mine"`),
			"%v, should say %s", err, says)
	}
}

func TestWrites(t *testing.T) {
	s := newStage(t, DefaultOptions())
	p := s.spawn([]string{"cat"})
	p.write("one\n", false)
	p.says("one\n") // cat answers while its stdin is open
	p.write("", false)
	p.write("tw", false)
	p.write("o\n", true)
	assert.Slice(t, texts(p.end()), []string{"stdout one", "stdout two", "stdout code 0"})
	s.Refused(protocol.TypeProcWriteReq, fields(t, "proc_id", p.id, "data", "x"), protocol.CodeProcDead, "completed")
	s.Refused(protocol.TypeProcWriteReq, `{"proc_id":"p0","data":"x"}`, protocol.CodeUnknownProc)
}

func TestRefusedWrites(t *testing.T) {
	s := newStage(t, DefaultOptions())
	nobody := s.bash("sleep 1000", "stdin_mode", "null")
	r := nobody.tryWrite("data", "x")
	assert.That(t, !r.OK && strings.Contains(r.Error, `stdin_mode "null"`) && r.PID == nobody.pid, "without stdin: %+v",
		r)
	ended := s.bash("cat; echo eof; sleep 1000")
	ended.write("", true)
	ended.says("eof\n")
	for _, more := range [][]any{{"data", "x"}, {"eof", true}} {
		r := ended.tryWrite(more...)
		assert.That(t, !r.OK && strings.Contains(r.Error, "eof"), "after eof: %+v", r)
	}
	r = ended.tryWrite("metadata", map[string]int{"cols": 10, "rows": 10})
	assert.That(t, !r.OK && strings.Contains(r.Error, "no terminal"), "a size: %+v", r)
	s.Refused(protocol.TypeProcWriteReq, fields(t, "proc_id", ended.id, "metadata", map[string]int{"cols": -10}),
		protocol.CodeSchemaViolation, "/metadata/cols: ")
	closed := s.bash("exec <&-; echo closed; sleep 1000")
	closed.says("closed\n")
	hosttest.Eventually(t, "a refused write", func() bool {
		r := closed.tryWrite("data", "x")
		return !r.OK && strings.Contains(r.Error, "closed its stdin")
	})
}

// TestStdinIsBounded: input that a process does not read is bounded. A single write of any size is
// accepted if nothing waits. Meanwhile the host answers.
func TestStdinIsBounded(t *testing.T) {
	s := newStage(t, DefaultOptions())
	// The process reads nothing until it gets a signal.
	p := s.bash("trap 'wc -c; exit' USR1; echo ready; while :; do sleep 0.01; done")
	p.says("ready\n")
	chunk := strings.Repeat("x", 1<<20)
	p.write(strings.Repeat(chunk, 15), false)
	taken := 15
	var refused protocol.ProcWriteResponse
	for ; taken < 40; taken++ {
		if refused = p.tryWrite("data", chunk); !refused.OK {
			break
		}
	}
	assert.That(t, taken >= 16 && taken <= 18 && strings.Contains(refused.Error, "stdin is full"),
		"%d MiB taken, then %+v", taken, refused)
	m := s.Call(protocol.TypePing, `{}`)
	assert.Equal(t, m.Type, protocol.TypePong, "%s", m.Line)
	p.kill("SIGUSR1")
	hosttest.Eventually(t, "room for the end", func() bool { return p.tryWrite("eof", true).OK })
	got := texts(p.end())
	assert.That(t, slices.Contains(got, fmt.Sprintf("stdout %d", taken<<20)), "%q, of %d MiB written", got, taken)
	deaf := s.bash("sleep 1000")
	deaf.write(chunk, false)
	assert.Equal(t, deaf.dies(), "killed")
}
