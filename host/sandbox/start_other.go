//go:build !linux

package sandbox

import (
	"context"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// MaybeRunLauncher does nothing here: only Linux has a launcher.
func MaybeRunLauncher() {}

// starter starts commands directly.
type starter struct {
	opts Options
	path []string
	home *homeDir
	net  map[string]string // only from the environment, because files are not confined here
	used atomic.Bool
}

// surelyMissing returns all mechanisms: here a child is only its own process or process group, and nothing confines it.
func surelyMissing() map[string]string {
	missing := make(map[string]string)
	for _, f := range mechanisms() {
		missing[f.Name] = "only Linux has it, this is " + runtime.GOOS
	}
	return missing
}

func (s *starter) findings() []Finding {
	if !s.used.Load() {
		return nil
	}
	return lacking(surelyMissing())
}

func (s *starter) probe(context.Context, Limits) ([]Finding, error) {
	return lacking(surelyMissing()), nil
}

func (s *starter) mechanism() Mechanism {
	if !s.used.Load() {
		return ""
	}
	return platformMechanism
}

func (s *starter) close() {}

func (s *starter) prepare(*Policy) {} // nothing is made before a command

// HiddenAt returns "": children see the whole machine here.
func (l *Launcher) HiddenAt(*Policy, string) string { return "" }

func (s *starter) start(_ context.Context, policy *Policy, env []string, stdio [3]*os.File) (child, error) {
	if s.opts.Mode == Required {
		return nil, &MissingError{Missing: missingRequired(lacking(surelyMissing()))}
	}
	proc, err := os.StartProcess(policy.Path, policy.argv(), &os.ProcAttr{
		Dir: policy.Dir, Env: env, Files: stdio[:], Sys: platformAttr(),
	})
	if err != nil {
		return nil, &StartError{Op: "exec", Path: policy.Path, Err: err}
	}
	s.used.Store(true)
	return &direct{proc: proc}, nil
}

// direct is a command without a launcher.
type direct struct{ proc *os.Process }

// wait implements child.
func (d *direct) wait() (State, bool, error) {
	ps, err := d.proc.Wait()
	killGroup(d.proc)
	if err != nil {
		return State{}, false, err
	}
	state := State{Code: ps.ExitCode()}
	if status, ok := ps.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		state.Signal = status.Signal()
	}
	return state, true, nil
}

// reaped implements child.
func (d *direct) reaped() {}

// kill implements child.
func (d *direct) kill() {
	killGroup(d.proc)
	_ = d.proc.Kill() // fails once it is gone
}

// signal implements child.
func (d *direct) signal(sig syscall.Signal) error { return signalGroup(d.proc, sig) }

func (d *direct) pid() int { return d.proc.Pid }

// closeDelay is how long to wait for the end of a stream after the end of its command. A process that
// was not killed may still hold the stream open.
const closeDelay = time.Second

// stop ends run when the stream ends, or after closeDelay.
func (p *pump) stop() {
	timer := time.AfterFunc(closeDelay, func() { p.r.Close() })
	<-p.done
	timer.Stop()
}

// direct makes a pipe that only run reads.
func (p *pump) direct(func() bool) (w *os.File, err error) {
	p.r, w, err = os.Pipe()
	return w, err
}

func (p *pump) next() (int, error) { return p.r.Read(p.buf) }

// ready is never called here.
func (p *pump) ready(time.Duration) bool { return false }

// rest has nothing to do: no read deadline is ever set here.
func (p *pump) rest([]byte) {}

// forget does nothing: no launcher is made for the next start.
func (s *starter) forget() {}

// machineMemory returns 0, because limits are not enforced here.
func machineMemory() int64 { return 0 }
