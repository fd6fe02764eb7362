// Package child runs the programs that the host talks to line by line: plugins in other
// languages, external environments, fleet workers, MCP servers.
//
//	child.go      one process: its start, its streams, its end
//	program.go    what to start: the program of a config as a sandbox.Policy; when it may be again
//	hidden.go     what the sandbox hides of what a program needs
//	elsewhere.go  where a program is that was not found
//	lines.go      lines to its stdin, and of its stdout and stderr; requests not answered yet
//
// The way of a line:
//
//	Send ──► outbox ── one write for all that waits ──► stdin
//	Options.Line ◄── Splitter ◄── stdout        log, Ended.Words ◄── redaction ◄── stderr
//
// A Process is made by New, so that whoever owns it is complete before the first line comes,
// and started by Start:
//
//	policy, err := program.Policy()
//	p := child.New(ctx, child.Options{Name: "the worker", Line: receive, Go: goes.Go, …})
//	err = p.Start(launcher, policy)
//	err = p.Send(line, false)
//	<-p.Done() // p.End() says how it ended
//
// Which answer belongs to which request is kept in a Pending, and a Backoff says when the
// next process may be started. Everything is bounded: lines, what waits for stdin, what
// stderr brings to the log, and what is kept of it for the error that says how it ended.
package child

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"a2e/host/guard/redact"
	"a2e/host/sandbox"
)

const (
	defaultMaxLine   = 16 << 20 // longest line of stdout, in bytes
	defaultMaxStderr = 8 << 10  // of stderr; of a longer one the head is taken
	maxWords         = 2 << 10  // bytes kept of stderr for the error that says how it ended
	maxShown         = 200      // bytes of a line of stdout that the log shows
)

// Options say who hears a process, and how patient the host is with it. Line, Go and Name
// must be set.
type Options struct {
	Name    string            // in errors and the log, such as "the worker"
	Line    func(line []byte) // takes a line of stdout without its end; valid until it returns
	Long    func(head []byte) // takes the head of a line that is too long; nil = Skip is told of it
	Over    io.Writer         // takes all of such a line, before Long is called; may be nil
	MaxLine int               // longest line of stdout, in bytes; 0 = 16 MiB
	Silent  func()            // nobody can write to its stdout any more, which may be before its end; may be nil
	Idle    func() bool       // no request waits for an answer; nil = ReadSoon does nothing

	Stderr    func(line []byte) // takes a line of stderr without secrets, or its head; may be nil
	MaxStderr int               // longest line of stderr, in bytes; 0 = 8 KiB
	Level     zerolog.Level     // at which stderr is logged, at most 100 lines a second

	Ended func(*Ended)  // it has ended and all it wrote was read, but Done is not closed yet; may be nil
	Go    func(func())  // starts a goroutine that its owner waits for
	Grace time.Duration // for the end of a process that has closed its stdin
	Log   zerolog.Logger
	// Secrets are never shown in a log or an error; nil = there are none.
	Secrets *redact.Set
	Now     func() time.Time // nil = time.Now
}

// Process is one process. Its methods are safe for concurrent use.
type Process struct {
	opts    Options
	started time.Time
	input   *outbox
	proc    *sandbox.Process // set by Start
	ctx     context.Context
	kill    context.CancelCauseFunc
	done    chan struct{}
	ended   *Ended // set before done is closed

	stdout, stderr Splitter
	words          Tail // of the goroutine that reads stderr
	said, noise    Limiter
	skipped        atomic.Int64
}

// Ended says how a process ended.
type Ended struct {
	Name  string        // Options.Name
	State sandbox.State // of the program itself
	Lived time.Duration
	Cause error  // why it was ended; nil = it ended by itself
	Words string // the end of its stderr, without secrets
}

// Error implements error. There is no Unwrap: that a process was ended for an error does not
// make that error the answer to its other requests.
func (e *Ended) Error() string {
	text := e.Name + " ended: " + e.State.String()
	if e.Cause != nil {
		text = e.Name + " ended: " + e.Cause.Error()
	}
	if e.Words != "" {
		text += "; its stderr ends with: " + e.Words
	}
	return text
}

// New makes a process that does not run yet.
// It will be killed when ctx ends, and then Ended.Cause is the cause of ctx.
func New(ctx context.Context, opts Options) *Process {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	p := &Process{
		opts: opts, started: opts.Now(), input: newOutbox(), done: make(chan struct{}), words: Tail{Size: maxWords},
		said: Limiter{Burst: 100, PerSecond: 100}, noise: Limiter{Burst: 5, PerSecond: 1},
	}
	p.ctx, p.kill = context.WithCancelCause(ctx)
	p.stdout = Splitter{Max: cmp.Or(opts.MaxLine, defaultMaxLine), Line: opts.Line, Long: opts.Long, Over: opts.Over}
	if opts.Long == nil {
		p.stdout.Long = func([]byte) { p.Skip(fmt.Appendf(nil, "a line of more than %d bytes", p.stdout.Max)) }
	}
	p.stderr = Splitter{Max: cmp.Or(opts.MaxStderr, defaultMaxStderr), Line: p.hear, Long: func(head []byte) {
		p.hear(opts.Secrets.Head(head, len(head)-opts.Secrets.Longest()))
	}}
	return p
}

