package env

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"a2e/host/sandbox"
)

const (
	maxRunOutput   = 1 << 20 // bytes kept of the beginning of each stream of a run
	defaultRunTime = 10      // seconds
)

// runOrder is one run of a program of the agent, or of one on the PATH that is given the
// agent's files.
type runOrder struct {
	Run     []string `json:"run"`
	Stdin   string   `json:"stdin"`
	Timeout float64  `json:"timeout"` // seconds; 0 = 10
}

// runResult is how a run ended. One that could not be started has an error alone.
type runResult struct {
	ExitCode  *int   `json:"exit_code"` // null where a signal, the time or a limit ended it
	Signal    string `json:"signal,omitzero"`
	TimedOut  bool   `json:"timed_out"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Truncated bool   `json:"truncated"` // of an output only the first MiB is here
	Error     string `json:"error,omitzero"`
}

// errRunLate is why a run was stopped.
var errRunLate = errors.New("the run did not end in time")

// runner starts the agent's programs for a check: in a copy of the agent's folder and a
// sandbox of their own, which shows neither the task folder nor the process that checks.
// All runs of one check have this copy and one home.
type runner struct {
	world    *workspaceWorld
	launcher *sandbox.Launcher // nil before the first run
}

func (r *runner) close() error {
	if r.launcher == nil {
		return nil
	}
	return r.launcher.Close()
}

// run runs one program to its end, with all that it started. The error is about the host
// or ctx; whatever the program does is in the result.
func (r *runner) run(ctx context.Context, o runOrder) (runResult, error) {
	work := r.world.folder.work()
	path, err := r.program(o.Run)
	if err != nil {
		return runResult{Error: err.Error()}, nil
	}
	if r.launcher == nil {
		if r.launcher, err = r.world.env.env.Apart(work, r.world.env.tasks); err != nil {
			return runResult{}, err
		}
	}
	own, cancel := context.WithTimeoutCause(ctx, o.timeout(), errRunLate)
	defer cancel()
	var stdout, stderr beginning
	policy := sandbox.Policy{Path: path, Args: o.Run, Dir: work, Stdin: strings.NewReader(o.Stdin), Stdout: &stdout, Stderr: &stderr}
	if r.world.env.opts.Network {
		policy.Network = sandbox.NetworkHost
	}
	var state sandbox.State
	proc, err := r.launcher.Command(own, policy)
	if err == nil {
		state, err = proc.Wait()
	}
	if ctx.Err() != nil {
		return runResult{}, context.Cause(ctx)
	}
	res := runResult{Stdout: stdout.text(), Stderr: stderr.text(), Truncated: stdout.over || stderr.over}
	var unstarted *sandbox.StartError
	switch {
	case err == nil && state.Signal != 0:
		res.Signal = state.Signal.String()
	case err == nil:
		res.ExitCode = &state.Code
	case errors.Is(err, errRunLate):
		res.TimedOut = true
	case errors.Is(err, sandbox.ErrMemory):
		res.Error = "it used more memory than it may"
	case errors.Is(err, sandbox.ErrDisk):
		res.Error = "it left more on the disk than it may"
	case errors.As(err, &unstarted):
		res.Error = fmt.Sprintf("%q cannot be started: %v", o.Run[0], unstarted.Err)
	default:
		return res, err
	}
	return res, nil
}

// program finds the program of a run: a bare name on the PATH, or a path within the
// agent's folder.
func (r *runner) program(argv []string) (string, error) {
	if len(argv) == 0 || argv[0] == "" {
		return "", errors.New(`"run" must be a command and its arguments`)
	}
	name := argv[0]
	if !strings.ContainsAny(name, `/\`) {
		path, err := sandbox.LookPath(name, r.world.env.dirs(), "")
		if err != nil {
			return "", fmt.Errorf("%q is no program that can be run", name)
		}
		return path, nil
	}
	local := filepath.Clean(filepath.FromSlash(name))
	if !filepath.IsLocal(local) {
		return "", fmt.Errorf("%q leads out of the agent's folder", name)
	}
	return filepath.Join(r.world.folder.work(), local), nil
}

func (o *runOrder) timeout() time.Duration {
	seconds := o.Timeout
	if seconds <= 0 {
		seconds = defaultRunTime
	}
	return time.Duration(min(seconds, maxCheckTime) * float64(time.Second))
}

// beginning keeps the first bytes of a stream.
type beginning struct {
	kept []byte
	over bool // there were more
}

// Write implements io.Writer for one goroutine.
func (b *beginning) Write(p []byte) (int, error) {
	n := min(len(p), maxRunOutput-len(b.kept))
	b.kept = append(b.kept, p[:n]...)
	b.over = b.over || n < len(p)
	return len(p), nil
}

func (b *beginning) text() string { return strings.ToValidUTF8(string(b.kept), "\ufffd") }
