package mcp

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/state/store"
	"a2e/plugins/mcp/link"
)

// The ends of the sentences that say why a tool is withheld.
const (
	whyChanged = "has changed since it was %s it"
	whyNew     = "is new since the tools of its server were %s it"
	whyNoStore = "cannot be compared with what was approved: the store cannot be read"
)

// accepts returns the part of a sentence that says since when the pins of the server hold, and how to
// replace them.
func (s *server) accepts() string {
	if s.origin == byAgent {
		return "registered; to unregister the server and register it again accepts"
	}
	return fmt.Sprintf("approved; `a2e mcp approve %s` accepts", s.opts.ID)
}

// judge withholds the tools that differ from their pins, or that have none although their server has pins.
// The first tools of a server without pins are accepted and pinned. held has all tools, the withheld ones
// with a reason in Denied.
func (s *server) judge(ctx context.Context, bound []*boundTool) (held []*boundTool, withheld []Withheld) {
	if !s.p.opts.Pin {
		return bound, nil
	}
	pins, err := s.pins(ctx, bound)
	if err != nil {
		s.p.env.Log.Error().Err(err).Str("mcp_server", s.opts.ID).Msg("what was approved of an MCP server cannot be " +
			"read: its tools are withheld")
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

// with returns a copy of the tool that is denied for a reason; "" = it is not denied.
func (b *boundTool) with(denied string) *boundTool {
	other := *b
	other.tool.Denied = denied
	return &other
}

// verdict compares a tool with the pins of the server and returns nil if it is as approved.
func (s *server) verdict(b *boundTool, pins map[string]*pin, failed error) *Withheld {
	w := &Withheld{Tool: b.name, Pinned: true, New: b.definition}
	row, there := pins[b.name]
	switch {
	case failed != nil:
		w.Reason = whyNoStore
	case !there:
		w.Reason = fmt.Sprintf(whyNew, s.accepts())
	case row.Hash != b.hash:
		w.Reason, w.Old = fmt.Sprintf(whyChanged, s.accepts()), row.Definition
	default:
		return nil
	}
	return w
}

// pins returns the pins of a server's tools. If it has none yet, they are made from bound. The pins of
// servers of the config are in the store. Those of an agent's server last as long as the server: an agent
// could fill the store with new ids, and the owner could not approve them.
func (s *server) pins(ctx context.Context, bound []*boundTool) (map[string]*pin, error) {
	if s.origin == byAgent {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.firstPins) == 0 {
			s.firstPins = s.pinsOf(bound)
		}
		return s.firstPins, nil
	}
	var rows map[string]*pin
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

// pinsOf makes pins from tools as they are now.
func (s *server) pinsOf(bound []*boundTool) map[string]*pin {
	rows := make(map[string]*pin, len(bound))
	for _, b := range bound {
		rows[b.name] = &pin{s.opts.ID, b.name, b.hash, store.Micros(s.p.env.Now().UnixMicro()), b.definition}
	}
	return rows
}

// awaitsApproval reports whether an approval would change what the agent may call.
func (s *server) awaitsApproval() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.origin == byConfig && slices.ContainsFunc(s.withheld, func(w Withheld) bool { return w.Pinned })
}

// repin compares the tools with the store again: another process may have approved some.
func (s *server) repin(ctx context.Context) {
	s.mu.Lock()
	bound := slices.Clone(s.tools)
	unfit := slices.DeleteFunc(slices.Clone(s.withheld), func(w Withheld) bool { return w.Pinned || w.collides })
	s.mu.Unlock()
	if s.offer(ctx, bound, unfit) {
		s.tellChanged(kindTools)
	}
}

// pin is one row of mcp_pins, and a record of an export.
type pin struct {
	Server     string         `json:"server"`
	Tool       string         `json:"tool"`
	Hash       string         `json:"hash"`
	ApprovedAt store.Micros   `json:"approved_at"`
	Definition jsontext.Value `json:"definition"`
}

// ServerIDs returns the ids of the servers of the config. It works also before Start.
func (p *Plugin) ServerIDs() []string {
	ids := []string{}
	for _, o := range p.configured {
		ids = append(ids, o.ID)
	}
	return ids
}

// Withheld waits until a server is connected and has sent its tools, or until ctx ends, and returns what
// the host does not offer, and why. It is for the person who decides, not for agents.
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

// Approve accepts the definitions of tools that Withheld returned: from now on tools are compared with
// these.
func (p *Plugin) Approve(ctx context.Context, id string, accepted []Withheld) error {
	if !p.opts.Pin {
		return fmt.Errorf("pin is not set in the options of the plugin %q: nothing is withheld for having changed",
			p.name)
	}
	return p.env.Store.Write(ctx, func(tx *store.Tx) error {
		for _, w := range accepted {
			if !w.Pinned || w.New == nil {
				return fmt.Errorf("the tool %q %s: no approval changes that", w.Tool, w.Reason)
			}
			sum := sha256.Sum256(w.New)
			row := pin{id, w.Tool, hex.EncodeToString(sum[:]), store.Micros(p.env.Now().UnixMicro()), w.New}
			if err := row.put(tx); err != nil {
				return err
			}
		}
		return nil
	})
}

//go:embed sql/*.sql
var tables embed.FS

// Part returns the plugin's part of a store: the tools of each server as they were approved.
func Part() store.Part {
	records := store.Kinds{store.RecordsOf("mcp.pin", selectPins+" ORDER BY server, tool", (*pin).columns, (*pin).take)}
	return store.Part{
		Name: "mcp", SQL: tables,
		Export: records.Export, Import: records.Import, Clear: store.ClearTables("mcp_pins"),
	}
}

// selectPins begins each query for pins.
const selectPins = "SELECT server, tool, hash, approved_at, definition FROM mcp_pins"

func (r *pin) columns() []any {
	return []any{&r.Server, &r.Tool, &r.Hash, &r.ApprovedAt, (*[]byte)(&r.Definition)}
}

// readPins returns the pins of a server by tool.
func readPins(tx *store.Tx, server string) (map[string]*pin, error) {
	found, err := store.Rows(tx, selectPins+" WHERE server = $1", []any{server}, (*pin).columns)
	rows := make(map[string]*pin, len(found))
	for _, row := range found {
		rows[row.Tool] = row
	}
	return rows, err
}

// put writes the pin and replaces one of the same server and tool.
func (r *pin) put(tx *store.Tx) error {
	_, err := tx.Exec(`INSERT INTO mcp_pins (server, tool, hash, approved_at, definition) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (server, tool) DO UPDATE SET hash = excluded.hash, approved_at = excluded.approved_at,
		definition = excluded.definition`,
		r.Server, r.Tool, r.Hash, r.ApprovedAt, string(r.Definition))
	return err
}

// take checks a record of an import and puts it into the store.
func (r *pin) take(tx *store.Tx) error {
	if err := link.ValidateID(r.Server); err != nil {
		return err
	}
	if err := r.Definition.Canonicalize(); err != nil {
		return fmt.Errorf("the definition is not JSON: %w", err)
	}
	switch sum := sha256.Sum256(r.Definition); {
	case r.Tool == "" || len(r.Tool) > maxToolName || len(r.Definition) > maxDefinition:
		return fmt.Errorf("the tool has no name, or one of more than %d bytes, or a definition of more than %d",
			maxToolName, maxDefinition)
	case r.Hash != hex.EncodeToString(sum[:]):
		return fmt.Errorf("the hash of the tool %.64q is not that of its definition", r.Tool)
	}
	return r.put(tx)
}
