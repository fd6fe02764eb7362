package jsonrpc

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/host/guard/wall"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// session is a session in memory. Its fields are guarded by Front.mu, except the id, which does not change.
type session struct {
	entry
	turn  *turn                  // the turn under way, or about to begin; nil = the session is idle
	last  <-chan struct{}        // closed when the client knows all of the turn before; nil = there was none
	queue []*turn                // the turns that come after it
	label string                 // the status label sent last; "" = ready
	in    *dialect.PluginSession // nil = not begun

	estimate   *estimate  // of the last turn; nil = there was none in this host
	compacting sync.Mutex // held while the conversation is measured or summarised; not guarded by Front.mu
}

// The status labels of a session.
const (
	labelReady        = "ready"
	labelThinking     = "thinking..."
	labelDrafting     = "drafting response..."
	labelSteered      = "steer applied; continuing..."
	LabelRetrying     = "retrying..." // a model is asked again; the answer so far is void
	labelInterrupting = "interrupting..."
)

// titleOf makes a title from a text: one line of at most maxTitle characters.
func titleOf(s string) string {
	runes := []rune(strings.Join(strings.Fields(s), " "))
	return string(runes[:min(len(runes), maxTitle)])
}

func (f *Front) seconds() float64 { return float64(f.opts.Now().UnixMicro()) / 1e6 }

func stampSeconds(s float64) string { return stamp(time.UnixMicro(int64(s * 1e6))) }

// get returns the session of a request. It reads the store each time, because another host may have changed the
// session, and adds a session that is not in memory.
func (f *Front) get(ctx context.Context, id string) (*session, error) {
	e, found, err := f.history.find(ctx, id)
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sessions[id]
	switch {
	case s != nil: // even if the store cannot be read
		if found && s.turn == nil && e.Updated >= s.Updated {
			s.Title, s.Model, s.Rollout, s.Updated = e.Title, e.Model, e.Rollout, e.Updated
		}
	case err != nil:
		return nil, err
	case !found:
		return nil, jsonrpc.Params("session_id", "unknown session "+quoted(id)+"; session.create makes one, history."+
			"list lists what was said in earlier ones").With("code", "unknown_session")
	case len(f.sessions) >= maxSessions && !f.forgetLocked():
		return nil, protocol.Errorf(protocol.CodeOverloaded,
			"all of the %d sessions that there may be at once are busy", maxSessions)
	default:
		s = &session{entry: e}
		f.sessions[id] = s
	}
	return s, nil
}

