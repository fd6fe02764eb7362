package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// The values of stdin_mode.
const (
	stdinPipe = "pipe"
	stdinNull = "null"
)

// spawn starts a process. What the plugin does not want to start, or cannot, is
// an answer with ok false.
func (p *Plugin) spawn(ctx context.Context, req *protocol.ProcSpawnRequest, _ host.Emitter) (*protocol.ProcSpawnResponse, error) {
	host.Detach(ctx)
	env, err := spawnEnv(req)
	if err != nil {
		return nil, err
	}
	r, err := p.start(ctx, req, env)
	var refused refusal
	var denied *sandbox.DeniedError
	switch {
	case errors.As(err, &denied): // another plugin may allow it
		return nil, host.NotMineBut(&protocol.ProcSpawnResponse{Error: err.Error()})
	case errors.As(err, &refused):
		return &protocol.ProcSpawnResponse{Error: refused.Error()}, nil
	case err != nil:
		return nil, err
	}
	return &protocol.ProcSpawnResponse{ProcID: r.id, OK: true, PID: r.pid}, nil
}

// spawnEnv checks the values in a request that the schema leaves open, and gives
// its environment as text.
func spawnEnv(req *protocol.ProcSpawnRequest) (map[string]string, error) {
	problems := checkSize(req.Metadata)
	if req.StdinMode != stdinPipe && req.StdinMode != stdinNull {
		problems = append(problems, protocol.FieldError{
			Path: "/stdin_mode", Message: fmt.Sprintf("is %.64q; should be %q or %q", req.StdinMode, stdinPipe, stdinNull),
		})
	}
	if req.Timeout < 0 {
		problems = append(problems, protocol.FieldError{Path: "/timeout", Message: "should be seconds, or 0 for what the config says"})
	}
	env := make(map[string]string, req.Env.Len())
	for key, val := range req.Env.All() {
		text, ok := val.Str()
		switch val.Kind() {
		case '0', 't', 'f':
			text, ok = string(val), true
		}
		if !ok {
			path := jsontext.Pointer("/env").AppendToken(string(key))
			problems = append(problems, protocol.FieldError{Path: string(path), Message: "should be a text, a number or a boolean"})
		}
		env[string(key)] = text
	}
	if problems != nil {
		return nil, protocol.Violation(problems...)
	}
	return env, nil
}

// start starts what a checked request asks for.
func (p *Plugin) start(ctx context.Context, req *protocol.ProcSpawnRequest, env map[string]string) (*process, error) {
	sess := host.SessionFrom(ctx)
	if sess != nil && req.SessionID != "" && req.SessionID != sess.ID {
		return nil, refuse("session_id %.64q is not that of this session; leave it out or send the one of the handshake", req.SessionID)
	}
	policy, release, err := p.policy(req.Cmd, req.Cwd, env)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := p.procs.enter(func() { p.goes.Add(1) }); err != nil {
		return nil, err
	}
	defer p.goes.Done()
	r := &process{
		cmd: shorten(req.Cmd), started: p.env.Now(), session: p.procs.of(sess), state: protocol.ProcRunning,
		asked: make(map[syscall.Signal]bool), done: make(chan struct{}), sent: make(chan struct{}),
	}
	own, stop := context.WithCancelCause(p.ctx)
	r.stop = stop
	if err := p.launch(ctx, own, r, req, policy); err != nil {
		stop(err)
		p.procs.leave()
		return nil, err
	}
	r.id = p.procs.newID()
	known := p.procs.add(sess, r)
	p.begin(own, r, p.limit(seconds(req.Timeout), stop))
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

// limit stops a process after timeout; 0 = what the config says. free is called
// when it is over.
func (p *Plugin) limit(timeout time.Duration, stop context.CancelCauseFunc) (free func()) {
	if timeout == 0 {
		timeout = configSeconds(p.opts.Timeout)
	}
	if timeout == 0 {
		return func() {}
	}
	timer := time.AfterFunc(timeout, func() { stop(errTimedOut) })
	return func() { timer.Stop() }
}

// maxTimeout bounds a timeout, which 64 bits of nanoseconds do not.
const maxTimeout = 1 << 30 * time.Second

func seconds(n int) time.Duration {
	if n >= int(maxTimeout/time.Second) {
		return maxTimeout
	}
	return time.Duration(n) * time.Second
}

func configSeconds(n float64) time.Duration {
	return time.Duration(math.Min(n*float64(time.Second), float64(maxTimeout)))
}

// launch opens the streams and starts the child. ctx is the request's, own the
// process's.
func (p *Plugin) launch(ctx, own context.Context, r *process, req *protocol.ProcSpawnRequest, policy sandbox.Policy) error {
	l := &live{output: newBacklog(p.maxOutput)}
	open := l.openPipes
	if req.Metadata.PTY {
		open = l.openTerminal
	}
	child, err := open(&policy, req)
	if err != nil {
		return refuse("the process was not started: %w", err)
	}
	l.child, err = p.command(ctx, own, policy)
	child.Close()
	if err != nil {
		l.discard()
		return err
	}
	if l.tty != nil {
		out := newStream(l.output, protocol.StreamStdout, 0) // a prompt has no newline
		l.ends = append(l.ends, out.end)
		p.goes.Go(func() { l.tty.copy(out) })
	}
	l.feed = host.OpenFeed(ctx)
	r.pid, r.live = l.child.PID(), l
	return nil
}

// openPipes gives the child pipes. The file returned is the child's, to be
// closed here once it has it.
func (l *live) openPipes(policy *sandbox.Policy, req *protocol.ProcSpawnRequest) (io.Closer, error) {
	stdout, stderr := newStream(l.output, protocol.StreamStdout, lineWait), newStream(l.output, protocol.StreamStderr, lineWait)
	policy.Stdout, policy.Stderr = stdout, stderr
	l.ends = []func(){stdout.end, stderr.end}
	if req.StdinMode == stdinNull {
		return io.NopCloser(nil), nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	policy.Stdin = r
	l.input = newStdin(w, false)
	return r, nil
}

// openTerminal is openPipes for a pty. Without stdin the terminal is there all
// the same, and nobody types.
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

// maxShown is how much of a command is remembered, in bytes.
const maxShown = 4 << 10

// shorten cuts what is remembered of a command.
func shorten(cmd []string) []string {
	left := maxShown
	var short []string
	for _, word := range cmd {
		if len(word) > left {
			return append(short, word[:runeEnd([]byte(word[:left+1]), left)]+"…")
		}
		short = append(short, strings.Clone(word))
		left -= len(word) + 1
		if left < 0 {
			return append(short, "…")
		}
	}
	return short
}
