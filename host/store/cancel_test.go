package store_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"a2e/host/store"
)

// A read that is stopped in the middle, and then again on each connection there may be,
// leaves the store as usable as before.
func TestReadsThatAreStopped(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), store.FileName))
	if err := add(s, t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := s.Read(ctx, func(tx *store.Tx) error {
			_, err := tx.Get("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n", nil, new(int))
			return err
		})
		cancel()
		if err == nil || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Fatalf("an endless read gave %v", err)
		}
		if got := texts(t, s); len(got) != 1 {
			t.Fatalf("after that there are %q", got)
		}
		if err := add(s, t.Context(), "y"); err != nil {
			t.Fatalf("after that a write gave %v", err)
		}
		if err := s.Write(t.Context(), func(tx *store.Tx) error { _, _, err := tx.Exec("DELETE FROM notes WHERE text = 'y'"); return err }); err != nil {
			t.Fatal(err)
		}
	}
}
