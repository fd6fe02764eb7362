package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// exportVersion is the version of what Export writes.
const exportVersion = 1

// header is the first line of an export.
type header struct {
	Version int      `json:"a2e_state"`
	Parts   []string `json:"parts"`
}

// line is each other line.
type line struct {
	Kind   string         `json:"kind"` // the part's name, a dot, what it is
	Record jsontext.Value `json:"record"`
}

// Export implements Store.
func (s *SQLite) Export(ctx context.Context, w io.Writer, names ...string) error {
	parts, err := s.partsNamed(names)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	head := header{Version: exportVersion, Parts: []string{}}
	for _, p := range parts {
		head.Parts = append(head.Parts, p.Name)
	}
	if err := writeLine(out, head); err != nil {
		return err
	}
	err = s.Read(ctx, func(tx *Tx) error {
		for _, p := range parts {
			if err := p.Export(ctx, tx, func(kind string, record any) error {
				raw, err := json.Marshal(record, json.Deterministic(true))
				if err != nil {
					return err
				}
				return writeLine(out, line{kind, raw})
			}); err != nil {
				return fmt.Errorf("export of %s: %w", p.Name, err)
			}
		}
		return nil
	})
	return errors.Join(err, out.Flush())
}

func writeLine(w *bufio.Writer, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(raw, '\n'))
	return err
}

// partsNamed gives the parts of these names, in the store's order; all for none.
func (s *SQLite) partsNamed(names []string) ([]Part, error) {
	if len(names) == 0 {
		return s.parts, nil
	}
	var parts []Part
	for _, p := range s.parts {
		if slices.Contains(names, p.Name) {
			parts = append(parts, p)
		}
	}
	if len(parts) < len(names) {
		return nil, fmt.Errorf("the store has no part of one of these names: %s; it has: %s", strings.Join(names, ", "), strings.Join(s.PartNames(), ", "))
	}
	return parts, nil
}

// PartNames names what the store is for, in order.
func (s *SQLite) PartNames() []string {
	names := make([]string, len(s.parts))
	for i, p := range s.parts {
		names[i] = p.Name
	}
	return names
}

// Import implements Store.
func (s *SQLite) Import(ctx context.Context, r io.Reader, how How) (Counts, error) {
	counts := Counts{}
	err := s.Write(ctx, func(tx *Tx) error {
		in := importer{tx: tx, counts: counts, lines: bufio.NewReader(r)}
		parts, err := in.header(s)
		if err != nil {
			return err
		}
		if how == Replace {
			for _, p := range parts {
				if err := p.Clear(ctx, tx); err != nil {
					return err
				}
			}
		}
		return in.records(ctx, parts)
	})
	if err != nil {
		return Counts{}, err
	}
	return counts, nil
}

// importer reads an export.
type importer struct {
	tx     *Tx
	counts Counts
	lines  *bufio.Reader
	number int // of the line read last
}

// next reads a line into v; false means that there is none.
func (in *importer) next(v any) (bool, error) {
	for {
		text, err := in.lines.ReadBytes('\n')
		in.number++
		if err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		if len(strings.TrimSpace(string(text))) > 0 {
			if err := json.Unmarshal(text, v, json.RejectUnknownMembers(true)); err != nil {
				return false, fmt.Errorf("line %d is not of an export: %w", in.number, err)
			}
			return true, nil
		}
		if err != nil {
			return false, nil
		}
	}
}

func (in *importer) header(s *SQLite) ([]Part, error) {
	var head header
	there, err := in.next(&head)
	switch {
	case err != nil:
		return nil, err
	case !there || head.Version == 0:
		return nil, errors.New(`this is no export: its first line should be {"a2e_state":1,…}`)
	case head.Version > exportVersion:
		return nil, fmt.Errorf("this is an export of version %d, made by a newer a2e; this one knows %d", head.Version, exportVersion)
	case len(head.Parts) == 0:
		return nil, nil
	}
	return s.partsNamed(head.Parts)
}

func (in *importer) records(ctx context.Context, parts []Part) error {
	for {
		var l line
		there, err := in.next(&l)
		if err != nil || !there {
			return err
		}
		name, _, _ := strings.Cut(l.Kind, ".")
		i := slices.IndexFunc(parts, func(p Part) bool { return p.Name == name })
		if i < 0 {
			return fmt.Errorf("line %d: the record of kind %q belongs to no part that the first line names", in.number, l.Kind)
		}
		if err := parts[i].Import(ctx, in.tx, l.Kind, l.Record); err != nil {
			return fmt.Errorf("line %d: %s: %w", in.number, l.Kind, err)
		}
		in.counts[l.Kind]++
	}
}
