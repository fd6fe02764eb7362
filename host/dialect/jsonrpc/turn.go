package jsonrpc

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/google/uuid"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/fleet"
	"a2e/protocol/jsonrpc"
)

// turn is a message of the client and what a worker does with it, now or later.
type turn struct {
	id     string
	text   string
	asked  imageList
	at     string          // when it came
	ready  <-chan struct{} // closed when the sender was answered
	images []attachment    // set by prepare

	stop  context.CancelCauseFunc
	steer chan host.Steering
	after <-chan struct{} // closed when all was told of the turn before; nil = there was none
	told  chan struct{}   // closed when all was told of this one

	// The fields below are guarded by Front.mu.
	entry    entry  // of the session when the turn began: what is said later may belong to another rollout
	provider string // the worker that took it up
	model    string
	program  bool            // that is no model, and sees the images that are files alone
	stopped  <-chan struct{} // closed when who interrupted it was answered; nil = nobody did
	over     bool            // the worker has ended
	steers   []*steer        // that no worker has taken yet
}

// steer is a text on its way to a worker at work.
type steer struct {
	text    string
	taken   chan bool
	dropped bool // it shall be no turn of its own; guarded by Front.mu
}

func errInterrupted() *protocol.Error {
	return protocol.Errorf(protocol.CodeCancelled, "interrupted by session.interrupt")
}

func (f *Front) newTurn(c *call, s string, images imageList) *turn {
	return &turn{
		id: uuid.NewString(), text: s, asked: images, at: stamp(f.opts.Now()), ready: c.gone, told: make(chan struct{}),
		steer: make(chan host.Steering, f.opts.MaxWaiting),
	}
}

type sendParams struct {
	named
	Text    text      `json:"text"`
	Images  imageList `json:"images"`
	Enqueue bool      `json:"enqueue"`
}

func sessionSend(f *Front, _ context.Context, c *call, s *session, req *sendParams) (any, error) {
	switch {
	case req.Text == "" && len(req.Images) == 0:
		return nil, jsonrpc.Errorf(jsonrpc.CodeInternal, "session.send requires non-empty text or at least one image")
	case len(req.Text) > f.opts.MaxText:
		return nil, c.wrong("text", fmt.Sprintf("has %d bytes; at most %d are taken", len(req.Text), f.opts.MaxText))
	}
	t := f.newTurn(c, string(req.Text), req.Images)
	told := map[string]any{"session_id": s.ID, "turn_id": t.id, "accepted": true, "queued": false}
	waiting, err := f.admit(s, t, req.Enqueue)
	switch {
	case err != nil:
		return nil, err
	case waiting > 0:
		told["queued"] = true
		f.tell(s, fmt.Sprintf("queued (%d)", waiting), "")
		return told, nil
	}
	if f.prepare(s, t) {
		f.work.Go(func() { f.drive(s, t, true) })
	} else if next := f.end(s, t, false); next != nil { // it came meanwhile
		f.work.Go(func() { f.drive(s, next, f.prepare(s, next)) })
	}
	return told, nil
}

// admit has a turn be the session's, or wait in its queue; then it returns how many do.
func (f *Front) admit(s *session, t *turn, enqueue bool) (waiting int, err error) {
	_, limits := host.ServicesOf(f.ctx).Bounds()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.cut:
		return 0, errEnding()
	case s.turn == nil:
		f.takeUpLocked(s, t)
		return 0, nil
	case !enqueue:
		return 0, jsonrpc.Params("enqueue", "the session is busy; use enqueue=true to queue the prompt, or session.steer, or session.interrupt first").With("code", "session_busy")
	case len(s.queue) >= f.opts.MaxWaiting, f.heldLocked()+len(t.text)+t.asked.size() > limits.QueueBytes:
		return 0, protocol.Errorf(protocol.CodeOverloaded, "too many messages wait already, %d of them in this session", len(s.queue))
	}
	s.queue = append(s.queue, t)
	return len(s.queue), nil
}

// takeUpLocked makes a turn the one of its session.
func (f *Front) takeUpLocked(s *session, t *turn) {
	t.after, s.turn, s.last = s.last, t, t.told
	if s.Rollout == "" {
		s.Rollout = uuid.NewString()
		s.changes++
	}
	t.entry = s.entry
}

