package tools

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"a2e/host"
	"a2e/host/child/spill"
	"a2e/host/guard/redact"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// runCommand is the name of the tool that runs programs.
const runCommand = "run_command"

// runCommandArgs are the arguments of run_command.
type runCommandArgs struct {
	Command []string          `json:"command" need:"The program and its arguments, such as [\"git\",\"status\"]."`
	Cwd     string            `json:"cwd" may:"Folder to run in, relative to the workspace; default: the workspace."`
	Env     map[string]string `json:"env" may:"Further environment variables, name to text."`
	Stdin   string            `json:"stdin" may:"Text for the program's standard input; default: none."`
}

func (c *children) runCommand(ctx context.Context, a *runCommandArgs, emit host.Emitter) (*Outcome, error) {
	if len(a.Command) == 0 {
		return nil, protocol.Violation(protocol.FieldError{Path: "/arguments/command", Message: "needs at least the " +
			"program's name"})
	}
	for i, word := range a.Command {
		if strings.ContainsRune(word, 0) {
			return nil, protocol.Errorf(protocol.CodeToolDenied, "word %d of the command has a NUL character in it", i)
		}
	}
	allowed, err := c.allow()
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "%w", err)
	}
	path, err := allowed.Resolve(a.Cwd, a.Command...)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolDenied, "%w", err)
	}
	policy := sandbox.Policy{Path: path, Args: a.Command, Env: a.Env, Network: c.network, Home: sandbox.HomeShared}
	if a.Stdin != "" {
		policy.Stdin = strings.NewReader(a.Stdin)
	}
	return c.run(ctx, runCommand, policy, a.Cwd, emit)
}

// maxEventLine is the longest piece of output that one event carries, in bytes.
const maxEventLine = 64 << 10

// prepareAfter is the time between the first list of tools and prepare. A client that wants only the list has ended
// by then, and no model answers sooner.
const prepareAfter = 50 * time.Millisecond

// prepare makes the launcher and the list of programs before the first command, which otherwise takes several times
// as long to start as a later one.
func (p *Plugin) prepare(c *children) {
	select {
	case <-time.After(prepareAfter):
	case <-p.ctx.Done():
		return
	}
	if launcher, err := c.launcher(); err == nil { // a command reports the error
		launcher.Prepare(c.network)
	}
	_, _ = c.allow()
}

// children starts the programs of run_command and of the command tools.
type children struct {
	launcher  func() (*sandbox.Launcher, error)
	files     *files
	workspace string // absolute
	maxOutput int    // bytes kept of the output of one call, both streams together
	spill     *spill.Keeper
	secrets   *redact.Set     // masked in the output and in the file with all of it
	network   sandbox.Network // of a program whose tool does not ask for the network

	dirs  func() []string // folders in which programs are looked up
	allow func() (*sandbox.AllowList, error)
}

// commandResult is the data of a program that ran.
type commandResult struct {
	Stdout  string `json:"stdout" need:"What it printed."`
	Stderr  string `json:"stderr" need:"What it printed as errors."`
	Spilled string `json:"spilled,omitzero" may:"File with all of the output, where it does not fit."`
}

// openDir opens a folder of the workspace to run in. The child enters it by the
// descriptor, so it never enters a link that replaced the folder in between.
func (c *children) openDir(name string) (dir *os.File, path string, err error) {
	dir, path, err = sandbox.OpenWorkdir(c.files.now().root, c.workspace, name)
	if err != nil {
		code := protocol.CodeToolError
		if refused, ok := errors.AsType[*sandbox.WorkdirError](err); ok && refused.Denied {
			code = protocol.CodeToolDenied
		}
		return nil, "", protocol.Errorf(code, "%w", err)
	}
	if err := kernelFile(dir); err != nil {
		dir.Close()
		return nil, "", c.files.explain(name, err)
	}
	return dir, path, nil
}

