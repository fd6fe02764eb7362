package env

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"a2e/host/config"
	"a2e/host/guard/wall"
	"a2e/host/sandbox"
	"a2e/host/schema/pattern"
	"a2e/protocol"
)

const (
	taskFile     = "task.yaml"
	taskFiles    = "files"
	defaultCheck = "check"

	maxTaskBytes     = 1 << 20
	maxKnownTasks    = 100 // listed in an error
	defaultCheckTime = 60  // seconds
	maxCheckTime     = 24 * 60 * 60
)

// How the reward is read from the check.
const (
	rewardExit   = "exit"
	rewardNumber = "number"
	rewardJudge  = "judge"
)

// taskMark is replaced by the task folder in the arguments of a check.
const taskMark = "{task}"

// taskOptions is the content of task.yaml.
type taskOptions struct {
	ID          string    `yaml:"id" doc:"Another name of the task than its folder's."`
	Description string    `yaml:"description" required:"true" doc:"What the agent is asked."`
	Check       []string  `yaml:"check" doc:"The program that judges the work, and its arguments, where {task} is the task folder; default: the file check of the task folder."`
	Cases       []runCase `yaml:"cases" doc:"Runs of the agent's programs with what they must print, instead of check."`
	Timeout     float64   `yaml:"timeout" min:"0" doc:"Seconds that the check may take; 0 = 60."`
	Reward      string    `yaml:"reward" enum:"exit,number,judge" doc:"exit (the default): 1 when the check ends with status 0, 0 when with 1. number: the last number that it prints, with status 0. Neither may start or load what the agent made. judge: what it says in lines of JSON, by which it can have the agent's programs run in a sandbox of their own. Of cases: 1 if all pass (exit), or the share that passes (number)."`
	Range       []float64 `yaml:"range" doc:"The least and the greatest reward of a number or a judge; default: [-1, 1]. What was not judged, such as by a check that was killed, has the least."`
	Hidden      []string  `yaml:"hidden" doc:"Globs of files in files/ that the agent and its programs do not get. A judge finds them in files/ of the task folder."`
	Nonce       bool      `yaml:"nonce" doc:"A reward of a judge counts only with the nonce that is the first line on its stdin, so that text of others which gets into its output is no verdict."`
	MaxSteps    int       `yaml:"max_steps" min:"0" doc:"Actions after which an episode is checked and cut short; 0 = as the config says."`
	ShowOutput  bool      `yaml:"show_output" doc:"Show the end of the check's output to the agent. What the check runs can print secrets of the task."`
}

// task is one task folder.
type task struct {
	taskOptions
	Name string // of its folder
	dir  string // absolute
	// loads is a word in a check with reward exit or number that loads or starts programs; "" = none.
	loads string
}

// loaders are words in checks that load what the agent made into their own process, or start it.
var loaders = [...]string{
	"unittest", "pytest", "doctest", "importlib", "runpy", "sys.path", "subprocess", "os.system", "require(", "npm ",
	"node ", "go test", "go run", "cargo ",
	"make test", "make check", "ctest", "rspec", "tox",
}

// warnOfLoading warns once per task that the judged programs may decide the verdict themselves. The words
// are only a hint, so the task can still be used.
func (w *workspace) warnOfLoading(t *task) {
	w.mu.Lock()
	known := w.warned[t.Name]
	w.warned[t.Name] = true
	w.mu.Unlock()
	if t.loads != "" && !known {
		w.env.Log.Warn().Msgf("the check of task %q, of reward %s, has the word %q: if it loads or starts what the "+
			"agent made, that can say the verdict itself, as by os._exit(0); write cases, or reward: judge", t.Name,
			t.Reward, t.loads)
	}
}

func (t *task) files() string { return filepath.Join(t.dir, taskFiles) }

func (t *task) timeout() time.Duration {
	if t.Timeout == 0 {
		return defaultCheckTime * time.Second
	}
	return time.Duration(t.Timeout * float64(time.Second))
}

// hides reports whether a path of files/, with slashes, is only for the check. What is in a hidden folder
// is hidden too.
func (t *task) hides(path string) bool {
	return pattern.Listed(t.Hidden, path)
}

// find reads the task with a name: "" is the default task, other names are folders or ids. An error that
// is not a *protocol.Error is a defect of the task.
func (w *workspace) find(name string) (*task, error) {
	folders, err := w.folders()
	if err != nil {
		return nil, err
	}
	if name == "" {
		name = w.opts.Task
	}
	if name == "" {
		return w.read(folders[0])
	}
	if slices.Contains(folders, name) {
		return w.read(name)
	}
	for _, folder := range folders {
		if t, err := w.read(folder); err == nil && t.ID == name { // a broken task has no id
			return t, nil
		}
	}
	known := folders[:min(len(folders), maxKnownTasks)]
	return nil, protocol.Errorf(protocol.CodeResetDenied, "there is no task %.64q; there are: %s", name,
		strings.Join(known, ", ")).With("known", known)
}

