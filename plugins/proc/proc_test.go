package proc

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/child/spill"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

func TestContract(t *testing.T) {
	opts := DefaultOptions()
	opts.MaxProcs = 1000
	// One process of each host, which accepts writes and mild signals without end.
	var mu sync.Mutex
	patient := map[*hosttest.Pair]string{}
	with := func(fields string) func(testing.TB, *hosttest.Pair) string {
		return func(t testing.TB, p *hosttest.Pair) string {
			mu.Lock()
			defer mu.Unlock()
			if patient[p] == "" {
				var resp protocol.ProcSpawnResponse
				p.Call(protocol.TypeProcSpawnReq, `{"cmd":["bash","-c","trap '' USR1; echo up; exec cat"]}`).Decode(t,
					&resp)
				patient[p] = resp.ProcID
				p.Wait("its trap", func(m hosttest.Message) bool {
					return m.Get("/proc_id") == resp.ProcID && m.Get("/data/text") == "up\n"
				})
			}
			return strings.ReplaceAll(fields, "ID", patient[p])
		}
	}
	hosttest.Contract(t, func(t testing.TB) host.Plugin { return newPlugin(t, "procs", t.TempDir(), opts) },
		[]hosttest.Sample{
			{Type: protocol.TypeProcSpawnReq, Fields: `{"session_id":"","cmd":["echo","hi"],"cwd":"","env":{"A":"b"},"stdin_mode":"pipe","timeout":10,"metadata":{"pty":false}}`},
			{
				Name: "terminal", Type: protocol.TypeProcSpawnReq,
				Fields: `{"cmd":["echo","hi"],"metadata":{"pty":true,"cols":90,"rows":20}}`,
			},
			{Name: "refused", Type: protocol.TypeProcSpawnReq, Fields: `{"cmd":["no-such-program"]}`},
			{
				Name: "wrong mode", Type: protocol.TypeProcSpawnReq, Fields: `{"cmd":["echo"],"stdin_mode":"x"}`,
				Code: protocol.CodeSchemaViolation,
			},
			{Type: protocol.TypeProcWriteReq, Make: with(`{"proc_id":"ID","data":"x\n","eof":false}`)},
			{
				Name: "write to nobody", Type: protocol.TypeProcWriteReq, Fields: `{"proc_id":"x","data":"x"}`,
				Code: protocol.CodeUnknownProc,
			},
			{Type: protocol.TypeProcKillReq, Make: with(`{"proc_id":"ID","signal":"SIGUSR1"}`)},
			{
				Name: "wrong signal", Type: protocol.TypeProcKillReq, Make: with(`{"proc_id":"ID","signal":"SIGSTOP"}`),
				Code: protocol.CodeSchemaViolation,
			},
			{
				Name: "kill nobody", Type: protocol.TypeProcKillReq, Fields: `{"proc_id":"x"}`,
				Code: protocol.CodeUnknownProc,
			},
			{Type: protocol.TypeProcStatusReq, Make: with(`{"proc_id":"ID"}`)},
			{Name: "all", Type: protocol.TypeProcStatusReq, Fields: `{"proc_id":""}`},
			{Name: "nobody", Type: protocol.TypeProcStatusReq, Fields: `{"proc_id":"x"}`},
		})
}

// TestSeveralPlugins: two plugins share the work: a program is started by the plugin that allows it, an
// id belongs to the plugin that made it, and one list has the processes of both.
func TestSeveralPlugins(t *testing.T) {
	opts := DefaultOptions()
	opts.AllowedCommands = []string{"bash"}
	first := newPlugin(t, "first", t.TempDir(), opts)
	opts.AllowedCommands = []string{"cat"}
	second := newPlugin(t, "second", t.TempDir(), opts)
	s := &stage{t: t, Pair: hosttest.New(t, host.Options{Plugins: []host.Plugin{first, second}})}
	s.Handshake(protocol.CapProc)
	a, b := s.bash("read x; echo bash $x"), s.spawn([]string{"cat"})
	must.That(t, a.id != b.id, "both are called %s", a.id)
	all := s.status("")
	assert.That(t, len(all.Procs) == 2 && all.Status == protocol.ProcRunning, "%+v", all)
	a.write("one\n", false)
	b.write("two\n", true)
	assert.Slice(t, texts(a.end()), []string{"stdout bash one", "stdout code 0"})
	assert.Slice(t, texts(b.end()), []string{"stdout two", "stdout code 0"})
	for _, p := range []*proc{a, b} {
		st := s.status(p.id)
		assert.That(t, st.Status == protocol.ProcCompleted && st.ProcID == p.id, "%+v", st)
	}
	st := s.status("x")
	assert.Equal(t, st.Status, protocol.ProcNotFound, "%+v", st)
	m := s.Call(protocol.TypeProcSpawnReq, `{"cmd":["ls"]}`)
	assert.That(t, m.Get("/ok") == "false" && strings.Contains(m.Get("/error"), "allow list"),
		"what neither allows: %s", m.Line)
	s.Refused(protocol.TypeProcKillReq, `{"proc_id":"x"}`, protocol.CodeUnknownProc)
}