// heldLocked counts the bytes of the messages that wait.
func (f *Front) heldLocked() (bytes int) {
	for _, s := range f.sessions {
		for _, t := range s.queue {
			bytes += len(t.text) + t.asked.size() + callOverhead
		}
	}
	return bytes
}

// prepare makes a turn ready to begin. What keeps it from that is told; false = it does.
func (f *Front) prepare(s *session, t *turn) bool {
	var err error
	if t.images, err = f.load(t.asked); err == nil {
		_, err = f.pool()
	}
	t.asked = nil
	if err != nil {
		f.fail(s, t, err)
	}
	return err == nil
}

// fail tells that a turn failed.
func (f *Front) fail(s *session, t *turn, err error) {
	e := jsonrpc.From(err)
	f.note(s, t, message{Role: roleSystem, Text: "inference error: " + e.Message})
	f.event(jsonrpc.SessionError, map[string]any{"session_id": s.ID, "turn_id": t.id, "message": e.Message, "code": codeOf(e)})
}

// drive runs the turn of a session, and those that wait behind it.
func (f *Front) drive(s *session, t *turn, prepared bool) {
	if t.after != nil {
		<-t.after
	}
	for {
		<-t.ready
		if prepared {
			f.run(s, t)
		}
		if t = f.end(s, t, prepared); t == nil {
			return
		}
		<-t.ready
		prepared = f.prepare(s, t)
	}
}

// run is a turn from its first status to the event that tells of its end.
func (f *Front) run(s *session, t *turn) {
	ctx, stop := context.WithCancelCause(f.working)
	defer stop(nil)
	f.mu.Lock()
	t.stop = stop
	stopped := t.stopped
	f.mu.Unlock()
	if stopped != nil { // before it began
		<-stopped
		stop(errInterrupted())
	}
	chosen := f.chosen(ctx)
	label := labelThinking
	if chosen.Thinking == thinkingOff {
		label = labelDrafting
	}
	f.tell(s, label, t.id)
	earlier := f.earlier(ctx, t)
	text := withPlaces(t.text, len(t.images))
	f.note(s, t, message{Role: roleUser, Text: text, Images: t.images})
	w := &watcher{front: f, session: s, turn: t, label: label}
	result, err := f.do(ctx, s, t, w, chosen, &host.Talk{Earlier: earlier, Images: pictures(t.images), Thinking: strings.ToLower(chosen.asked), Watch: w}, text)
	w.settle()
	f.mu.Lock()
	t.over, stopped = true, t.stopped
	blind := t.program && slices.ContainsFunc(t.images, func(a attachment) bool { return a.data })
	f.mu.Unlock()
	if blind {
		f.note(s, t, message{Role: roleSystem, Text: "images that came as data were not seen: this worker is not a " +
			"model of an llm endpoint and gets images as files of the workspace alone."})
	}
	if stopped != nil { // whoever interrupts is answered before it is told of the end
		<-stopped
	}
	f.tellEnd(ctx, s, t, w, result, err)
}

// earlier is what the worker is told of what was said before: its end.
func (f *Front) earlier(ctx context.Context, t *turn) []host.Said {
	within, cancel := context.WithTimeout(ctx, f.opts.StoreWait)
	defer cancel()
	said, err := f.history.messages(within, t.entry.Rollout, true)
	if err != nil && ctx.Err() == nil {
		f.logger().Warn().Err(err).Msg("the history cannot be read; the worker does not see it")
	}
	bytes, from := 0, len(said)
	for ; from > 0 && len(said)-from < maxEarlier; from-- {
		if bytes += len(said[from-1].Text); bytes > f.opts.MaxContext && from < len(said) {
			break
		}
	}
	all := make([]host.Said, 0, len(said)-from)
	for _, m := range said[from:] {
		all = append(all, host.Said{Role: m.Role, Text: m.Text, Images: pictures(m.Images)})
	}
	return all
}

// maxEarlier is how many earlier messages a worker is told at most.
const maxEarlier = 200

