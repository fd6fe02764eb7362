//go:build unix

package store_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"a2e/host/store"
)

// Elsewhere nobody can take a file away that is open.
func TestAFileThatWasTakenAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	s := open(t, path)
	if err := add(s, t.Context(), "kept"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	for _, inPlace := range []string{"nothing", "another"} {
		if inPlace == "another" {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := add(s, t.Context(), "lost"); !errors.Is(err, store.ErrMoved) {
			t.Errorf("with %s in its place a write gave %v", inPlace, err)
		}
		if err := s.Read(t.Context(), func(*store.Tx) error { return nil }); !errors.Is(err, store.ErrMoved) {
			t.Errorf("with %s in its place a read gave %v", inPlace, err)
		}
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	if err := add(s, t.Context(), "again"); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(texts(t, s)); got != "[kept again]" {
		t.Errorf("there are %s", got)
	}
}
