package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"go.opentelemetry.io/otel/trace"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/child/spill"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// The values of stdin_mode.
const (
	stdinPipe = "pipe"
	stdinNull = "null"
)

// spawn answers proc/spawn/req. If the plugin refuses to start the process, or cannot start it,
// the answer has ok false.
func (p *Plugin) spawn(ctx context.Context, req *protocol.ProcSpawnRequest,
	_ host.Emitter,
) (*protocol.ProcSpawnResponse, error) {
	host.HandOff(ctx)
	env, err := spawnEnv(req)
	if err != nil {
		return nil, err
	}
	r, err := p.start(ctx, req, env)
	switch {
	case is[*sandbox.DeniedError](err): // another plugin may allow it
		return nil, host.NotOwnerBut(&protocol.ProcSpawnResponse{Error: err.Error()})
	case is[refusal](err):
		return &protocol.ProcSpawnResponse{Error: err.Error()}, nil
	case err != nil:
		return nil, err
	}
	return &protocol.ProcSpawnResponse{ProcID: r.id, OK: true, PID: r.pid}, nil
}

// spawnEnv checks the values of a request that the schema does not check, and returns
// its environment as texts.
func spawnEnv(req *protocol.ProcSpawnRequest) (map[string]string, error) {
	problems := checkSize(req.Metadata)
	if req.StdinMode != stdinPipe && req.StdinMode != stdinNull {
		problems = append(problems, protocol.FieldError{
			Path: "/stdin_mode", Message: fmt.Sprintf("is %.64q; should be %q or %q", req.StdinMode, stdinPipe,
				stdinNull),
		})
	}
	if req.Timeout < 0 {
		problems = append(problems, protocol.FieldError{Path: "/timeout", Message: "should be seconds, or 0 for " +
			"what the config says"})
	}
	env := make(map[string]string, req.Env.Len())
	for key, val := range req.Env.All() {
		text, ok := val.Scalar()
		if !ok {
			path := jsontext.Pointer("/env").AppendToken(string(key))
			problems = append(problems, protocol.FieldError{Path: string(path), Message: "should be a text, a " +
				"number or a boolean"})
		}
		env[string(key)] = text
	}
	if problems != nil {
		return nil, protocol.Violation(problems...)
	}
	return env, nil
}

// start starts the process of a checked request.
func (p *Plugin) start(ctx context.Context, req *protocol.ProcSpawnRequest, env map[string]string) (*process, error) {
	sess := host.SessionFrom(ctx)
	if sess != nil && req.SessionID != "" && req.SessionID != sess.ID {
		return nil, refuse("session_id %.64q is not that of this session; leave it out or send the one of the "+
			"handshake", req.SessionID)
	}
	policy, release, err := p.policy(req.Cmd, req.Cwd, env)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.goes.Done()
	r := &process{
		cmd: shorten(req.Cmd), started: p.env.Now(), session: p.procs.of(sess), state: protocol.ProcRunning,
		asked: make(map[syscall.Signal]bool), done: make(chan struct{}), sent: make(chan struct{}),
	}
	own, stop := context.WithCancelCause(trace.ContextWithSpan(p.ctx, trace.SpanFromContext(ctx)))
	r.stop = stop
	if err := p.launch(ctx, own, r, req, policy); err != nil {
		stop(err)
		p.procs.leave()
		return nil, err
	}
	r.id = p.procs.newID()
	known := p.procs.add(r)
	p.begin(own, r, p.limit(float64(req.Timeout), stop))
	switch {
	case !known:
		stop(errSessionEnded)
		return nil, errClosed
	case ctx.Err() != nil:
		stop(context.Cause(ctx)) // nobody will know its id
		return nil, context.Cause(ctx)
	}
	return r, nil
}

// maxTimeout bounds a timeout, in seconds, so that it fits into a time.Duration.
const maxTimeout = 1 << 30

// limit stops a process after the given number of seconds; 0 = Options.Timeout. The caller calls free
// after the end of the process.
func (p *Plugin) limit(seconds float64, stop context.CancelCauseFunc) (free func()) {
	if seconds = cmp.Or(seconds, p.opts.Timeout); seconds == 0 {
		return func() {}
	}
	timer := time.AfterFunc(time.Duration(min(seconds, maxTimeout)*float64(time.Second)), func() { stop(errTimedOut) })
	return func() { timer.Stop() }
}

