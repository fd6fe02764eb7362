package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/store"
	"a2e/plugins/mcp/link"
)

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
			_, _, err := tx.Exec("DELETE FROM mcp_pins")
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

// readPins gives the pins of a server by tool.
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
	_, _, err := tx.Exec(`INSERT INTO mcp_pins (server, tool, hash, approved_at, definition) VALUES (?, ?, ?, ?, ?)
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