// TestClose: Close kills running processes, and no process starts after it.
func TestClose(t *testing.T) {
	s := newStage(t, DefaultOptions())
	p := s.spawn([]string{"cat"})
	q := s.bash("yes $(printf %01000d 0)")
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	assert.OK(t, s.plugin.Close(ctx))
	for _, r := range s.plugin.procs.all() {
		assert.That(t, r.ended(), "%s runs", r.id)
	}
	for _, p := range []*proc{p, q} {
		assert.Equal(t, last(p.end()), "killed")
	}
	m := s.Call(protocol.TypeProcSpawnReq, `{"cmd":["cat"]}`)
	assert.That(t, m.Type == protocol.TypeError || m.Get("/ok") == "false", "a spawn after Close: %s", m.Line)
	_, err := s.plugin.RunProc(t.Context(), child.ProcRun{Cmd: []string{"cat"}})
	assert.That(t, err != nil, "a run after Close")
}

// TestRegistryForgets: a session remembers the last thousand processes that have ended, and all that
// run.
func TestRegistryForgets(t *testing.T) {
	p := newPlugin(t, "procs", t.TempDir(), DefaultOptions())
	defer p.Close(t.Context())
	g := &p.procs
	sess := &host.Session{}
	var runs, first, last *process
	for i := range maxRemembered + 6 {
		must.OK(t, p.enter())
		r := &process{id: g.newID(), session: g.of(sess), state: protocol.ProcRunning}
		if p.goes.Done(); !g.add(r) {
			t.Fatal("the session has ended")
		}
		if i == 0 {
			runs = r
			continue
		}
		r.state = protocol.ProcCompleted
		g.bury(r)
		if i == 1 {
			first = r
		}
		last = r
	}
	assert.Equal(t, len(g.list(sess)), maxRemembered+1, "… are listed")
	for r, known := range map[*process]bool{runs: true, first: false, last: true} {
		if _, err := g.find(sess, r.id); (err == nil) != known {
			t.Errorf("%s: %v", r.id, err)
		}
	}
	_, err := g.find(&host.Session{}, last.id)
	assert.That(t, err != nil, "another session knows it")
	if g.end(sess); g.add(last) || len(g.list(sess)) != 0 || len(g.sessions) != 0 {
		t.Error("the session goes on after its end")
	}
}

