package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/schema/pattern"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// defaultTurns is the maximum number of answers of a model for one task.
const defaultTurns = 50

// defaultPrompt is the system prompt of a worker without one in the config.
const defaultPrompt = "You are an agent that does tasks by its tools, in a folder that the paths of the tools are " +
	"relative to. Look before you change something, and find out instead of guessing. Nobody answers questions " +
	"while you work. When you are done, say in your last message what came of it, without calling a tool."

// turns returns the run of a model for a task, without its tools.
func (r *runner) turns(ctx context.Context, t *task, model agent.Model) agent.Turns {
	turns := agent.Turns{
		System: cmp.Or(r.SystemPrompt, defaultPrompt), Prompt: r.asked(ctx, t, t.Brief), Agent: t.Agent,
		MaxTurns: r.MaxTurns, Budget: r.allowance(t), Window: r.ContextWindow, Meter: &r.meter, Model: model,
		Services: r.pool.services, Earlier: t.earlier(),
	}
	if talk := t.Talk; talk != nil {
		turns.Earlier, turns.Images, turns.Name, turns.Thinking = talk.Earlier, talk.Images, talk.Model, talk.Thinking
		turns.Permit = talk.Permit
	}
	return turns
}

// think lets a model do a task with the tools of the host. The error is the cause of ctx.
func (r *runner) think(ctx context.Context, t *task) (outcome, error) {
	model, err := r.model()
	if err != nil {
		return outcome{res: t.failed("worker %s: %v", r.Name, err), again: true, moot: true}, nil
	}
	turns := r.turns(ctx, t, model)
	steer, end := hold(t.Steer)
	defer end()
	turns.Steer = steer
	lines := &spoken{
		Watcher: agent.Unwatched{}, say: func(line []byte) { t.out.say("stdout", r.secrets.Bytes(line)) },
		changes: r.pool.services.Changes,
	}
	if turns.Watch = lines; t.Talk != nil && t.Talk.Watch != nil {
		lines.Watcher = t.Talk.Watch
	}
	release, err := r.equip(ctx, t, &turns)
	defer release()
	if err != nil {
		if ctx.Err() != nil {
			return t.stopped(context.Cause(ctx))
		}
		return outcome{res: t.failed("worker %s: %v", r.Name, err), moot: true}, nil
	}
	summed := r.compact(ctx, t, &turns)
	result, err := agent.Loop(ctx, turns)
	lines.flush()
	o, err := r.thought(ctx, t, result, err)
	if o.res != nil {
		lines.tell(&o.res.Artifacts)
		o.res.TokensSpent += summed.Sum()
		o.res.TokensEstimated = o.res.TokensEstimated || summed.Estimated
		if o.res.Status == fleet.StatusDone || o.res.Status == fleet.StatusPartial {
			t.say(o.res)
		}
	}
	return o, err
}

// compact lets the model summarise the older part of a long stored conversation. If that fails, the loop
// shortens the oldest messages.
func (r *runner) compact(ctx context.Context, t *task, turns *agent.Turns) (used agent.Tokens) {
	if t.talk == nil || !turns.Use().Over() {
		return used
	}
	summary, err := turns.Summarise(ctx)
	if err != nil {
		r.pool.env.Log.Warn().Err(err).Str("worker", r.Name).Msg("a conversation could not be summarised; its " +
			"oldest messages are shortened")
		return summary.Tokens
	}
	turns.Earlier = append([]agent.Said{summary.Said()}, turns.Earlier[summary.Of:]...)
	t.talk.Said = t.talk.Said[:0]
	for _, m := range turns.Earlier {
		t.talk.Said = append(t.talk.Said, message{m.Role, m.Text})
	}
	return summary.Tokens
}

// nextRun returns the run that a worker's model would have for a conversation said. The caller must call release.
func (p *Pool) nextRun(ctx context.Context, worker string, said []agent.Said) (turns agent.Turns, release func(),
	err error,
) {
	release = func() {}
	r := p.runner(worker)
	if worker == "" && len(p.runners) > 0 {
		r = p.runners[0]
	}
	if r == nil || r.Mode != ModeLLM {
		return turns, release, fmt.Errorf("the worker %q is not a model", worker)
	}
	model, err := r.model()
	if err != nil {
		return turns, release, err
	}
	t := &task{out: new(listener)}
	t.Talk = &agent.Talk{Earlier: said}
	turns = r.turns(ctx, t, model)
	release, err = r.equip(ctx, t, &turns)
	return turns, release, err
}

