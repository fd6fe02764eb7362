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

// process has one process of the worker do a task. The error is the cause of ctx.
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
		line = r.secrets.Bytes(line) // before its begin is cut off
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
	var over *budgetError // then what it printed counts, not how soon it ended
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

// known is what reads the output of an agent that the config names by cli; nil = it is another program.
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

// ended makes the result of a known agent that ended by itself, or that died. One that says nothing of a session has
// not begun another: the conversation keeps the one it has.
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

// ended makes the result of a process that ended by itself, or that died, as a shell may tell
// of its own child. One that gave a result has had its say, whatever its exit status.
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

// A shell whose child died of a signal ends with the status signalled and its number.
const (
	signalled  = 128
	lastSignal = 64
)

// left puts what a worker without a result has printed into one.
func (t *task) left(res *fleet.Result, said *stdout) {
	res.Summary = said.text()
	t.estimate(res, said.chars)
	if t.Task.ReplySchema == fleet.ReplyStructured {
		res.Summary = wrapped(res.Summary, res.Status)
	}
}

// epitaph adds the end of its stderr to how a worker ended.
func epitaph(how string, words *child.Tail) string {
	if text := words.String(); text != "" {
		return how + "; its stderr ends with: " + text
	}
	return how
}

// variables are what a process is told of its task in its environment.
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

// unstarted is what a task comes to at a worker that cannot be started: another may take it,
// unless it is the task's own fault.
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

// How much is kept of what a worker prints, in bytes.
const (
	maxLine    = 1 << 20          // of one line of a oneshot worker
	maxResult  = maxLine + 64<<10 // of the stdout that the result is looked for in: its end
	maxSummary = 256 << 10        // of the stdout that is the summary: its end
	maxWords   = 2 << 10          // of stderr, for the error that says how it ended: its end
	maxStderr  = 64 << 10         // of one line of stderr
)

// stdout keeps what a oneshot worker says. It is for one goroutine.
type stdout struct {
	lines child.Splitter
	all   child.Tail
	chars int // so far
	solid int // bytes so far, of all tries of the task, blanks left out

	budget int                     // tokens that it may be; 0 = any number
	stop   context.CancelCauseFunc // of a worker that prints more; it may be called again
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
		if utf8.RuneStart(b) { // a character may come in two pieces
			s.chars++
		}
		if b > ' ' {
			s.solid++
		}
	}
	if s.budget > 0 && (s.solid-budgetSlack)/bytesPerToken > s.budget {
		s.stop(&budgetError{s.budget})
	}
	_, _ = s.all.Write(p) // it has no error
	return s.lines.Write(p)
}

// result returns what the worker itself calls its result.
func (s *stdout) result() (protocol.Object, bool) {
	text, left := s.all.Last(maxResult)
	if left > 0 {
		text = text[nextLine(text, 0):]
	}
	return resultIn(text)
}

// text returns the end of all. What was left out is said.
func (s *stdout) text() string {
	end, left := s.all.Last(maxSummary)
	text := string(bytes.ToValidUTF8(bytes.TrimSpace(end), []byte("\uFFFD")))
	if left > 0 {
		return fmt.Sprintf("[%d bytes before this were left out]\n%s", left, text)
	}
	return text
}

// A worker whose stdout has more than bytesPerToken bytes for each token of its budget, and
// budgetSlack on top, has spent more than that for certain: tokenizers make about four bytes
// of a text one token and nowhere sixteen on average, but for runs of blanks, which do not
// count here. The slack is for what programs print themselves, such as a greeting or their
// progress.
const (
	bytesPerToken = 16
	budgetSlack   = 64 << 10
)

// budgetError is why a worker is stopped that certainly spends more than it may.
type budgetError struct{ budget int }

// Error implements error.
func (e *budgetError) Error() string {
	return fmt.Sprintf("token_budget: the worker was stopped, for what it printed is more than the %d tokens that "+
		"it had to spend", e.budget)
}
