package env

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"a2e/host/sandbox"
)

const (
	maxCases     = 1000
	maxCaseBytes = 1 << 20 // of a file
)

// runCase is one entry of cases: a run, and how it must end. What it expects never leaves
// the host.
type runCase struct {
	Run        []string `yaml:"run" required:"true" doc:"The program and its arguments: a bare name on the PATH, or a path within the agent's folder."`
	Stdin      string   `yaml:"stdin" doc:"What it reads."`
	StdinFile  string   `yaml:"stdin_file" doc:"The same from a file of the task folder."`
	Stdout     *string  `yaml:"stdout" doc:"What it must print; blanks at the ends of lines and empty lines at the end do not count."`
	StdoutFile string   `yaml:"stdout_file" doc:"The same from a file of the task folder."`
	ExitCode   int      `yaml:"exit_code" min:"0" max:"255" doc:"The status that it must end with."`
	Timeout    float64  `yaml:"timeout" min:"0" doc:"Seconds that it may take; 0 = 10."`
}

// completeCases checks what the keys' rules cannot.
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

// runCases runs the cases of a task, in order, and compares what they give.
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
		v.reason = fmt.Sprintf("%d of %d cases pass", passed, len(w.task.Cases))
	}
	return v, nil
}

// runCase tells why a case does not pass, without what it expects; "" = it does.
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

// text gives a text, or that of a file of the task folder.
func (t *task) text(text, file string) (string, error) {
	if file == "" {
		return text, nil
	}
	raw, err := readBounded(filepath.Join(t.dir, filepath.FromSlash(file)), maxCaseBytes)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, bareCause(err))
	}
	return string(raw), nil
}

// trimLines takes the blanks off the ends of lines, and empty lines off the end.
func trimLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " \t\r")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}
