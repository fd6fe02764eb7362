package store_test

import (
	"path/filepath"
	"testing"

	"a2e/host/store"
)

// TestSynchronousFull: every connection waits for the disk where that was asked for, and none
// where it was not.
func TestSynchronousFull(t *testing.T) {
	for full, want := range map[bool]int{false: 1, true: 2} {
		s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), store.FileName), store.Options{Parts: []store.Part{notes()}, Full: full})
		if err != nil {
			t.Fatal(err)
		}
		for name, use := range map[string]func(func(*store.Tx) error) error{
			"read":  func(fn func(*store.Tx) error) error { return s.Read(t.Context(), fn) },
			"write": func(fn func(*store.Tx) error) error { return s.Write(t.Context(), fn) },
		} {
			var got int
			if err := use(func(tx *store.Tx) error { _, err := tx.Get("PRAGMA synchronous", nil, &got); return err }); err != nil || got != want {
				t.Errorf("full %t: a %s has synchronous %d, %v; want %d", full, name, got, err, want)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
