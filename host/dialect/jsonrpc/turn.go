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
	"a2e/host/agent"
	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/fleet"
	"a2e/protocol/jsonrpc"
)

// queued is a waiting message as the client sees it.
type queued struct {
	ID       string       `json:"id"`
	Text     string       `json:"text"`
	Images   []imageParam `json:"images"`
	Enqueued string       `json:"enqueuedAt"`
}

// turn is a message of the client and a worker's work on it, now or later.
type turn struct {
	queued
	session  *session
	size     int             // bytes of the message in memory
	ready    <-chan struct{} // closed when the sender has its answer
	images   []attachment    // set by prepare
	prepared bool            // the turn can begin; set by prepare

	ctx   context.Context // of the work; set by takeUpLocked, with stop and after
	stop  context.CancelCauseFunc
	steer chan agent.Steering
	after <-chan struct{} // closed when the client knows all of the turn before; nil = there was none
	told  chan struct{}   // closed when the client knows all of this turn

	// The fields below are guarded by Front.mu.
	rollout string           // of the session when the turn began; the session may have another one since
	worker  agent.WorkerInfo // the worker that has the turn
	stopped <-chan struct{}  // closed when the session.interrupt was answered; nil = nobody interrupted it
	over    bool             // the worker has ended
	steers  []*steer         // texts that no worker has taken yet
}

// steer is a text on its way to a worker that works.
type steer struct {
	text    string
	taken   chan bool
	dropped bool // it must not become a turn of its own; guarded by Front.mu
}

func (f *Front) newTurn(s *session, ready <-chan struct{}, text string, images []imageParam) *turn {
	size := len(text) + callOverhead
	for _, p := range images {
		size += len(p.Path) + len(p.MIME) + len(p.URL)
	}
	return &turn{
		queued:  queued{uuid.NewString(), text, images, stamp(f.opts.Now())},
		session: s, size: size, ready: ready, told: make(chan struct{}),
		steer: make(chan agent.Steering, f.opts.MaxWaiting),
	}
}

func sessionSend(f *Front, _ context.Context, c *call, req *struct {
	Text    text `json:"text"`
	Enqueue bool `json:"enqueue"`
},
) (any, error) {
	images := imagesOf(c.params)
	switch {
	case req.Text == "" && len(images) == 0:
		return nil, jsonrpc.Errorf(jsonrpc.CodeInternal, "session.send requires non-empty text or at least one image")
	case len(req.Text) > f.opts.MaxText:
		return nil, f.tooLong(c, req.Text)
	}
	t := f.newTurn(c.on, c.gone, string(req.Text), images)
	waiting, err := f.admit(t, req.Enqueue)
	if err != nil {
		return nil, err
	}
	if waiting > 0 {
		f.tell(c.on, fmt.Sprintf("queued (%d)", waiting), "")
	} else {
		first := t
		if !f.prepare(t) {
			first = f.end(t) // a turn that was queued meanwhile
		}
		f.work.Go(func() { f.drive(first) })
	}
	return map[string]any{"session_id": c.session, "turn_id": t.ID, "accepted": true, "queued": waiting > 0}, nil
}

// admit makes a turn the current one of its session, or puts it into the queue; then it returns how many turns wait.
func (f *Front) admit(t *turn, enqueue bool) (waiting int, err error) {
	_, limits := host.ServicesOf(f.ctx).Bounds()
	f.mu.Lock()
	defer f.mu.Unlock()
	s := t.session
	switch {
	case f.cut:
		return 0, errEnding()
	case s.turn == nil:
		f.takeUpLocked(t)
		return 0, nil
	case !enqueue:
		return 0, jsonrpc.Params("enqueue", "the session is busy; use enqueue=true to queue the prompt, or session."+
			"steer, or session.interrupt first").With("code", "session_busy")
	case len(s.queue) >= f.opts.MaxWaiting, f.heldLocked()+t.size > limits.QueueBytes:
		return 0, protocol.Errorf(protocol.CodeOverloaded, "too many messages wait already, %d of them in this session",
			len(s.queue))
	}
	s.queue = append(s.queue, t)
	return len(s.queue), nil
}

