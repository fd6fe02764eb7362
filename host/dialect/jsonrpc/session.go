package jsonrpc

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"a2e/host/dialect"
	"a2e/host/wall"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// session is a session in memory. Its fields are guarded by Front.mu.
type session struct {
	entry
	changes int              // of the entry
	pins    int              // who holds it, so that it stays in memory
	turn    *turn            // at work, or about to be; nil = it is idle
	last    <-chan struct{}  // closed when all was told of the turn before; nil = there was none
	queue   []*turn          // what comes after the turn
	label   string           // the last one told; "" = ready
	in      *dialect.Session // nil = not begun
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
	e := entry{ID: uuid.NewString(), Title: titleOf(string(req.Title)), Created: now, Updated: now,
		Agent: f.history.owner()}
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

// rolloutScheme stands before the id of a rollout in its path: it is no file.
const rolloutScheme = "a2e:"

// summary makes what the client is told of a rollout.
func (r *rollout) summary() map[string]any {
	told := map[string]any{
		"id": r.ID, "title": r.Title, "provider": r.Provider, "model": r.Model, "thinkingLevel": r.Thinking,
		"createdAt": stampSeconds(r.Created), "updatedAt": stampSeconds(r.Updated), "messageCount": r.Messages, "rolloutPath": rolloutScheme + r.ID,
	}
	if r.Folder != "" {
		told["folder"] = r.Folder
	}
	return told
}

// usualPage is how many rollouts a page has where the client does not say.
const usualPage = 100

type pageParams struct {
	Limit  float64 `json:"limit"`
	Cursor float64 `json:"cursor"`
	Folder text    `json:"folder"` // only those that began there; relative to the workspace, "." = there; "" = all
}

func historyList(f *Front, ctx context.Context, _ *call, req *pageParams) (any, error) {
	limit, cursor := usualPage, int(min(max(req.Cursor, 0), 1<<31))
	if req.Limit != 0 {
		limit = int(min(max(req.Limit, 1), 1<<31))
	}
	page, total, err := f.history.list(ctx, wall.PlaceIn(f.opts.Workspace, string(req.Folder)), limit, cursor)
	if err != nil {
		return nil, err
	}
	list := make([]map[string]any, 0, len(page))
	for _, r := range page {
		list = append(list, r.summary())
	}
	told := map[string]any{"total": total, "cursor": cursor, "limit": limit, "sessions": list, "next_cursor": nil}
	if next := cursor + len(page); len(page) > 0 && next < total {
		told["next_cursor"] = next
	}
	return told, nil
}

func historyGet(f *Front, ctx context.Context, _ *call, req *struct {
	Last bool `json:"last"`
	Path text `json:"rollout_path"`
	ID   text `json:"id"`
}) (any, error) {
	var r *rollout
	var err error
	switch path := string(req.Path); {
	case req.Last:
		r, err = f.rollout(ctx, "", "", "no saved chat history yet")
	case path != "":
		id, ok := strings.CutPrefix(path, rolloutScheme)
		if r, err = f.rollout(ctx, "", id, "failed to load chat: "+quoted(path)); err == nil && (!ok || r.ID != id) {
			err = jsonrpc.Errorf(jsonrpc.CodeInternal, "failed to load chat: %s", quoted(path))
		}
	case req.ID != "":
		r, err = f.rollout(ctx, "", string(req.ID), "no saved chat matched id: "+quoted(string(req.ID)))
	default:
		err = jsonrpc.Errorf(jsonrpc.CodeInternal, "history.get requires one of: id, last, rollout_path")
	}
	if err != nil {
		return nil, err
	}
	said, err := f.history.messages(ctx, r.ID, true)
	if err != nil {
		return nil, err
	}
	told := r.summary()
	told["messages"] = said
	return told, nil
}

// rollout finds the one whose id is or begins with a text, in any case; "" = the latest. It is of a folder, or of
// any for "". none is the error where there is none, or more than one.
func (f *Front) rollout(ctx context.Context, folder, id, none string) (*rollout, error) {
	found, err := f.history.match(ctx, folder, id)
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0, len(found) > 1 && id != "" && !strings.EqualFold(found[0].ID, id):
		return nil, jsonrpc.Errorf(jsonrpc.CodeInternal, "%s", none)
	}
	return &found[0], nil
}

func historyClear(f *Front, ctx context.Context, _ *call, s *session, _ *named) (any, error) {
	f.mu.Lock()
	s.queue = nil
	if s.turn != nil {
		for _, st := range s.turn.steers {
			st.dropped = true
		}
	}
	f.mu.Unlock()
	return map[string]any{"session_id": s.ID, "cleared": true}, f.leave(ctx, s, "")
}

// leave has a session go on with another rollout; "" = with a new one. What was said so far
// stays in the history.
func (f *Front) leave(ctx context.Context, s *session, id string) error {
	return f.change(ctx, s, func(e *entry) { e.Rollout = id })
}

// shown is the message as sessions have it.
func (m *message) shown(id int64) map[string]any {
	told := map[string]any{"id": id, "kind": m.Role, "text": m.Text}
	if len(m.Images) > 0 {
		told["images"] = m.Images
	}
	if m.Truncated {
		told["truncated"] = true
	}
	return told
}

// The roles of messages.
const (
	roleUser      = "user"
	roleAssistant = "assistant"
	roleSystem    = "system"
)

// note keeps a message of a turn and tells of it, also that it is not kept.
func (f *Front) note(s *session, t *turn, m message) {
	if len(m.Text) > f.opts.MaxText {
		m.Text, m.Truncated = strings.ToValidUTF8(m.Text[:f.opts.MaxText], ""), true
	}
	f.mu.Lock()
	s.Updated = max(s.Updated, f.seconds())
	e := t.entry
	if e.Updated = s.Updated; s.Rollout != e.Rollout { // it was cleared meanwhile
		e = s.entry
	}
	f.lost--
	lost := f.lost
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), f.opts.StoreWait)
	defer cancel()
	number, err := f.history.add(ctx, e, t.entry.Rollout, t.id, m)
	told := map[string]any{"session_id": s.ID}
	if err != nil {
		f.logger().Warn().Err(err).Str("session_id", s.ID).Msg("a message is not kept in the history")
		number, told["kept"] = lost, false
	}
	told["message"] = m.shown(number)
	f.event(jsonrpc.MessageAppended, told)
}
