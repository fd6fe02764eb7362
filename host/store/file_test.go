package store_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"a2e/host/store"
)

// A host that is killed right after SQLite began the file leaves one without a table.
func TestAFileThatWasOnlyBegun(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.Exec("PRAGMA journal_mode(WAL)")
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		t.Fatalf("SQLite has written nothing: %v", err)
	}
	s := open(t, path)
	if err := add(s, t.Context(), "first"); err != nil {
		t.Error(err)
	}
}

// Hosts that begin and end together find the file being made, written as a whole for the
// first time and without its log. None takes it for another's or for damaged.
func TestManyComeAndGoWhileTheFileIsMade(t *testing.T) {
	dir := t.TempDir()
	for i := range 20 {
		path := filepath.Join(dir, fmt.Sprint(i), store.FileName)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 3 {
					s, err := store.Open(t.Context(), path, store.Options{Parts: []store.Part{notes()}})
					if err == nil {
						err = s.Close()
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	}
}

// A host that is killed while it moves the log into the file leaves a file that makes sense
// only together with its log.
func TestKilledHalfWayThroughACheckpoint(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	read := func(path string) []byte {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	s := open(t, path)
	if err := errors.Join(add(s, t.Context(), "first"), s.Close()); err != nil {
		t.Fatal(err)
	}
	before := read(path)
	s = open(t, path)
	for range 50 {
		if err := add(s, t.Context(), strings.Repeat("grow ", 1000)); err != nil {
			t.Fatal(err)
		}
	}
	log := read(path + "-wal")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	const page = 4096
	after := read(path)
	if len(after) <= len(before) || bytes.Equal(after[:page], before[:page]) {
		t.Fatal("the file did not grow")
	}
	killed := filepath.Join(t.TempDir(), store.FileName)
	for file, data := range map[string][]byte{killed: append(after[:page:page], before[page:]...), killed + "-wal": log} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := texts(t, open(t, killed)); len(got) != 51 {
		t.Errorf("of 51 texts %d are there", len(got))
	}
	if r, err := store.Check(t.Context(), killed, store.Options{Parts: []store.Part{notes()}}); err != nil || len(r.Problems) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
}
