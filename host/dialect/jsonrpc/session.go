package jsonrpc

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// session is a session in memory. Its fields are guarded by Front.mu.
type session struct {
	entry
	changes  int              // of the entry
	pins     int              // who holds it, so that it stays in memory
	turn     *turn            // at work, or about to be; nil = it is idle
	last     <-chan struct{}  // closed when all was told of the turn before; nil = there was none
	queue    []*turn          // what comes after the turn
	label    string           // the last one told; "" = ready
	commands int              // under way
	in       *dialect.Session // nil = not begun
}

// What a session is said to do.
const (
	labelReady        = "ready"
	labelThinking     = "thinking..."
	labelDrafting     = "drafting response..."
	labelSteered      = "steer applied; continuing..."
	LabelRetrying     = "retrying..." // the model, or another one, is asked again: what was said of the answer counts no more
	labelInterrupting = "interrupting..."
)

// maxTitle is how long a title is, in characters.
const maxTitle = 80

// titleOf makes a title of a text: in one line, cut.
func titleOf(s string) string {
	runes := []rune(strings.Join(strings.Fields(s), " "))
	return string(runes[:min(len(runes), maxTitle)])
}

func (f *Front) seconds() float64 { return float64(f.opts.Now().UnixMicro()) / 1e6 }

func stampSeconds(s float64) string { return stamp(time.UnixMicro(int64(s * 1e6))) }

// get returns the session of a request, from the history where it is not in memory, and as
// another host may have left it. It stays in memory until unpin.
func (f *Front) get(ctx context.Context, id string) (*session, error) {
	f.mu.Lock()
	s := f.sessions[id]
	changes := 0
	if s != nil {
		s.pins++
		changes = s.changes
	}
	f.mu.Unlock()
	e, found, err := f.history.find(ctx, id)
	switch {
	case s != nil: // also where the store does not tell
		f.mu.Lock()
		if found && s.turn == nil && s.changes == changes {
			s.entry = e
		}
		f.mu.Unlock()
		return s, nil
	case err != nil:
		return nil, err
	case !found:
		return nil, jsonrpc.Params("session_id", "unknown session "+quoted(id)+"; session.create makes one, history.list lists what was said in earlier ones").With("code", "unknown_session")
	}
	return f.keep(e)
}

// keep takes a session into memory, pinned.
func (f *Front) keep(e entry) (*session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sessions[e.ID]; s != nil {
		s.pins++
		return s, nil
	}
	if len(f.sessions) >= f.opts.MaxSessions && !f.forgetLocked() {
		return nil, protocol.Errorf(protocol.CodeOverloaded, "all of the %d sessions that there may be at once are busy", f.opts.MaxSessions)
	}
	s := &session{entry: e, pins: 1}
	f.sessions[e.ID] = s
	return s, nil
}

// forgetLocked takes the idle session out of memory that was not used for the longest
// time; false = all are busy.
func (f *Front) forgetLocked() bool {
	var oldest *session
	for _, s := range f.sessions {
		if s.pins == 0 && s.turn == nil && (oldest == nil || s.Updated < oldest.Updated) {
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	delete(f.sessions, oldest.ID)
	if oldest.in != nil {
		f.work.Go(oldest.in.End)
	}
	return true
}

func (f *Front) unpin(s *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.pins--
}

// change changes the entry of a session, here and in the store.
func (f *Front) change(ctx context.Context, s *session, how func(*entry)) error {
	f.mu.Lock()
	how(&s.entry)
	s.Updated = max(s.Updated, f.seconds())
	s.changes++
	e := s.entry
	f.mu.Unlock()
	return f.history.put(ctx, e)
}

// closeSessions ends the sessions of the host's plugins.
func (f *Front) closeSessions() {
	f.mu.Lock()
	var open []*dialect.Session
	for _, s := range f.sessions {
		if s.in != nil {
			open = append(open, s.in)
		}
	}
	if f.inSession != nil {
		open = append(open, f.inSession)
	}
	f.mu.Unlock()
	for _, in := range open {
		in.End()
	}
}

// enter returns the context of a session for requests of the host's plugins; nil = what
// belongs to no session. It waits for plugins that do not know yet what they serve.
func (f *Front) enter(s *session) context.Context {
	f.awaitPlugins()
	return f.inside(s)
}

// inside is enter for what does not wait.
func (f *Front) inside(s *session) context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := &f.inSession
	if s != nil {
		at = &s.in
	}
	if *at == nil {
		*at = dialect.BeginSession(f.working, cmp.Or(f.agent, f.client, nameless))
	}
	return (*at).Ctx
}

// awaitPlugins waits for plugins that do not know yet what they serve, once.
func (f *Front) awaitPlugins() { f.ready.Do(func() { dialect.AwaitPlugins(f.working) }) }

func sessionCreate(f *Front, ctx context.Context, c *call, req *struct {
	Title text `json:"title"`
	Model text `json:"model"` // the worker of this session alone
}) (any, error) {
	now := f.seconds()
	e := entry{ID: uuid.NewString(), Title: titleOf(string(req.Title)), Created: now, Updated: now}
	if req.Model != "" {
		w, ok := f.option("", string(req.Model))
		if !ok {
			return nil, c.wrong("model", "names no worker and no model of one; model.list shows them")
		}
		e.Model = w.Name
	}
	if err := f.history.put(ctx, e); err != nil {
		return nil, err
	}
	s, err := f.keep(e)
	if err != nil {
		return nil, err
	}
	defer f.unpin(s)
	state, err := f.stateOf(ctx, s)
	if err != nil {
		return nil, err
	}
	f.changed(ctx, "session_created", s.ID)
	return map[string]any{"session_id": s.ID, "state": state}, nil
}

func sessionGet(f *Front, ctx context.Context, _ *call, s *session, _ *named) (any, error) {
	return f.stateOf(ctx, s)
}

// stateOf makes the SessionState of a session.
func (f *Front) stateOf(ctx context.Context, s *session) (any, error) {
	f.mu.Lock()
	rollout := s.Rollout
	f.mu.Unlock()
	kept, err := f.history.messages(ctx, rollout, false)
	if err != nil {
		return nil, err
	}
	shown, said := make([]map[string]any, len(kept)), []message{}
	for i, m := range kept {
		if shown[i] = m.shown(m.number); m.said {
			said = append(said, m)
		}
	}
	provider, err := f.history.provider(ctx, rollout)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	state := map[string]any{
		"id": s.ID, "createdAt": stampSeconds(s.Created), "updatedAt": stampSeconds(s.Updated), "pending": s.turn != nil, "statusLabel": cmp.Or(s.label, labelReady),
		"messages": shown, "history": said, "queue": s.queuedLocked(), "pendingSteerCount": 0, "conversationProvider": nil, "activeSessionId": nil,
		"title": s.Title, "worker": s.Model,
	}
	if s.turn != nil {
		state["pendingSteerCount"] = len(s.turn.steers)
	}
	if len(said) > 0 {
		state["conversationProvider"], state["activeSessionId"] = provider, rollout
	}
	return state, nil
}

// tell tells what a session does from now on; turn is told with a turn's first status.
func (f *Front) tell(s *session, label, turn string) {
	f.mu.Lock()
	s.label = label
	told := map[string]any{"session_id": s.ID, "pending": label != labelReady, "status_label": label}
	f.mu.Unlock()
	if turn != "" {
		told["turn_id"] = turn
	}
	f.event(jsonrpc.SessionStatus, told)
}