// do has a worker work.
func (f *Front) do(ctx context.Context, s *session, t *turn, w *watcher, chosen selection, talk *host.Talk, brief string) (result *fleet.Result, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = protocol.Errorf(protocol.CodeRuntimeError, "the worker's plugin panicked")
			f.logger().Error().Str("panic", fmt.Sprint(v)).Msg("a worker's plugin panicked")
		}
	}()
	pool, err := f.pool()
	if err != nil {
		return nil, err
	}
	task := host.WorkerTask{Worker: cmp.Or(t.entry.Model, chosen.Worker), Steer: t.steer, Talk: talk, Output: w.output, Started: func(name string) { f.started(t, w, pool, name) }}
	task.Type, task.ProtocolVersion, task.Brief = fleet.TypeDispatch, fleet.Version, brief
	task.Task = fleet.Task{TaskID: t.id, Priority: fleet.PriorityNormal, ReplySchema: fleet.ReplyProse}
	defer w.close() // nothing is streamed after the end
	result, err = pool.RunTask(dialect.Merge(f.enter(s), ctx), task)
	if result == nil && err == nil {
		err = protocol.Errorf(protocol.CodeRuntimeError, "the worker's plugin gave no result")
	}
	return result, err
}

// started notes who works on a turn, also after another one that failed.
func (f *Front) started(t *turn, watch *watcher, pool host.WorkerPool, name string) {
	for _, w := range pool.Workers() {
		if w.Name == name {
			f.mu.Lock()
			t.provider, t.model, t.program = w.Name, modelID(w), w.Mode != "llm"
			f.mu.Unlock()
			watch.begin()
		}
	}
}

// tellEnd tells how a turn ended, and keeps it unless it failed.
func (f *Front) tellEnd(ctx context.Context, s *session, t *turn, w *watcher, r *fleet.Result, err error) {
	cause := context.Cause(ctx)
	told := map[string]any{"session_id": s.ID, "turn_id": t.id}
	switch {
	case cause != nil && (err != nil || r.Status != fleet.StatusDone):
		notice := "response interrupted by user."
		if f.working.Err() != nil {
			notice = "response interrupted: " + jsonrpc.From(cause).Message + "."
		}
		partial, _ := w.said()
		if partial = strings.TrimSpace(partial); partial != "" {
			f.note(s, t, message{Role: roleAssistant, Text: partial})
			notice += " partial output kept."
		}
		f.note(s, t, message{Role: roleSystem, Text: notice})
		f.finish(t)
		told["partial_output"] = partial != ""
		f.event(jsonrpc.SessionInterrupted, told)
	case err != nil:
		f.fail(s, t, err)
	case r.Status == fleet.StatusBlocked:
		why := "the worker is blocked"
		if r.BlockedReason != nil {
			why = *r.BlockedReason
		}
		f.fail(s, t, jsonrpc.Refused("blocked", "%s", why))
	case r.Status == fleet.StatusError:
		f.fail(s, t, jsonrpc.Refused("worker_error", "%s", cmp.Or(r.Error, r.Summary, "the worker failed")))
	default:
		answer := r.Summary
		if said, model := w.said(); model {
			answer = cmp.Or(said, answer)
		}
		f.note(s, t, message{Role: roleAssistant, Text: answer})
		f.finish(t)
		told["answer_length"] = len(utf16.Encode([]rune(answer)))
		told["status"], told["next_steps"], told["artifacts"], told["remaining"] = r.Status, r.NextSteps, r.Artifacts, orNull(r.Remaining)
		told["tokens_spent"], told["tokens_estimated"] = r.TokensSpent, r.TokensEstimated
		f.event(jsonrpc.SessionCompleted, told)
	}
}

// finish has what was said in a turn be part of the history.
func (f *Front) finish(t *turn) {
	hint := t.text
	if hint == "" && len(t.images) > 0 {
		hint = "image: " + path.Base(t.images[0].Path)
	}
	chosen := f.chosen(f.ctx)
	f.mu.Lock()
	now := f.seconds()
	r := rollout{
		ID:      t.entry.Rollout,
		Title:   cmp.Or(f.history.kept(t.entry.Title), titleOf(f.history.kept(hint)), "untitled chat"),
		Created: now, Updated: now,
		Provider: cmp.Or(t.provider, chosen.Worker), Model: cmp.Or(t.model, chosen.Model), Thinking: chosen.Thinking,
		Agent: t.entry.Agent, Folder: f.history.folder,
	}
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), f.opts.StoreWait)
	defer cancel()
	if err := f.history.finish(ctx, t.id, r); err != nil {
		f.logger().Warn().Err(err).Str("turn_id", t.id).Msg("a turn is not kept in the history")
	}
}