// takeUpLocked makes a turn the current one of its session.
func (f *Front) takeUpLocked(t *turn) {
	s := t.session
	t.ctx, t.stop = context.WithCancelCause(f.working)
	t.after, s.turn, s.last = s.last, t, t.told
	s.Rollout = cmp.Or(s.Rollout, uuid.NewString())
	t.rollout = s.Rollout
}

// heldLocked returns the bytes of all waiting messages.
func (f *Front) heldLocked() (bytes int) {
	for _, s := range f.sessions {
		for _, t := range s.queue {
			bytes += t.size
		}
	}
	return bytes
}

// prepare makes a turn ready to begin. If it cannot begin, prepare tells the client why and returns false.
func (f *Front) prepare(t *turn) bool {
	images, err := f.load(t.Images)
	if err == nil && len(f.workers()) == 0 {
		err = agent.NoWorker()
	}
	t.images, t.Images, t.prepared = images, nil, err == nil
	if err != nil {
		f.fail(t, err)
	}
	return t.prepared
}

// about sends an event about a turn.
func (f *Front) about(t *turn, typ jsonrpc.EventType, told map[string]any) {
	told["session_id"], told["turn_id"] = t.session.ID, t.ID
	f.event(typ, told)
}

func (f *Front) fail(t *turn, err error) {
	e := jsonrpc.From(err)
	f.note(t, message{Role: roleSystem, Text: "inference error: " + e.Message})
	f.about(t, jsonrpc.SessionError, map[string]any{"message": e.Message, "code": codeOf(e)})
}

// drive runs a turn of a session and those that wait behind it. It does nothing for nil.
func (f *Front) drive(t *turn) {
	if t != nil && t.after != nil {
		<-t.after
	}
	for ; t != nil; t = f.end(t) {
		<-t.ready
		if t.prepared || f.prepare(t) {
			f.run(t)
		}
	}
}

// run runs a turn from its first status to the event that reports its end.
func (f *Front) run(t *turn) {
	chosen, label := f.chosen(t.ctx), labelThinking
	if chosen.Thinking == thinkingOff {
		label = labelDrafting
	}
	f.tell(t.session, label, t.ID)
	w := &watcher{front: f, turn: t, label: label}
	text := withPlaces(t.Text, len(t.images))
	talk := &agent.Talk{
		Earlier: f.earlier(t, cmp.Or(t.session.Model, chosen.Worker), text, label), Images: pictures(t.images),
		Thinking: strings.ToLower(chosen.asked), Watch: w, Permit: f.permits(t),
	}
	f.note(t, message{Role: roleUser, Text: text, Images: t.images})
	result, err := f.do(t, w, chosen.Worker, talk, text)
	w.close() // nothing may be streamed after the end
	f.mu.Lock()
	t.over = true
	stopped := t.stopped
	program := t.worker.Name != "" && t.worker.Mode != "llm" // it sees only images that are files
	blind := program && slices.ContainsFunc(t.images, func(a attachment) bool { return a.data })
	f.mu.Unlock()
	if blind {
		f.note(t, message{Role: roleSystem, Text: "images that came as data were not seen: this worker is not a " +
			"model of an llm endpoint and gets images as files of the workspace alone."})
	}
	if stopped != nil { // session.interrupt is answered before the client learns of the end
		<-stopped
	}
	f.tellEnd(t, w, result, err)
}

