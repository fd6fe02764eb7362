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

// opened returns the store, for the first time after TakeFormer.
func (k *keeper) opened(ctx context.Context) (store.Store, error) {
	s, err := k.plugin.Store(ctx)
	if err != nil || k.former.Load() {
		return s, err
	}
	k.formerMu.Lock()
	defer k.formerMu.Unlock()
	err = TakeFormer(ctx, s, func(file string, err error) {
		k.plugin.Log.Warn().Err(err).Str("file", file).Msg(FormerLeftOut)
	})
	k.former.Store(err == nil)
	return s, err
}

// FormerLeftOut says what a damaged file means.
const FormerLeftOut = "steps that an earlier version kept in this file are left out; " +
	"remove it when they are not needed"

// TakeFormer imports the journal files of earlier versions, beside the store, into the tables, and
// removes the files. A damaged file stays, and is passed to damaged.
func TakeFormer(ctx context.Context, s store.Store, damaged func(file string, err error)) error {
	if s.Dir() == "" {
		return nil
	}
	d, err := private.OpenDir(filepath.Join(s.Dir(), formerFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Names()
	for _, name := range names {
		if err == nil && strings.HasSuffix(name, formerSuffix) {
			err = takeFormer(ctx, s, d, name, damaged)
		}
	}
	return err
}

func takeFormer(ctx context.Context, s store.Store, d *private.Dir, name string, damaged func(string, error)) error {
	raw, err := d.Read(name, maxFormerFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another host was faster
	} else if err != nil {
		return err
	}
	lines, err := readFormer(raw)
	if err != nil {
		damaged(filepath.Join(d.Path(), name), err)
		return nil
	}
	if err := s.Write(ctx, func(tx *store.Tx) error {
		for _, l := range lines {
			if err := l.take(tx); err != nil {
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
