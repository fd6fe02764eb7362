package env

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/sandbox"
)

const (
	maxRunOutput   = 1 << 20 // bytes kept of the beginning of each stream of a run
	defaultRunTime = 10      // seconds
)

// runOrder is one run of a program of the agent, or of a program on the PATH with files of the agent.
type runOrder struct {
	Run     []string `json:"run"`
	Stdin   string   `json:"stdin"`
	Timeout float64  `json:"timeout"` // seconds; 0 = 10
}

// runResult is how a run ended. If it could not be started, only Error is set.
type runResult struct {
	ExitCode  *int   `json:"exit_code"` // null = ended by a signal, the time limit or another limit
	Signal    string `json:"signal,omitzero"`
	TimedOut  bool   `json:"timed_out"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Truncated bool   `json:"truncated"` // only the first MiB of an output is here
	Error     string `json:"error,omitzero"`
}

// errRunLate is the reason why a run was stopped.
var errRunLate = errors.New("the run did not end in time")

// runner starts the agent's programs for a check: in a copy of the agent's folder and in a separate
// sandbox, which contains neither the task folder nor the process of the check. All runs of one check
// share this copy and one home.
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

// run runs one program, with all that it starts, to its end. The error is one of the host or of ctx; what
// the program does is in the result.
func (r *runner) run(ctx context.Context, o runOrder) (runResult, error) {
	work := r.world.folder.work()
	path, err := r.program(o.Run)
	if err != nil {
		return runResult{Error: err.Error()}, nil
	}
	if r.launcher == nil {
		if r.launcher, err = r.world.env.env.Confined(host.Confinement{
			Folder: work, Hidden: r.world.env.tasks,
			Counted: true,
		}); err != nil {
			return runResult{}, err
		}
	}
	own, cancel := context.WithTimeoutCause(ctx, o.timeout(), errRunLate)
	defer cancel()
	var stdout, stderr beginning
	policy := sandbox.Policy{
		Path: path, Args: o.Run, Dir: work, Stdin: strings.NewReader(o.Stdin), Stdout: &stdout,
		Stderr: &stderr,
	}
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
		res.Error = "it used more memory than allowed"
	case errors.Is(err, sandbox.ErrDisk):
		res.Error = "it left more on the disk than allowed"
	case errors.As(err, &unstarted):
		res.Error = fmt.Sprintf("%q cannot be started: %v", o.Run[0], unstarted.Err)
	default:
		return res, err
	}
	return res, nil
}

// program returns the path of the program of a run: a bare name is looked up on the PATH, other names are
// paths in the agent's folder.
func (r *runner) program(argv []string) (string, error) {
	if len(argv) == 0 || argv[0] == "" {
		return "", errors.New(`"run" must be a command and its arguments`)
	}
	name := argv[0]
	if !strings.ContainsAny(name, `/\`) {
		path, err := sandbox.LookPath(name, r.world.env.dirs(), "")
		if err != nil {
			return "", fmt.Errorf("%q is not a program that can be run", name)
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
	over bool // there were more bytes
}

// Write implements io.Writer for one goroutine.
func (b *beginning) Write(p []byte) (int, error) {
	n := min(len(p), maxRunOutput-len(b.kept))
	b.kept = append(b.kept, p[:n]...)
	b.over = b.over || n < len(p)
	return len(p), nil
}

func (b *beginning) text() string { return strings.ToValidUTF8(string(b.kept), "\ufffd") }

const (
	envTask      = "A2E_TASK"
	maxJudgeLine = 4 << 20 // bytes
)

// A judge is a check that uses the agent's programs only through the host. It writes lines
// of JSON to its stdout. For each run it reads one line of answer from its stdin:
//
//	{"run":["python3","add.py"],"stdin":"2 3\n","timeout":5}
//	{"exit_code":0,"timed_out":false,"stdout":"5\n","stderr":"","truncated":false}
//	{"reward":1}
//
// If the task has nonce: true, the first line on stdin is {"nonce":"…"}, and the reward must
// repeat it. The last reward counts, if the judge ends with status 0. Its working directory
// is the task folder, $A2E_TASK; $A2E_WORKSPACE is a copy of the agent's folder to read. No
// program of the agent ever runs in its sandbox, so nobody else writes to its stdout.

// judgeLine is one line from a judge: a run or a reward.
type judgeLine struct {
	runOrder
	Reward *float64 `json:"reward"`
	Nonce  string   `json:"nonce"`
}

// judge handles the output of the process of a judge. Until the process has ended, only the goroutine that
// reads that output uses the fields.
type judge struct {
	ctx    context.Context
	runs   runner
	answer *os.File // stdin of the process
	nonce  string   // required with the reward; "" = none

	line   []byte // the incomplete last line
	reward *float64
	wrong  error // the first invalid line
	failed error // an error of the host
}

// runJudge runs a check that is a judge.
func (w *workspaceWorld) runJudge(ctx, own context.Context, program string) (verdict, error) {
	stdin, answer, err := os.Pipe()
	if err != nil {
		return w.verdict(ctx, own, sandbox.State{}, err, "")
	}
	defer answer.Close()
	defer stdin.Close() // in case startCheck did not close it
	own, stop := context.WithCancel(own)
	defer stop()
	j := &judge{ctx: own, runs: runner{world: w}, answer: answer}
	if w.task.Nonce {
		j.nonce = rand.Text()
		_, err = fmt.Fprintf(answer, "{\"nonce\":%q}\n", j.nonce) // the pipe holds it until the judge reads
	}
	stderr := &child.Tail{Size: maxCheckOutput}
	state := sandbox.State{}
	if err == nil {
		state, err = w.startJudge(own, program, j, stdin, stderr)
	}
	err = errors.Join(err, j.failed, j.runs.close())
	v, err := w.verdict(ctx, own, state, err, lastOf(stderr, maxShownOutput))
	if err != nil || v.exitCode == nil {
		return v, err
	}
	switch {
	case state.Signal != 0 || state.Code != 0:
		v.reason = "the check ended by " + state.String()
	case j.wrong != nil:
		v.reason = j.wrong.Error()
	case j.reward == nil:
		v.reason = `the check said no {"reward":…}`
	default:
		v.score = w.task.clamp(*j.reward)
	}
	return v, nil
}

func (w *workspaceWorld) startJudge(ctx context.Context, program string, j *judge, stdin *os.File,
	stderr *child.Tail,
) (sandbox.State, error) {
	return w.startCheck(ctx, sandbox.Policy{
		Path: program, Dir: w.task.dir, Stdin: stdin, Stdout: j, Stderr: stderr,
		HostEnv: map[string]string{envTask: w.task.dir, "A2E_WORKSPACE": w.folder.judged()},
	}, w.folder.judged())
}

// Write implements io.Writer. It handles the judge's output, and runs what a line asks for before it reads
// on.
func (j *judge) Write(p []byte) (int, error) {
	size := len(p)
	for j.wrong == nil && j.failed == nil && len(p) > 0 {
		head, rest, ended := bytes.Cut(p, []byte{'\n'})
		j.line, p = append(j.line, head...), rest
		switch {
		case len(j.line) > maxJudgeLine:
			j.wrong = fmt.Errorf("the check wrote a line of more than %d bytes", maxJudgeLine)
		case ended:
			j.hear(j.line)
			j.line = j.line[:0]
		}
	}
	return size, nil
}

// hear handles one line.
func (j *judge) hear(line []byte) {
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	var said judgeLine
	switch err := json.Unmarshal(line, &said, json.RejectUnknownMembers(true)); {
	case err != nil, (said.Run == nil) == (said.Reward == nil):
		j.wrong = fmt.Errorf(`the check wrote the line %.80q, which is neither {"run":[…]} nor {"reward":…}; use stderr for other text`, line)
	case said.Reward != nil && (math.IsNaN(*said.Reward) || math.IsInf(*said.Reward, 0)):
		j.wrong = errors.New("the check gave a reward that is not a number")
	case said.Reward != nil && said.Nonce != j.nonce:
		j.wrong = errors.New("the check gave a reward without the nonce of this check, the first line on its stdin " +
			"where the task says nonce: true")
	case said.Reward != nil:
		j.reward = said.Reward
	default:
		j.run(said.runOrder)
	}
}

func (j *judge) run(o runOrder) {
	res, err := j.runs.run(j.ctx, o)
	if err != nil {
		if j.ctx.Err() == nil {
			j.failed = err
		}
		return
	}
	text, err := json.Marshal(res)
	if err != nil {
		j.failed = err
		return
	}
	_, _ = j.answer.Write(append(text, '\n')) // a judge that has ended needs no answer
}
