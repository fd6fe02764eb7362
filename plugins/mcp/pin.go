package mcp

import (
	"context"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/store"
)

// The ends of the sentences that say why a tool is withheld.
const (
	whyChanged = "has changed since it was approved; `a2e mcp approve %s` accepts it"
	whyNew     = "is new since the tools of its server were approved; `a2e mcp approve %s` accepts it"
	whyNoStore = "cannot be held against what was approved: the store cannot be read"
)

// judge withholds the tools that are not as they were first seen, or approved. Those of a
// server that has none in the store yet are taken as they are.
func (s *server) judge(ctx context.Context, bound []*boundTool) (held []*boundTool, withheld []Withheld) {
	if !s.p.opts.Pin {
		return bound, nil
	}
	pins, err := s.pins(ctx, bound)
	if err != nil {
		s.p.env.Log.Error().Err(err).Str("mcp_server", s.opts.ID).Msg("what was approved of an MCP server cannot be read: its tools are withheld")
	}
	for _, b := range bound {
		w := verdict(s.opts.ID, b, pins, err)
		if w == nil {
			held = append(held, b.with(s.denial(b.name)))
			continue
		}
		withheld = append(withheld, *w)
		held = append(held, b.with(w.Reason))
	}
	return held, withheld
}

// with gives the tool as it is offered when it is denied for a reason, or for none.
func (b *boundTool) with(denied string) *boundTool {
	other := *b
	other.tool.Denied = denied
	return &other
}

// verdict holds a tool against what is in the store; nil = it is as approved.
func verdict(id string, b *boundTool, pins map[string]pinRow, failed error) *Withheld {
	w := &Withheld{Tool: b.name, Pinned: true, New: b.definition}
	row, there := pins[b.name]
	switch {
	case failed != nil:
		w.Reason = whyNoStore
	case !there:
		w.Reason = fmt.Sprintf(whyNew, id)
	case row.hash != b.hash:
		w.Reason, w.Old = fmt.Sprintf(whyChanged, id), row.definition
	default:
		return nil
	}
	return w
}

// pins gives what the store has of a server, after the first tools of one went in.
func (s *server) pins(ctx context.Context, bound []*boundTool) (map[string]pinRow, error) {
	var rows map[string]pinRow
	read := func(tx *store.Tx) (err error) {
		rows, err = readPins(tx, s.opts.ID)
		return err
	}
	if err := s.p.env.Store.Read(ctx, read); err != nil || len(rows) > 0 || len(bound) == 0 {
		return rows, err
	}
	return rows, s.p.env.Store.Write(ctx, func(tx *store.Tx) error {
		if err := read(tx); err != nil || len(rows) > 0 { // another host may have been faster
			return err
		}
		for _, b := range bound {
			row := pinRow{server: s.opts.ID, tool: b.name, hash: b.hash, definition: b.definition, at: s.p.env.Now().UnixMicro()}
			if err := row.put(tx); err != nil {
				return err
			}
			rows[b.name] = row
		}
		return nil
	})
}

// awaitsApproval tells whether an approval would change what the agent may call.
func (s *server) awaitsApproval() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.withheld, func(w Withheld) bool { return w.Pinned })
}

// repin holds the tools against the store once more: another process may have approved.
func (s *server) repin(ctx context.Context) {
	s.mu.Lock()
	bound := slices.Clone(s.tools)
	unfit := slices.DeleteFunc(slices.Clone(s.withheld), func(w Withheld) bool { return w.Pinned || w.collides })
	s.mu.Unlock()
	if s.offer(ctx, bound, unfit) {
		s.tellChanged(kindTools)
	}
}

// pinRow is one row of mcp_pins.
type pinRow struct {
	server, tool, hash string
	definition         jsontext.Value
	at                 int64 // microseconds since 1970
}