// ContextUse implements agent.Summariser.
func (p *Pool) ContextUse(ctx context.Context, worker string, said []agent.Said) (use agent.ContextUse, ok bool) {
	turns, release, err := p.nextRun(ctx, worker, said)
	defer release()
	if err != nil {
		return use, false
	}
	return turns.Use(), true
}

// Summarise implements agent.Summariser.
func (p *Pool) Summarise(ctx context.Context, worker string, said []agent.Said) (text agent.Said, of int, err error) {
	turns, release, err := p.nextRun(ctx, worker, said)
	defer release()
	if err != nil {
		return text, 0, err
	}
	summary, err := turns.Summarise(ctx)
	return summary.Said(), summary.Of, err
}

// equip sets the tools of a task's run. The caller must call release afterwards.
func (r *runner) equip(ctx context.Context, t *task, turns *agent.Turns) (release func(), err error) {
	release = func() {}
	if t.Workspace != "" {
		box, err := r.pool.env.ToolBox(host.ToolBoxOptions{
			Workspace: t.Workspace, Network: r.Network,
			Read: []string{filepath.Join(r.pool.workspace, ".git")}, // git needs it to find changes
		})
		if err != nil {
			return release, fmt.Errorf("the tools of the task's workspace: %w", err)
		}
		release = func() { _ = box.Close(context.WithoutCancel(ctx)) }
		if err := box.Start(ctx, r.pool.services); err != nil {
			return release, fmt.Errorf("the tools of the task's workspace: %w", err)
		}
		turns.Box = box
	}
	if turns.Tools, err = r.tools(ctx, turns.Box); err != nil {
		return release, fmt.Errorf("the tools cannot be listed: %w", err)
	}
	own := r.hands(ctx, t, turns.Box, turns.Tools)
	before := release
	release = func() { own.close(ctx); before() }
	if turns.Own = own.tools; len(r.Tools) > 0 && len(turns.Tools)+len(turns.Own) == 0 {
		return release, fmt.Errorf("the tools cannot be listed: there is none of %s", strings.Join(r.Tools, ", "))
	}
	return release, nil
}

// maxTexts is how many texts may wait for the next request to a model.
const maxTexts = 64

// hold receives texts at once and keeps them for the next request to the model. take returns all texts that were
// sent before the call; end refuses the texts that were not taken.
func hold(in <-chan agent.Steering) (take func() []agent.Steering, end func()) {
	asked, stop, stopped := make(chan chan []agent.Steering), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		var held []agent.Steering
		keep := func(s agent.Steering, ok bool) (more bool) {
			switch {
			case !ok:
				in = nil
			case len(held) < maxTexts:
				held = append(held, s)
			default:
				tell(s, false)
			}
			return ok
		}
		for {
			select {
			case s, ok := <-in:
				keep(s, ok)
			case answer := <-asked:
				for more := true; more; {
					select {
					case s, ok := <-in:
						more = keep(s, ok)
					default:
						more = false
					}
				}
				answer <- held
				held = nil
			case <-stop:
				for _, s := range held {
					tell(s, false)
				}
				return
			}
		}
	}()
	take = func() []agent.Steering {
		answer := make(chan []agent.Steering)
		asked <- answer
		return <-answer
	}
	return take, func() {
		close(stop)
		<-stopped
	}
}

// model returns the model of the worker. It makes the model with the first task, and again when another key
// was stored for its endpoint.
func (r *runner) model() (agent.Model, error) {
	r.starts.Lock()
	defer r.starts.Unlock()
	endpoint := r.endpoint()
	if r.llm != nil && r.llmKey == endpoint.APIKey {
		return r.llm, nil
	}
	model, err := agent.NewEndpoint(endpoint)
	if err == nil {
		r.llm, r.llmKey = model, endpoint.APIKey
	}
	return model, err
}