func TestRunProc(t *testing.T) {
	opts := DefaultOptions()
	opts.MaxOutputBytes = 1000
	opts.MaxProcs = 1
	dir := t.TempDir()
	p := newPlugin(t, "procs", dir, opts)
	defer p.Close(t.Context())
	bash := func(script string) []string { return []string{"bash", "-c", script} }
	for _, tc := range []struct {
		name string
		run  child.ProcRun
		want child.ProcResult
		code protocol.ErrorCode
		says string
	}{
		{"output", child.ProcRun{Cmd: bash("echo out; echo err >&2; exit 3")}, child.ProcResult{
			Stdout: "out\n",
			Stderr: "err\n", ExitCode: 3,
		}, "", ""},
		{
			"stdin and env",
			child.ProcRun{Cmd: bash("cat; echo $A"), Stdin: "in\n", Env: map[string]string{"A": "b"}},
			child.ProcResult{Stdout: "in\nb\n"},
			"", "",
		},
		{"no stdin", child.ProcRun{Cmd: []string{"cat"}}, child.ProcResult{}, "", ""},
		{
			"as much as fits",
			child.ProcRun{Cmd: bash("printf '%01000d' 0")},
			child.ProcResult{Stdout: strings.Repeat("0", 1000)},
			"", "",
		},
		{"too much", child.ProcRun{Cmd: bash("printf '%0999d€x' 0")}, child.ProcResult{
			Stdout:    strings.Repeat("0", 500) + "\n[49 bytes are missing here]\n" + strings.Repeat("0", 450) + "€x",
			Truncated: true,
		}, "", ""},
		{"binary", child.ProcRun{Cmd: bash(`printf 'a\xff'`)}, child.ProcResult{Stdout: "a\uFFFD"}, "", ""},
		{"a signal", child.ProcRun{Cmd: bash("kill -9 $$")}, child.ProcResult{ExitCode: 137}, "", ""},
		{
			"a folder outside",
			child.ProcRun{Cmd: []string{"cat"}, Cwd: ".."},
			child.ProcResult{},
			protocol.CodeToolDenied,
			"leads out",
		},
		{
			"not a folder",
			child.ProcRun{Cmd: []string{"cat"}, Cwd: "x"},
			child.ProcResult{},
			protocol.CodeToolError,
			"does not exist",
		},
		{
			"not allowed",
			child.ProcRun{Cmd: []string{"no-such"}},
			child.ProcResult{},
			protocol.CodeToolDenied,
			"allow list",
		},
		{
			"a variable",
			child.ProcRun{Cmd: []string{"cat"}, Env: map[string]string{"PATH": "x"}},
			child.ProcResult{},
			protocol.CodeToolDenied, "PATH",
		},
		{"nothing", child.ProcRun{}, child.ProcResult{}, protocol.CodeToolError, "empty"},
		{
			"time is up",
			child.ProcRun{Cmd: bash("echo begun; sleep 1000"), Timeout: time.Second / 2},
			child.ProcResult{},
			protocol.CodeTimeout, "time was up",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := p.RunProc(t.Context(), tc.run)
			if tc.code != "" {
				e, ok := err.(*protocol.Error)
				assert.That(t, ok && e.Code == tc.code && strings.Contains(e.Message, tc.says),
					"%v, %v, want %s %q", got, err, tc.code, tc.says)
				return
			}
			assert.That(t, err == nil && *got == tc.want, "%+v, %v, want %+v", got, err, tc.want)
		})
	}
}

// TestRunProcStoppedIsSpilled: the error of a run that was stopped by its timeout names the file with
// its whole output.
func TestRunProcStoppedIsSpilled(t *testing.T) {
	opts := DefaultOptions()
	p := newPlugin(t, "procs", t.TempDir(), opts)
	defer p.Close(t.Context())
	p.maxOutput, p.spill = 1000, spill.New(t.TempDir(), nil)
	_, err := p.RunProc(t.Context(), child.ProcRun{
		Cmd:     []string{"bash", "-c", "printf '%050000d' 0; sleep 1000"},
		Timeout: 2 * time.Second,
	})
	e, ok := errors.AsType[*protocol.Error](err)
	must.That(t, ok && e.Code == protocol.CodeTimeout, "%v", err)
	file, _ := e.Detail["spilled"].(string)
	assert.Equal(t, string(must.Get(os.ReadFile(file))(t)), strings.Repeat("0", 50000), "the file")
}

// TestRunProcUnderWay: a run ends with its request, and takes one of the plugin's places.
func TestRunProcUnderWay(t *testing.T) {
	opts := DefaultOptions()
	opts.MaxProcs = 1
	p := newPlugin(t, "procs", t.TempDir(), opts)
	defer p.Close(t.Context())
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := p.RunProc(ctx, child.ProcRun{Cmd: []string{"sleep", "1000"}})
		done <- err
	}()
	hosttest.Eventually(t, "the run", func() bool {
		p.procs.mu.Lock()
		defer p.procs.mu.Unlock()
		return p.procs.busy == 1
	})
	_, err := p.RunProc(t.Context(), child.ProcRun{Cmd: []string{"echo"}})
	e, ok := err.(*protocol.Error)
	assert.That(t, ok && e.Code == protocol.CodeProcLimit, "a second of one: %v", err)
	cause := protocol.Errorf(protocol.CodeCancelled, "not wanted")
	cancel(cause)
	if err := <-done; err != error(cause) {
		t.Error(err)
	}
	if _, err := p.RunProc(t.Context(), child.ProcRun{Cmd: []string{"echo"}}); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// TestNetworkOption: the config decides about the network, which is off by default.
func TestNetworkOption(t *testing.T) {
	for _, disabled := range []bool{true, false} {
		opts := DefaultOptions()
		assert.That(t, opts.NetworkDisabled, "the network is on by default")
		opts.NetworkDisabled = disabled
		p := newPlugin(t, "procs", t.TempDir(), opts)
		policy, release, err := p.policy([]string{"cat"}, "", nil)
		must.OK(t, err)
		release()
		assert.Equal(t, (policy.Network == ""), disabled, "network_disabled … gives %q", policy.Network)
		assert.OK(t, p.Close(t.Context()))
	}
}
