package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"a2e/host/child"
	"a2e/host/sandbox"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// process lets one process of the worker do a task. The error is the cause of ctx.
func (r *runner) process(ctx context.Context, t *task) (outcome, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	known := r.known(t)
	said := newStdout(func(line []byte) {
		if known != nil {
			known.line(line)
			return
		}
		t.out.say("stdout", r.secrets.Bytes(line))
	})
	said.budget, said.solid, said.stop = t.budget(), t.printed, stop
	words := child.Tail{Size: maxWords}
	errs := &child.Splitter{Max: maxStderr, Line: func(line []byte) {
		line = r.secrets.Bytes(line) // before its beginning is cut off
		words.Add(line)
		t.out.say("stderr", line)
	}}
	errs.Long = errs.Line
	proc, err := r.start(ctx, t, said, errs)
	if err != nil {
		return r.unstarted(ctx, t, err)
	}
	r.runs()
	t.idle(proc.Done())
	state, err := proc.Wait()
	said.lines.End()
	errs.End()
	t.printed = said.solid
	var over *budgetError // over budget counts even if the process ended without an error
	if cause := context.Cause(ctx); cause != nil && (err != nil || errors.As(cause, &over)) {
		o, err := t.stopped(cause)
		if err == nil {
			t.left(o.res, said)
		}
		return o, err
	}
	if known != nil {
		return r.ended(t, state, err, known, &words), nil
	}
	return t.ended(state, err, said, &words), nil
}

// known returns the reader for the output of an agent that the config names by cli, or nil for other programs.
func (r *runner) known(t *task) *cliOutput {
	agent, ok := presets(r.CLI)
	if !ok {
		return nil
	}
	return &cliOutput{read: agent.read, say: func(text string) {
		for line := range strings.Lines(text) {
			t.out.say("stdout", r.secrets.Bytes([]byte(strings.TrimSuffix(line, "\n"))))
		}
	}}
}

// ended returns the outcome of a known agent that ended by itself or died. If its output names no session, the
// conversation keeps its session.
func (r *runner) ended(t *task, state sandbox.State, err error, known *cliOutput, words *child.Tail) outcome {
	res := known.result(t, cmp.Or(t.Workspace, r.pool.workspace))
	if t.talk != nil {
		t.talk.Session = cmp.Or(known.session, t.talk.Session)
	}
	if err == nil && state.Signal == 0 && state.Code == 0 && known.failure == "" && (known.over || known.text != "") {
		return outcome{res: res, again: res.Status == fleet.StatusBlocked}
	}
	how := cmp.Or(known.failure, "the worker ended: "+state.String())
	if err != nil {
		how = err.Error()
	}
	failed := t.failed("%s", epitaph(how, words))
	failed.Summary, failed.TokensSpent, failed.TokensEstimated, failed.Artifacts = res.Summary, res.TokensSpent,
		res.TokensEstimated, res.Artifacts
	lost := err != nil || state.Signal != 0 || state.Code > signalled && state.Code <= signalled+lastSignal
	return outcome{res: failed, lost: lost && known.failure == ""}
}

// ended returns the outcome of a process that ended by itself or died, also if a shell reports the death
// of its child. If the process printed a result, its exit status does not matter.
func (t *task) ended(state sandbox.State, err error, said *stdout, words *child.Tail) outcome {
	if obj, ok := said.result(); ok && err == nil && state.Signal == 0 {
		res := t.read(obj, max(0, said.chars-utf8.RuneCount(obj.Raw())-1))
		if session := obj.Text("session_id"); t.talk != nil && session != "" {
			t.talk.Session = session
		}
		return outcome{res: res, again: res.Status == fleet.StatusBlocked}
	}
	if err == nil && state.Signal == 0 && state.Code == 0 {
		res := fleet.NewResult(t.Task.TaskID, fleet.StatusDone)
		t.left(res, said)
		return outcome{res: res}
	}
	how := state.String()
	if err != nil {
		how = err.Error()
	}
	res := t.failed("%s", epitaph("the worker ended: "+how, words))
	t.left(res, said)
	return outcome{res: res, lost: err != nil || state.Signal != 0 || state.Code > signalled &&
		state.Code <= signalled+lastSignal}
}

// A shell whose child died of a signal has the exit status signalled plus the number of the signal.
const (
	signalled  = 128
	lastSignal = 64
)

// left puts the output of a worker that printed no result into res.
func (t *task) left(res *fleet.Result, said *stdout) {
	res.Summary = said.text()
	t.estimate(res, said.chars)
	if t.Task.ReplySchema == fleet.ReplyStructured {
		res.Summary = wrapped(res.Summary, res.Status)
	}
}

// epitaph adds the end of the stderr of a worker to the text how it ended.
func epitaph(how string, words *child.Tail) string {
	if text := words.String(); text != "" {
		return how + "; its stderr ends with: " + text
	}
	return how
}

