package env

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"a2e/host"
	"a2e/host/sandbox"
	"a2e/protocol"
)

const (
	maxCheckOutput = 64 << 10 // bytes kept of the end of each stream
	maxShownOutput = 4 << 10  // bytes of it that the agent may see
)

// verdict is what a check found.
type verdict struct {
	score    float64
	exitCode *int
	timedOut bool
	reason   string // why there is no better score; "" where the check says it
	output   string // the end of what it printed, where the task shows it
}

// info is the verdict as the observation's metadata have it.
func (v verdict) info() map[string]any {
	info := map[string]any{"score": v.score, "timed_out": v.timedOut}
	if v.exitCode != nil {
		info["exit_code"] = *v.exitCode
	}
	if v.reason != "" {
		info["reason"] = v.reason
	}
	if v.output != "" {
		info["output"] = v.output
	}
	return info
}

// check judges the agent's folder. It runs on a copy in the folder's place, with the
// hidden files in it: what the check, and the agent's programs that it runs, leave
// behind is gone before the agent acts again, so nothing of the task gets into the
// agent's folder by way of them. The error is a *protocol.Error when the episode is
// as it was.
func (w *workspaceWorld) check(ctx context.Context) (v verdict, err error) {
	host.Detach(ctx)
	program, err := w.env.program(w.task)
	if err != nil {
		return v, protocol.Errorf(protocol.CodeRuntimeError, "%w", err)
	}
	if err := os.Rename(w.folder.work(), w.folder.aside()); err != nil {
		return v, protocol.Errorf(protocol.CodeRuntimeError, "the check cannot begin: %w", bareCause(err))
	}
	defer func() {
		if failed := w.folder.back(); failed != nil {
			err = fmt.Errorf("the episode's folder is lost: %w", bareCause(failed))
		}
	}()
	switch err := w.prepare(ctx); {
	case ctx.Err() != nil:
		return v, stoppedAction(ctx)
	case errors.Is(err, errTooLarge):
		return verdict{reason: "the folder cannot be checked: " + err.Error()}, nil
	case err != nil:
		return v, protocol.Errorf(protocol.CodeRuntimeError, "the check cannot begin: %w", err)
	}
	return w.runCheck(ctx, program)
}

// prepare makes the copy that the check runs on.
func (w *workspaceWorld) prepare(ctx context.Context) error {
	if err := os.Mkdir(w.folder.work(), 0o700); err != nil {
		return bareCause(err)
	}
	c := copier{left: bounds{w.env.opts.MaxFiles * grown, w.env.opts.MaxBytes * grown}}
	if err := c.tree(ctx, w.folder.aside(), w.folder.work()); err != nil {
		return err
	}
	if len(w.task.Hidden) == 0 || !pathExists(w.task.files()) {
		return nil
	}
	c = copier{left: bounds{w.env.opts.MaxFiles, w.env.opts.MaxBytes}, strict: true, over: true}
	return c.some(ctx, w.task.files(), w.folder.work(), w.task.hides)
}

// some copies what chosen names out of the folder from, a folder with all in it, in
// place of what the folder to has there.
func (c *copier) some(ctx context.Context, from, to string, chosen func(string) bool) error {
	source, err := os.OpenRoot(from)
	if err != nil {
		return bareCause(err)
	}
	defer source.Close()
	target, err := os.OpenRoot(to)
	if err != nil {
		return bareCause(err)
	}
	defer target.Close()
	c.from, c.to = source, target
	return fs.WalkDir(source.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." || !chosen(name) {
			return err
		}
		if err := c.parents(path.Dir(name)); err != nil {
			return err
		}
		if err := c.entry(ctx, name); err != nil {
			return err
		}
		if d.IsDir() {
			return fs.SkipDir // entry has copied what is in it
		}
		return nil
	})
}

// parents makes the folders on a path, in place of what else has their names.
func (c *copier) parents(dir string) error {
	if dir == "." {
		return nil
	}
	if err := c.parents(path.Dir(dir)); err != nil {
		return err
	}
	local := filepath.FromSlash(dir)
	err := c.to.Mkdir(local, 0o700)
	if errors.Is(err, fs.ErrExist) {
		err = c.makeFolder(local)
	}
	return aboutFile(dir, err)
}

