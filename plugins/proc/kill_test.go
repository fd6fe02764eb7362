//go:build unix

package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestKillSignals: each signal reaches the process: a process that handles it continues, and any other
// ends.
func TestKillSignals(t *testing.T) {
	opts := DefaultOptions()
	opts.MaxProcs = 20
	s := newStage(t, opts)
	for _, name := range []string{"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"} {
		short := strings.TrimPrefix(name, "SIG")
		taker := s.bash(fmt.Sprintf("trap 'echo got %s' %s; echo up; while :; do sleep 0.01; done", short, short))
		plain := s.python("import signal,time\nsignal.signal(signal.SIGINT, " +
			"signal.SIG_DFL)\nprint('up')\ntime.sleep(1000)")
		for _, p := range []*proc{taker, plain} {
			p.says("up\n")
		}
		r := taker.kill(strings.ToLower(short))
		assert.That(t, r.OK && r.State == protocol.ProcRunning, "%s: %+v", short, r)
		taker.says("got " + short + "\n")
		s.plugin.mildWait = patience
		r = plain.kill(name)
		s.plugin.mildWait = signalWait
		assert.That(t, r.OK && r.State == protocol.ProcKilled, "%s, whose answer waits for the end: %+v", name, r)
		assert.Slice(t, texts(plain.end()), []string{"stdout up", "killed"}, "%s", name)
		st := s.status(plain.id)
		assert.That(t, st.Status == protocol.ProcKilled && strings.Contains(st.Error, name), "%s: %+v", name, st)
		r = plain.kill("SIGKILL")
		assert.That(t, !r.OK && r.State == protocol.ProcKilled, "a second time: %+v", r)
		assert.Equal(t, taker.dies(), "killed")
	}
}

// TestKillThatIsCaught: a process that ends by itself after a signal has the state of its own exit.
func TestKillThatIsCaught(t *testing.T) {
	s := newStage(t, DefaultOptions())
	s.plugin.mildWait = patience
	for _, tc := range []struct {
		exit  string
		last  string
		state protocol.ProcState
	}{
		{"exit 0", "stdout code 0", "completed"},
		{"exit 5", "stderr code 5", "failed"},
		{"exit 143", "killed", "killed"}, // how the shell reports SIGTERM
		{"kill -USR1 $$", "stderr code 138", "failed"},
	} {
		p := s.bash("trap '" + tc.exit + "' TERM; echo up; while :; do sleep 0.01; done")
		p.says("up\n")
		r := p.kill("TERM")
		assert.That(t, r.OK && r.State == tc.state, "%s: the answer is %+v", tc.exit, r)
		assert.Equal(t, last(p.end()), tc.last, "%s", tc.exit)
		assert.Equal(t, s.status(p.id).Status, tc.state, "%s", tc.exit)
	}
}

func TestWrongKills(t *testing.T) {
	s := newStage(t, DefaultOptions())
	p := s.spawn([]string{"cat"})
	for _, name := range []string{"SIGSTOP", "9", "SIG", "KILL ", "SIGSIGTERM"} {
		s.Refused(protocol.TypeProcKillReq, fields(t, "proc_id", p.id, "signal", name), protocol.CodeSchemaViolation,
			"/signal: ", "SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2")
	}
	s.Refused(protocol.TypeProcKillReq, `{"proc_id":"p0-procs"}`, protocol.CodeUnknownProc) // an unknown one
	s.Call(protocol.TypeProcKillReq, fields(t, "proc_id", p.id)).Has(t, "/ok", "true")      // SIGTERM
	assert.Slice(t, texts(p.end()), []string{"killed"})
}

// family is a program of three generations, each in its own session. Each holds a lock on a file of the
// workspace and ignores mild signals.
const family = `
import fcntl, os, signal, time
for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(s, signal.SIG_IGN)
for i in range(3):
    if i and os.fork(): break
    if i: os.setsid()
    f = open('lock%d' % i, 'w')
    fcntl.flock(f, fcntl.LOCK_EX)
    kept = globals().setdefault('kept', []); kept.append(f)
    if i == 2: print('all up', flush=True)
time.sleep(1000)
`

// locked reports whether a living process holds the lock i.
func locked(t *testing.T, dir string, i int) bool {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, fmt.Sprintf("lock%d", i)))
	must.OK(t, err)
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	must.That(t, err == nil || errors.Is(err, syscall.EWOULDBLOCK), "%v", err)
	return err != nil
}

// family starts the program family, and checks that all generations live.
func (s *stage) family(t *testing.T) *proc {
	t.Helper()
	p := s.python(family)
	p.says("all up\n")
	for i := range 3 {
		must.That(t, locked(t, s.dir, i), "generation %d does not live", i)
	}
	return p
}

