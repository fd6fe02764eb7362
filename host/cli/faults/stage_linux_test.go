// Package faults_test causes each fault of README.md on the real binary, and checks what a user sees: the answers with
// their codes, the log, the exit status, and what is kept. host/hosttest/sim causes the same faults at random and checks
// that nothing is lost and that each request is answered once; host/once_test.go and the files that it names do this for
// the engine alone, where a test moves the clock and plugins misbehave.
package faults_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
	"a2e/protocol"
	"a2e/protocol/client"
)

// stage is a folder with a host: ws is the workspace, bin is on the host's PATH.
type stage struct {
	t      *testing.T
	row    *row
	dir    string
	cmd    *exec.Cmd
	host   *client.Client
	log    *hosttest.Log
	memory string
	disk   bool // state_dir is a disk of its own

	mu      sync.Mutex
	answers map[string]int // number of answers by req_id; guarded by mu
}

const common = `workspace: DIR/ws
state_dir: DIR/state
`

func newStage(t *testing.T, r *row) *stage {
	t.Helper()
	s := &stage{t: t, row: r, dir: t.TempDir(), answers: map[string]int{}}
	for _, name := range []string{"ws", "bin", "tmp"} {
		must.OK(t, os.Mkdir(s.at(name), 0o700))
	}
	plugins := "audit: {}\nplugins: {tools: {allowed_commands: [sh], http_allow_private: true}, proc: " +
		"{allowed_commands: [sh]}}\n"
	if r.config != "" {
		plugins = r.config
	}
	s.write("a2e.yaml", strings.ReplaceAll(common+plugins, "DIR", s.dir))
	return s
}

func (s *stage) at(name string) string { return filepath.Join(s.dir, name) }

func (s *stage) write(name, text string) {
	s.t.Helper()
	must.OK(s.t, os.MkdirAll(filepath.Dir(s.at(name)), 0o700), os.WriteFile(s.at(name), []byte(text), 0o700))
}

func (s *stage) move(from, to string) {
	s.t.Helper()
	must.OK(s.t, os.Rename(s.at(from), s.at(to)))
}

// command prepares a command in the folder, where A2E is the path of the binary.
func (s *stage) command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(s.t.Context(), name, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "HOME="+s.dir, "TMPDIR="+s.at("tmp"), "PATH="+s.at("bin")+":"+os.Getenv("PATH"),
		"A2E="+hosttest.Program(s.t, "a2e"), "XDG_STATE_HOME=", "XDG_CONFIG_HOME=", "A2E_CONFIG=", "A2E_STATE=")
	return cmd
}

// start starts a host and opens a session.
func (s *stage) start() {
	s.t.Helper()
	s.cmd = s.command(hosttest.Program(s.t, "a2e"), append([]string{"serve", "--config", s.at("a2e.yaml")},
		s.row.args...)...)
	s.log = new(hosttest.Log)
	s.cmd.Stderr = s.log
	var err error
	s.host, err = client.Spawn(s.t.Context(), s.cmd, client.Options{OnLine: s.count, ExitWait: time.Minute})
	must.OK(s.t, err)
	s.t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // fails if it has ended
		_ = s.host.Close()
	})
	_, err = s.host.Handshake(s.t.Context(), "x", []protocol.Capability{
		protocol.CapTools, protocol.CapProc,
		protocol.CapMemory, protocol.CapPlanning,
	}, "")
	must.That(s.t, err == nil, "%v: %s", err, s.log)
	var opened protocol.MemoryInitResponse
	must.OK(s.t, s.host.Call(s.t.Context(), protocol.TypeMemoryInitReq, map[string]any{"namespace": "n"}, &opened))
	s.memory = opened.MemoryID
}

// count counts the answers to each request.
func (s *stage) count(line []byte) {
	var l protocol.Line
	if l.Scan(line) == nil && l.ReqID != nil && !strings.HasSuffix(string(l.Type), "/event") {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.answers[string(l.ReqID)]++
	}
}

