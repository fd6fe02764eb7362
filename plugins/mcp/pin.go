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
	whyChanged = "has changed since it was %s it"
	whyNew     = "is new since the tools of its server were %s it"
	whyNoStore = "cannot be held against what was approved: the store cannot be read"
)

// accepts says since when the pins of the server hold, and who puts new ones in their place.
func (s *server) accepts() string {
	if s.origin == byAgent {
		return "registered; to unregister the server and register it again accepts"
	}
	return fmt.Sprintf("approved; `a2e mcp approve %s` accepts", s.opts.ID)
}

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
		w := s.verdict(b, pins, err)
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

// verdict holds a tool against the pins of the server; nil = it is as approved.
func (s *server) verdict(b *boundTool, pins map[string]pinRow, failed error) *Withheld {
	w := &Withheld{Tool: b.name, Pinned: true, New: b.definition}
	row, there := pins[b.name]
	switch {
	case failed != nil:
		w.Reason = whyNoStore
	case !there:
		w.Reason = fmt.Sprintf(whyNew, s.accepts())
	case row.hash != b.hash:
		w.Reason, w.Old = fmt.Sprintf(whyChanged, s.accepts()), row.definition
	default:
		return nil
	}
	return w
}

// pins gives what a server's tools are held against, after its first tools went in. The
// store keeps those of the config; what an agent registers is pinned while it is there: an
// agent could fill the store with ever new ids, and the owner could not approve them.
func (s *server) pins(ctx context.Context, bound []*boundTool) (map[string]pinRow, error) {
	if s.origin == byAgent {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.firstPins) == 0 {
			s.firstPins = s.pinsOf(bound)
		}
		return s.firstPins, nil
	}
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
		rows = s.pinsOf(bound)
		for _, row := range rows {
			if err := row.put(tx); err != nil {
				return err
			}
		}
		return nil
	})
}

// pinsOf makes the pins of tools as they are now.
func (s *server) pinsOf(bound []*boundTool) map[string]pinRow {
	rows := make(map[string]pinRow, len(bound))
	for _, b := range bound {
		rows[b.name] = pinRow{server: s.opts.ID, tool: b.name, hash: b.hash, definition: b.definition, at: s.p.env.Now().UnixMicro()}
	}
	return rows
}

// awaitsApproval tells whether an approval would change what the agent may call.
func (s *server) awaitsApproval() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.origin == byConfig && slices.ContainsFunc(s.withheld, func(w Withheld) bool { return w.Pinned })
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