func (f *Front) do(t *turn, w *watcher, chosen string, talk *agent.Talk, brief string) (r *fleet.Result, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = protocol.Errorf(protocol.CodeRuntimeError, "the worker's plugin panicked")
			f.opts.Log.Error().Str("panic", fmt.Sprint(v)).Msg("a worker's plugin panicked")
		}
	}()
	task := agent.WorkerTask{
		Worker: cmp.Or(t.session.Model, chosen), Steer: t.steer, Talk: talk, Output: w.output,
		Started: func(name string) { f.started(t, w, name) },
	}
	task.Type, task.ProtocolVersion, task.Brief = fleet.TypeDispatch, fleet.Version, brief
	task.Task = fleet.Task{TaskID: t.ID, Priority: fleet.PriorityNormal, ReplySchema: fleet.ReplyProse}
	r, err = agent.Workers(host.ServicesOf(f.ctx)).RunTask(dialect.Merge(f.enter(t.session), t.ctx), task)
	if r == nil && err == nil {
		err = protocol.Errorf(protocol.CodeRuntimeError, "the worker's plugin gave no result")
	}
	return r, err
}

// started stores which worker works on a turn. It is called again if another worker takes over after a failure.
func (f *Front) started(t *turn, watch *watcher, name string) {
	for _, w := range those(f.workers(), called(name)) {
		f.mu.Lock()
		t.worker = w
		f.mu.Unlock()
		watch.begin()
	}
}

// tellEnd tells the client how a turn ended, and adds the turn to the history unless it failed.
func (f *Front) tellEnd(t *turn, w *watcher, r *fleet.Result, err error) {
	cause := context.Cause(t.ctx)
	said, model := w.said()
	switch {
	case cause != nil && (err != nil || r.Status != fleet.StatusDone):
		f.tellInterrupted(t, cause, strings.TrimSpace(said))
	case err != nil:
		f.fail(t, err)
	case r.Status == fleet.StatusBlocked:
		f.fail(t, jsonrpc.Refused("blocked", "%s", cmp.Or(value(r.BlockedReason), "the worker is blocked")))
	case r.Status == fleet.StatusError:
		f.fail(t, jsonrpc.Refused("worker_error", "%s", cmp.Or(r.Error, r.Summary, "the worker failed")))
	default:
		answer := r.Summary
		if model {
			answer = cmp.Or(said, answer)
		}
		f.note(t, message{Role: roleAssistant, Text: answer})
		f.finish(t)
		f.about(t, jsonrpc.SessionCompleted, map[string]any{
			"answer_length": len(utf16.Encode([]rune(answer))), "status": r.Status, "next_steps": r.NextSteps,
			"artifacts": r.Artifacts, "remaining": or(r.Remaining, "null"), "tokens_spent": r.TokensSpent,
			"tokens_estimated": r.TokensEstimated,
		})
		f.remeasure(t)
	}
}

// tellInterrupted tells the client of a turn that was stopped, and adds the turn to the history.
func (f *Front) tellInterrupted(t *turn, cause error, partial string) {
	notice := "response interrupted by user."
	if f.working.Err() != nil {
		notice = "response interrupted: " + jsonrpc.From(cause).Message + "."
	}
	if partial != "" {
		f.note(t, message{Role: roleAssistant, Text: partial})
		notice += " partial output kept."
	}
	f.note(t, message{Role: roleSystem, Text: notice})
	f.finish(t)
	f.about(t, jsonrpc.SessionInterrupted, map[string]any{"partial_output": partial != ""})
}

// finish makes the messages of a turn part of the history.
func (f *Front) finish(t *turn) {
	hint := t.Text
	if hint == "" && len(t.images) > 0 {
		hint = "image: " + path.Base(t.images[0].Path)
	}
	chosen := f.chosen(f.ctx)
	f.mu.Lock()
	now := f.seconds()
	r := rollout{
		ID:      t.rollout,
		Title:   cmp.Or(f.history.kept(t.session.Title), titleOf(f.history.kept(hint)), "untitled chat"),
		Created: now, Updated: now,
		Provider: cmp.Or(t.worker.Name, chosen.Worker), Model: cmp.Or(modelID(t.worker), chosen.Model),
		Thinking: chosen.Thinking, Agent: t.session.Agent, Folder: f.history.folder,
	}
	f.mu.Unlock()
	if err := f.history.finish(context.WithoutCancel(f.ctx), t.ID, r); err != nil {
		f.opts.Log.Warn().Err(err).Str("turn_id", t.ID).Msg("a turn is not kept in the history")
	}
}