// launch opens the streams and starts the child. ctx is the request's, own the
// process's.
func (p *Plugin) launch(ctx, own context.Context, r *process, req *protocol.ProcSpawnRequest,
	policy sandbox.Policy,
) error {
	l := &live{output: newBacklog(p.maxOutput), secrets: p.env.Secrets}
	open := l.openPipes
	if req.Metadata.PTY {
		open = l.openTerminal
	}
	child, err := open(&policy, req)
	if err != nil {
		return refuse("the process was not started: %w", err)
	}
	l.child, err = p.command(ctx, own, policy)
	_ = child.Close()
	if err != nil {
		l.discard()
		return err
	}
	if l.tty != nil {
		out := newStream(l.output, protocol.StreamStdout, 0, l.secrets) // a prompt has no newline
		l.ends = append(l.ends, out.end)
		p.goes.Go(func() { l.tty.copy(out) })
	}
	l.feed = host.OpenStream(ctx)
	r.pid, r.live = l.child.PID(), l
	return nil
}

// openPipes sets the streams of the child, with a pipe for stdin. The caller closes the result, the
// child's end of the pipe, once the child has it.
func (l *live) openPipes(policy *sandbox.Policy, req *protocol.ProcSpawnRequest) (io.Closer, error) {
	stdout := newStream(l.output, protocol.StreamStdout, lineWait, l.secrets)
	stderr := newStream(l.output, protocol.StreamStderr, lineWait, l.secrets)
	policy.Stdout, policy.Stderr = stdout, stderr
	l.ends = []func(){stdout.end, stderr.end}
	if req.StdinMode == stdinNull {
		return io.NopCloser(nil), nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, &sandbox.StartError{Op: "open its streams", Path: policy.Path, Err: err}
	}
	policy.Stdin = r
	l.input = newStdin(w, false)
	return r, nil
}

// openTerminal is openPipes for a pty. With stdin_mode null the child has the terminal,
// too, but gets no input.
func (l *live) openTerminal(policy *sandbox.Policy, req *protocol.ProcSpawnRequest) (io.Closer, error) {
	tty, slave, err := newTerminal(req.Metadata)
	if err != nil {
		return nil, fmt.Errorf("no terminal: %w", err)
	}
	policy.Stdin, policy.Stdout, policy.Stderr, policy.Terminal = slave, slave, slave, true
	if _, ok := policy.Env["TERM"]; !ok {
		policy.HostEnv = map[string]string{"TERM": "xterm-256color"}
	}
	l.tty = tty
	if req.StdinMode != stdinNull {
		l.input = newStdin(tty.master, true)
	}
	return slave, nil
}

// discard closes the host's side of the streams of a child that did not start.
func (l *live) discard() {
	if l.input != nil {
		l.input.close()
	}
	if l.tty != nil {
		l.tty.master.Close()
	}
}

// maxShown bounds the part of a command that is stored, in bytes.
const maxShown = 4 << 10

// shorten returns a copy of a command, cut to maxShown.
func shorten(cmd []string) []string {
	left := maxShown
	var short []string
	for _, word := range cmd {
		if len(word) > left {
			return append(short, protocol.Head(word, left)+"…")
		}
		short = append(short, strings.Clone(word))
		left -= len(word) + 1
		if left < 0 {
			return append(short, "…")
		}
	}
	return short
}

// RunProc implements child.ProcRunner: it runs a program to its end, under the
// rules of a spawn. The output of both streams together is at most the plugin's
// max_output_bytes. Longer output is cut to its beginning and its end, with a line that names the file
// with all of it. The error is a *protocol.Error, or that of ctx.
func (p *Plugin) RunProc(ctx context.Context, run child.ProcRun) (*child.ProcResult, error) {
	policy, release, err := p.policy(run.Cmd, run.Cwd, run.Env)
	if err != nil {
		return nil, runError(err)
	}
	defer release()
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.goes.Done()
	defer p.procs.leave()
	own, stop := context.WithCancelCause(p.ctx)
	defer stop(nil)
	defer context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) })()
	out := spill.NewCapture(ctx, p.spill, filepath.Base(policy.Path), p.maxOutput)
	stdout, stderr := out.Stream(), out.Stream()
	policy.Stdout, policy.Stderr = stdout, stderr
	if run.Stdin != "" {
		policy.Stdin = strings.NewReader(run.Stdin)
	}
	started, err := p.command(ctx, own, policy)
	if err != nil {
		return nil, runError(err)
	}
	free := p.limit(run.Timeout.Seconds(), stop)
	end, err := started.Wait()
	free()
	file, cut := out.Finish()
	result := &child.ProcResult{Stdout: stdout.Text(), Stderr: stderr.Text(), ExitCode: exitCode(end), Truncated: cut}
	if err != nil {
		return nil, stopError(err, result, file)
	}
	return result, nil
}

