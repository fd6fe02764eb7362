package store_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/store"
)

const damageEntries = 300

// longText returns the text of an entry; every tenth takes several pages.
func longText(i int) string {
	if i%10 == 0 {
		return strings.Repeat(fmt.Sprintf("entry %d; ", i), 1000)
	}
	return fmt.Sprintf("entry %d", i)
}

// fullStore returns the content of a closed file with entries, some of which were removed again.
func fullStore(t *testing.T, path string) []byte {
	t.Helper()
	s := open(t, path)
	must.OK(t, s.Write(t.Context(), func(tx *store.Tx) error {
		for i := 1; i <= damageEntries+50; i++ {
			if _, err := tx.Exec("INSERT INTO notes (id, text) VALUES ($1, $2)", i, longText(i)); err != nil {
				return err
			}
		}
		_, err := tx.Exec("DELETE FROM notes WHERE id > $1", damageEntries)
		return err
	}))
	must.OK(t, s.Close())
	return must.Get(os.ReadFile(path))(t)
}

// TestFlippedBits: a store in whose file up to 20 bits are flipped returns no wrong entry, and still returns the
// entries in good pages. Without checksums, 16 of 40 such files returned wrong entries.
func TestFlippedBits(t *testing.T) {
	dir := t.TempDir()
	good := fullStore(t, filepath.Join(dir, "good.db"))
	path := filepath.Join(dir, store.FileName)
	served, refused, unopened := 0, 0, 0
	for seed := range uint64(120) {
		rng := rand.New(rand.NewPCG(seed, 1))
		bad := append([]byte(nil), good...)
		flips := 1 + seed%20
		if seed == 119 {
			flips = 0 // a good file, from which all entries are served
		}
		for range flips {
			bit := rng.IntN(8 * len(bad))
			if seed%4 == 0 {
				bit = rng.IntN(8 * 4096) // in the first page, which describes the others
			}
			bad[bit/8] ^= 1 << (bit % 8)
		}
		must.OK(t, os.WriteFile(path, bad, 0o600))
		s, err := store.Open(t.Context(), path, store.Options{Parts: []store.Part{notes()}})
		if err != nil {
			unopened++
			continue
		}
		before := served
		for i := 1; i <= damageEntries; i++ {
			var text string
			var there bool
			err := s.Read(t.Context(), func(tx *store.Tx) (err error) {
				there, err = tx.Get("SELECT text FROM notes WHERE id = $1", []any{i}, &text)
				return err
			})
			switch {
			case err == nil && there && text == longText(i):
				served++
			case err == nil:
				t.Fatalf("seed %d: entry %d is %.60q, %v", seed, i, text, there)
			case !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), path):
				t.Fatalf("seed %d: entry %d gave %v", seed, i, err)
			default:
				refused++
			}
		}
		must.OK(t, s.Close())
		assert.That(t, flips != 0 || served-before == damageEntries,
			"of a good file %d of %d entries were served", served-before, damageEntries)
		if r, err := store.Check(t.Context(), path, store.Options{Parts: []store.Part{notes()}}); refused > 0 &&
			err != nil {
			t.Logf("seed %d: %v", seed, err)
		} else if err == nil && len(r.Problems) == 0 && refused > 0 && !r.Checksums {
			t.Errorf("seed %d: the file has no checksums any more", seed)
		}
	}
	t.Logf("%d entries served, %d refused, %d files not opened", served, refused, unopened)
	assert.That(t, served >= 10_000 && refused >= 100 && unopened >= 30, "the damage was not of all kinds")
}

// oldFile makes a file like the versions of a2e before pages had checksums.
func oldFile(t *testing.T, path string) {
	t.Helper()
	db := must.Get(sql.Open("sqlite", path))(t)
	for _, q := range []string{
		"PRAGMA journal_mode = WAL", "PRAGMA application_id = 1630692657", "PRAGMA user_version = 1",
		"CREATE TABLE parts (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID",
		"INSERT INTO parts VALUES ('notes', 1)",
		"CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)", "INSERT INTO notes (text) VALUES ('kept')",
	} {
		must.Get(db.Exec(q))(t)
	}
	must.OK(t, db.Close(), os.Chmod(path, 0o600))
}