// folders returns the names of the task folders, sorted; there is at least one.
func (w *workspace) folders() ([]string, error) {
	entries, err := os.ReadDir(w.tasks)
	if err != nil {
		return nil, fmt.Errorf("the folder of tasks cannot be read: %w", wall.Cause(err))
	}
	var names []string
	for _, e := range entries {
		if pathExists(filepath.Join(w.tasks, e.Name(), taskFile)) {
			names = append(names, e.Name())
		}
	}
	if names == nil {
		return nil, errors.New("the folder of tasks holds no task: each is a folder with a " + taskFile)
	}
	return names, nil
}

// read reads the task in a folder. The error names the file and the line.
func (w *workspace) read(folder string) (*task, error) {
	t := &task{Name: folder, dir: filepath.Join(w.tasks, folder)}
	file := folder + "/" + taskFile
	text, err := readBounded(filepath.Join(t.dir, taskFile), maxTaskBytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, wall.Cause(err))
	}
	if err := config.DecodeText(file, text, &t.taskOptions); err != nil {
		return nil, err
	}
	if err := t.complete(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return t, nil
}

// complete checks what the rules of the keys cannot check, and sets the defaults.
func (t *task) complete() error {
	if t.ID == "" {
		t.ID = t.Name
	}
	if t.Reward == "" {
		t.Reward = rewardExit
	}
	switch {
	case t.Range == nil && len(t.Cases) > 0:
		t.Range = []float64{0, 1}
	case t.Range == nil:
		t.Range = []float64{-1, 1}
	case t.Reward == rewardExit || len(t.Cases) > 0:
		return errors.New("range is for reward: number, and for reward: judge")
	case len(t.Range) != 2 || t.Range[0] >= t.Range[1]:
		return errors.New("range must be the least and the greatest reward, such as [0, 1]")
	}
	for _, pattern := range t.Hidden {
		if !doublestar.ValidatePattern(pattern) {
			return fmt.Errorf(`hidden: %q is not a valid pattern; write globs such as "tests/**"`, pattern)
		}
	}
	if t.Nonce && t.Reward != rewardJudge {
		return errors.New("nonce is for reward: judge; a check of another kind cannot keep it from what it loads")
	}
	if t.MaxSteps < 0 || t.Timeout > maxCheckTime {
		return errors.New("timeout must be at most 86400 seconds")
	}
	if len(t.Cases) > 0 {
		return t.completeCases()
	}
	if len(t.Hidden) > 0 && t.Reward != rewardJudge {
		return errors.New("hidden: a check of this kind finds nothing of files/ but what the agent got, as what it " +
			"started of the agent's could read the rest; write cases, or reward: judge, or keep the files beside " +
			"task.yaml")
	}
	return t.completeCheck()
}

func (t *task) completeCheck() error {
	switch {
	case t.Check == nil:
		info, err := os.Stat(filepath.Join(t.dir, defaultCheck))
		if err != nil || !info.Mode().IsRegular() {
			return errors.New(`there is no check; put an executable file "check" beside it, or write check: [command, argument], or cases`)
		}
		t.Check = []string{"./" + defaultCheck}
	case len(t.Check) == 0:
		return errors.New("check is empty; write [command, argument], or leave it out for the file check")
	case t.Check[0] == "":
		return errors.New("check: the program's name is empty")
	}
	if t.Reward == rewardJudge {
		return nil
	}
	text := strings.Join(t.Check, " ")
	for i, arg := range t.Check {
		file, _ := readBounded(filepath.Join(t.dir, filepath.FromSlash(strings.ReplaceAll(arg, taskMark, "."))),
			maxTaskBytes) // if such a file exists
		text += "\n" + string(file)
		if i == 0 && strings.Contains(text, envTask) {
			return errors.New("check: " + envTask + " is set for reward: judge alone, as what another check starts " +
				"would inherit it; write {task} in an argument, such as check: [./check, \"{task}\"]")
		}
	}
	if i := slices.IndexFunc(loaders[:], func(word string) bool { return strings.Contains(text, word) }); i >= 0 {
		t.loads = loaders[i]
	}
	return nil
}

// program returns the path of the check's program: a bare name is looked up on the PATH, a path is
// absolute or inside the task folder.
func (w *workspace) program(t *task) (string, error) {
	if len(t.Cases) > 0 {
		return "", nil
	}
	name := t.Check[0]
	if strings.ContainsAny(name, `/\`) && !filepath.IsAbs(name) {
		local := filepath.Clean(filepath.FromSlash(name))
		if !filepath.IsLocal(local) {
			return "", fmt.Errorf("check of task %q: %q leads out of the task folder", t.Name, name)
		}
		name = filepath.Join(t.dir, local)
	}
	path, err := sandbox.LookPath(name, w.dirs(), "")
	if err != nil {
		return "", fmt.Errorf("check of task %q: %q is not a program that can be run", t.Name, t.Check[0])
	}
	return path, nil
}

func pathExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("it is larger than %d bytes", limit)
	}
	return text, err
}