// ask sends one request, and returns the answer or the error.
func (s *stage) ask(m meet) (code protocol.ErrorCode, retryable bool, text string) {
	s.t.Helper()
	body := jsontext.Value(strings.ReplaceAll(m.body, "MEMORY", s.memory))
	var answer jsontext.Value
	err := s.host.Call(s.t.Context(), m.typ, body, &answer)
	var refused *protocol.Error
	if errors.As(err, &refused) {
		return refused.Code, refused.Retryable, refused.Message
	}
	must.That(s.t, err == nil, "%s %s: %v: %s", m.typ, body, err, s.log)
	return "", false, string(answer)
}

// wants sends requests, and checks their answers.
func (s *stage) wants(all ...meet) {
	s.t.Helper()
	for _, m := range all {
		code, retryable, text := s.ask(m)
		assert.That(s.t, code == m.code && retryable == m.retry && strings.Contains(text,
			strings.ReplaceAll(m.says, "{dir}", s.dir)),
			"%s %s gave %q, retryable %v: %s\nwant %q, %v, %q", m.typ, m.body, code, retryable, text, m.code, m.retry,
			m.says)
	}
}

// files returns the number of files that the host has open.
func (s *stage) files() int {
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	must.OK(s.t, err)
	return len(all)
}

// runLong runs a program until the host has a second launcher, for the next program: the host has files open for it,
// too.
func (s *stage) runLong() {
	s.t.Helper()
	ran := make(chan error, 1)
	go func() {
		ran <- s.host.Call(s.t.Context(), protocol.TypeToolCallReq,
			jsontext.Value(`{"tool_name":"run_command","arguments":{"command":["sh","-c","until [ -e go ]; do sleep 0.01; done"]}}`), nil)
	}()
	hosttest.Eventually(s.t, "a second launcher", func() bool { return s.children() == 2 })
	s.write("ws/go", "")
	must.OK(s.t, <-ran)
	hosttest.Eventually(s.t, "the end of the first one", func() bool { return s.children() == 1 })
}

// children returns the number of the host's child processes.
func (s *stage) children() (n int) {
	all, _ := filepath.Glob("/proc/[0-9]*/stat") // the one error is a bad pattern
	for _, file := range all {
		text, _ := os.ReadFile(file) // the process may have ended
		_, after, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(after); len(fields) > 1 && fields[1] == fmt.Sprint(s.cmd.Process.Pid) {
			n++
		}
	}
	return n
}

// limit sets a resource limit of the host; mend restores it.
func (s *stage) limit(resource int, to uint64) (mend func()) {
	var was unix.Rlimit
	pid := s.cmd.Process.Pid
	must.OK(s.t, unix.Prlimit(pid, resource, nil, &was))
	must.OK(s.t, unix.Prlimit(pid, resource, &unix.Rlimit{Cur: to, Max: was.Max}, nil))
	return func() { must.OK(s.t, unix.Prlimit(pid, resource, &was, nil)) }
}

// end closes the host's input, and waits until the host has ended. Each request must have one answer, and nothing but
// the state may be left.
func (s *stage) end() {
	s.t.Helper()
	err := s.host.Close()
	assert.That(s.t, err == nil, "the host ended with %v: %s", err, s.log)
	for id, n := range s.answers {
		assert.Equal(s.t, n, 1, "%s was answered … times", id)
	}
	homes := must.Get(filepath.Glob(s.at("tmp/a2e-home-*")))(s.t)
	for _, dir := range homes { // on a busy machine the host leaves them for the next host
		lock := must.Get(sandbox.LockDir(dir))(s.t)
		must.OK(s.t, sandbox.RemoveTree(s.t.Context(), dir), lock.Close())
	}
	left := []string{}
	for _, pattern := range []string{"tmp/*", "tmp/.*", "state/.*", "state/*.tmp", "ws/.*"} {
		found, err := filepath.Glob(s.at(pattern))
		must.OK(s.t, err)
		left = append(left, found...)
	}
	cwds, _ := filepath.Glob("/proc/[0-9]*/cwd") // the one error is a bad pattern
	for _, link := range cwds {
		if at, err := os.Readlink(link); err == nil && strings.HasPrefix(at, s.dir) {
			left = append(left, link)
		}
	}
	assert.That(s.t, len(left) == 0, "left: %q", left)
}

// shell runs a shell script in the workspace.
func (s *stage) shell(line string) (code int, stdout, stderr string) {
	s.t.Helper()
	cmd := s.command("sh", "-c", line)
	cmd.Dir = s.at("ws")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}