// is reports whether an error is, or wraps, one of a type.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// runError turns a refusal into an error with a code of tools.
func runError(err error) error {
	dir, isDir := errors.AsType[*sandbox.WorkdirError](err)
	switch {
	case is[*sandbox.DeniedError](err), is[*sandbox.EnvError](err), isDir && dir.Denied:
		return protocol.Errorf(protocol.CodeToolDenied, "%w", err)
	case is[refusal](err):
		return protocol.Errorf(protocol.CodeToolError, "%w", err)
	}
	return err
}

// shownOutput bounds the part of each stream in the error of a program whose time was
// up, in bytes.
const shownOutput = 8 << 10

// stopError returns the error for a program that did not end by itself. If its time was up, the error has the end of
// its output, and the path of file, which has all of it; file may be nil.
func stopError(err error, result *child.ProcResult, file *spill.File) error {
	switch {
	case errors.Is(err, errTimedOut):
		late := protocol.Errorf(protocol.CodeTimeout, "the program was stopped: its time was up").
			With("stdout", protocol.Tail(result.Stdout, shownOutput)).With("stderr",
			protocol.Tail(result.Stderr, shownOutput))
		if file != nil {
			late = late.With("spilled", file.Path())
		}
		return late
	case errors.Is(err, sandbox.ErrMemory), errors.Is(err, sandbox.ErrProcesses):
		return protocol.Errorf(protocol.CodeOutOfMemory, "the program was stopped: %w", err)
	case errors.Is(err, sandbox.ErrDisk):
		return protocol.Errorf(protocol.CodeToolError, "the program was stopped: %w", err)
	case errors.Is(err, sandbox.ErrLauncher):
		return protocol.Errorf(protocol.CodeSandboxCrash, "the program was lost: %w", err)
	case errors.Is(err, sandbox.ErrKilled):
		return errClosed
	}
	return err // the request's error, or errClosed
}

// The size of a terminal if its spawn has none.
const (
	defaultCols = 80
	defaultRows = 24
)

const (
	// drainTime bounds how long finish waits for the last output of a terminal, which a
	// process that was not killed may hold open.
	drainTime = time.Second
	// lateTime bounds a read of the output that is left by then, lateBytes its size:
	// it is more than a terminal buffers.
	lateTime  = 100 * time.Millisecond
	lateBytes = 256 << 10
)

// terminal is the host's side of a pty.
type terminal struct {
	master *os.File
	copied chan struct{} // closed when all output was passed on
}

// newTerminal opens a pty. The slave is for the child; the caller closes it.
func newTerminal(size protocol.ProcTerminal) (t *terminal, slave *os.File, err error) {
	master, slave, err := openTerminal()
	if err != nil {
		return nil, nil, err
	}
	t = &terminal{master: master, copied: make(chan struct{})}
	size.Cols, size.Rows = cmp.Or(size.Cols, defaultCols), cmp.Or(size.Rows, defaultRows)
	if err := t.resize(size); err != nil {
		return nil, nil, errors.Join(err, master.Close(), slave.Close())
	}
	return t, slave, nil
}

// copy passes on output until the last process has closed the terminal, or the time that finish set
// is over.
func (t *terminal) copy(to io.Writer) {
	defer close(t.copied)
	buf := make([]byte, blockSize)
	late := 0 // reads in a row that timed out
	for left := lateBytes; left > 0; {
		if late > 0 {
			_ = t.master.SetReadDeadline(time.Now().Add(lateTime)) // it is open
		}
		n, err := t.master.Read(buf)
		_, _ = to.Write(buf[:n]) // a stream never fails
		switch {
		case late > 0 && err == nil:
			late, left = 1, left-n
		// twice, since a busy machine may not even begin a read in time
		case late < 2 && errors.Is(err, os.ErrDeadlineExceeded):
			late++
		case err != nil:
			return
		}
	}
}

// finish waits for the last output and closes the terminal, after the end of the process.
func (t *terminal) finish() {
	// Neither fails on a terminal that is open.
	_ = t.master.SetWriteDeadline(time.Unix(1, 0))
	_ = t.master.SetReadDeadline(time.Now().Add(drainTime))
	<-t.copied
	t.master.Close()
}

// resize changes the size; a value of 0 leaves that side unchanged.
func (t *terminal) resize(size protocol.ProcTerminal) error {
	conn, err := t.master.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) { failed = setSize(fd, uint16(size.Cols), uint16(size.Rows)) })
	return errors.Join(err, failed)
}

// checkSize returns the problems in the size of a terminal.
func checkSize(size protocol.ProcTerminal) (problems []protocol.FieldError) {
	for _, f := range []struct {
		name  string
		value int
	}{{"cols", size.Cols}, {"rows", size.Rows}} {
		if f.value < 0 || f.value > 1<<16-1 {
			problems = append(problems, protocol.FieldError{Path: "/metadata/" + f.name, Message: "should be from 1 " +
				"to 65535"})
		}
	}
	return problems
}
