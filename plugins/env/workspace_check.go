package env

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/guard/wall"
	"a2e/host/sandbox"
	"a2e/protocol"
)

const (
	maxCheckOutput = 64 << 10 // bytes kept of the end of each stream
	maxShownOutput = 4 << 10  // bytes of that output that the agent may see
)

// verdict is the result of a check.
type verdict struct {
	score    float64
	exitCode *int
	timedOut bool
	reason   string // why the score is no better; "" = the check itself reports it
	output   string // the end of its output, if the task shows it
}

// info returns the verdict for the metadata of an observation.
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

// errCheckLate is the reason why a check was stopped.
var errCheckLate = errors.New("the check did not end in time")

// check judges the agent's folder. It works on copies: whatever the check, and the agent's programs that
// it runs, leave behind is gone before the agent acts again. So nothing of the task gets into the agent's
// folder. The error is a *protocol.Error if the episode is unchanged.
func (w *workspaceWorld) check(ctx context.Context) (v verdict, err error) {
	host.HandOff(ctx)
	program, err := w.env.program(w.task)
	if err != nil {
		return v, protocol.Errorf(protocol.CodeRuntimeError, "%w", err)
	}
	if err := os.Rename(w.folder.work(), w.folder.aside()); err != nil {
		return v, protocol.Errorf(protocol.CodeRuntimeError, "the check cannot begin: %w", wall.Cause(err))
	}
	defer func() {
		if failed := w.folder.back(); failed != nil {
			err = fmt.Errorf("the episode's folder is lost: %w", wall.Cause(failed))
		}
	}()
	switch err := w.prepare(ctx); {
	case ctx.Err() != nil:
		return v, stoppedAction(ctx)
	case errors.Is(err, errTooLarge):
		return verdict{score: w.task.least(), reason: "the folder cannot be checked: " + err.Error()}, nil
	case err != nil:
		return v, protocol.Errorf(protocol.CodeRuntimeError, "the check cannot begin: %w", err)
	}
	own, cancel := context.WithTimeoutCause(ctx, w.task.timeout(), errCheckLate)
	defer cancel()
	switch {
	case len(w.task.Cases) > 0:
		return w.runCases(ctx, own)
	case w.task.Reward == rewardJudge:
		return w.runJudge(ctx, own, program)
	}
	return w.runCheck(ctx, own, program)
}

// prepare makes the copies: one in place of the folder, and for a judge another one to read.
func (w *workspaceWorld) prepare(ctx context.Context) error {
	runs := w.task.Reward == rewardJudge || len(w.task.Cases) > 0
	if err := w.copyTo(ctx, w.folder.work(), !runs); err != nil || w.task.Reward != rewardJudge {
		return err
	}
	return w.copyTo(ctx, w.folder.judged(), true)
}

// copyTo copies the agent's folder. With inside it leaves out links that lead out of the folder: in a copy
// that a check reads, such a link could point to a file of the task.
func (w *workspaceWorld) copyTo(ctx context.Context, to string, inside bool) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return wall.Cause(err)
	}
	c := copier{left: bounds{w.env.opts.MaxFiles * grown, w.env.opts.MaxBytes * grown}, inside: inside}
	return c.tree(ctx, w.folder.aside(), to)
}

// runCheck runs a check that reads the agent's folder and starts nothing in it.
func (w *workspaceWorld) runCheck(ctx, own context.Context, program string) (verdict, error) {
	stdout, stderr := &child.Tail{Size: maxCheckOutput}, &child.Tail{Size: maxCheckOutput}
	state, err := w.startCheck(own, sandbox.Policy{
		Path: program, Dir: w.folder.work(), Stdout: stdout, Stderr: stderr,
		HostEnv: map[string]string{"A2E_WORKSPACE": w.folder.work()},
	}, w.folder.work())
	v, err := w.verdict(ctx, own, state, err, lastOf(stdout, maxShownOutput)+lastOf(stderr, maxShownOutput))
	if err == nil && v.exitCode != nil {
		v.score, v.reason = w.task.reward(state, lastOf(stdout, maxCheckOutput))
	}
	return v, err
}

// lastOf returns at most the last n bytes of a stream, as text.
func lastOf(stream *child.Tail, n int) string {
	end, _ := stream.Last(n)
	return string(end)
}

