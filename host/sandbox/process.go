package sandbox

import (
	"context"
	"errors"
	"io"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"a2e/host/observe/event"
)

// child is one started tree, as a platform runs it.
type child interface {
	// wait blocks until the whole tree is gone. ok is false when it is not known how the command itself ended.
	wait() (state State, ok bool, err error)
	// reaped blocks until the launcher and its resources are gone as well.
	reaped()
	// kill ends the whole tree. It does not wait, and may be called at any time.
	kill()
	// signal sends one signal to the command's process group.
	signal(sig syscall.Signal) error
	pid() int
}

// Process is one command with everything it started.
type Process struct {
	child  child
	places []string              // folders of the sandbox that it may fill
	kept   string                // its home if that is kept; "" = none
	why    atomic.Pointer[error] // why it was killed
	stdout *pump                 // nil without Policy.Idle

	done  chan struct{}
	state State // set before done is closed
	err   error // set before done is closed
}

// PID returns the command's pid as the host sees it; within the tree it has another one. On Linux it
// is the pid of the launcher if the command ended at once.
func (p *Process) PID() int { return p.child.pid() }

// Kill ends the whole tree with SIGKILL. It does not wait; Done and Wait do.
func (p *Process) Kill() { p.fail(ErrKilled) }

// fail kills the tree and sets the error that Wait returns.
func (p *Process) fail(err error) {
	p.why.CompareAndSwap(nil, &err)
	p.child.kill()
}

// Signal sends sig to the command's process group. The error says that the tree has ended, or that the
// platform has no such signal.
func (p *Process) Signal(sig syscall.Signal) error { return p.child.signal(sig) }

// Done is closed when the tree is gone and its output was passed on.
func (p *Process) Done() <-chan struct{} { return p.done }

// ReadSoon reads Stdout in the calling goroutine until enough returns true, for 2 ms at most. This
// saves the switch to the goroutine that reads otherwise. It is for a caller that waits for an answer
// of the command, and needs Policy.Idle. It may do nothing; then that goroutine reads.
func (p *Process) ReadSoon(enough func() bool) {
	if p.stdout != nil {
		p.stdout.soon(enough)
	}
}

// Wait waits for Done. The state says exactly how the command itself ended. The error is nil if the
// command ended by itself; otherwise it is the cause of the context, ErrKilled, ErrMemory,
// ErrProcesses, ErrDisk, ErrLauncher, or the error of a Stdout or Stderr writer.
func (p *Process) Wait() (State, error) {
	<-p.done
	return p.state, p.err
}

// supervise waits for the end of the tree, then for its output.
func (p *Process) supervise(ctx context.Context, streams *streams) {
	stop := context.AfterFunc(ctx, p.child.kill)
	state, ok, err := p.child.wait()
	stop()
	copyErr := streams.finish()
	asked := ctx.Err() != nil || p.why.Load() != nil
	if asked && state.Signal == syscall.SIGKILL {
		ok = false // the SIGKILL came from this host
	}
	p.state = State{Code: -1, Signal: syscall.SIGKILL}
	switch why := p.why.Load(); {
	case ok && err == nil:
		p.state, p.err = state, copyErr
	case ctx.Err() != nil:
		p.err = context.Cause(ctx)
	case why != nil:
		p.err = *why
	case errors.Is(err, ErrMemory):
		p.err = err
	default:
		p.err = errors.Join(ErrLauncher, err)
	}
}

// streams are the three standard streams of one child: the child's ends, and the host's ends with the
// goroutines that serve them.
type streams struct {
	child [3]*os.File // what the child gets as 0, 1 and 2
	owned []*os.File  // files of child that this package opened

	input  io.Reader
	stdin  *os.File // write end; nil when the child got a file
	feed   sync.WaitGroup
	output []*pump
}

// openStreams opens the streams that the policy asks for.
func openStreams(policy *Policy) (*streams, error) {
	s := &streams{}
	err := s.openInput(policy.Stdin)
	if err == nil {
		s.child[1], err = s.openOutput(policy.Stdout, policy.Silent, policy.Idle)
	}
	if err == nil && sameWriter(policy.Stdout, policy.Stderr) {
		s.child[2] = s.child[1]
	} else if err == nil {
		s.child[2], err = s.openOutput(policy.Stderr, nil, nil)
	}
	if err != nil {
		s.closeChild()
		s.closeHost()
		return nil, err
	}
	return s, nil
}

func (s *streams) openInput(r io.Reader) error {
	if f, ok := r.(*os.File); ok && f != nil {
		s.child[0] = f
		return nil
	}
	if r == nil {
		f, err := os.Open(os.DevNull)
		s.child[0] = s.own(f)
		return err
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		return err
	}
	s.child[0], s.stdin, s.input = s.own(pr), pw, r
	return nil
}

func (s *streams) openOutput(w io.Writer, silent func(), idle func() bool) (*os.File, error) {
	if f, ok := w.(*os.File); ok && f != nil {
		return f, nil
	}
	if w == nil {
		f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		return s.own(f), err
	}
	p, pw, err := openPump(w, silent, idle)
	if err != nil {
		return nil, err
	}
	s.output = append(s.output, p)
	return s.own(pw), nil
}

// answers returns the stream that ReadSoon reads, or nil if there is none.
func (s *streams) answers() *pump {
	for _, p := range s.output {
		if p.idle != nil {
			return p
		}
	}
	return nil
}

// own records a file of the child's side, so that it is closed once the child has it.
func (s *streams) own(f *os.File) *os.File {
	if f != nil {
		s.owned = append(s.owned, f)
	}
	return f
}

