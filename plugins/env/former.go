package env

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host/private"
	"a2e/host/store"
)

// Hosts of before kept their journals in files beside the store: each line a checksum, a blank and a journalLine.
const (
	formerFolder  = "env"
	formerSuffix  = ".journal"
	maxFormerFile = 1 << 30
)

// opened returns the store. The first time it brings what files of hosts of before have to the tables, and removes
// them; a damaged one stays, and the log names it.
func (k *keeper) opened(ctx context.Context) (store.Store, error) {
	s, err := k.plugin.Store(ctx)
	if err != nil || k.former.Load() || s.Dir() == "" {
		return s, err
	}
	k.formerMu.Lock()
	defer k.formerMu.Unlock()
	if !k.former.Load() {
		if err = k.takeFormer(ctx, s); err == nil {
			k.former.Store(true)
		}
	}
	return s, err
}

func (k *keeper) takeFormer(ctx context.Context, s store.Store) error {
	d, err := private.OpenDir(filepath.Join(s.Dir(), formerFolder))
	if err != nil {
		if os.IsNotExist(err) {
			return nil
		}
		return err
	}
	defer d.Close()
	names, err := d.Names()
	for _, name := range names {
		if err != nil || !strings.HasSuffix(name, formerSuffix) {
			continue
		}
		var lines []*journalLine
		lines, err = readFormer(d, name)
		switch {
		case errors.Is(err, store.ErrCorrupt):
			k.plugin.Log.Warn().Err(err).Msg("steps that an earlier version kept in this file are left out; " +
				"remove it when they are not needed")
			err = nil
			continue
		case err == nil:
			err = s.Write(ctx, func(tx *store.Tx) error {
				for _, l := range lines {
					if err := k.take(tx, l); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err == nil {
			if err = d.Remove(name); os.IsNotExist(err) {
				err = nil // another host was faster
			}
		}
	}
	return err
}

// readFormer returns the lines of a file, up to one that is not whole.
func readFormer(d *private.Dir, name string) (lines []*journalLine, err error) {
	raw, err := d.Read(name, maxFormerFile)
	if os.IsNotExist(err) {
		return nil, nil
	}
	for err == nil && len(raw) > 0 {
		text, rest, whole := bytes.Cut(raw, []byte{'\n'})
		if raw = rest; !whole {
			break // its host was killed, or the disk was full
		}
		sum, body, _ := bytes.Cut(text, []byte{' '})
		if string(sum) != fmt.Sprintf("%08x", crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))) {
			return nil, fmt.Errorf("%s: %w: a line does not fit its checksum", filepath.Join(d.Path(), name),
				store.ErrCorrupt)
		}
		l := new(journalLine)
		if err := json.Unmarshal(body, l); err != nil {
			return nil, fmt.Errorf("%s: %w: %w", filepath.Join(d.Path(), name), store.ErrCorrupt, err)
		}
		lines = append(lines, l)
	}
	return lines, err
}
