package jsonrpc

import (
	"cmp"
	"context"
	"strings"

	"a2e/protocol/jsonrpc"
)

type page struct {
	Limit  int `json:"limit"`
	Offset int `json:"offset"`
}

// The sizes of a page.
const (
	usualPage = 50
	maxPage   = 500
)

func (p *page) check() error {
	switch {
	case p.Limit < 0 || p.Limit > maxPage:
		return jsonrpc.Params("limit", "must be 1 to 500; absent or 0 is 50")
	case p.Offset < 0:
		return jsonrpc.Params("offset", "must not be negative")
	}
	p.Limit = cmp.Or(p.Limit, usualPage)
	return nil
}

// next is where the next page begins; nil = this is the last one.
func (p *page) next(got, total int) any {
	if got == 0 || p.Offset+got >= total {
		return nil
	}
	return p.Offset + got
}

func historyList(f *Front, ctx context.Context, _ *call, req *page) (any, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	entries, total, err := f.history.list(ctx, req.Limit, req.Offset)
	if err != nil {
		return nil, err
	}
	list := make([]map[string]any, 0, len(entries))
	for _, e := range entries {
		f.mu.Lock()
		var s session
		if there := f.sessions[e.ID]; there != nil {
			s = *there
		}
		s.entry = e // another host may have changed it
		d := s.describeLocked()
		f.mu.Unlock()
		d["message_count"] = e.Messages
		list = append(list, d)
	}
	return map[string]any{"sessions": list, "total": total, "next_offset": req.next(len(list), total)}, nil
}

type historyParams struct {
	named
	page
}

func historyGet(f *Front, ctx context.Context, _ *call, s *session, req *historyParams) (any, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	some, total, err := f.history.messages(ctx, s.ID, req.Limit, req.Offset)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return map[string]any{"session_id": s.ID, "title": s.Title, "messages": some, "total": total, "next_offset": req.next(len(some), total)}, nil
}

func historyClear(f *Front, ctx context.Context, c *call, s *session, _ *named) (any, error) {
	removed, err := f.history.clear(ctx, s.ID)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	busy := s.turn != nil // its images are in use
	f.mu.Unlock()
	if !busy {
		f.dropImages(s.ID)
	}
	c.then = func() { f.changed("history") }
	return map[string]any{"session_id": s.ID, "cleared": removed}, f.put(ctx, s, func(e *entry) {
		if !e.Titled {
			e.Title = "" // it was made of a text that is gone
		}
	})
}

// note puts a message into the history and tells of it, also that it is not kept there.
func (f *Front) note(s *session, m message) {
	if len(m.Text) > f.opts.MaxText {
		m.Text, m.Truncated = strings.ToValidUTF8(m.Text[:f.opts.MaxText], ""), true
	}
	m.At = stamp(f.opts.Now())
	now := f.seconds()
	f.mu.Lock()
	s.Updated = max(s.Updated, now)
	title := s.Title
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), f.opts.StoreWait)
	defer cancel()
	err := f.put(ctx, s, func(e *entry) {
		e.Title, e.Updated = cmp.Or(e.Title, title), max(e.Updated, now)
	})
	if err == nil {
		err = f.history.add(ctx, s.ID, m)
	}
	told := map[string]any{"session_id": s.ID, "message": m}
	if err != nil {
		f.logger().Warn().Err(err).Str("session_id", s.ID).Msg("a message is not kept in the history")
		told["kept"] = false
	}
	f.event(jsonrpc.MessageAppended, told)
}

// put keeps a session with a change, and takes the images away of those that go for it. What
// another host has changed in it counts here from now on.
func (f *Front) put(ctx context.Context, s *session, change func(*entry)) error {
	f.mu.Lock()
	e, changes := s.entry, s.changes
	f.mu.Unlock()
	kept, gone, err := f.history.put(ctx, e, change)
	if err == nil {
		f.mu.Lock()
		if s.changes == changes {
			s.Title, s.Titled, s.Model, s.Updated = kept.Title, kept.Titled, kept.Model, kept.Updated
		} else { // another change came in between; which of them is the later one is not known
			change(&s.entry)
		}
		s.changes++
		f.mu.Unlock()
	}
	for _, id := range gone {
		f.mu.Lock()
		s := f.sessions[id]
		busy := s != nil && s.turn != nil // its next message brings it back
		f.mu.Unlock()
		if !busy {
			f.dropImages(id)
		}
	}
	return err
}
