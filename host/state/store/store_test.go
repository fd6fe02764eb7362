package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
)

// note is a record of the part notes.
type note struct {
	ID   int    `json:"id"`
	Text string `json:"text"`
}

// notes returns a part for these tests: texts by number.
func notes(migrations ...string) store.Part {
	if migrations == nil {
		migrations = []string{"CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)"}
	}
	records := store.Kinds{store.RecordsOf("notes.note", "SELECT id, text FROM notes ORDER BY id",
		func(n *note) []any { return []any{&n.ID, &n.Text} },
		func(n *note, tx *store.Tx) error {
			_, err := tx.Exec("INSERT OR REPLACE INTO notes VALUES ($1, $2)", n.ID, n.Text)
			return err
		})}
	return store.Part{
		Name: "notes", SQL: stores.SQL(migrations...), Export: records.Export, Import: records.Import,
		Clear: store.ClearTables("notes"),
	}
}

func open(t *testing.T, path string) *store.SQLite {
	t.Helper()
	s := must.Get(store.Open(t.Context(), path, store.Options{Parts: []store.Part{notes()}}))(t)
	t.Cleanup(func() { must.OK(t, s.Close()) })
	return s
}

func add(s store.Store, ctx context.Context, text string) error {
	return s.Write(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec("INSERT INTO notes (text) VALUES ($1)", text)
		return err
	})
}

func texts(t *testing.T, s store.Store) []string {
	t.Helper()
	var all []string
	must.OK(t, s.Read(t.Context(), func(tx *store.Tx) error {
		return tx.Each("SELECT text FROM notes ORDER BY id", nil, func(scan func(...any) error) error {
			var text string
			err := scan(&text)
			all = append(all, text)
			return err
		})
	}))
	return all
}

func TestWritesAreThereAfterReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a ? # % folder", store.FileName)
	s := open(t, path)
	must.OK(t, add(s, t.Context(), "one"))
	must.OK(t, s.Close())
	assert.Is(t, add(s, t.Context(), "late"), store.ErrClosed, "a write after Close")
	got := texts(t, open(t, path))
	assert.Equal(t, fmt.Sprint(got), "[one]", "after reopening there are %q", got)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, %v", info.Mode(), err)
	}
}

// TestAFailedWriteLeavesTheOthers: a write that fails or panics does not affect the other writes of its group.
func TestAFailedWriteLeavesTheOthers(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), store.FileName))
	var all sync.WaitGroup
	wrong := errors.New("no")
	for i := range 60 {
		all.Go(func() {
			err := s.Write(t.Context(), func(tx *store.Tx) error {
				if _, err := tx.Exec("INSERT INTO notes (text) VALUES ($1)", fmt.Sprint(i)); err != nil {
					return err
				}
				switch i % 3 {
				case 1:
					return wrong
				case 2:
					panic("boom")
				}
				return nil
			})
			switch {
			case i%3 == 0 && err != nil, i%3 == 1 && !errors.Is(err, wrong), i%3 == 2 &&
				(err == nil || !strings.Contains(err.Error(), "boom")):
				t.Errorf("write %d gave %v", i, err)
			}
		})
	}
	all.Wait()
	got := texts(t, s)
	assert.Equal(t, len(got), 20, "… notes are there, not 20: %v", got)
}

func TestAWriteThatWaitsCanBeGivenUp(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), store.FileName))
	holds, let := make(chan struct{}), make(chan struct{})
	var first sync.WaitGroup
	first.Go(func() {
		assert.OK(t, s.Write(t.Context(), func(*store.Tx) error { close(holds); <-let; return nil }))
	})
	<-holds
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.Is(t, add(s, ctx, "given up"), context.Canceled)
	close(let)
	first.Wait()
	got := texts(t, s)
	assert.Equal(t, len(got), 0, "a write that was given up is there: %q", got)
}

