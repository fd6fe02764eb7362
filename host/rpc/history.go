package rpc

import (
	"cmp"
	"context"

	"a2e/protocol/jsonrpc"
)

// page is the parameters of a list.
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

func historyList(f *Front, ctx context.Context, c *call) (any, error) {
	var req page
	if err := c.decode(&req); err != nil {
		return nil, err
	}
	if err := req.check(); err != nil {
		return nil, err
	}
	entries, total, err := f.book.list(ctx, req.Limit, req.Offset)
	if err != nil {
		return nil, err
	}
	list := make([]map[string]any, 0, len(entries))
	for _, e := range entries {
		d := (&session{entry: e}).describeLocked()
		f.mu.Lock()
		if s := f.sessions[e.ID]; s != nil {
			d = s.describeLocked()
		}
		f.mu.Unlock()
		d["message_count"] = e.Messages
		list = append(list, d)
	}
	return map[string]any{"sessions": list, "total": total, "next_offset": req.next(len(list), total)}, nil
}

func historyGet(f *Front, ctx context.Context, c *call) (any, error) {
	var req struct {
		named
		page
	}
	if err := c.decode(&req, "session_id"); err != nil {
		return nil, err
	}
	if err := req.check(); err != nil {
		return nil, err
	}
	s, err := f.get(ctx, req.SessionID)
	if err != nil {
		return nil, err
	}
	defer f.unpin(s)
	some, total, err := f.book.messages(ctx, s.ID, req.Limit, req.Offset)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return map[string]any{"session_id": s.ID, "title": s.Title, "messages": some, "total": total, "next_offset": req.next(len(some), total)}, nil
}

func historyClear(f *Front, ctx context.Context, c *call) (any, error) {
	var req named
	if err := c.decode(&req, "session_id"); err != nil {
		return nil, err
	}
	s, err := f.get(ctx, req.SessionID)
	if err != nil {
		return nil, err
	}
	defer f.unpin(s)
	removed, err := f.book.clear(ctx, s.ID)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	if !s.Titled {
		s.Title = "" // it was made of a text that is gone
	}
	e, busy := s.entry, s.turn != nil // the images of a busy session are in use
	f.mu.Unlock()
	if !busy {
		f.dropImages(s.ID)
	}
	c.then = func() { f.changed("history") }
	return map[string]any{"session_id": s.ID, "cleared": removed}, f.put(ctx, e)
}
