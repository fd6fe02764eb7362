// Package child runs the programs that the host talks to line by line: plugins in other
// languages, external environments, fleet workers, MCP servers.
//
//	child.go          one process: its start, its streams, its end
//	program.go        what to start: the program of a config as a sandbox.Policy; when it may start again
//	hidden_report.go  what the sandbox hides of what a program needs
//	run.go            the contract of the plugin that runs programs for other plugins
//	elsewhere.go      where a program is that was not found in the usual folders
//	lines.go          lines to its stdin, and of its stdout and stderr; requests not answered yet
//
// The way of a line:
//
//	Send ──► outbox ── one write for all that waits ──► stdin
//	Options.Line ◄── Splitter ◄── stdout        log, Ended.Words ◄── redaction ◄── stderr
//
// New makes a Process and Start starts it, so that its owner is complete before the first line comes:
//
//	policy, err := program.Policy()
//	p := child.New(ctx, child.Options{Name: "the worker", Line: receive, Go: goes.Go, …})
//	err = p.Start(launcher, policy)
//	err = p.Send(line, false)
//	<-p.Done() // p.End() says how it ended
//
// A Pending keeps which answer belongs to which request, and a Backoff says when the next process may be started.
// Everything is bounded: lines, what waits for stdin, what of stderr is logged, and what of it is kept for the
// error that says how the process ended.
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
	defaultMaxStderr = 8 << 10  // longest line of stderr, in bytes; only the head of a longer one is taken
	maxWords         = 2 << 10  // bytes kept of stderr for the error that says how it ended
	maxShown         = 200      // bytes of a line of stdout that the log shows
)

// Options say who receives the output of a process, and how long the host waits for it. Line, Go and Name must be set.
type Options struct {
	Name    string            // in errors and the log, such as "the worker"
	Line    func(line []byte) // takes a line of stdout without its end; valid until it returns
	Long    func(head []byte) // takes the head of a line that is too long; nil = Skip is called
	Over    io.Writer         // takes all of such a line, before Long is called; may be nil
	MaxLine int               // longest line of stdout, in bytes; 0 = 16 MiB
	Silent  func()            // nobody can write to its stdout any more, which may be before its end; may be nil
	Idle    func() bool       // no request waits for an answer; nil = ReadSoon does nothing

	Stderr    func(line []byte) // takes a line of stderr without secrets, or its head; may be nil
	MaxStderr int               // longest line of stderr, in bytes; 0 = 8 KiB
	Level     zerolog.Level     // at which stderr is logged, at most 100 lines a second

	Ended func(*Ended)  // called when it has ended and all its output was read, before Done is closed; may be nil
	Go    func(func())  // starts a goroutine that its owner waits for
	Grace time.Duration // for the end of a process that has closed its stdin
	Log   zerolog.Logger
	// Secrets are never shown in a log or an error; nil = none.
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
	words          Tail // only for the goroutine that reads stderr
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

// Error implements error. There is no Unwrap, because the error for which a process was ended is not the answer to
// its other requests.
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

// New makes a process that does not run yet. It will be killed when ctx ends, and then Ended.Cause is the cause of ctx.
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

// Start starts the process. It sets the streams of policy and closes its DirFile. After an error the process counts
// as ended for all its methods; Options.Ended is not called.
func (p *Process) Start(launcher func() (*sandbox.Launcher, error), policy sandbox.Policy) error {
	if policy.DirFile != nil {
		defer policy.DirFile.Close()
	}
	err := p.start(launcher, policy)
	if err != nil {
		p.ended = &Ended{Name: p.opts.Name, Cause: err}
		p.kill(err)
		close(p.done)
		p.input.close() // nobody would read what is sent
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

// wait waits until the process has ended, and until all its output was read.
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

// Send adds a line, newline included, to the input of the process. alone says that the process has nothing else to
// read: then the line is written right here, which saves a switch of goroutines. The error is ErrInputFull or
// ErrInputClosed.
func (p *Process) Send(line []byte, alone bool) error { return p.input.add(line, alone) }

// ReadSoon reads lines of stdout on this goroutine, for a moment and until enough returns true. It is for a caller
// that waits for an answer, and saves two switches of goroutines. Line is called by one goroutine at a time.
func (p *Process) ReadSoon(enough func() bool) { p.proc.ReadSoon(enough) }

// Close closes the input of the process after the lines that wait; this ends most programs.
func (p *Process) Close() { p.input.close() }

// Await waits until the process has ended, for within at most, or until ctx ends.
func (p *Process) Await(ctx context.Context, within time.Duration) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Kill kills the process and everything that it has started. It does not wait.
func (p *Process) Kill(cause error) { p.kill(cause) }

// Signal sends a signal to the process; it is an error if the system has no such signal.
func (p *Process) Signal(sig syscall.Signal) error { return p.proc.Signal(sig) }

// Context returns a context that ends with the process.
func (p *Process) Context() context.Context { return p.ctx }

// Done returns a channel that is closed when the process has ended and all its output was read.
func (p *Process) Done() <-chan struct{} { return p.done }

// End returns how the process ended, once Options.Ended is called or Done is closed.
func (p *Process) End() *Ended { return p.ended }

// Lived returns how long ago New made the process.
func (p *Process) Lived() time.Duration { return p.opts.Now().Sub(p.started) }

// PID returns the process id, as the host sees it.
func (p *Process) PID() int { return p.proc.PID() }

// hear masks, keeps and logs a line of stderr, or the head of a long one.
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

// Skipped returns how many lines were skipped.
func (p *Process) Skipped() int { return int(p.skipped.Load()) }

// Complain logs what is wrong with a line of stdout, unless such lines were logged too often lately. It is for Line
// and Long.
func (p *Process) Complain(level zerolog.Level, line []byte, what string) {
	if hidden, ok := p.noise.Allow(p.opts.Now()); ok {
		p.opts.Log.WithLevel(level).Bytes("line", p.opts.Secrets.OwnHead(line, maxShown)).Int("hidden",
			hidden).Msg(what)
	}
}

// WaitFor waits for goroutines, or for the end of ctx. what names the owner of the goroutines.
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
