package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Report is what Check found.
type Report struct {
	Path     string         `json:"path"`
	Exists   bool           `json:"exists"` // without a file nothing else is known
	Bytes    int64          `json:"bytes"`  // of the file and its log
	Parts    map[string]int `json:"parts"`  // the version of each
	Problems []string       `json:"problems"`
	// Checksums tells whether damage of pages is found; files of older hosts have none
	// until one opens them alone.
	Checksums bool `json:"checksums"`
}

// Check reads the whole file in search of damage. It makes none where there is
// none. The error says why the file could not be looked at.
func Check(ctx context.Context, path string, opts Options) (Report, error) {
	r := Report{Path: path, Parts: map[string]int{}, Problems: []string{}}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	r.Exists, r.Bytes = true, sizeOf(path)+sizeOf(path+"-wal")
	s, err := Open(ctx, path, opts)
	if err != nil {
		return r, err
	}
	err = s.Read(ctx, func(tx *Tx) error {
		var format int
		if _, err := tx.Get("PRAGMA user_version", nil, &format); err != nil {
			return err
		}
		r.Checksums = format > formatUnchecked
		if err := tx.Each("SELECT name, version FROM parts", nil, func(scan func(...any) error) error {
			var name string
			var version int
			err := scan(&name, &version)
			r.Parts[name] = version
			return err
		}); err != nil {
			return err
		}
		return tx.Each("PRAGMA integrity_check(20)", nil, func(scan func(...any) error) error {
			var found string
			err := scan(&found)
			if found != "ok" {
				r.Problems = append(r.Problems, strings.Split(strings.TrimSpace(found), "\n")...)
			}
			return err
		})
	})
	if errors.Is(err, ErrCorrupt) {
		r.Problems, err = append(r.Problems, err.Error()), nil
	}
	return r, errors.Join(err, s.Close())
}

// String is the report as one line.
func (r Report) String() string {
	if !r.Exists {
		return r.Path + " does not exist yet; it is made when it is needed"
	}
	return fmt.Sprintf("%s, %d KiB", r.Path, (r.Bytes+1023)/1024)
}