// startCheck runs the command of the task in a sandbox that may change one folder, with a home and /tmp
// that no program of the agent has used. It can read the task folder but not change it. Python loads its
// modules from the task folder, not from where the agent's files are.
func (w *workspaceWorld) startCheck(ctx context.Context, policy sandbox.Policy, folder string) (sandbox.State, error) {
	launcher, err := w.env.env.Confined(host.Confinement{Folder: folder, Read: []string{w.task.dir}})
	if err != nil {
		return sandbox.State{}, err
	}
	defer launcher.Close()
	for _, arg := range w.task.Check {
		policy.Args = append(policy.Args, strings.ReplaceAll(arg, taskMark, w.task.dir))
	}
	maps.Copy(policy.HostEnv, map[string]string{
		"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": w.task.dir,
	})
	if w.env.opts.Network {
		policy.Network = sandbox.NetworkHost
	}
	proc, err := launcher.Command(ctx, policy)
	if f, ok := policy.Stdin.(*os.File); ok {
		err = errors.Join(err, f.Close()) // the check has its copy: when it has ended, nobody reads
	}
	if err != nil {
		return sandbox.State{}, err
	}
	return proc.Wait()
}

// verdict makes a verdict from how a check ended; exitCode is set if it ended by itself.
func (w *workspaceWorld) verdict(ctx, own context.Context, state sandbox.State, err error, output string) (verdict,
	error,
) {
	v := verdict{score: w.task.least()}
	if w.task.ShowOutput {
		v.output = strings.ToValidUTF8(output, "\ufffd")
	}
	switch {
	case err == nil:
		v.exitCode = &state.Code
	case ctx.Err() != nil:
		return v, stoppedAction(ctx)
	case errors.Is(context.Cause(own), errCheckLate):
		v.timedOut, v.reason = true, fmt.Sprintf("the check did not end within %s", w.task.timeout())
	case errors.Is(err, sandbox.ErrMemory):
		v.reason = "the check used more memory than allowed"
	case errors.Is(err, sandbox.ErrDisk):
		v.reason = "the check left more on the disk than allowed"
	case errors.Is(err, sandbox.ErrProcesses):
		v.reason = "the check started more processes than allowed"
	default:
		w.env.env.Log.Warn().Err(err).Str("task", w.task.Name).Msg("the check of a task cannot be run")
		return v, protocol.Errorf(protocol.CodeSandboxCrash, "the check of task %q cannot be run", w.task.ID)
	}
	return v, nil
}

// reward returns the score of a check that ended by itself, and the reason for a low score if the check
// does not report it. A check that ended with an invalid status has the least score, whatever it printed.
func (t *task) reward(state sandbox.State, stdout string) (score float64, reason string) {
	switch {
	case t.Reward == rewardExit && state.Signal == 0 && state.Code == 1:
		return 0, ""
	case state.Signal != 0 || state.Code != 0:
		return t.least(), "the check ended by " + state.String()
	case t.Reward == rewardExit:
		return 1, ""
	}
	if n, ok := lastNumber(stdout); ok {
		return t.clamp(n), ""
	}
	return t.least(), "the check printed no number"
}

// least returns the score of work that was not judged.
func (t *task) least() float64 {
	if t.Reward == rewardExit {
		return 0
	}
	return t.Range[0]
}

// clamp limits a number to the range of the task.
func (t *task) clamp(n float64) float64 { return min(max(n, t.Range[0]), t.Range[1]) }

// lastNumber returns the last number in a text that is not part of a word.
func lastNumber(text string) (float64, bool) {
	words := strings.FieldsFunc(text, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' ||
			strings.ContainsRune("+-._", r))
	})
	for i := len(words) - 1; i >= 0; i-- {
		n, err := strconv.ParseFloat(strings.TrimRight(words[i], "."), 64)
		if err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) && strings.ContainsAny(words[i], "0123456789") {
			return n, true
		}
	}
	return 0, false
}

const (
	maxCases     = 1000
	maxCaseBytes = 1 << 20 // of a file
)