// variables returns the environment variables that describe the task.
func (t *task) variables() map[string]string {
	vars := map[string]string{
		"A2E_TASK_ID":      t.Task.TaskID,
		"A2E_PRIORITY":     string(t.Task.Priority),
		"A2E_TOKEN_BUDGET": strconv.Itoa(t.budget()),
		"A2E_REPLY_SCHEMA": string(t.Task.ReplySchema),
		"A2E_DEADLINE":     t.Deadline,
	}
	if t.Task.ContextID != "" {
		vars["A2E_CONTEXT_ID"] = t.Task.ContextID
	}
	if t.talk != nil && t.talk.Session != "" {
		vars["A2E_SESSION_ID"] = t.talk.Session
	}
	if t.Workspace != "" {
		vars["A2E_WORKSPACE"] = t.Workspace
	}
	maps.Copy(vars, t.Env)
	return vars
}

// unstarted returns the outcome of a task at a worker that cannot be started: another worker may take it,
// unless the task itself is the reason.
func (r *runner) unstarted(ctx context.Context, t *task, err error) (outcome, error) {
	if cause := context.Cause(ctx); cause != nil {
		return t.stopped(cause)
	}
	if errors.Is(err, errClosed) {
		return t.stopped(errClosed)
	}
	var variable *sandbox.EnvError
	if errors.As(err, &variable) || errors.Is(err, syscall.E2BIG) {
		return outcome{res: t.failed("worker %s cannot be started for this task: %v", r.Name, err), moot: true}, nil
	}
	err = fmt.Errorf("worker %s was not started: %w", r.Name, err)
	r.fails(err)
	return outcome{res: t.failed("%v", err), again: true, moot: true}, nil
}

// start starts a process for a task, which is killed when ctx ends.
func (r *runner) start(ctx context.Context, t *task, stdout, stderr io.Writer) (*sandbox.Process, error) {
	policy, err := r.policy(t.variables(), t.Agent, t.Workspace)
	if err != nil {
		return nil, err
	}
	if policy.DirFile != nil {
		defer policy.DirFile.Close()
	}
	policy.Args = r.arguments(policy.Args, t)
	policy.Stdin, policy.Stdout, policy.Stderr = strings.NewReader(r.asked(ctx, t,
		t.brief(cmp.Or(t.Workspace, r.pool.workspace)))), stdout, stderr
	launcher, err := r.pool.env.Launcher()
	if err != nil {
		return nil, fmt.Errorf("programs cannot be started: %w", err)
	}
	return launcher.Command(ctx, policy)
}

// Limits of the kept output of a worker, in bytes.
const (
	maxLine    = 1 << 20          // of one line of a oneshot worker
	maxResult  = maxLine + 64<<10 // of the end of stdout that is searched for a result
	maxSummary = 256 << 10        // of the end of stdout that becomes the summary
	maxWords   = 2 << 10          // of the end of stderr in an error
	maxStderr  = 64 << 10         // of one line of stderr
)

// stdout keeps the output of a oneshot worker. It is not safe for concurrent use.
type stdout struct {
	lines child.Splitter
	all   child.Tail
	chars int // characters so far
	solid int // bytes so far in all tries of the task, without blanks

	budget int                     // of the task, in tokens; 0 = no limit
	stop   context.CancelCauseFunc // stops a worker that prints more; may be called several times
}

// newStdout makes a stdout that passes each line on.
func newStdout(say func(line []byte)) *stdout {
	s := &stdout{all: child.Tail{Size: maxResult}}
	s.lines = child.Splitter{Max: maxLine, Line: say, Long: func(head []byte) {
		say(fmt.Appendf(nil, "%s… (the start of a line of more than %d bytes)", head, maxLine))
	}}
	return s
}

// Write implements io.Writer.
func (s *stdout) Write(p []byte) (int, error) {
	for _, b := range p {
		if utf8.RuneStart(b) { // a character may be split between two writes
			s.chars++
		}
		if b > ' ' {
			s.solid++
		}
	}
	if s.budget > 0 && (s.solid-budgetSlack)/bytesPerToken > s.budget {
		s.stop(&budgetError{s.budget})
	}
	_, _ = s.all.Write(p) // never fails
	return s.lines.Write(p)
}

// result returns the result that the worker printed, if there is one.
func (s *stdout) result() (protocol.Object, bool) {
	text, left := s.all.Last(maxResult)
	if left > 0 {
		text = text[nextLine(text, 0):]
	}
	return resultIn(text)
}

// text returns the end of the output, with a note if it leaves out the beginning.
func (s *stdout) text() string {
	end, left := s.all.Last(maxSummary)
	text := string(bytes.ToValidUTF8(bytes.TrimSpace(end), []byte("\uFFFD")))
	if left > 0 {
		return fmt.Sprintf("[%d bytes before this were left out]\n%s", left, text)
	}
	return text
}

// A worker whose stdout has more than bytesPerToken bytes for each token of its budget, plus
// budgetSlack, has certainly exceeded the budget: a token has about four bytes of text on average,
// and never sixteen, except in runs of blanks, which do not count here. The slack is for the text
// that programs print themselves, such as a greeting or their progress.
const (
	bytesPerToken = 16
	budgetSlack   = 64 << 10
)

// budgetError is the cause when a worker is stopped that has certainly exceeded its budget.
type budgetError struct{ budget int }

// Error implements error.
func (e *budgetError) Error() string {
	return fmt.Sprintf("token_budget: the worker was stopped, for what it printed is more than the %d tokens that "+
		"it had to spend", e.budget)
}
