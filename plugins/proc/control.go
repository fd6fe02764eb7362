package proc

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"a2e/host"
	"a2e/protocol"
)

// write queues input for a process. It never waits for the process to read it.
func (p *Plugin) write(ctx context.Context, req *protocol.ProcWriteRequest,
	_ host.Emitter,
) (*protocol.ProcWriteResponse, error) {
	r, err := p.procs.find(host.SessionFrom(ctx), req.ProcID)
	if err != nil {
		return nil, err
	}
	if problems := checkSize(req.Metadata); problems != nil {
		return nil, protocol.Violation(problems...)
	}
	l, err := r.running()
	if err != nil {
		return nil, err
	}
	resp := &protocol.ProcWriteResponse{ProcID: r.id, PID: r.pid, Error: l.resize(req.Metadata)}
	if resp.Error == "" && (req.Data != "" || req.EOF) {
		resp.Error = l.write(req.Data, req.EOF)
	}
	resp.OK = resp.Error == ""
	return resp, nil
}

// resize changes the size of the terminal if the request has one. It returns the error as
// text; "" = no error.
func (l *live) resize(size protocol.ProcTerminal) string {
	if size.Cols == 0 && size.Rows == 0 {
		return ""
	}
	if l.tty == nil {
		return `the process has no terminal to resize; spawn it with metadata {"pty":true}`
	}
	if err := l.tty.resize(size); err != nil {
		return fmt.Sprintf("the terminal keeps its size: %v", err)
	}
	return ""
}

func (l *live) write(data string, eof bool) string {
	if l.input == nil {
		return `the process has no stdin: it was spawned with stdin_mode "null"`
	}
	return l.input.push(data, eof)
}

// maxInput bounds the input that waits for a process that does not read, in bytes.
const maxInput = 16 << 20

// veof is the character that ends the input of a terminal.
const veof = "\x04"

// stdin is the input of one process: a queue, and the goroutine that empties it.
type stdin struct {
	w   io.WriteCloser
	tty bool // the end of input is the character veof

	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // on mu
	queue   []string
	size    int  // bytes in queue
	eof     bool // the agent sent eof
	refused bool // the process has closed its side
	ended   bool // the process has ended
}

func newStdin(w io.WriteCloser, tty bool) *stdin {
	s := &stdin{w: w, tty: tty}
	s.changed.L = &s.mu
	return s
}

// push adds input to the queue. It returns the error as text; "" = no error.
func (s *stdin) push(data string, eof bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return "the process has just ended"
	case s.eof:
		return "stdin is closed: an earlier write had eof"
	case s.refused:
		return "the process has closed its stdin"
	case s.size > 0 && s.size+len(data) > maxInput:
		return "stdin is full: 16 MiB wait to be read by the process; write again when it has read some"
	}
	if eof && s.tty {
		data += veof
	}
	if data != "" {
		s.queue = append(s.queue, data)
		s.size += len(data)
	}
	s.eof = eof && !s.tty // a terminal stays open after eof
	s.changed.Signal()
	return ""
}

// feed writes the queue to the process until the end of the input or of the process.
func (s *stdin) feed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.ended {
		switch {
		case len(s.queue) > 0:
			s.writeLocked()
		case s.eof:
			s.refuseLocked()
			return
		default:
			s.changed.Wait()
		}
	}
}

// writeLocked writes the first element of the queue. It releases the lock meanwhile.
func (s *stdin) writeLocked() {
	data := s.queue[0]
	s.mu.Unlock()
	_, err := io.WriteString(s.w, data)
	s.mu.Lock()
	if len(s.queue) > 0 { // close may have emptied it
		s.queue[0] = ""
		s.queue = s.queue[1:]
		s.size -= len(data)
	}
	if err != nil {
		s.refuseLocked()
	}
}

// refuseLocked drops the queue, refuses more input and closes the host's side of a pipe. It
// does not close a terminal, which finish or discard closes.
func (s *stdin) refuseLocked() {
	s.refused = true
	s.queue, s.size = nil, 0
	if !s.tty {
		s.w.Close()
	}
}

// close ends feed, because the process has ended.
func (s *stdin) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.refuseLocked()
	s.changed.Signal()
}

