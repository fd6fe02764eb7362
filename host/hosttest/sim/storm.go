//go:build linux

package sim

import (
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// storm lets hosts work on one state. Each is killed at some moment, and the next one is
// started while the others continue. At the end of each round all are gone and must leave nothing behind.
func (s *Sim) storm() {
	s.calm()
	for ; s.figures.Kills < s.Kills && !s.broken(); s.life++ {
		var all sync.WaitGroup
		launches := make(chan func())
		for _, m := range s.models {
			seeds := make([]uint64, 1+s.rng.IntN(4))
			for i := range seeds {
				seeds[i] = s.rng.Uint64()
			}
			all.Go(func() {
				for _, seed := range seeds {
					s.strike(m, rand.New(rand.NewPCG(s.Seed, seed)), launches)
				}
			})
		}
		go func() {
			all.Wait()
			close(launches)
		}()
		for launch := range launches { // only this thread sees the disk
			launch()
		}
		s.after()
	}
	s.calm()
	if out, err := s.command("check", "--audit", filepath.Join("state", "audit.jsonl")).CombinedOutput(); err != nil {
		s.fail("the audit is damaged: %v: %.1000s", err, out)
	}
}

// command returns a command of a2e in the folder.
func (s *Sim) command(args ...string) *exec.Cmd {
	cmd := exec.Command(s.bin, append([]string{"--config", "config.yaml"}, args...)...)
	cmd.Dir, cmd.Env = s.dir, s.environ()
	return cmd
}

// calm starts a host for each model, verifies its state, and ends it.
func (s *Sim) calm() {
	for _, m := range s.models {
		h := s.start(m, false)
		m.verify(h)
		s.makePlan(h)
		_ = h.cmd.Process.Signal(syscall.SIGTERM)
		h.wait("SIGTERM", 0)
		_ = h.to.close() // for a pipe, Wait has done this already
	}
	s.after()
}

// strike starts a host, verifies its state, lets it work, and kills it: during the start,
// or after some acts while more are under way.
func (s *Sim) strike(m *model, r *rand.Rand, launches chan<- func()) {
	http, early, acts := r.IntN(5) == 0, r.IntN(5) == 0, r.IntN(60)
	var h *host
	launched := make(chan struct{})
	launches <- func() {
		defer close(launched)
		h = s.launch(m, http)
	}
	if <-launched; h == nil {
		return
	}
	if early && !http {
		h.killSoon(r.IntN(300), false)
	}
	s.full.RLock()
	h.open()
	m.verify(h)
	s.full.RUnlock()
	d := s.newDraw(r, h.name, m)
	d.begin(h)
	for n := 0; !h.gone(); n++ {
		if n == acts && (!early || http) {
			h.killSoon(r.IntN(30), r.IntN(10) == 0)
		}
		if r.IntN(2) == 0 {
			h.do(d.change())
		} else {
			s.act(h, d)
		}
	}
	h.wait("SIGKILL", -1, quitCode)
	_ = h.to.close() // for a pipe, Wait has done this already
	s.tally(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.cmd.ProcessState.ExitCode() == -1 {
		s.figures.Kills++
	} else {
		s.figures.Starved++
	}
}

// killSoon kills the host after ms milliseconds. With starve the host gets no more memory before, which may
// also end it.
func (h *host) killSoon(ms int, starve bool) {
	time.AfterFunc(time.Duration(ms)*time.Millisecond, func() {
		if starve {
			h.killed.Store(true)
			h.sim.note("%s: gets no more memory", h.name)
			_ = unix.Prlimit(h.cmd.Process.Pid, unix.RLIMIT_AS, &unix.Rlimit{}, nil) // it may have ended
			time.Sleep(200 * time.Millisecond)
		}
		h.sim.note("%s: is killed", h.name)
		h.kill()
	})
}

// gone reports whether the host's output has ended.
func (h *host) gone() bool {
	select {
	case <-h.ended:
		return true
	default:
		return false
	}
}