func (s *stage) extinct(t *testing.T) {
	t.Helper()
	for i := range 3 {
		hosttest.Eventually(t, fmt.Sprintf("the end of generation %d", i), func() bool { return !locked(t, s.dir, i) })
	}
}

// TestTreesDie: no process of a tree outlives the kill, the timeout, the session or the host, even if
// it has left its process group and its session.
func TestTreesDie(t *testing.T) {
	t.Run("kill", func(t *testing.T) {
		s := newStage(t, DefaultOptions())
		assert.Equal(t, s.family(t).dies(), "killed")
		s.extinct(t)
	})
	t.Run("timeout", func(t *testing.T) {
		s := newStage(t, DefaultOptions())
		p := s.family(t)
		s.plugin.procs.all()[0].stop(errTimedOut) // what the timer does; the test does not wait for the timer
		assert.Equal(t, last(p.end()), "killed")
		assert.Equal(t, s.status(p.id).Status, protocol.ProcTimedOut)
		s.extinct(t)
	})
	t.Run("session", func(t *testing.T) {
		s := newStage(t, DefaultOptions())
		s.family(t)
		s.Handshake(protocol.CapProc).Has(t, "/ok", "true")
		s.extinct(t)
	})
	t.Run("host", func(t *testing.T) {
		s := newStage(t, DefaultOptions())
		s.family(t)
		s.Go(protocol.TypeShutdown, `{"timeout":0}`)
		assert.OK(t, s.WaitEnd())
		s.extinct(t) // its last output may be lost, as the host waits only briefly
	})
}

// TestSignalsReachTheTree: a signal also reaches processes that have left the process group.
func TestSignalsReachTheTree(t *testing.T) {
	s := newStage(t, DefaultOptions())
	p := s.python(`
import os, signal, time
up = os.pipe()
def got(*_): os.write(1, b'got %d\n' % n)
signal.signal(signal.SIGUSR1, got)
n = 1
if os.fork() == 0:
    os.setsid(); n = 2
    os.write(up[1], b'x')
else:
    os.read(up[0], 1)
    print('up', flush=True)
while True: time.sleep(0.01)
`)
	p.says("up\n")
	p.kill("SIGUSR1")
	p.says("got 1\n")
	p.says("got 2\n")
	p.kill("SIGKILL")
}

// TestSessionsEnd: the processes of a session end with it: the last event of each is sent before the
// new session begins, and the new session does not know them.
func TestSessionsEnd(t *testing.T) {
	s := newStage(t, DefaultOptions())
	s.plugin.endWait = patience
	over := s.bash("exit 1")
	over.end()
	var procs []*proc
	for range 5 {
		procs = append(procs, s.spawn([]string{"cat"}))
	}
	hello := s.Handshake(protocol.CapProc)
	for _, p := range procs {
		assert.Slice(t, texts(p.events()), []string{"killed"})
	}
	all := s.Messages()
	at := slices.IndexFunc(all, func(m hosttest.Message) bool { return m.ID == hello.ID })
	for _, m := range all[at:] {
		assert.That(t, m.Type != protocol.TypeProcReadEvent, "an event of the old session in the new one: %s", m.Line)
	}
	for _, p := range append(procs, over) {
		st := s.status(p.id)
		assert.That(t, st.Status == protocol.ProcNotFound, "the new session knows %s: %+v", p.id, st)
		s.Refused(protocol.TypeProcWriteReq, fields(t, "proc_id", p.id, "data", "x"), protocol.CodeUnknownProc)
	}
	assert.Equal(t, len(s.status("").Procs), 0)
	next := s.bash("echo new")
	assert.That(t, !slices.ContainsFunc(procs, func(p *proc) bool { return p.id == next.id }), "the id %s came again",
		next.id)
	next.end()
}

// TestManyAtOnce: many spawns, writes, kills and status requests at once do not disturb each other.
func TestManyAtOnce(t *testing.T) {
	const many = 40
	opts := DefaultOptions()
	opts.MaxProcs = many
	s := newStage(t, opts)
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			p := s.spawn([]string{"cat"})
			s.status("")
			switch i % 3 {
			case 0:
				p.kill("SIGKILL")
			case 1:
				p.kill("SIGTERM")
			case 2:
				p.write(p.id+"\n", true)
			}
			want := []string{"killed"}
			if i%3 == 2 {
				want = []string{"stdout " + p.id, "stdout code 0"}
			}
			assert.Slice(t, texts(p.end()), want, "%d", i)
		})
	}
	all.Wait()
	list := s.status("")
	ids := map[string]bool{}
	for _, info := range list.Procs {
		ids[info.ProcID] = true
	}
	assert.That(t, len(ids) == many && list.Status == protocol.ProcCompleted, "%d ids, %s", len(ids), list.Status)
}