// end makes a session idle, or takes up its next turn. Texts for the worker that it did not
// take any more come before those that wait.
func (f *Front) end(s *session, t *turn, ran bool) (next *turn) {
	defer close(t.told)
	f.mu.Lock()
	late := make([]*turn, 0, len(t.steers))
	for _, st := range t.steers {
		if st.dropped {
			continue
		}
		late = append(late, f.newTurn(&call{gone: t.told}, st.text, nil))
	}
	s.queue = slices.Concat(late, s.queue)
	lost := 0
	if f.cut {
		lost, s.queue = len(s.queue), nil
	}
	if s.turn, t.steers = nil, nil; len(s.queue) > 0 {
		next, _ = dialect.Shift(&s.queue)
		f.takeUpLocked(s, next)
	}
	f.mu.Unlock()
	if ran {
		f.tell(s, labelReady, "")
	}
	if len(late) > 0 {
		f.note(s, t, message{Role: roleSystem, Text: tooLate(len(late))})
	}
	if lost > 0 {
		f.event(jsonrpc.SessionError, map[string]any{"session_id": s.ID, "turn_id": t.id, "code": "shutdown",
			"message": fmt.Sprintf("the host ends; %s not delivered to the worker", protocol.Count(lost,
				"waiting message"))})
	}
	return next
}

// pool returns the plugin with the workers.
func (f *Front) pool() (host.WorkerPool, error) {
	pool := host.ServicesOf(f.ctx).Workers()
	if pool == nil || len(pool.Workers()) == 0 {
		return nil, host.NoWorker()
	}
	return pool, nil
}

func sessionSteer(f *Front, _ context.Context, c *call, s *session, req *struct {
	named
	Text text `json:"text"`
}) (any, error) {
	if len(req.Text) > f.opts.MaxText {
		return nil, c.wrong("text", fmt.Sprintf("has %d bytes; at most %d are taken", len(req.Text), f.opts.MaxText))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	told := map[string]any{"session_id": s.ID, "accepted": false}
	if s.turn == nil || s.turn.stopped != nil {
		return told, nil
	}
	st := &steer{text: string(req.Text), taken: make(chan bool, 1)}
	select {
	case s.turn.steer <- host.Steering{Text: st.text, Taken: st.taken}:
	default:
		return nil, protocol.Errorf(protocol.CodeOverloaded, "too many messages wait already, %d of them for the worker", len(s.turn.steers))
	}
	s.turn.steers = append(s.turn.steers, st)
	told["accepted"] = true
	return told, nil
}

func sessionInterrupt(f *Front, _ context.Context, c *call, s *session, _ *named) (any, error) {
	commands := f.stopCommands(s.ID, c)
	f.mu.Lock()
	t := s.turn
	interrupted := t != nil && !t.over && t.stopped == nil
	if interrupted {
		t.stopped = c.gone
	}
	f.mu.Unlock()
	if interrupted {
		f.tell(s, labelInterrupting, "")
		c.then = func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if t.stop != nil { // else it has not begun, and looks itself
				t.stop(errInterrupted())
			}
		}
	}
	return map[string]any{"session_id": s.ID, "interrupted": interrupted, "commands": commands}, nil
}

// queued is a message that waits, as the client sees it.
type queued struct {
	ID       string       `json:"id"`
	Text     string       `json:"text"`
	Images   []imageParam `json:"images"`
	Enqueued string       `json:"enqueuedAt"`
}

func (s *session) queuedLocked() []queued {
	list := make([]queued, 0, len(s.queue))
	for _, t := range s.queue {
		list = append(list, queued{t.id, t.text, t.asked, t.at})
	}
	return list
}

func queueList(f *Front, _ context.Context, _ *call, s *session, _ *named) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return map[string]any{"session_id": s.ID, "queue": s.queuedLocked()}, nil
}

func queueClear(f *Front, _ context.Context, _ *call, s *session, _ *named) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	cleared := len(s.queue)
	s.queue = nil
	return map[string]any{"session_id": s.ID, "cleared_count": cleared}, nil
}

// tooLate tells that texts for a worker come to the next one.
func tooLate(n int) string {
	return protocol.Count(n, "message") + " came too late for this turn and go to the next one."
}