func (s *streams) closeChild() {
	for _, f := range s.owned {
		f.Close()
	}
	s.owned = nil
}

// closeHost closes the host's ends of streams that never ran.
func (s *streams) closeHost() {
	if s.stdin != nil {
		s.stdin.Close()
	}
	for _, p := range s.output {
		p.close()
	}
}

// run starts to move data.
func (s *streams) run() {
	if s.stdin != nil {
		s.feed.Go(func() {
			// A child need not read its input, so a broken pipe is not an error.
			_, _ = io.Copy(s.stdin, s.input)
			s.stdin.Close()
		})
	}
	for _, p := range s.output {
		go p.run()
	}
}

// finish is called when the tree is gone. It passes on what is left in the pipes, and does not wait
// for a process outside the tree that still holds a pipe open.
func (s *streams) finish() error {
	for _, p := range s.output {
		p.stop()
	}
	var errs []error
	for _, p := range s.output {
		<-p.done
		errs = append(errs, p.err)
	}
	if s.stdin != nil {
		s.stdin.Close()
	}
	s.feed.Wait()
	return errors.Join(errs...)
}

// sameWriter reports whether both streams use one pipe.
func sameWriter(a, b io.Writer) bool {
	if a == nil || b == nil || !reflect.TypeOf(a).Comparable() || !reflect.TypeOf(b).Comparable() {
		return false
	}
	return a == b
}

// copyBytes is the largest number of bytes that a stream moves at once.
const copyBytes = 32 << 10

const (
	soonWithin = 2 * time.Millisecond // how long soon waits for an answer
	lingering  = 5 * time.Millisecond // how long run leaves the stream to the next soon
)

// pump moves one stream of a tree to its writer. A request that waits for an answer reads the stream
// itself if it can, because a switch to run takes longer than many a child needs to answer:
//
//	run:  read ── pass ─┬─ somebody waits, or nobody did ─► read
//	                    └─ linger ◄──► soon: read ── pass
type pump struct {
	r      *os.File
	w      io.Writer
	halt   *os.File    // through it stop ends a pump that has idle
	silent func()      // called at the end of the stream; nil = none
	idle   func() bool // reports whether nobody waits for an answer; nil = only run reads
	done   chan struct{}
	wake   chan struct{} // holds one wakeup; ends lingering
	wanted atomic.Bool   // soon was called since run last looked

	reading sync.Mutex // held by the reading goroutine; guards the fields below
	buf     []byte
	err     error // the writer's error; may also be read once done is closed
}

// openPump makes a pump and returns it with the end of its pipe to which the child writes.
func openPump(w io.Writer, silent func(), idle func() bool) (*pump, *os.File, error) {
	p := &pump{
		w: w, silent: silent, done: make(chan struct{}), wake: make(chan struct{}, 1),
		buf: make([]byte, copyBytes),
	}
	if idle != nil {
		pw, err := p.direct(idle)
		return p, pw, err
	}
	r, pw, err := os.Pipe()
	p.r = r
	return p, pw, err
}

// close closes the host's side.
func (p *pump) close() {
	p.r.Close()
	if p.halt != nil {
		p.halt.Close()
	}
}

// run copies until the end of the stream, or until stop, which each platform implements. If the writer
// fails, run closes the pipe, so that the child gets an error instead of blocking.
func (p *pump) run() {
	defer close(p.done)
	defer p.close()
	p.reading.Lock()
	defer p.reading.Unlock()
	for p.err == nil {
		n, err := p.next()
		if n > 0 && !p.pass(p.buf[:n]) {
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.rest(p.buf)
			return
		}
		if err != nil {
			if err == io.EOF && p.silent != nil {
				p.silent()
			}
			return
		}
		p.linger()
	}
}

// linger leaves the stream to soon as long as soon is called again and again.
func (p *pump) linger() {
	for p.wanted.Swap(false) {
		select {
		case <-p.wake: // the wakeup was for data that was read meanwhile
		default:
		}
		if !p.idle() {
			return
		}
		p.reading.Unlock()
		timer := time.NewTimer(lingering)
		select {
		case <-p.wake:
		case <-timer.C:
		}
		timer.Stop()
		p.reading.Lock()
	}
}

// soon reads in place of run, for at most soonWithin and until enough returns true.
func (p *pump) soon(enough func() bool) {
	p.wanted.Store(true)
	if !p.reading.TryLock() {
		p.read()
		return
	}
	for until := time.Now().Add(soonWithin); p.err == nil && !enough(); {
		if left := time.Until(until); left <= 0 || !p.ready(left) {
			break
		}
		n, err := p.r.Read(p.buf)
		if err != nil || !p.pass(p.buf[:n]) {
			break // run gets the same error
		}
	}
	p.reading.Unlock()
	if !enough() || !p.idle() {
		p.read()
	}
}

// read makes run read at once.
func (p *pump) read() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pump) pass(data []byte) bool {
	_, p.err = p.w.Write(data)
	return p.err == nil
}

// tell emits the event of a child's start; ended emits the event of its end.
func (l *Launcher) tell(p *Process, path string) (ended func()) {
	if !l.events.Wants(event.ChildStart | event.ChildEnd) {
		return func() {}
	}
	begun, pid := time.Now(), p.PID()
	l.events.Take(event.Event{Kind: event.ChildStart, Time: begun, Name: path, PID: pid})
	return func() {
		e := event.Event{Kind: event.ChildEnd, Name: path, PID: pid, Text: p.state.String()}
		e.Duration = time.Since(begun)
		if p.err != nil {
			e.Text = p.err.Error()
		}
		l.events.Take(e)
	}
}
