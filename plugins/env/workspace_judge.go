package env

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/go-json-experiment/json"

	"a2e/host/sandbox"
)

const (
	envTask      = "A2E_TASK"
	maxJudgeLine = 4 << 20 // bytes
)

// A judge is a check that never touches what the agent made but by way of the host. It
// writes lines of JSON to its stdout, and reads one line on stdin for each that asks:
//
//	{"run":["python3","add.py"],"stdin":"2 3\n","timeout":5}
//	{"exit_code":0,"timed_out":false,"stdout":"5\n","stderr":"","truncated":false}
//	{"reward":1}
//
// The last reward counts, if the judge ends with status 0. Its working directory is the
// task folder, $A2E_TASK, and $A2E_WORKSPACE a copy of the agent's folder to look at.
// Nothing of the agent's has ever run where it runs, so nobody else writes to its stdout.

// judgeLine is one line of a judge: a run or a reward.
type judgeLine struct {
	runOrder
	Reward *float64 `json:"reward"`
}

// judge hears what the process of a judge says. Its fields belong to the goroutine that
// reads the process's output until the process has ended.
type judge struct {
	ctx    context.Context
	runs   runner
	answer *os.File // its stdin

	line   []byte // begun and not ended
	reward *float64
	wrong  error // the first thing it said that cannot be
	failed error // of the host
}

// runJudge runs a check that is a judge.
func (w *workspaceWorld) runJudge(ctx, own context.Context, program string) (verdict, error) {
	stdin, answer, err := os.Pipe()
	if err != nil {
		return w.verdict(ctx, own, sandbox.State{}, err, "")
	}
	defer answer.Close()
	defer stdin.Close() // startCheck may not have come to it
	own, stop := context.WithCancel(own)
	defer stop()
	j := &judge{ctx: own, runs: runner{world: w}, answer: answer}
	var stderr ending
	state, err := w.startJudge(own, program, j, stdin, &stderr)
	err = errors.Join(err, j.failed, j.runs.close())
	v, err := w.verdict(ctx, own, state, err, stderr.end(maxShownOutput))
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

func (w *workspaceWorld) startJudge(ctx context.Context, program string, j *judge, stdin *os.File, stderr *ending) (sandbox.State, error) {
	return w.startCheck(ctx, sandbox.Policy{
		Path: program, Dir: w.task.dir, Stdin: stdin, Stdout: j, Stderr: stderr,
		HostEnv: map[string]string{envTask: w.task.dir, "A2E_WORKSPACE": w.folder.judged()},
	}, w.folder.judged())
}

// Write implements io.Writer: it takes the judge's output, and does what it asks for
// before it takes more.
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

// hear does what one line says.
func (j *judge) hear(line []byte) {
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	var said judgeLine
	switch err := json.Unmarshal(line, &said, json.RejectUnknownMembers(true)); {
	case err != nil, (said.Run == nil) == (said.Reward == nil):
		j.wrong = fmt.Errorf(`the check wrote the line %.80q, which is neither {"run":[…]} nor {"reward":…}; use stderr for other text`, line)
	case said.Reward != nil && (math.IsNaN(*said.Reward) || math.IsInf(*said.Reward, 0)):
		j.wrong = errors.New("the check gave a reward that is no number")
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
	_, _ = j.answer.Write(append(text, '\n')) // a judge that is gone needs no answer
}
