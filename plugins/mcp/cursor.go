package mcp

import (
	"encoding/base64"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/protocol"
)

// The bounds of one page.
const (
	pageEntries = 500
	pageBytes   = 256 << 10
)

// cursor is where a list over all servers goes on: after an entry of one server. It stays
// right when that entry, or the server, goes away. Each plugin has its own; those of
// several stand side by side in what the agent gets.
type cursor struct {
	Plugin string `json:"p"`
	List   string `json:"l"`           // resources or prompts
	Filter string `json:"f,omitempty"` // the server that the request named
	Server string `json:"s"`
	Agents bool   `json:"a,omitempty"` // the server is one that the agent registered
	At     int    `json:"n"`           // place of the entry
	Key    string `json:"k"`           // and its name
}

// between parts the cursors of several plugins.
const between = "."

func (c *cursor) String() string {
	raw, _ := json.Marshal(c) // has nothing that does not encode
	return base64.RawURLEncoding.EncodeToString(raw)
}

// joinCursors puts the cursors of several plugins together.
func joinCursors(a, b string) string { return strings.Trim(a+between+b, between) }

// readCursor reads where to go on; nil = at the start. over = this plugin has nothing more.
func (p *Plugin) readCursor(text, list, filter string) (c *cursor, over bool, err error) {
	if text == "" {
		return nil, false, nil
	}
	bad := protocol.Violation(protocol.FieldError{Path: "/cursor", Message: "is none that this list gave; should be the next_cursor of the page before, with the same server_id"})
	over = true
	for part := range strings.SplitSeq(text, between) {
		raw, err := base64.RawURLEncoding.DecodeString(part)
		one := new(cursor)
		if err != nil || json.Unmarshal(raw, one, json.RejectUnknownMembers(true)) != nil || one.List != list || one.Filter != filter || one.Server == "" || one.At < 0 {
			return nil, false, bad
		}
		if one.Plugin == p.name {
			c, over = one, false
		}
	}
	return c, over, nil
}

// entry is one row of a list: its name, which a cursor remembers, and what is answered.
type entry struct {
	key string
	row map[string]any
}

// page gives the entries from a cursor on, and the cursor of the next page. entries gives
// those of one server, in its order.
func (p *Plugin) page(servers []*server, from *cursor, list, filter string, entries func(*server) []entry) (rows []map[string]any, next string, err error) {
	rows = []map[string]any{}
	size := 0
	for n, s := range servers {
		if from != nil && from.before(s) {
			continue
		}
		all := entries(s)
		for i := from.start(s, all); i < len(all); i++ {
			raw, err := json.Marshal(all[i].row)
			if err != nil {
				return nil, "", protocol.Errorf(protocol.CodeMCPProtocolError, "an entry of the MCP server %q cannot be encoded: %w", s.opts.ID, err)
			}
			rows = append(rows, all[i].row)
			size += len(raw)
			if last := n == len(servers)-1 && i == len(all)-1; !last && (len(rows) == pageEntries || size > pageBytes) {
				return rows, (&cursor{Plugin: p.name, List: list, Filter: filter, Server: s.opts.ID, Agents: s.origin == byAgent, At: i, Key: all[i].key}).String(), nil
			}
		}
	}
	return rows, "", nil
}

// before tells whether a server's entries were all on earlier pages.
func (c *cursor) before(s *server) bool {
	if agents := s.origin == byAgent; agents != c.Agents {
		return c.Agents
	}
	return s.opts.ID < c.Server
}

// start gives the first entry of a server that belongs to the page.
func (c *cursor) start(s *server, all []entry) int {
	if c == nil || c.Server != s.opts.ID {
		return 0
	}
	if c.At < len(all) && all[c.At].key == c.Key {
		return c.At + 1
	}
	for i, e := range all {
		if e.key == c.Key {
			return i + 1
		}
	}
	return min(c.At, len(all))
}