// killWait bounds how long the answer to a SIGKILL waits for the end of the
// process.
const killWait = 10 * time.Second

// signalWait bounds how long the answer to any other signal waits for the end of the process:
// most processes end at once, but a process that handles the signal may run on.
const signalWait = 300 * time.Millisecond

// kill sends a signal to a whole process tree and answers with the state after it.
func (p *Plugin) kill(ctx context.Context, req *protocol.ProcKillRequest, _ host.Emitter) (*protocol.ProcKillResponse,
	error,
) {
	r, err := p.procs.find(host.SessionFrom(ctx), req.ProcID)
	if err != nil {
		return nil, err
	}
	sig, err := parseSignal(req.Signal)
	if err != nil {
		return nil, err
	}
	sent := r.signal(sig)
	limit := p.mildWait
	if sig == syscall.SIGKILL || !sent {
		limit = killWait
	}
	r.awaitEnd(ctx, limit)
	r.mu.Lock()
	defer r.mu.Unlock()
	return &protocol.ProcKillResponse{OK: sent, State: r.state}, nil
}

// signal sends a signal, unless the process has ended.
func (r *process) signal(sig syscall.Signal) (sent bool) {
	l, err := r.running()
	if err != nil {
		return false
	}
	if sig == syscall.SIGKILL {
		r.stop(errKilled)
		return true
	}
	r.mu.Lock()
	before := r.asked[sig]
	r.asked[sig] = true
	r.mu.Unlock()
	if l.child.Signal(sig) == nil {
		return true
	}
	r.mu.Lock()
	r.asked[sig] = before
	r.mu.Unlock()
	return false
}

// awaitEnd waits at most limit for the end of a process that got a signal, or
// got none because it was just ending.
func (r *process) awaitEnd(ctx context.Context, limit time.Duration) {
	select {
	case <-r.done:
		return
	default:
	}
	host.HandOff(ctx)
	clock := time.NewTimer(limit)
	defer clock.Stop()
	select {
	case <-r.done:
	case <-clock.C:
	case <-ctx.Done():
	}
}

// parseSignal returns the signal with a name, which may lack SIG and may be in upper or lower case.
func parseSignal(text string) (syscall.Signal, error) {
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig, ok := signals()[name]; ok {
		return sig, nil
	}
	return 0, protocol.Wrong("/signal", "is %.32q; should be one of: %s", text,
		strings.Join(slices.Sorted(maps.Keys(signals())), ", "))
}

// signalName returns the name of a signal, or its number if it is not one that an agent may send.
func signalName(sig syscall.Signal) string {
	for name, s := range signals() {
		if s == sig {
			return name
		}
	}
	return fmt.Sprintf("signal %d (%s)", int(sig), sig)
}

// status answers proc/status/req: the state of one process, or of all processes of the session.
func (p *Plugin) status(ctx context.Context, req *protocol.ProcStatusRequest,
	_ host.Emitter,
) (*protocol.ProcStatusResponse, error) {
	sess := host.SessionFrom(ctx)
	if req.ProcID != "" {
		r, err := p.procs.find(sess, req.ProcID)
		if err != nil {
			return &protocol.ProcStatusResponse{
				ProcID: req.ProcID, Status: protocol.ProcNotFound, Error: "this session has no such process, or it " +
					"ended long ago",
			}, nil
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return &protocol.ProcStatusResponse{ProcID: r.id, Status: r.state, Error: r.failure}, nil
	}
	resp := &protocol.ProcStatusResponse{Status: protocol.ProcCompleted, Procs: []protocol.ProcInfo{}}
	for _, r := range p.procs.list(sess) {
		info := r.info()
		if info.State == protocol.ProcRunning {
			resp.Status = protocol.ProcRunning
		}
		resp.Procs = append(resp.Procs, info)
	}
	return resp, nil
}

// info returns the entry of a process in the list of processes.
func (r *process) info() protocol.ProcInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	info := protocol.ProcInfo{ProcID: r.id, Cmd: r.cmd, State: r.state, PID: r.pid, StartedAt: unixSeconds(r.started)}
	if r.state != protocol.ProcRunning {
		info.ExitCode = new(r.code)
	}
	return info
}

// unixSeconds returns a time as in messages, in seconds since 1970.
func unixSeconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