// endpoint returns the endpoint of the worker's model. If the config has no key, it uses the stored one.
func (r *runner) endpoint() agent.EndpointOptions {
	endpoint := r.LLM.Endpoint(r.pool.env.Now)
	if endpoint.APIKey == "" {
		endpoint.APIKey = agent.StoredKey(r.pool.env.StateDir, agent.Origin(r.LLM.URL))
		r.secrets.AddSecret(endpoint.APIKey)
	}
	return endpoint
}

// disconnect closes the idle connections of the worker's model or agent.
func (r *runner) disconnect() error {
	r.starts.Lock()
	defer r.starts.Unlock()
	if r.remote != nil {
		remotes.CloseIdleConnections()
	}
	if c, ok := r.llm.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// allowance returns the tokens that a task may spend at this worker: the smaller of the worker's budget and the
// rest of the task's budget; 0 = no limit.
func (r *runner) allowance(t *task) int {
	if left := t.budget(); left > 0 && (r.TokenBudget == 0 || left < r.TokenBudget) {
		return left
	}
	return r.TokenBudget
}

// tools lists the tools of a task: those of box, and those of the host that the worker may use under
// other names. A worker without a list of tools gets no deferred tools.
func (r *runner) tools(ctx context.Context, box host.ToolBox) ([]protocol.ToolDefinition, error) {
	var all protocol.ToolListResponse
	if r.Tools == nil || len(r.Tools) > 0 {
		err := r.pool.services.Call(ctx, protocol.TypeToolListReq,
			&protocol.ToolListRequest{IncludeDeferred: r.Tools != nil}, &all, nil)
		if refused := (*protocol.Error)(nil); err != nil && (!errors.As(err, &refused) ||
			refused.Code != protocol.CodeCapabilityMissing) {
			return nil, err
		}
	}
	if box != nil {
		for _, def := range box.Tools() {
			i := slices.IndexFunc(all.Tools, func(other protocol.ToolDefinition) bool { return other.Name == def.Name })
			if i >= 0 {
				all.Tools[i] = def
			}
		}
	}
	if r.Tools == nil {
		return all.Tools, nil
	}
	listed := slices.DeleteFunc(all.Tools, func(def protocol.ToolDefinition) bool { return !r.lets(def.Name) })
	return listed, nil
}

// lists reports whether a tool is on the worker's list.
func (r *runner) lists(name string) bool {
	return pattern.Listed(r.Tools, name)
}

// lets reports whether the worker's list allows a tool; without a list it allows all tools.
func (r *runner) lets(name string) bool { return r.Tools == nil || r.lists(name) }

// thought returns the outcome of a task from the result of the loop.
func (r *runner) thought(ctx context.Context, t *task, end *agent.Result, err error) (outcome, error) {
	var o outcome
	switch {
	case err != nil && ctx.Err() != nil:
		if o, err = t.stopped(context.Cause(ctx)); err != nil {
			return o, err
		}
	case err != nil:
		if refused := (*protocol.Error)(nil); errors.As(err, &refused) {
			err = errors.New(refused.Message) // without its code, which is for clients of the host
		}
		o = outcome{res: t.failed("worker %s: %v", r.Name, err), again: end.Calls == 0, moot: end.Calls == 0}
		if end.Calls == 0 {
			r.fails(err)
		}
	default:
		r.runs()
		o.res = t.outcomeOf(end)
		o.again = o.res.Status == fleet.StatusBlocked && end.Calls == 0
	}
	if o.res.Summary == "" && end.End != agent.EndDone {
		o.res.Summary = tail(end.Text)
	}
	o.res.TokensSpent, o.res.TokensEstimated = end.Tokens.Sum(), end.Tokens.Estimated
	return o, nil
}

// outcomeOf returns the result of a task whose model has ended by itself or reached a limit.
func (t *task) outcomeOf(end *agent.Result) *fleet.Result {
	switch end.End {
	case agent.EndDone:
		if obj, ok := resultIn([]byte(end.Text)); ok && t.Talk == nil {
			return t.read(obj, 0)
		}
		res := fleet.NewResult(t.Task.TaskID, fleet.StatusDone)
		if end.Cut && t.Talk == nil {
			cut := agent.Result{End: "max_tokens", Failure: "the model came to a limit of its own before the end of " +
				"its answer"}
			res.Status, res.Remaining = fleet.StatusPartial, remaining(&cut)
		}
		if res.Summary = tail(end.Text); t.Task.ReplySchema == fleet.ReplyStructured {
			res.Summary = wrapped(res.Summary, res.Status)
		}
		return res
	case agent.EndTurns, agent.EndBudget:
		res := fleet.NewResult(t.Task.TaskID, fleet.StatusPartial)
		res.Remaining = remaining(end)
		res.NextSteps = append(res.NextSteps, end.Failure+"; dispatch what remains as another task")
		return res
	}
	return t.failed("%s", end.Failure)
}

// remaining returns as JSON why a task was done only in part, and which calls were not made any more.
func remaining(end *agent.Result) []byte {
	calls := make([]string, 0, len(end.Pending))
	for _, c := range end.Pending {
		calls = append(calls, strings.ToValidUTF8(c.Name, "\uFFFD"))
	}
	text, _ := json.Marshal(struct { // cannot fail
		Reason agent.End `json:"reason"`
		Detail string    `json:"detail"`
		Calls  []string  `json:"calls_not_made"`
	}{end.End, end.Failure, calls})
	return text
}

// tail returns at most the last maxSummary bytes of a text, with a note about the rest.
func tail(text string) string {
	if left := len(text) - maxSummary; left > 0 {
		return fmt.Sprintf("[%d bytes before this were left out]\n%s", left, strings.ToValidUTF8(text[left:], ""))
	}
	return text
}

// spoken passes the answer of a model on by lines to say, and everything
// to a watcher. It records the files that the model's calls change.
type spoken struct {
	agent.Watcher
	say     func(line []byte)
	line    []byte                                         // the beginning of an unfinished line
	changes func(tool string, args protocol.Object) string // see host.Services.Changes
	written []string                                       // sorted
}

// maxWritten is the maximum number of recorded files.
const maxWritten = 1000

// Round implements agent.Watcher.
func (s *spoken) Round(round, of int) {
	s.flush()
	s.Watcher.Round(round, of)
}

// Piece implements agent.Watcher.
func (s *spoken) Piece(kind agent.PieceKind, text string) {
	s.Watcher.Piece(kind, text)
	if kind != agent.PieceAnswer {
		return
	}
	s.line = append(s.line, text...)
	for {
		end := bytes.IndexByte(s.line, '\n')
		if end < 0 {
			break
		}
		s.say(s.line[:end])
		s.line = s.line[end+1:]
	}
	if len(s.line) >= maxLine {
		s.flush()
	}
}

// Restart implements agent.Watcher.
func (s *spoken) Restart() {
	s.line = nil
	s.Watcher.Restart()
}

// ToolStarted implements agent.Watcher.
func (s *spoken) ToolStarted(round int, c agent.ModelCall) {
	s.flush()
	s.Watcher.ToolStarted(round, c)
}

// ToolEnded implements agent.Watcher.
func (s *spoken) ToolEnded(round int, c agent.ModelCall, r agent.ModelResult) {
	s.Watcher.ToolEnded(round, c, r)
	args, err := protocol.ParseObject(c.Arguments)
	if err != nil || !r.OK {
		return
	}
	name := s.changes(c.Name, args)
	if at, noted := slices.BinarySearch(s.written, name); name != "" && !noted && len(s.written) < maxWritten {
		s.written = slices.Insert(s.written, at, name)
	}
}

// tell adds the files that calls changed to those that the model names itself.
func (s *spoken) tell(a *fleet.Artifacts) {
	if a.Written = s.written; len(a.Written) == 0 {
		return
	}
	for i, name := range a.FilesChanged {
		a.FilesChanged[i] = path.Clean(name)
	}
	a.FilesChanged = append(a.FilesChanged, a.Written...)
	slices.Sort(a.FilesChanged)
	a.FilesChanged = slices.Compact(a.FilesChanged)
}

// flush passes an unfinished line on.
func (s *spoken) flush() {
	if len(s.line) > 0 {
		s.say(s.line)
	}
	s.line = nil
}