// run runs one program to its end and returns its output.
func (c *children) run(ctx context.Context, tool string, policy sandbox.Policy, cwd string,
	emit host.Emitter,
) (*Outcome, error) {
	dir, path, err := c.openDir(cwd)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	all := spill.NewCapture(ctx, c.spill, tool, max(c.maxOutput-answerFrame, answerFrame))
	stdout := &stream{Stream: all.Stream(), name: "stdout", emit: emit}
	stderr := &stream{Stream: all.Stream(), name: "stderr", emit: emit}
	shownOut, shownErr := c.secrets.Writer(stdout), c.secrets.Writer(stderr)
	policy.Dir, policy.DirFile, policy.Stdout, policy.Stderr = path, dir, shownOut, shownErr
	launcher, err := c.launcher()
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "programs cannot be started: %w", err)
	}
	proc, err := launcher.Command(ctx, policy)
	if err != nil {
		return nil, startError(ctx, err)
	}
	state, err := proc.Wait()
	_, _ = shownOut.Close(), shownErr.Close() // they never fail
	stdout.end()
	stderr.end()
	file, cut := all.Finish()
	result := commandResult{Stdout: stdout.Text(), Stderr: stderr.Text()}
	if file != nil {
		result.Spilled = file.Path()
	}
	if err != nil {
		return nil, waitError(ctx, err, result)
	}
	out := &Outcome{Data: &result, Truncated: cut, ExitCode: new(state.Code)}
	if cut {
		out.Summary = spill.Note(file)
	}
	if state.Signal != 0 {
		out.ExitCode = new(128 + int(state.Signal)) // as in a shell
	}
	if state.Code != 0 || state.Signal != 0 {
		out.Failed, out.Failure = true, state.String()
	}
	return out, nil
}

// startError returns the error for a program that did not start.
func startError(ctx context.Context, err error) error {
	var env *sandbox.EnvError
	switch {
	case errors.As(err, &env):
		return protocol.Errorf(protocol.CodeToolDenied, "%w", err)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return protocol.Errorf(protocol.CodeToolError, "%w", err)
}

// waitError returns the error for a program that did not end by itself, with the end of its output.
func waitError(ctx context.Context, err error, result commandResult) error {
	var stopped *protocol.Error
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, context.DeadlineExceeded):
		stopped = protocol.Errorf(protocol.CodeTimeout, "the program was stopped before it ended: %w; a longer "+
			"\"timeout\" gives it more time", cause)
	case cause != nil: // a cancel or a shutdown: the host knows what to answer
		return cause
	case errors.Is(err, sandbox.ErrMemory), errors.Is(err, sandbox.ErrProcesses):
		stopped = protocol.Errorf(protocol.CodeOutOfMemory, "the program was stopped: %w", err)
	case errors.Is(err, sandbox.ErrDisk):
		stopped = protocol.Errorf(protocol.CodeToolError, "the program was stopped: %w", err)
	default:
		return protocol.Errorf(protocol.CodeSandboxCrash, "the program was lost: %w", err)
	}
	stopped = stopped.With("stdout", protocol.Tail(result.Stdout, maxTold)).
		With("stderr", protocol.Tail(result.Stderr, maxTold))
	if result.Spilled != "" {
		stopped = stopped.With("spilled", result.Spilled)
	}
	return stopped
}

// maxTold bounds the part of each stream in the error of a stopped program, in bytes.
const maxTold = 8 << 10

// stream is one output stream of a program. It keeps the output and sends it as events, line by line.
type stream struct {
	*spill.Stream
	name string
	emit host.Emitter
	line []byte // the line that has no end yet
}

// Write implements io.Writer for one goroutine.
func (s *stream) Write(p []byte) (int, error) {
	_, _ = s.Stream.Write(p) // it takes all
	if !s.emit.Streaming() {
		return len(p), nil
	}
	s.line = append(s.line, p...)
	for {
		end := bytes.IndexByte(s.line, '\n')
		switch {
		case end >= 0:
			s.send(s.line[:end])
			s.line = s.line[end+1:]
		case len(s.line) > maxEventLine:
			piece := protocol.Head(s.line, maxEventLine)
			s.send(piece)
			s.line = s.line[len(piece):]
		default:
			return len(p), nil
		}
	}
}

func (s *stream) send(line []byte) {
	s.emit.Log("info", wireText(strings.TrimSuffix(string(line), "\r")), s.name)
}

// end sends a last line that has no newline.
func (s *stream) end() {
	if len(s.line) > 0 {
		s.send(s.line)
	}
}