// Start starts it. The streams of policy are set here, its DirFile is closed. After an error
// it has ended as far as its methods go; Options.Ended is not called.
func (p *Process) Start(launcher func() (*sandbox.Launcher, error), policy sandbox.Policy) error {
	if policy.DirFile != nil {
		defer policy.DirFile.Close()
	}
	err := p.start(launcher, policy)
	if err != nil {
		p.ended = &Ended{Name: p.opts.Name, Cause: err}
		p.kill(err)
		close(p.done)
		p.input.close() // nobody reads what would be sent
	}
	return err
}

func (p *Process) start(launcher func() (*sandbox.Launcher, error), policy sandbox.Policy) error {
	l, err := launcher()
	if err != nil {
		return fmt.Errorf("programs cannot be started: %w", err)
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return &sandbox.StartError{Op: "open its streams", Path: policy.Path, Err: err}
	}
	defer theirs.Close()
	p.input.open(ours)
	policy.Stdin, policy.Stdout, policy.Stderr, policy.Silent = theirs, &p.stdout, &p.stderr, p.opts.Silent
	policy.Idle = p.opts.Idle
	if p.proc, err = l.Command(p.ctx, policy); err != nil {
		ours.Close()
		return err
	}
	p.opts.Go(func() { p.input.run(p.done, p.kill, p.opts.Grace) })
	p.opts.Go(p.wait)
	return nil
}

// wait waits for the end of the process, and for all that it wrote.
func (p *Process) wait() {
	e := &Ended{Name: p.opts.Name}
	e.State, e.Cause = p.proc.Wait()
	e.Lived = p.Lived()
	p.stdout.End()
	p.stderr.End()
	e.Words = p.words.String()
	p.ended = e
	if p.opts.Ended != nil {
		p.opts.Ended(e)
	}
	close(p.done)
	p.kill(e)
	p.input.close()
}

// Send puts a line, newline included, into its input. With alone it has nothing else to
// read: the line is written right here, which spares a switch of goroutines. The error is
// ErrInputFull or ErrInputClosed.
func (p *Process) Send(line []byte, alone bool) error { return p.input.add(line, alone) }

// ReadSoon is for who waits for an answer: for a moment, and until enough says so, it takes lines of
// stdout right here, which spares two switches of goroutines. Line is called by one at a time.
func (p *Process) ReadSoon(enough func() bool) { p.proc.ReadSoon(enough) }

// Close ends its input behind what waits; most programs end by that.
func (p *Process) Close() { p.input.close() }

// Await waits for its end, for a while or until ctx ends.
func (p *Process) Await(ctx context.Context, within time.Duration) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Kill ends it, with all that it has started. It does not wait.
func (p *Process) Kill(cause error) { p.kill(cause) }

// Signal sends it a signal; where there is no such signal that is an error.
func (p *Process) Signal(sig syscall.Signal) error { return p.proc.Signal(sig) }

// Context ends with the process.
func (p *Process) Context() context.Context { return p.ctx }

// Done is closed when it has ended and all that it wrote was read.
func (p *Process) Done() <-chan struct{} { return p.done }

// End says how it ended, once Options.Ended is called or Done is closed.
func (p *Process) End() *Ended { return p.ended }

// Lived is how long ago it was started.
func (p *Process) Lived() time.Duration { return p.opts.Now().Sub(p.started) }

// PID is its process id, as the host sees it.
func (p *Process) PID() int { return p.proc.PID() }

// hear takes a line of stderr, or the head of a long one.
func (p *Process) hear(line []byte) {
	line = p.opts.Secrets.Bytes(line)
	p.words.Add(line)
	if hidden, ok := p.said.Allow(p.opts.Now()); ok {
		p.opts.Log.WithLevel(p.opts.Level).Bytes("stderr", p.opts.Secrets.Own(line)).
			Int("hidden", hidden).Msg(p.opts.Name + " says")
	}
	if p.opts.Stderr != nil {
		p.opts.Stderr(line)
	}
}

// Skip counts and logs a line of stdout that is no message. It is for Line and Long.
func (p *Process) Skip(line []byte) {
	p.skipped.Add(1)
	p.Complain(zerolog.WarnLevel, line, "skipped a line on stdout of "+p.opts.Name+": it is not a message")
}

// Skipped is how many lines were skipped.
func (p *Process) Skipped() int { return int(p.skipped.Load()) }

// Complain logs what is wrong with a line of stdout, unless it was said too often lately.
// It is for Line and Long.
func (p *Process) Complain(level zerolog.Level, line []byte, what string) {
	if hidden, ok := p.noise.Allow(p.opts.Now()); ok {
		p.opts.Log.WithLevel(level).Bytes("line", p.opts.Secrets.OwnHead(line, maxShown)).Int("hidden",
			hidden).Msg(what)
	}
}

// WaitFor waits for goroutines, or for the end of ctx; what names whose they are.
func WaitFor(ctx context.Context, what string, groups ...*sync.WaitGroup) error {
	gone := make(chan struct{})
	go func() {
		for _, g := range groups {
			g.Wait()
		}
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s did not end in time: %w", what, context.Cause(ctx))
	}
}