// TestOldFilesStayOfUse: files without checksums can still be used, while an older host uses them too and afterwards.
func TestOldFilesStayOfUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	oldFile(t, path)
	other := must.Get(sql.Open("sqlite", path))(t)
	must.Get(other.Exec("INSERT INTO notes (text) VALUES ('of an older host')"))(t)
	check := func(want string) {
		t.Helper()
		s := open(t, path)
		must.OK(t, add(s, t.Context(), "more"))
		must.Equal(t, fmt.Sprint(texts(t, s)), want, "there")
		must.OK(t, s.Close())
		r, err := store.Check(t.Context(), path, store.Options{Parts: []store.Part{notes()}})
		must.That(t, err == nil && len(r.Problems) == 0 && !r.Checksums, "%+v, %v", r, err)
	}
	check("[kept of an older host more]")
	must.OK(t, other.Close())
	check("[kept of an older host more more]")
}

// TestAnEmptyFile: an empty file, or a log without its file, is an error and not a new store, because its content was
// lost.
func TestAnEmptyFile(t *testing.T) {
	for name, beside := range map[string]string{"empty": "", "only the log": "-wal"} {
		path := filepath.Join(t.TempDir(), store.FileName)
		content := []byte(nil)
		if beside != "" {
			content = []byte("a log")
		}
		must.OK(t, os.WriteFile(path+beside, content, 0o600))
		s, err := store.Open(t.Context(), path, store.Options{Parts: []store.Part{notes()}})
		if err == nil {
			_ = s.Close()
			t.Errorf("%s: it was opened", name)
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAFileThatWasOnlyBegun: a store can be opened if a host was killed right after SQLite began the file, when it
// has no table yet.
func TestAFileThatWasOnlyBegun(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	db, err := sql.Open("sqlite", path)
	must.OK(t, err)
	_, err = db.Exec("PRAGMA journal_mode(WAL)")
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		t.Fatalf("SQLite has written nothing: %v", err)
	}
	s := open(t, path)
	assert.OK(t, add(s, t.Context(), "first"))
}

// TestManyComeAndGoWhileTheFileIsMade: hosts that open and close the store while the file is being made all succeed.
// None takes the file for a foreign or damaged one.
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
					assert.OK(t, err)
				}
			})
		}
		all.Wait()
	}
}

// TestKilledHalfWayThroughACheckpoint: nothing is lost if a host is killed while it moves the log into the file. The
// file is then valid only together with its log.
func TestKilledHalfWayThroughACheckpoint(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	read := func(path string) []byte {
		t.Helper()
		return must.Get(os.ReadFile(path))(t)
	}
	s := open(t, path)
	must.OK(t, add(s, t.Context(), "first"), s.Close())
	before := read(path)
	s = open(t, path)
	for range 50 {
		must.OK(t, add(s, t.Context(), strings.Repeat("grow ", 1000)))
	}
	log := read(path + "-wal")
	must.OK(t, s.Close())
	const page = 4096
	after := read(path)
	must.That(t, len(after) > len(before) && !bytes.Equal(after[:page], before[:page]), "the file did not grow")
	killed := filepath.Join(t.TempDir(), store.FileName)
	for file, data := range map[string][]byte{
		killed:          append(after[:page:page], before[page:]...),
		killed + "-wal": log,
	} {
		must.OK(t, os.WriteFile(file, data, 0o600))
	}
	got := texts(t, open(t, killed))
	assert.Equal(t, len(got), 51, "of 51 texts … are there")
	r, err := store.Check(t.Context(), killed, store.Options{Parts: []store.Part{notes()}})
	assert.That(t, err == nil && len(r.Problems) == 0, "%+v, %v", r, err)
}
