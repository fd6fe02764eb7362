package env

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host/guard/private"
	"a2e/host/state/store"
)

// Earlier versions kept journals in files beside the store. Each line is a checksum, a blank and a
// journalLine.
const (
	formerFolder  = "env"
	formerSuffix  = ".journal"
	maxFormerFile = 1 << 30
)

// opened returns the store. The first time it imports the journal files of earlier versions into the
// tables and removes the files. A damaged file stays, and the log names it.
func (k *keeper) opened(ctx context.Context) (store.Store, error) {
	s, err := k.plugin.Store(ctx)
	if err != nil || k.former.Load() || s.Dir() == "" {
		return s, err
	}
	k.formerMu.Lock()
	defer k.formerMu.Unlock()
	d, err := private.OpenDir(filepath.Join(s.Dir(), formerFolder))
	if err == nil {
		defer d.Close()
		var names []string
		names, err = d.Names()
		for _, name := range names {
			if err == nil && strings.HasSuffix(name, formerSuffix) {
				err = k.takeFormer(ctx, s, d, name)
			}
		}
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		k.former.Store(true)
		return s, nil
	}
	return s, err
}

func (k *keeper) takeFormer(ctx context.Context, s store.Store, d *private.Dir, name string) error {
	raw, err := d.Read(name, maxFormerFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another host was faster
	} else if err != nil {
		return err
	}
	lines, err := readFormer(raw)
	if err != nil {
		k.plugin.Log.Warn().Err(err).Str("file", filepath.Join(d.Path(), name)).Msg("steps that an earlier version " +
			"kept in this file are left out; remove it when they are not needed")
		return nil
	}
	if err := s.Write(ctx, func(tx *store.Tx) error {
		for _, l := range lines {
			if err := k.take(tx, l); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if err := d.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// readFormer returns the lines of a file, up to one that is incomplete because its host was killed or the
// disk was full.
func readFormer(raw []byte) (lines []*journalLine, err error) {
	for text := range bytes.Lines(raw) {
		sum, body, _ := bytes.Cut(bytes.TrimSuffix(text, []byte{'\n'}), []byte{' '})
		l := new(journalLine)
		switch {
		case text[len(text)-1] != '\n':
			return lines, nil
		case string(sum) != fmt.Sprintf("%08x", crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))):
			return nil, fmt.Errorf("%w: a line does not fit its checksum", store.ErrCorrupt)
		}
		if err := json.Unmarshal(body, l); err != nil {
			return nil, err
		}
		lines = append(lines, l)
	}
	return lines, nil
}
