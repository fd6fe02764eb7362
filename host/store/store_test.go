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

	"a2e/host/hosttest/must"
	"a2e/host/store"
)

// note is a record of notes.
type note struct {
	ID   int    `json:"id"`
	Text string `json:"text"`
}

// notes is a part for these tests: texts by number.
func notes(migrations ...string) store.Part {
	if migrations == nil {
		migrations = []string{"CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)"}
	}
	records := store.Kinds{store.RecordsOf("notes.note", "SELECT id, text FROM notes ORDER BY id", func(n *note) []any { return []any{&n.ID, &n.Text} },
		func(n *note, tx *store.Tx) error {
			_, _, err := tx.Exec("INSERT OR REPLACE INTO notes VALUES (?, ?)", n.ID, n.Text)
			return err
		})}
	return store.Part{Name: "notes", Migrations: migrations, Export: records.Export, Import: records.Import, Clear: store.ClearTables("notes")}
}

func open(t *testing.T, path string) *store.SQLite {
	t.Helper()
	s := must.Get(store.Open(t.Context(), path, store.Options{Parts: []store.Part{notes()}}))(t)
	t.Cleanup(func() { must.OK(t, s.Close()) })
	return s
}

func add(s store.Store, ctx context.Context, text string) error {
	return s.Write(ctx, func(tx *store.Tx) error {
		_, _, err := tx.Exec("INSERT INTO notes (text) VALUES (?)", text)
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
	if err := add(s, t.Context(), "late"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("a write after Close gave %v", err)
	}
	if got := texts(t, open(t, path)); fmt.Sprint(got) != "[one]" {
		t.Errorf("after reopening there are %q", got)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, %v", info.Mode(), err)
	}
}

// One write of a group that fails, or panics, must not take the others with it.
func TestAFailedWriteLeavesTheOthers(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), store.FileName))
	var all sync.WaitGroup
	wrong := errors.New("no")
	for i := range 60 {
		all.Go(func() {
			err := s.Write(t.Context(), func(tx *store.Tx) error {
				if _, _, err := tx.Exec("INSERT INTO notes (text) VALUES (?)", fmt.Sprint(i)); err != nil {
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
			case i%3 == 0 && err != nil, i%3 == 1 && !errors.Is(err, wrong), i%3 == 2 && (err == nil || !strings.Contains(err.Error(), "boom")):
				t.Errorf("write %d gave %v", i, err)
			}
		})
	}
	all.Wait()
	if got := texts(t, s); len(got) != 20 {
		t.Errorf("%d notes are there, not 20: %v", len(got), got)
	}
}

func TestAWriteThatWaitsCanBeGivenUp(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), store.FileName))
	holds, let := make(chan struct{}), make(chan struct{})
	var first sync.WaitGroup
	first.Go(func() {
		if err := s.Write(t.Context(), func(*store.Tx) error { close(holds); <-let; return nil }); err != nil {
			t.Error(err)
		}
	})
	<-holds
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := add(s, ctx, "given up"); !errors.Is(err, context.Canceled) {
		t.Errorf("gave %v", err)
	}
	close(let)
	first.Wait()
	if got := texts(t, s); len(got) != 0 {
		t.Errorf("a write that was given up is there: %q", got)
	}
}

func TestFilesThatAreNotOursStayAsTheyAre(t *testing.T) {
	ours := filepath.Join(t.TempDir(), store.FileName)
	must.OK(t, add(open(t, ours), t.Context(), strings.Repeat("text ", 5000)))
	newer := filepath.Join(t.TempDir(), store.FileName)
	v2 := must.Get(store.Open(t.Context(), newer, store.Options{Parts: []store.Part{notes("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)", "CREATE TABLE notes_more (x)")}}))(t)
	_ = v2.Close()
	good := must.Get(os.ReadFile(newer))(t)
	patched := func(at int, bytes ...byte) []byte {
		data := append([]byte(nil), good...)
		copy(data[at:], bytes)
		return data
	}
	whole := func(data []byte) []byte { // with the checksum of what was patched
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
			if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), path) {
				t.Errorf("gave %v, want %v with the path", err, c.want)
			}
			if err == nil {
				_ = s.Close()
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, c.data) {
				t.Errorf("the file was changed (%v)", err)
			}
			if left, _ := filepath.Glob(path + "?*"); len(left) > 0 {
				t.Errorf("files were left beside it: %v", left)
			}
		})
	}
}

func TestAFolderInThePlaceOfTheFile(t *testing.T) {
	path := t.TempDir()
	if _, err := store.Open(t.Context(), path, store.Options{}); !errors.Is(err, store.ErrForeign) {
		t.Errorf("gave %v", err)
	}
}

func TestOlderFilesAreBroughtUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	s := open(t, path)
	must.OK(t, add(s, t.Context(), "old"))
	_ = s.Close()
	two := []string{"CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)", "ALTER TABLE notes ADD COLUMN mark TEXT DEFAULT 'm'"}
	broken := notes(append(two, "ALTER TABLE notes ADD COLUMN more TEXT; SELECT nonsense")...)
	if _, err := store.Open(t.Context(), path, store.Options{Parts: []store.Part{broken}}); err == nil {
		t.Fatal("a migration that fails gave no error")
	}
	up := must.Get(store.Open(t.Context(), path, store.Options{Parts: []store.Part{notes(two...)}}))(t)
	defer up.Close()
	var got string
	if err := up.Read(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Get("SELECT text || mark FROM notes", nil, &got)
		return err
	}); err != nil || got != "oldm" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestFull(t *testing.T) {
	s := must.Get(store.Open(t.Context(), filepath.Join(t.TempDir(), store.FileName), store.Options{Parts: []store.Part{notes()}, MaxBytes: 200 << 10}))(t)
	defer s.Close()
	kept := 0
	for {
		if err := add(s, t.Context(), strings.Repeat("x", 8<<10)); err != nil {
			if !errors.Is(err, store.ErrFull) {
				t.Fatal(err)
			}
			break
		}
		kept++
	}
	if got := texts(t, s); len(got) != kept || kept == 0 {
		t.Errorf("%d writes were acknowledged, %d are there", kept, len(got))
	}
	if err := s.Write(t.Context(), func(tx *store.Tx) error { _, _, err := tx.Exec("DELETE FROM notes"); return err }); err != nil {
		t.Errorf("a full store cannot be emptied: %v", err)
	}
	if err := add(s, t.Context(), "again"); err != nil {
		t.Errorf("after that: %v", err)
	}
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
		"nothing": "", "no header": exported[strings.Index(exported, "\n")+1:], "newer": `{"a2e_state":9,"parts":["notes"]}`,
		"unknown part": `{"a2e_state":1,"parts":["pictures"]}`, "other part's record": exported + `{"kind":"pictures.p","record":{}}`,
		"cut off": exported[:len(exported)-8], "bad record": exported + `{"kind":"notes.note","record":{"id":"x"}}`, "unknown kind": exported + `{"kind":"notes.dog","record":{}}`,
	} {
		if counts, err := to.Import(t.Context(), strings.NewReader(broken), store.Replace); err == nil || len(counts) > 0 {
			t.Errorf("%s: gave %v, %v", name, counts, err)
		}
	}
	if got := texts(t, to); len(got) != 5 {
		t.Fatalf("a failed import changed the store: %q", got)
	}
	counts, err := to.Import(t.Context(), strings.NewReader(exported), store.Merge)
	if err != nil || counts["notes.note"] != 3 {
		t.Fatalf("gave %v, %v", counts, err)
	}
	if got := fmt.Sprintf("%q", texts(t, to)); got != `["a" "line\nbreak" "ünï" "own" "own"]` {
		t.Errorf("merged: %s", got)
	}
	must.Get(to.Import(t.Context(), strings.NewReader(exported), store.Replace))(t)
	if got := texts(t, to); len(got) != 3 {
		t.Errorf("replaced: %q", got)
	}
}

func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	opts := store.Options{Parts: []store.Part{notes()}}
	if r, err := store.Check(t.Context(), path, opts); err != nil || r.Exists {
		t.Fatalf("without a file: %+v, %v", r, err)
	}
	s := open(t, path)
	for range 100 {
		must.OK(t, add(s, t.Context(), strings.Repeat("damage me ", 500)))
	}
	must.OK(t, s.Close())
	if r, err := store.Check(t.Context(), path, opts); err != nil || len(r.Problems) > 0 || r.Parts["notes"] != 1 {
		t.Fatalf("of a good file: %+v, %v", r, err)
	}
	data := must.Get(os.ReadFile(path))(t)
	for page := 3; page*4096+64 < len(data); page += 2 {
		copy(data[page*4096:], bytes.Repeat([]byte{0x5A}, 64))
	}
	must.OK(t, os.WriteFile(path, data, 0o600))
	if r, err := store.Check(t.Context(), path, opts); err != nil || len(r.Problems) == 0 {
		t.Errorf("of a damaged file: %+v, %v", r, err)
	}
}

func TestInMemory(t *testing.T) {
	s := must.Get(store.OpenMemory(t.Context(), notes()))(t)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := add(s, t.Context(), "x"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := texts(t, s); len(got) != 20 {
		t.Errorf("there are %d", len(got))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Read(t.Context(), func(*store.Tx) error { return nil }); !errors.Is(err, store.ErrClosed) {
		t.Errorf("a read after Close gave %v", err)
	}
}

// A read that is stopped in the middle, and then again on each connection there may be,
// leaves the store as usable as before.
func TestReadsThatAreStopped(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), store.FileName))
	must.OK(t, add(s, t.Context(), "x"))
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
		must.OK(t, s.Write(t.Context(), func(tx *store.Tx) error { _, _, err := tx.Exec("DELETE FROM notes WHERE text = 'y'"); return err }))
	}
}

// TestSynchronousFull: every connection waits for the disk where that was asked for, and none
// where it was not.
func TestSynchronousFull(t *testing.T) {
	for full, want := range map[bool]int{false: 1, true: 2} {
		s := must.Get(store.Open(t.Context(), filepath.Join(t.TempDir(), store.FileName), store.Options{Parts: []store.Part{notes()}, Full: full}))(t)
		for name, use := range map[string]func(func(*store.Tx) error) error{
			"read":  func(fn func(*store.Tx) error) error { return s.Read(t.Context(), fn) },
			"write": func(fn func(*store.Tx) error) error { return s.Write(t.Context(), fn) },
		} {
			var got int
			if err := use(func(tx *store.Tx) error { _, err := tx.Get("PRAGMA synchronous", nil, &got); return err }); err != nil || got != want {
				t.Errorf("full %t: a %s has synchronous %d, %v; want %d", full, name, got, err, want)
			}
		}
		must.OK(t, s.Close())
	}
}