func TestFilesThatAreNotOursStayAsTheyAre(t *testing.T) {
	ours := filepath.Join(t.TempDir(), store.FileName)
	must.OK(t, add(open(t, ours), t.Context(), strings.Repeat("text ", 5000)))
	newer := filepath.Join(t.TempDir(), store.FileName)
	v2 := must.Get(store.Open(t.Context(), newer, store.Options{Parts: []store.Part{notes("CREATE TABLE notes (id "+
		"INTEGER PRIMARY KEY, text TEXT)", "CREATE TABLE notes_more (x)")}}))(t)
	_ = v2.Close()
	good := must.Get(os.ReadFile(newer))(t)
	patched := func(at int, bytes ...byte) []byte {
		data := append([]byte(nil), good...)
		copy(data[at:], bytes)
		return data
	}
	whole := func(data []byte) []byte { // whole sets the checksum that fits the patched page
		sum := store.Checksum(data[:4096], 0)
		copy(data[4096-len(sum):], sum[:])
		return data
	}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"a text":                     {[]byte(strings.Repeat("hello\n", 1000)), store.ErrForeign},
		"a short text":               {[]byte("x"), store.ErrForeign},
		"another application's file": {patched(68, 1, 2, 3, 4), store.ErrForeign},
		"a newer format":             {whole(patched(60, 0, 0, 0, 99)), store.ErrNewer},
		"a newer part":               {good, store.ErrNewer},
		"a damaged schema":           {patched(100, bytes.Repeat([]byte{0xAB}, 3000)...), store.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), store.FileName)
			must.OK(t, os.WriteFile(path, c.data, 0o600))
			s, err := store.Open(t.Context(), path, store.Options{Parts: []store.Part{notes()}})
			assert.That(t, errors.Is(err, c.want) && (err == nil || strings.Contains(err.Error(), path)),
				"gave %v, want %v with the path", err, c.want)
			if err == nil {
				_ = s.Close()
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, c.data) {
				t.Errorf("the file was changed (%v)", err)
			}
			left, _ := filepath.Glob(path + "?*")
			assert.That(t, len(left) == 0, "files were left beside it: %v", left)
		})
	}
}

func TestAFolderInThePlaceOfTheFile(t *testing.T) {
	path := t.TempDir()
	_, err := store.Open(t.Context(), path, store.Options{})
	assert.That(t, errors.Is(err, store.ErrForeign), "gave %v", err)
}

func TestOlderFilesAreBroughtUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	s := open(t, path)
	must.OK(t, add(s, t.Context(), "old"))
	_ = s.Close()
	two := []string{"CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)", "ALTER TABLE notes ADD COLUMN mark " +
		"TEXT DEFAULT 'm'"}
	broken := notes(append(two, "ALTER TABLE notes ADD COLUMN more TEXT; SELECT nonsense")...)
	_, err := store.Open(t.Context(), path, store.Options{Parts: []store.Part{broken}})
	must.That(t, err != nil, "a migration that fails gave no error")
	up := must.Get(store.Open(t.Context(), path, store.Options{Parts: []store.Part{notes(two...)}}))(t)
	defer up.Close()
	var got string
	err = up.Read(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Get("SELECT text || mark FROM notes", nil, &got)
		return err
	})
	assert.That(t, err == nil && got == "oldm", "got %q, %v", got, err)
}

func TestFull(t *testing.T) {
	s := must.Get(store.Open(t.Context(), filepath.Join(t.TempDir(), store.FileName),
		store.Options{Parts: []store.Part{notes()}, MaxBytes: 200 << 10}))(t)
	defer s.Close()
	kept := 0
	for {
		if err := add(s, t.Context(), strings.Repeat("x", 8<<10)); err != nil {
			must.That(t, errors.Is(err, store.ErrFull), "%v", err)
			break
		}
		kept++
	}
	got := texts(t, s)
	assert.That(t, len(got) == kept && kept != 0, "%d writes were acknowledged, %d are there", kept, len(got))
	assert.OK(t, s.Write(t.Context(), func(tx *store.Tx) error { _, err := tx.Exec("DELETE FROM notes"); return err }))
	assert.OK(t, add(s, t.Context(), "again"))
}