// end makes a session idle, or starts its next turn and returns it. Texts that the worker did not take any more become
// turns before those that wait.
func (f *Front) end(t *turn) (next *turn) {
	defer close(t.told)
	t.stop(nil)
	s := t.session
	f.mu.Lock()
	var late []*turn
	for _, st := range t.steers {
		if !st.dropped {
			late = append(late, f.newTurn(s, t.told, st.text, nil))
		}
	}
	s.queue = slices.Concat(late, s.queue)
	lost := 0
	if f.cut {
		lost, s.queue = len(s.queue), nil
	}
	s.turn, t.steers = nil, nil
	if first, some := dialect.Shift(&s.queue); some {
		next = first
		f.takeUpLocked(next)
	}
	f.mu.Unlock()
	if t.prepared {
		f.tell(s, labelReady, "")
	}
	if len(late) > 0 {
		f.note(t, message{Role: roleSystem, Text: protocol.Count(len(late), "message") +
			" came too late for this turn and go to the next one."})
	}
	if lost > 0 {
		why := fmt.Sprintf("the host ends; %s not delivered to the worker", protocol.Count(lost, "waiting message"))
		f.about(t, jsonrpc.SessionError, map[string]any{"code": "shutdown", "message": why})
	}
	return next
}

func sessionSteer(f *Front, _ context.Context, c *call, req *struct {
	Text text `json:"text"`
},
) (any, error) {
	if len(req.Text) > f.opts.MaxText {
		return nil, f.tooLong(c, req.Text)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t := c.on.turn
	accepted := t != nil && t.stopped == nil
	if accepted {
		st := &steer{text: string(req.Text), taken: make(chan bool, 1)}
		select {
		case t.steer <- agent.Steering{Text: st.text, Taken: st.taken}:
		default:
			return nil, protocol.Errorf(protocol.CodeOverloaded,
				"too many messages wait already, %d of them for the worker", len(t.steers))
		}
		t.steers = append(t.steers, st)
	}
	return map[string]any{"session_id": c.session, "accepted": accepted}, nil
}

func (f *Front) tooLong(c *call, s text) error {
	return c.wrong("text", fmt.Sprintf("has %d bytes; at most %d are taken", len(s), f.opts.MaxText))
}

func sessionInterrupt(f *Front, _ context.Context, c *call) (any, error) {
	why := protocol.Errorf(protocol.CodeCancelled, "interrupted by session.interrupt")
	commands := f.stopOpen(why, func(other *call) bool {
		return other.method == jsonrpc.CommandExecute && other.session == c.session && other.number < c.number
	})
	f.mu.Lock()
	t := c.on.turn
	interrupted := t != nil && !t.over && t.stopped == nil
	if interrupted {
		t.stopped = c.gone
		c.then = func() { t.stop(why) }
	}
	f.mu.Unlock()
	if interrupted {
		f.tell(c.on, labelInterrupting, "")
	}
	return map[string]any{"session_id": c.session, "interrupted": interrupted, "commands": commands}, nil
}

func (s *session) queuedLocked() []queued {
	return each(s.queue, func(t *turn) queued { return t.queued })
}

func queueList(f *Front, _ context.Context, c *call) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return map[string]any{"session_id": c.session, "queue": c.on.queuedLocked()}, nil
}

func queueClear(f *Front, _ context.Context, c *call) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	cleared := len(c.on.queue)
	c.on.queue = nil
	return map[string]any{"session_id": c.session, "cleared_count": cleared}, nil
}
