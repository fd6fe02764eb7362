package stores_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
)

func TestOnPostgres(t *testing.T) { stores.OnPostgres(t, "^Test(Open|Parameters)$") }

// TestOpen: the same path always opens the same store, and another path opens another store.
func TestOpen(t *testing.T) {
	part := store.Part{Name: "notes", SQL: stores.SQL("CREATE TABLE notes (text TEXT PRIMARY KEY);")}
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one", store.FileName), filepath.Join(dir, "two", store.FileName)
	add := func(s store.Store, text string) {
		must.OK(t, s.Write(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec("INSERT INTO notes VALUES ($1)", text)
			return err
		}))
	}
	first := stores.Open(t, one, part)
	add(first, "a")
	must.OK(t, first.Close())
	add(stores.Open(t, two, part), "b")
	add(stores.Memory(t, part), "c")
	again := stores.Open(t, one, part)
	assert.Equal(t, again.Dir(), filepath.Dir(one))
	_, onPostgres := again.(*store.Postgres)
	assert.Equal(t, onPostgres, stores.IsPostgres(), fmt.Sprintf("%T", again))
	must.OK(t, again.Read(t.Context(), func(tx *store.Tx) error {
		return tx.Each("SELECT text FROM notes", nil, func(scan func(...any) error) error {
			var text string
			err := scan(&text)
			assert.Equal(t, text, "a")
			return err
		})
	}))
}

// TestParameters: the parameter $N stands for argument N, in any order and any number of times.
func TestParameters(t *testing.T) {
	s := stores.Memory(t)
	must.OK(t, s.Read(t.Context(), func(tx *store.Tx) error {
		var got string
		_, err := tx.Get("SELECT CAST($3 AS TEXT) || CAST($1 AS TEXT) || CAST($2 AS TEXT) || CAST($1 AS TEXT) || "+
			"'$2 ?'",
			[]any{"a", "b", "c"}, &got)
		assert.Equal(t, got, "caba$2 ?")
		return err
	}))
}
