//go:build linux

package sim

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"a2e/host/hosttest/must"
)

// host is one running a2e and the agent that talks to it.
type host struct {
	sim    *Sim
	name   string
	model  *model
	cmd    *exec.Cmd
	to     sender
	judge  *judge
	gate   sync.Mutex    // held while the agent does not read
	ended  chan struct{} // closed when its output has ended
	stderr string        // the file with its stderr
	ids    int
	killed atomic.Bool // the host need not answer any more
	state  error       // what Wait returned

	writing sync.Mutex // guards the fields below: replies to the host come from its reader
	spoken  string     // the dialect of the last good line
	sent    int
}

// sender sends lines to a host.
type sender interface {
	send(text string) error // whole lines, or the start of one
	close() error
}

// pipe is a host's stdin.
type pipe struct{ io.WriteCloser }

func (p pipe) send(text string) error {
	_, err := io.WriteString(p, text)
	return err
}

func (p pipe) close() error { return p.Close() }

// start starts a host, on a pipe or over HTTP, and opens a session.
func (s *Sim) start(m *model, http bool) *host {
	h := s.launch(m, http)
	h.open()
	return h
}

// launch starts a host.
func (s *Sim) launch(m *model, http bool) *host {
	s.starts++
	name := fmt.Sprintf("%s.%d", m.name, s.starts)
	h := &host{sim: s, name: name, model: m, ended: make(chan struct{})}
	h.judge = newJudge(h.fail, s.secrets())
	h.judge.note = func(line []byte) { s.note("%s < %s", name, line) }
	h.judge.reply = func(speak, line string) { go h.do(step{line: line, speak: speak}) }
	args := []string{"--config", "config.yaml", "serve"}
	if http {
		args = append(args, "--http", "127.0.0.1:0")
	} else {
		args = append(args, "--record", "record-"+name+".ndjson")
	}
	h.cmd = exec.Command(s.bin, args...)
	if s.Plain {
		h.cmd = exec.Command(s.Chaos, append([]string{"plain", s.bin}, args...)...)
	}
	h.stderr = filepath.Join(s.dir, "stderr-"+name)
	stderr := must.Get(os.Create(h.stderr))(s.t)
	defer stderr.Close()
	h.cmd.Dir, h.cmd.Env, h.cmd.Stderr = s.dir, s.environ(), stderr
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.disk { // the host ends with this thread, also if the test is killed
		h.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	stdin, stdout := must.Get(h.cmd.StdinPipe())(s.t), must.Get(h.cmd.StdoutPipe())(s.t)
	if http {
		s.startHTTP(h, stdout)
	} else {
		must.OK(s.t, h.cmd.Start())
		h.to = pipe{stdin}
		go func() {
			defer close(h.ended)
			h.judge.read(stdout, &h.gate)
		}()
	}
	s.note("%s: started as %d, http %t", name, h.cmd.Process.Pid, http)
	return h
}

// open opens a session.
func (h *host) open() {
	h.ask("handshake/req", h.hello())
	h.ask("memory/init/req", `"metadata":{}`)
}

func (h *host) hello() string {
	return fmt.Sprintf(`"agent_id":%q,"agent_caps":[],"auth_token":%q`, h.model.name, h.sim.secret("token"))
}

// fail records a violation.
func (h *host) fail(format string, args ...any) {
	h.sim.fail(h.name+": "+format, args...)
}

// ask sends a request and returns its answer, or nil if the host has ended.
func (h *host) ask(typ, fields string) *answer {
	h.ids++
	id := fmt.Sprintf("k%s-ask-%d", h.name, h.ids)
	h.do(step{line: fmt.Sprintf(`{"type":%q,"id":%q,%s}`, typ, id, fields), speak: "a2e", key: id})
	a := h.judge.waitFor(id, h.ended)
	if a == nil && !h.killed.Load() {
		h.fail("no answer to %s %.300s", typ, fields)
	}
	return a
}

// look is like ask, but repeats the request while the answer is store_unavailable, as the server of a store may
// be away for a while.
func (h *host) look(typ, fields string) (a *answer) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if a = h.ask(typ, fields); a == nil || a.Code != "store_unavailable" {
			break
		}
	}
	return a
}

// do carries out a step.
func (h *host) do(s step) {
	if s.do != nil {
		h.sim.note("%s: %s", h.name, s.what)
		s.do(h)
		return
	}
	line := h.fill(s.line)
	h.writing.Lock()
	defer h.writing.Unlock()
	if s.speak != "" {
		h.spoken = s.speak
	}
	key := cmp.Or(s.of, h.spoken) + " " + s.key
	h.sim.note("%s > %s", h.name, line)
	if s.speak == "" || s.key != "" {
		h.judge.expect(key, line, s.then)
	}
	h.sent++
	line += "\n"
	for ; s.bits && len(line) > 1; line = line[1:] {
		if _, piped := h.to.(pipe); !piped || h.to.send(line[:1]) != nil {
			break
		}
	}
	if err := h.to.send(line); errors.Is(err, errRefused) && (s.speak == "" ||
		s.key != "") { // an ended host accepts nothing
		h.judge.release(key)
	}
}

var place = regexp.MustCompile(`<<(\S+) (\S+)>>`)

// fill replaces the placeholders in a line by values of earlier answers.
func (h *host) fill(line string) string {
	return place.ReplaceAllStringFunc(line, func(text string) string {
		found := place.FindStringSubmatch(text)
		if a := h.judge.waitFor(found[1], h.ended); a != nil {
			if value := a.get(found[2]); value != "" {
				return value
			}
		}
		return "nobody"
	})
}

// settle waits until everything is answered.
func (h *host) settle() {
	if !h.judge.until(h.ended, func() bool { return len(h.judge.owed) == 0 }) {
		_ = h.cmd.Process.Signal(syscall.SIGQUIT) // the host then prints its goroutines
		<-h.ended
		h.fail("never answered:\n%s", strings.Join(h.judge.due(), "\n"))
	}
}

// wait waits for the end of the host and checks its exit code and output. It returns how long that took.
func (h *host) wait(what string, want ...int) time.Duration {
	began := time.Now()
	late := time.AfterFunc(patience, func() {
		h.fail("does not end after %s", what)
		_ = h.cmd.Process.Signal(syscall.SIGQUIT)
		time.AfterFunc(patience/10, func() { _ = h.cmd.Process.Kill() })
	})
	<-h.ended
	h.state = h.cmd.Wait()
	late.Stop()
	took := time.Since(began)
	stderr, _ := os.ReadFile(h.stderr)
	if code := h.cmd.ProcessState.ExitCode(); !slices.Contains(want, code) {
		h.fail("ended after %s with %d (%v), should with %v; stderr:\n%s", what, code, h.state, want, tail(stderr))
	}
	for _, secret := range h.sim.secrets() {
		if at := bytes.Index(stderr, []byte(secret)); at >= 0 {
			h.fail("a secret is on stderr: %.600s", stderr[max(0, at-200):])
		}
	}
	if at := bytes.Index(stderr, []byte("\ngoroutine ")); at >= 0 && want[0] == 0 {
		h.fail("a crash: %.3000s", stderr[max(0, at-500):])
	}
	return took
}

// quitCode is the exit code of a Go program that has printed its goroutines.
const quitCode = 2

func tail(text []byte) []byte { return text[max(0, len(text)-1500):] }

// errRefused is the error for a line that a host did not accept and will not answer.
var errRefused = errors.New("not accepted")

// kill ends the host at once.
func (h *host) kill() {
	h.killed.Store(true)
	if err := h.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		h.fail("%v", err)
	}
}