// runCase is one entry of cases: a run, and how it must end. The expected output never leaves the host.
type runCase struct {
	Run        []string `yaml:"run" required:"true" doc:"The program and its arguments: a bare name on the PATH, or a path within the agent's folder."`
	Stdin      string   `yaml:"stdin" doc:"What it reads."`
	StdinFile  string   `yaml:"stdin_file" doc:"The same from a file of the task folder."`
	Stdout     *string  `yaml:"stdout" doc:"What it must print; blanks at the ends of lines and empty lines at the end do not count."`
	StdoutFile string   `yaml:"stdout_file" doc:"The same from a file of the task folder."`
	ExitCode   int      `yaml:"exit_code" min:"0" max:"255" doc:"The status that it must end with."`
	Timeout    float64  `yaml:"timeout" min:"0" doc:"Seconds that it may take; 0 = 10."`
}

// completeCases checks what the rules of the keys cannot check.
func (t *task) completeCases() error {
	switch {
	case t.Check != nil:
		return errors.New("check and cases: a task has one of them")
	case t.Reward == rewardJudge:
		return errors.New("reward: judge goes with check; that of cases is exit or number")
	case len(t.Cases) > maxCases:
		return fmt.Errorf("cases: there are more than %d", maxCases)
	}
	for i, c := range t.Cases {
		if len(c.Run) == 0 || c.Run[0] == "" {
			return fmt.Errorf("cases: number %d has no program; write run: [command, argument]", i+1)
		}
		if c.Stdin != "" && c.StdinFile != "" || c.Stdout != nil && c.StdoutFile != "" {
			return fmt.Errorf("cases: number %d gives a text and a file for the same stream", i+1)
		}
		for _, name := range []string{c.StdinFile, c.StdoutFile} {
			if name != "" && !filepath.IsLocal(filepath.FromSlash(name)) {
				return fmt.Errorf("cases: number %d: %q leads out of the task folder", i+1, name)
			}
		}
	}
	return nil
}

// runCases runs the cases of a task in order, and compares their output.
func (w *workspaceWorld) runCases(ctx, own context.Context) (v verdict, err error) {
	runs := runner{world: w}
	passed, output := 0, ""
	for i, c := range w.task.Cases {
		why, err := w.runCase(own, &runs, c)
		if err != nil {
			return w.verdict(ctx, own, sandbox.State{}, errors.Join(err, runs.close()), output)
		}
		if why == "" {
			passed++
		} else if len(output) < maxShownOutput {
			output += fmt.Sprintf("case %d: %s\n", i+1, why)
		}
	}
	v, err = w.verdict(ctx, own, sandbox.State{}, runs.close(), output)
	if v.exitCode = nil; err != nil {
		return v, err
	}
	share := float64(passed) / float64(len(w.task.Cases))
	if w.task.Reward == rewardNumber {
		v.score = w.task.clamp(share)
	} else if passed == len(w.task.Cases) {
		v.score = 1
	}
	if passed < len(w.task.Cases) {
		v.reason = fmt.Sprintf("passed %d of %s", passed, protocol.Count(len(w.task.Cases), "case"))
	}
	return v, nil
}

// runCase returns why a case does not pass, without the expected output; "" = it passes.
func (w *workspaceWorld) runCase(ctx context.Context, runs *runner, c runCase) (string, error) {
	stdin, err := w.task.text(c.Stdin, c.StdinFile)
	if err != nil {
		return "", err
	}
	res, err := runs.run(ctx, runOrder{Run: c.Run, Stdin: stdin, Timeout: c.Timeout})
	switch {
	case err != nil:
		return "", err
	case res.Error != "":
		return res.Error, nil
	case res.TimedOut:
		return "it did not end in time", nil
	case res.Signal != "":
		return "it was ended by a signal: " + res.Signal, nil
	case *res.ExitCode != c.ExitCode:
		return fmt.Sprintf("it ended with exit status %d", *res.ExitCode), nil
	case c.Stdout == nil && c.StdoutFile == "":
		return "", nil
	}
	want := ""
	if c.Stdout != nil {
		want = *c.Stdout
	}
	if want, err = w.task.text(want, c.StdoutFile); err != nil {
		return "", err
	}
	if res.Truncated || trimLines(res.Stdout) != trimLines(want) {
		return "it printed something else", nil
	}
	return "", nil
}

// text returns a text, or the content of a file in the task folder.
func (t *task) text(text, file string) (string, error) {
	if file == "" {
		return text, nil
	}
	raw, err := readBounded(filepath.Join(t.dir, filepath.FromSlash(file)), maxCaseBytes)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, wall.Cause(err))
	}
	return string(raw), nil
}

// trimLines removes blanks at the ends of lines, and empty lines at the end.
func trimLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " \t\r")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}