// forgetLocked removes the idle session from memory that was not used for the longest time; false = all are busy.
func (f *Front) forgetLocked() bool {
	used := make(map[string]bool)
	for c := range f.open {
		used[c.session] = true
	}
	var oldest *session
	for id, s := range f.sessions {
		if !used[id] && s.turn == nil && (oldest == nil || s.Updated < oldest.Updated) {
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

// closeSessions ends the sessions of the host's plugins.
func (f *Front) closeSessions() {
	f.mu.Lock()
	var open []*dialect.PluginSession
	for _, s := range append(slices.Collect(maps.Values(f.sessions)), &f.none) {
		if s.in != nil {
			open = append(open, s.in)
		}
	}
	f.mu.Unlock()
	for _, in := range open {
		in.End()
	}
}

// enter returns the context of a session for requests to the host's plugins. It waits for plugins that do not know yet
// what they serve; inside does not wait.
func (f *Front) enter(s *session) context.Context {
	f.awaitPlugins()
	return f.inside(s)
}

func (f *Front) inside(s *session) context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.in == nil {
		ctx, _, end := host.BeginSession(f.working, cmp.Or(f.agent, f.client, nameless), f.asker(s.ID))
		s.in = &dialect.PluginSession{Ctx: ctx, End: end}
	}
	return s.in.Ctx
}

// awaitPlugins waits, once, for plugins that do not know yet what they serve.
func (f *Front) awaitPlugins() { f.ready.Do(func() { dialect.AwaitPlugins(f.working) }) }

func sessionCreate(f *Front, ctx context.Context, c *call, req *struct {
	Title text `json:"title"`
	Model text `json:"model"` // the worker of this session only
},
) (any, error) {
	now := f.seconds()
	e := entry{
		ID: uuid.NewString(), Title: titleOf(string(req.Title)), Created: now, Updated: now,
		Agent: value(f.history.only.Load()),
	}
	if req.Model != "" {
		workers := with(f.workers(), req.Model)
		if len(workers) == 0 {
			return nil, c.wrong("model", "names no worker and no model of one; model.list shows them")
		}
		e.Model = workers[0].Name
	}
	if err := f.history.put(ctx, e); err != nil {
		return nil, err
	}
	s, err := f.get(ctx, e.ID)
	if err != nil {
		return nil, err
	}
	state, err := f.stateOf(ctx, s)
	c.reason, c.created = "session_created", s.ID
	return map[string]any{"session_id": s.ID, "state": state}, err
}

func sessionGet(f *Front, ctx context.Context, c *call) (any, error) { return f.stateOf(ctx, c.on) }

// stateOf returns the SessionState of a session.
func (f *Front) stateOf(ctx context.Context, s *session) (any, error) {
	f.mu.Lock()
	rollout := s.Rollout
	f.mu.Unlock()
	kept, err := f.history.messages(ctx, rollout, false)
	if err != nil {
		return nil, err
	}
	said := slices.DeleteFunc(slices.Clone(kept), func(m *message) bool { return !m.said })
	e, err := f.estimateOf(ctx, s, rollout, said)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	state := map[string]any{
		"id": s.ID, "createdAt": stampSeconds(s.Created), "updatedAt": stampSeconds(s.Updated),
		"pending": s.turn != nil, "statusLabel": cmp.Or(s.label, labelReady), "messages": each(kept, (*message).shown),
		"history": said, "queue": s.queuedLocked(), "pendingSteerCount": 0, "conversationProvider": nil,
		"activeSessionId": nil, "title": s.Title, "worker": s.Model,
		"contextTokenEstimate": e.Total(), "contextTokenSource": e.source, "contextTokenProvider": e.providerName(),
		"contextTokenBreakdown": e.breakdown(),
	}
	if s.turn != nil {
		state["pendingSteerCount"] = len(s.turn.steers)
	}
	if len(said) > 0 {
		state["conversationProvider"], state["activeSessionId"] = said[0].provider, rollout
	}
	return state, nil
}

// tell sends what a session does from now on. turn is the id of a turn that sends its first status, or "".
func (f *Front) tell(s *session, label, turn string) {
	f.mu.Lock()
	s.label = label
	told := map[string]any{"session_id": s.ID, "pending": label != labelReady, "status_label": label}
	f.mu.Unlock()
	f.event(jsonrpc.SessionStatus, add(told, "turn_id", turn))
}

// summary returns what the client sees of a rollout.
func (r *rollout) summary() map[string]any {
	told := map[string]any{
		"id": r.ID, "title": r.Title, "provider": r.Provider, "model": r.Model, "thinkingLevel": r.Thinking,
		"createdAt": stampSeconds(r.Created), "updatedAt": stampSeconds(r.Updated), "messageCount": r.Messages,
		"rolloutPath": rolloutScheme + r.ID,
	}
	return add(told, "folder", r.Folder)
}

type pageParams struct {
	Limit  float64 `json:"limit"`
	Cursor float64 `json:"cursor"`
	Folder text    `json:"folder"` // only rollouts that began there, relative to the workspace; "" = all
}

func historyList(f *Front, ctx context.Context, _ *call, req *pageParams) (any, error) {
	limit, cursor := usualPage, int(min(max(req.Cursor, 0), 1<<31))
	if req.Limit != 0 {
		limit = int(min(max(req.Limit, 1), 1<<31))
	}
	folder := wall.CanonicalIn(f.opts.Workspace, string(req.Folder))
	total, err := f.history.count(ctx, folder)
	if err != nil {
		return nil, err
	}
	page, err := f.history.list(ctx, folder, limit, cursor)
	if err != nil {
		return nil, err
	}
	told := map[string]any{
		"total": total, "cursor": cursor, "limit": limit, "next_cursor": nil,
		"sessions": each(page, (*rollout).summary),
	}
	if next := cursor + len(page); len(page) > 0 && next < total {
		told["next_cursor"] = next
	}
	return told, nil
}

func historyGet(f *Front, ctx context.Context, _ *call, req *struct {
	Last bool `json:"last"`
	Path text `json:"rollout_path"`
	ID   text `json:"id"`
},
) (any, error) {
	id, none := string(req.ID), "no saved chat matched id: "+quoted(req.ID)
	switch {
	case req.Last:
		id, none = "", "no saved chat history yet"
	case req.Path != "":
		id, none = strings.TrimPrefix(string(req.Path), rolloutScheme), "failed to load chat: "+quoted(req.Path)
	case id == "":
		return nil, jsonrpc.Errorf(jsonrpc.CodeInternal, "history.get requires one of: id, last, rollout_path")
	}
	r, err := f.history.rollout(ctx, "", id, none)
	if err == nil && !req.Last && req.Path != "" && rolloutScheme+r.ID != string(req.Path) {
		err = jsonrpc.Errorf(jsonrpc.CodeInternal, "%s", none)
	}
	if err != nil {
		return nil, err
	}
	told := r.summary()
	told["messages"], err = f.history.messages(ctx, r.ID, true)
	return told, err
}

func historyClear(f *Front, ctx context.Context, c *call) (any, error) {
	f.mu.Lock()
	c.on.queue = nil
	if t := c.on.turn; t != nil {
		for _, st := range t.steers {
			st.dropped = true
		}
	}
	f.mu.Unlock()
	return map[string]any{"session_id": c.session, "cleared": true}, f.leave(ctx, c.on, "")
}

// leave makes a session continue with another rollout; "" = with a new one. The earlier messages stay in the history.
func (f *Front) leave(ctx context.Context, s *session, id string) error {
	f.mu.Lock()
	was := s.Rollout
	s.Rollout, s.Updated = id, max(s.Updated, f.seconds())
	e := s.entry
	f.mu.Unlock()
	err := f.history.put(ctx, e)
	if err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		s.Rollout = was
	}
	return err
}

// shown returns the message as the client sees it in a session.
func (m *message) shown() map[string]any {
	told := map[string]any{"id": m.number, "kind": m.Role, "text": m.Text}
	if len(m.Images) > 0 {
		told["images"] = m.Images
	}
	return add(told, "truncated", m.Truncated)
}

// The roles of messages.
const (
	roleUser      = "user"
	roleAssistant = "assistant"
	roleSystem    = "system"
)

// note stores a message of a turn and sends it to the client. If the store does not take it, the event says so.
func (f *Front) note(t *turn, m message) {
	if len(m.Text) > f.opts.MaxText {
		m.Text, m.Truncated = protocol.Head(m.Text, f.opts.MaxText), true
	}
	f.mu.Lock()
	s := t.session
	s.Updated = max(s.Updated, f.seconds())
	e := s.entry
	f.mu.Unlock()
	var err error
	told := map[string]any{"session_id": e.ID}
	if m.number, err = f.history.add(context.WithoutCancel(f.ctx), e, t.rollout, t.ID, m); err != nil {
		f.opts.Log.Warn().Err(err).Str("session_id", e.ID).Msg("a message is not kept in the history")
		m.number, told["kept"] = f.lost.Add(-1), false
	}
	told["message"] = m.shown()
	f.event(jsonrpc.MessageAppended, told)
}
