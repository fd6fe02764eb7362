package proc

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"

	"a2e/host"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// RunProc implements host.ProcRunner: it runs a program to its end, under the
// rules of a spawn. The output kept of both streams together is at most the
// plugin's max_output_bytes. The error is a *protocol.Error, or that of ctx.
func (p *Plugin) RunProc(ctx context.Context, run host.ProcRun) (*host.ProcResult, error) {
	policy, release, err := p.policy(run.Cmd, run.Cwd, run.Env)
	if err != nil {
		return nil, runError(err)
	}
	defer release()
	if err := p.procs.enter(func() { p.goes.Add(1) }); err != nil {
		return nil, err
	}
	defer p.goes.Done()
	defer p.procs.leave()
	own, stop := context.WithCancelCause(p.ctx)
	defer stop(nil)
	defer context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) })()
	out := &kept{left: p.maxOutput}
	stdout, stderr := &keptStream{kept: out}, &keptStream{kept: out}
	policy.Stdout, policy.Stderr = stdout, stderr
	if run.Stdin != "" {
		policy.Stdin = strings.NewReader(run.Stdin)
	}
	child, err := p.command(ctx, own, policy)
	if err != nil {
		return nil, runError(err)
	}
	free := p.limit(run.Timeout, stop)
	end, err := child.Wait()
	free()
	result := &host.ProcResult{Stdout: stdout.text(), Stderr: stderr.text(), ExitCode: end.Code, Truncated: out.cut}
	if end.Signal != 0 {
		result.ExitCode = 128 + int(end.Signal)
	}
	if err != nil {
		return nil, stopError(err, result)
	}
	return result, nil
}

// runError puts a refusal into the codes that tools have.
func runError(err error) error {
	var denied *sandbox.DeniedError
	var env *sandbox.EnvError
	var dir *sandbox.WorkdirError
	var refused refusal
	switch {
	case errors.As(err, &denied), errors.As(err, &env), errors.As(err, &dir) && dir.Denied:
		return protocol.Errorf(protocol.CodeToolDenied, "%w", err)
	case errors.As(err, &refused):
		return protocol.Errorf(protocol.CodeToolError, "%w", err)
	}
	return err
}

// shownOutput is how much of the output of a program that was stopped goes into
// the error, in bytes.
const shownOutput = 8 << 10

// stopError says why a program did not end by itself, and what it had printed.
func stopError(err error, result *host.ProcResult) error {
	switch {
	case errors.Is(err, errTimedOut):
		return protocol.Errorf(protocol.CodeTimeout, "the program was stopped: its time was up").
			With("stdout", tail(result.Stdout)).With("stderr", tail(result.Stderr))
	case errors.Is(err, sandbox.ErrMemory), errors.Is(err, sandbox.ErrProcesses):
		return protocol.Errorf(protocol.CodeOutOfMemory, "the program was stopped: %w", err)
	case errors.Is(err, sandbox.ErrDisk):
		return protocol.Errorf(protocol.CodeToolError, "the program was stopped: %w", err)
	case errors.Is(err, sandbox.ErrLauncher):
		return protocol.Errorf(protocol.CodeSandboxCrash, "the program was lost: %w", err)
	case errors.Is(err, sandbox.ErrKilled):
		return errClosed
	}
	return err // the request's, or errClosed
}

func tail(text string) string {
	if len(text) > shownOutput {
		return strings.ToValidUTF8(text[len(text)-shownOutput:], "")
	}
	return text
}

// kept is the output of one program, both streams together.
type kept struct {
	mu   sync.Mutex // guards the fields below, and all of the streams
	left int        // bytes that still fit
	cut  bool       // something did not
}

// keptStream is the Writer of one stream.
type keptStream struct {
	*kept
	data bytes.Buffer
}

// Write implements io.Writer.
func (s *keptStream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(p), s.left)
	s.left -= n
	s.data.Write(p[:n])
	if n < len(p) {
		s.cut = true
	}
	return len(p), nil
}

// text gives what was kept; bytes that are no UTF-8 become U+FFFD.
func (s *keptStream) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	data := s.data.Bytes()
	if s.cut {
		data = data[:wholeRunes(data)]
	}
	return strings.ToValidUTF8(string(data), "\uFFFD")
}