func TestExportAndImport(t *testing.T) {
	from, to := open(t, filepath.Join(t.TempDir(), store.FileName)), open(t, filepath.Join(t.TempDir(), store.FileName))
	for _, text := range []string{"a", "line\nbreak", "ünï"} {
		must.OK(t, add(from, t.Context(), text))
	}
	for range 5 {
		must.OK(t, add(to, t.Context(), "own"))
	}
	var out bytes.Buffer
	must.OK(t, from.Export(t.Context(), &out))
	exported := out.String()
	for name, broken := range map[string]string{
		"nothing": "", "no header": exported[strings.Index(exported, "\n")+1:],
		"newer":        `{"a2e_state":9,"parts":["notes"]}`,
		"unknown part": `{"a2e_state":1,"parts":["pictures"]}`, "other part's record": exported +
			`{"kind":"pictures.p","record":{}}`,
		"cut off": exported[:len(exported)-8], "bad record": exported + `{"kind":"notes.note","record":{"id":"x"}}`,
		"unknown kind": exported + `{"kind":"notes.dog","record":{}}`,
	} {
		counts, err := to.Import(t.Context(), strings.NewReader(broken), store.Replace)
		assert.That(t, err != nil && len(counts) == 0, "%s: gave %v, %v", name, counts, err)
	}
	endless := must.Get(os.Open("/dev/zero"))(t)
	defer endless.Close()
	_, err := to.Import(t.Context(), endless, store.Replace)
	must.Fails(t, err, "line 1 is not of an export: it is longer than 1048576 bytes")
	got := texts(t, to)
	must.Equal(t, len(got), 5, "a failed import changed the store: %q", got)
	counts, err := to.Import(t.Context(), strings.NewReader(exported), store.Merge)
	must.That(t, err == nil && counts["notes.note"] == 3, "gave %v, %v", counts, err)
	assert.Equal(t, fmt.Sprintf("%q", texts(t, to)), `["a" "line\nbreak" "ünï" "own" "own"]`, "merged")
	must.Get(to.Import(t.Context(), strings.NewReader(exported), store.Replace))(t)
	got = texts(t, to)
	assert.Equal(t, len(got), 3, "replaced: %q", got)
}

func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	opts := store.Options{Parts: []store.Part{notes()}}
	r, err := store.Check(t.Context(), path, opts)
	must.That(t, err == nil && !r.Exists, "without a file: %+v, %v", r, err)
	s := open(t, path)
	for range 100 {
		must.OK(t, add(s, t.Context(), strings.Repeat("damage me ", 500)))
	}
	must.OK(t, s.Close())
	r, err = store.Check(t.Context(), path, opts)
	must.That(t, err == nil && len(r.Problems) == 0 && r.Parts["notes"] == 1, "of a good file: %+v, %v", r, err)
	data := must.Get(os.ReadFile(path))(t)
	for page := 3; page*4096+64 < len(data); page += 2 {
		copy(data[page*4096:], bytes.Repeat([]byte{0x5A}, 64))
	}
	must.OK(t, os.WriteFile(path, data, 0o600))
	r, err = store.Check(t.Context(), path, opts)
	assert.That(t, err == nil && len(r.Problems) != 0, "of a damaged file: %+v, %v", r, err)
}

func TestInMemory(t *testing.T) {
	s := must.Get(store.OpenMemory(t.Context(), notes()))(t)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			assert.OK(t, add(s, t.Context(), "x"))
		})
	}
	all.Wait()
	got := texts(t, s)
	assert.Equal(t, len(got), 20, "there")
	assert.OK(t, s.Close())
	assert.Is(t, s.Read(t.Context(), func(*store.Tx) error { return nil }), store.ErrClosed, "a read after Close")
}

// TestReadsThatAreStopped: reads that are stopped in the middle, more often than there are connections, leave the
// store usable.
func TestReadsThatAreStopped(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), store.FileName))
	must.OK(t, add(s, t.Context(), "x"))
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := s.Read(ctx, func(tx *store.Tx) error {
			_, err := tx.Get("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
				nil, new(int))
			return err
		})
		cancel()
		must.That(t, err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded), "an endless read gave %v", err)
		got := texts(t, s)
		must.Equal(t, len(got), 1, "after that there are %q", got)
		must.OK(t, add(s, t.Context(), "y"))
		must.OK(t, s.Write(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec("DELETE FROM notes WHERE text = 'y'")
			return err
		}))
	}
}

// TestSynchronousFull: with the option Full every connection waits for the disk, and without it none does.
func TestSynchronousFull(t *testing.T) {
	for full, want := range map[bool]int{false: 1, true: 2} {
		s := must.Get(store.Open(t.Context(), filepath.Join(t.TempDir(), store.FileName),
			store.Options{Parts: []store.Part{notes()}, Full: full}))(t)
		for name, use := range map[string]func(func(*store.Tx) error) error{
			"read":  func(fn func(*store.Tx) error) error { return s.Read(t.Context(), fn) },
			"write": func(fn func(*store.Tx) error) error { return s.Write(t.Context(), fn) },
		} {
			var got int
			err := use(func(tx *store.Tx) error { _, err := tx.Get("PRAGMA synchronous", nil, &got); return err })
			assert.That(t, err == nil && got == want, "full %t: a %s has synchronous %d, %v; want %d", full, name, got,
				err, want)
		}
		must.OK(t, s.Close())
	}
}
