package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/store"
	"a2e/plugins/mcp/link"
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

// with returns the tool as it is offered when it is denied for a reason, or for none.
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

// pins returns what a server's tools are held against, after its first tools went in. The
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

// awaitsApproval reports whether an approval would change what the agent may call.
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

// ServerIDs names the servers of the config, also before Start.
func (p *Plugin) ServerIDs() []string {
	ids := []string{}
	for _, o := range p.configured {
		ids = append(ids, o.ID)
	}
	return ids
}

// Withheld connects to a server and tells which of its tools the host does not offer, and
// why. It waits for a first connection until ctx ends. It is for the person who decides,
// not for agents.
func (p *Plugin) Withheld(ctx context.Context, id string) ([]Withheld, error) {
	p.mu.Lock()
	s := p.servers[id]
	p.mu.Unlock()
	if s == nil {
		return nil, fmt.Errorf("no MCP server is called %q; there are: %s", id, strings.Join(p.ids(), ", "))
	}
	if s.link == nil {
		return nil, fmt.Errorf("the MCP server %q is disabled in the config", id)
	}
	if _, err := s.link.Session(ctx); err != nil {
		return nil, err
	}
	select {
	case <-s.judged.c:
	case <-ctx.Done():
		return nil, fmt.Errorf("the MCP server %q did not list its tools in time: %w", id, context.Cause(ctx))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.withheld), nil
}

// Approve accepts the definitions of tools of a server as Withheld gave them: from now on
// these are what later ones are held against.
func (p *Plugin) Approve(ctx context.Context, id string, accepted []Withheld) error {
	if !p.opts.Pin {
		return fmt.Errorf("pin is not set in the options of the plugin %q: nothing is withheld for having changed", p.name)
	}
	return p.env.Store.Write(ctx, func(tx *store.Tx) error {
		for _, w := range accepted {
			if !w.Pinned || w.New == nil {
				return fmt.Errorf("the tool %q %s: no approval changes that", w.Tool, w.Reason)
			}
			sum := sha256.Sum256(w.New)
			row := pinRow{server: id, tool: w.Tool, hash: hex.EncodeToString(sum[:]), definition: w.New, at: p.env.Now().UnixMicro()}
			if err := row.put(tx); err != nil {
				return err
			}
		}
		return nil
	})
}

// kindPin is the kind of the records in an export.
const kindPin = "mcp.pin"

// Part is what the plugin keeps in a store: the tools of each server as they were
// approved.
func Part() store.Part {
	return store.Part{
		Name: "mcp",
		Migrations: []string{`
CREATE TABLE mcp_pins (
	server      TEXT NOT NULL,
	tool        TEXT NOT NULL,
	hash        TEXT NOT NULL, -- SHA-256 of the definition, in hex
	approved_at INTEGER NOT NULL, -- microseconds since 1970
	definition  TEXT NOT NULL, -- canonical JSON
	PRIMARY KEY (server, tool)
) WITHOUT ROWID;`},
		Export: exportPins, Import: importPin,
		Clear: func(_ context.Context, tx *store.Tx) error {
			_, err := tx.Exec("DELETE FROM mcp_pins")
			return err
		},
	}
}

// pinRecord is a pin in an export.
type pinRecord struct {
	Server     string         `json:"server"`
	Tool       string         `json:"tool"`
	Hash       string         `json:"hash"`
	ApprovedAt float64        `json:"approved_at"` // seconds since 1970
	Definition jsontext.Value `json:"definition"`
}

// selectPins begins each query for pins, which scanPin reads.
const selectPins = "SELECT server, tool, hash, approved_at, definition FROM mcp_pins"

func scanPin(scan func(...any) error) (row pinRow, err error) {
	var definition string
	err = scan(&row.server, &row.tool, &row.hash, &row.at, &definition)
	row.definition = jsontext.Value(definition)
	return row, err
}

// readPins returns the pins of a server by tool.
func readPins(tx *store.Tx, server string) (map[string]pinRow, error) {
	rows := make(map[string]pinRow)
	err := tx.Each(selectPins+" WHERE server = ?", []any{server}, func(scan func(...any) error) error {
		row, err := scanPin(scan)
		rows[row.tool] = row
		return err
	})
	return rows, err
}

// put writes the pin in place of one that is there.
func (r *pinRow) put(tx *store.Tx) error {
	_, err := tx.Exec(`INSERT INTO mcp_pins (server, tool, hash, approved_at, definition) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (server, tool) DO UPDATE SET hash = excluded.hash, approved_at = excluded.approved_at, definition = excluded.definition`,
		r.server, r.tool, r.hash, r.at, string(r.definition))
	return err
}

func exportPins(_ context.Context, tx *store.Tx, emit func(string, any) error) error {
	return tx.Each(selectPins+" ORDER BY server, tool", nil, func(scan func(...any) error) error {
		row, err := scanPin(scan)
		if err != nil {
			return err
		}
		return emit(kindPin, pinRecord{row.server, row.tool, row.hash, float64(row.at) / 1e6, row.definition})
	})
}

// importPin takes a record that this build could have written, and no other.
func importPin(_ context.Context, tx *store.Tx, kind string, raw jsontext.Value) error {
	if kind != kindPin {
		return fmt.Errorf("there is no such record; there is %s", kindPin)
	}
	var r pinRecord
	if err := json.Unmarshal(raw, &r, json.RejectUnknownMembers(true)); err != nil {
		return err
	}
	if err := link.ValidateID(r.Server); err != nil {
		return err
	}
	definition := r.Definition.Clone()
	if err := definition.Canonicalize(); err != nil {
		return fmt.Errorf("the definition is no JSON: %w", err)
	}
	const year10000 = 253402300800
	switch sum := sha256.Sum256(definition); {
	case r.Tool == "" || len(r.Tool) > maxToolName || len(definition) > maxDefinition:
		return fmt.Errorf("the tool has no name, or one of more than %d bytes, or a definition of more than %d", maxToolName, maxDefinition)
	case r.Hash != hex.EncodeToString(sum[:]):
		return fmt.Errorf("the hash of the tool %.64q is not that of its definition", r.Tool)
	case !(r.ApprovedAt >= 0 && r.ApprovedAt < year10000):
		return fmt.Errorf("approved_at is %g; should be seconds since 1970", r.ApprovedAt)
	}
	row := pinRow{server: r.Server, tool: r.Tool, hash: r.Hash, definition: definition, at: int64(math.Round(r.ApprovedAt * 1e6))}
	return row.put(tx)
}
