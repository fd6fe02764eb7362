package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"a2e/host/guard/private"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
)

var journals = store.Part{Name: "diary", SQL: stores.SQL(`
CREATE TABLE diary_journals (number BIGINT PRIMARY KEY, owner TEXT NOT NULL, leased_until BIGINT NOT NULL);
CREATE TABLE diary_lines (id BIGINT PRIMARY KEY, body TEXT NOT NULL);
INSERT INTO diary_journals VALUES (1, '', 0), (2, '', 0)`)}

// TestJournals: a journal has one owner. Others take it over when that owner has ended, and the old owner can then
// add nothing.
func TestJournals(t *testing.T) {
	dir := t.TempDir()
	s := stores.Open(t, filepath.Join(dir, store.FileName), journals)
	do := func(fn func(*store.Tx) error) { t.Helper(); must.OK(t, s.Write(t.Context(), fn)) }
	owner := func() *store.Journals {
		return &store.Journals{Table: "diary_journals", Lines: "diary_lines", Folder: "diary", Lease: time.Hour}
	}
	first, second := owner(), owner()
	left := func(js *store.Journals) (left []int64) {
		t.Helper()
		do(func(tx *store.Tx) (err error) { left, err = js.Left(tx); return err })
		return left
	}
	assert.Slice(t, left(first), []int64{1, 2})
	do(func(tx *store.Tx) error {
		must.OK(t, first.Own(tx, 1))
		for place := range int64(3) {
			must.OK(t, first.Append(tx, 1, place, fmt.Append(nil, place)))
		}
		assert.Is(t, first.Append(tx, 2, 0, nil), store.ErrLost)
		assert.Is(t, second.Append(tx, 1, 3, nil), store.ErrLost)
		return first.Trim(tx, 1, 1)
	})
	assert.Slice(t, left(second), []int64{2})
	look := must.Get(os.Open(filepath.Join(dir, "diary", first.Owner()+".lock")))(t)
	defer look.Close()
	assert.That(t, !must.Get(private.TryShare(look))(t), "the lock of an owner is free")
	first.Work(1, true)
	open := store.Opener(func(context.Context) (store.Store, error) { return s, nil })
	must.OK(t, first.Close(t.Context(), open))
	assert.Slice(t, left(second), []int64{2}, "an owner that works still")
	first.Work(1, false)
	assert.That(t, must.Get(private.TryShare(look))(t), "the lock is not given back")
	assert.Slice(t, left(second), []int64{1, 2}, "while another looks at it too")
	do(func(tx *store.Tx) error {
		must.OK(t, second.Own(tx, 1))
		assert.Is(t, first.Append(tx, 1, 3, nil), store.ErrLost)
		assert.Is(t, first.Renew(tx, 1), store.ErrLost)
		lines, err := second.Read(tx, 1)
		must.OK(t, err)
		assert.That(t, len(lines) == 2 && lines[1].Place == 2 && string(lines[1].Body) == "2", "%v", lines)
		lines, err = second.Others(tx, 1)
		assert.Equal(t, len(lines), 0)
		must.OK(t, err)
		return second.Remove(tx, 1)
	})
	must.OK(t, second.Close(t.Context(), open))
	names, err := os.ReadDir(filepath.Join(dir, "diary"))
	assert.That(t, err == nil && len(names) == 1, "of an owner without a journal the file stays: %v", names)
}