// errCheckLate is why a check was stopped.
var errCheckLate = errors.New("the check did not end in time")

// runCheck runs the command in the agent's folder, with a home and /tmp that no
// program of the agent has seen. It reads the task folder and changes nothing there.
func (w *workspaceWorld) runCheck(ctx context.Context, program string) (verdict, error) {
	launcher, err := w.env.env.Confined(w.folder.work(), w.task.dir)
	if err != nil {
		return verdict{}, protocol.Errorf(protocol.CodeRuntimeError, "the check cannot be started: %w", err)
	}
	defer launcher.Close()
	own, cancel := context.WithTimeoutCause(ctx, w.task.timeout(), errCheckLate)
	defer cancel()
	var stdout, stderr ending
	policy := sandbox.Policy{
		Path: program, Args: w.task.Check, Dir: w.folder.work(), Stdout: &stdout, Stderr: &stderr,
		HostEnv: map[string]string{"A2E_TASK": w.task.dir, "A2E_WORKSPACE": w.folder.work()},
	}
	if w.env.opts.Network {
		policy.Network = sandbox.NetworkHost
	}
	var state sandbox.State
	proc, err := launcher.Command(own, policy)
	if err == nil {
		state, err = proc.Wait()
	}
	return w.verdict(ctx, own, state, err, &stdout, &stderr)
}

// verdict reads how a check ended.
func (w *workspaceWorld) verdict(ctx, own context.Context, state sandbox.State, err error, stdout, stderr *ending) (v verdict, _ error) {
	if w.task.ShowOutput {
		v.output = strings.ToValidUTF8(stdout.end(maxShownOutput)+stderr.end(maxShownOutput), "\ufffd")
	}
	switch {
	case err == nil:
		v.exitCode = &state.Code
		v.score, v.reason = w.task.reward(state, stdout.end(maxCheckOutput))
		return v, nil
	case ctx.Err() != nil:
		return v, stoppedAction(ctx)
	case errors.Is(context.Cause(own), errCheckLate):
		v.timedOut, v.reason = true, fmt.Sprintf("the check did not end within %s", w.task.timeout())
	case errors.Is(err, sandbox.ErrMemory):
		v.reason = "the check used more memory than it may"
	default:
		w.env.env.Log.Warn().Err(err).Str("task", w.task.Name).Msg("the check of a task cannot be run")
		return v, protocol.Errorf(protocol.CodeSandboxCrash, "the check of task %q cannot be run", w.task.ID)
	}
	v.score = w.task.clamp(0)
	return v, nil
}

// reward gives the score of a check that ended by itself, and why it is no better
// where the check did not say it.
func (t *task) reward(state sandbox.State, stdout string) (score float64, reason string) {
	if t.Reward == rewardNumber {
		if n, ok := lastNumber(stdout); ok {
			return t.clamp(n), ""
		}
		return t.clamp(0), "the check printed no number"
	}
	if state.Signal != 0 {
		return 0, "the check ended by " + state.String()
	}
	if state.Code == 0 {
		return 1, ""
	}
	return 0, ""
}

// clamp brings a number into the task's range.
func (t *task) clamp(n float64) float64 { return min(max(n, t.Range[0]), t.Range[1]) }

// lastNumber finds the last number in a text that is no part of a word.
func lastNumber(text string) (float64, bool) {
	words := strings.FieldsFunc(text, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("+-._", r))
	})
	for i := len(words) - 1; i >= 0; i-- {
		n, err := strconv.ParseFloat(strings.TrimRight(words[i], "."), 64)
		if err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) && strings.ContainsAny(words[i], "0123456789") {
			return n, true
		}
	}
	return 0, false
}

// ending keeps the last bytes of a stream.
type ending struct{ kept []byte }

// Write implements io.Writer for one goroutine.
func (e *ending) Write(p []byte) (int, error) {
	e.kept = append(e.kept, p[max(0, len(p)-maxCheckOutput):]...)
	if over := len(e.kept) - maxCheckOutput; over > 0 {
		e.kept = append(e.kept[:0], e.kept[over:]...)
	}
	return len(p), nil
}

// end gives at most the last n bytes.
func (e *ending) end(n int) string { return string(e.kept[max(0, len(e.kept)-n):]) }
