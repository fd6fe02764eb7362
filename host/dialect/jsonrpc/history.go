package jsonrpc

import (
	"context"
	"strings"

	"a2e/protocol/jsonrpc"
)

// rolloutScheme stands before the id of a rollout in its path: it is no file.
const rolloutScheme = "a2e:"

// summary makes what the client is told of a rollout.
func (r *rollout) summary() map[string]any {
	return map[string]any{
		"id": r.ID, "title": r.Title, "provider": r.Provider, "model": r.Model, "thinkingLevel": r.Thinking,
		"createdAt": stampSeconds(r.Created), "updatedAt": stampSeconds(r.Updated), "messageCount": r.Messages, "rolloutPath": rolloutScheme + r.ID,
	}
}

// usualPage is how many rollouts a page has where the client does not say.
const usualPage = 100

type pageParams struct {
	Limit  float64 `json:"limit"`
	Cursor float64 `json:"cursor"`
}

func historyList(f *Front, ctx context.Context, _ *call, req *pageParams) (any, error) {
	limit, cursor := usualPage, int(min(max(req.Cursor, 0), 1<<31))
	if req.Limit != 0 {
		limit = int(min(max(req.Limit, 1), 1<<31))
	}
	page, total, err := f.history.list(ctx, limit, cursor)
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
		r, err = f.rollout(ctx, "", "no saved chat history yet")
	case path != "":
		id, ok := strings.CutPrefix(path, rolloutScheme)
		if r, err = f.rollout(ctx, id, "failed to load chat: "+quoted(path)); err == nil && (!ok || r.ID != id) {
			err = jsonrpc.Errorf(jsonrpc.CodeInternal, "failed to load chat: %s", quoted(path))
		}
	case req.ID != "":
		r, err = f.rollout(ctx, string(req.ID), "no saved chat matched id: "+quoted(string(req.ID)))
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

// rollout finds the one whose id is or begins with a text, in any case; "" = the latest. none is
// the error where there is none, or more than one.
func (f *Front) rollout(ctx context.Context, id, none string) (*rollout, error) {
	found, err := f.history.match(ctx, id)
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
	number, err := f.history.add(ctx, e, t.entry.Rollout, t.id, &m)
	told := map[string]any{"session_id": s.ID}
	if err != nil {
		f.logger().Warn().Err(err).Str("session_id", s.ID).Msg("a message is not kept in the history")
		number, told["kept"] = lost, false
	}
	told["message"] = m.shown(number)
	f.event(jsonrpc.MessageAppended, told)
}
