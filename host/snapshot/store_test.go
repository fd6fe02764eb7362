package snapshot

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"a2e/host/config"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// forEachStore runs a test with each kind of store, in an empty folder.
func forEachStore(t *testing.T, f func(t *testing.T, s Store, dir string)) {
	for _, kind := range kinds() {
		t.Run(kind, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			f(t, openStore(t, kind, dir), dir)
		})
	}
}

func openStore(t *testing.T, kind, dir string) Store {
	t.Helper()
	var state store.Opener
	if kind == config.SnapshotsInState {
		db := stores.Open(t, filepath.Join(dir, store.FileName), Parts()...)
		state = func(context.Context) (store.Store, error) { return db, nil }
	}
	s := must.Get(Open(config.SnapshotStore{Type: kind}, dir, state))(t)
	t.Cleanup(func() { must.OK(t, s.Close()) })
	return s
}

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// put saves a text as a snapshot.
func put(s Store, name, text string, replace bool) (Info, error) {
	return s.Save(context.Background(), Info{Name: name, Made: noon}, replace, func(w io.Writer) (Holds, error) {
		_, err := io.WriteString(w, text)
		return Holds{"bytes": len(text)}, err
	})
}

// get returns a snapshot as a text, or the error.
func get(s Store, name string) string {
	in, err := s.Load(context.Background(), name)
	if err != nil {
		return "error: " + err.Error()
	}
	defer in.Close()
	text, err := io.ReadAll(in)
	if err != nil {
		return "error: " + err.Error()
	}
	return string(text)
}

func TestWhatIsSavedIsThereAfterReopening(t *testing.T) {
	forEachStore(t, func(t *testing.T, s Store, dir string) {
		noise := make([]byte, 1<<20+9) // does not compress: several rows
		_, _ = rand.Read(noise)
		texts := map[string]string{"large": string(noise), "empty": "", "a.b-c_9": "text", strings.Repeat("n", 100): "long name"}
		for name, text := range texts {
			info, err := put(s, name, text, false)
			assert.That(t, err == nil && info.Bytes >= 20 && info.Holds["bytes"] == len(text), "%s: %v, %v", name, info, err)
		}
		must.OK(t, s.Close())
		kind := "file"
		if _, ok := s.(*rowStore); ok {
			kind = kinds()[0]
		}
		s = openStore(t, kind, dir)
		for name, text := range texts {
			got := get(s, name)
			assert.Equal(t, got, text, "%s gives %d bytes", name, len(got))
		}
		all, err := s.List(t.Context())
		must.That(t, err == nil && len(all) == len(texts), "%v, %v", all, err)
		for _, info := range all {
			if !info.Made.Equal(noon) || info.Holds["bytes"] != len(texts[info.Name]) || info.Bytes < int64(len(texts[info.Name])/2) || info.Problem != "" {
				t.Errorf("listed %+v", info)
			}
		}
		assert.OK(t, s.Delete(t.Context(), "large"))
		assert.Contains(t, get(s, "large"), "no such snapshot", "a deleted one")
	})
}

func TestNothingIsMadeByLooking(t *testing.T) {
	forEachStore(t, func(t *testing.T, s Store, dir string) {
		all, err := s.List(t.Context())
		assert.That(t, err == nil && all != nil && len(all) == 0, "%v, %v", all, err)
		_, err = s.Load(t.Context(), "x")
		assert.That(t, errors.Is(err, ErrUnknown) && strings.Contains(err.Error(), `as "x": there are none`), "%v", err)
		assert.Is(t, s.Delete(t.Context(), "x"), ErrUnknown)
		_, err = os.Stat(dir)
		assert.That(t, err != nil, "there is a folder now")
	})
}

func TestReplaceAndUnknownNames(t *testing.T) {
	forEachStore(t, func(t *testing.T, s Store, _ string) {
		for _, name := range []string{"b", "a"} {
			must.Get(put(s, name, "first "+name, false))(t)
		}
		if _, err := put(s, "a", "second", false); !errors.Is(err, ErrExists) || get(s, "a") != "first a" {
			t.Errorf("%v, now %q", err, get(s, "a"))
		}
		failed := errors.New("the source failed")
		_, err := s.Save(t.Context(), Info{Name: "a", Made: noon}, true, func(w io.Writer) (Holds, error) {
			_, _ = w.Write(make([]byte, 1<<20))
			return nil, failed
		})
		if !errors.Is(err, failed) || get(s, "a") != "first a" {
			t.Errorf("%v, now %.80q", err, get(s, "a"))
		}
		if _, err := put(s, "a", "third", true); err != nil || get(s, "a") != "third" {
			t.Errorf("%v, now %q", err, get(s, "a"))
		}
		got, want := get(s, "cc"), `error: there is no such snapshot as "cc"; there are: a, b`
		assert.Equal(t, got, want, "an unknown name")
	})
}

func TestNamesThatAreNone(t *testing.T) {
	forEachStore(t, func(t *testing.T, s Store, _ string) {
		for _, name := range []string{"", ".", "..", ".hidden", "../x", "a/b", `a\b`, "a b", "ä", "a\n", "a\x00", strings.Repeat("n", 101)} {
			_, saved := put(s, name, "text", true)
			_, loaded := s.Load(t.Context(), name)
			for what, err := range map[string]error{"Save": saved, "Load": loaded, "Delete": s.Delete(t.Context(), name)} {
				assert.Fails(t, err, "cannot be a snapshot's name", "%s of %q", what, name)
			}
		}
	})
}

// Of several that save under one name, one does, and what is there is whole.
func TestSavesAtTheSameTime(t *testing.T) {
	forEachStore(t, func(t *testing.T, s Store, _ string) {
		var all sync.WaitGroup
		texts, errs := make([]string, 8), make([]error, 8)
		for i := range texts {
			texts[i] = strings.Repeat(fmt.Sprint(i), 1000)
			all.Go(func() { _, errs[i] = put(s, "x", texts[i], false) })
		}
		all.Wait()
		saved := slices.Index(errs, nil)
		for i, err := range errs {
			assert.That(t, i == saved || errors.Is(err, ErrExists), "%d gave %v", i, err)
		}
		if saved < 0 || get(s, "x") != texts[saved] {
			t.Errorf("%d was saved, there is %.20q", saved, get(s, "x"))
		}
	})
}

func TestDamagedSnapshotsAreFound(t *testing.T) {
	spoil := map[string]func([]byte) []byte{
		"cut":      func(b []byte) []byte { return b[:len(b)-9] },
		"cut half": func(b []byte) []byte { return b[:len(b)/2] },
		"flipped":  func(b []byte) []byte { b[len(b)-30] ^= 4; return b },
		"checksum": func(b []byte) []byte { b[len(b)-6] ^= 4; return b },
		"no gzip":  func([]byte) []byte { return []byte("nothing of the kind") },
		"empty":    func([]byte) []byte { return nil },
	}
	noise := make([]byte, 100<<10)
	_, _ = rand.Read(noise)
	forEachStore(t, func(t *testing.T, s Store, _ string) {
		for name, f := range spoil {
			must.Get(put(s, "x", string(noise), true))(t)
			change(t, s, f)
			got := get(s, "x")
			assert.That(t, strings.HasPrefix(got, "error: "), "%s: it gives %d bytes and no error", name, len(got))
			all, err := s.List(t.Context())
			assert.That(t, err == nil && len(all) == 1, "%s: %v, %v", name, all, err)
		}
	})
}

// change changes what is kept of the snapshot x, which has one row.
func change(t *testing.T, s Store, f func([]byte) []byte) {
	t.Helper()
	var err error
	switch s := s.(type) {
	case *fileStore:
		var text []byte
		if text, err = os.ReadFile(s.path("x")); err == nil {
			err = os.WriteFile(s.path("x"), f(text), 0o600)
		}
	case *rowStore:
		err = s.open.Write(t.Context(), func(tx *store.Tx) error {
			var text []byte
			if _, err := tx.Get("SELECT content FROM snapshots_chunk", nil, &text); err != nil {
				return err
			}
			_, err := tx.Exec("UPDATE snapshots_chunk SET content = CAST($1 AS BLOB)", string(f(text)))
			return err
		})
	}
	must.OK(t, err)
}

// Who reads a snapshot while it is replaced gets the former one: nothing more is asked of the store then, which
// may be written to with what is read.
func TestReplacedWhileItIsRead(t *testing.T) {
	s := openStore(t, kinds()[0], t.TempDir())
	noise := make([]byte, 1<<20+9)
	_, _ = rand.Read(noise)
	must.Get(put(s, "x", string(noise), false))(t)
	in := must.Get(s.Load(t.Context(), "x"))(t)
	defer in.Close()
	must.Get(put(s, "x", "another", true))(t)
	got := must.Get(io.ReadAll(in))(t)
	assert.That(t, bytes.Equal(got, noise), "%d bytes", len(got))
}

func TestFilesOfOthersInTheFolder(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, "file", dir).(*fileStore)
	must.Get(put(s, "x", "text", false))(t)
	old := filepath.Join(s.dir, ".x.ndjson.gz.123.tmp")
	for name, text := range map[string]string{old: "", filepath.Join(s.dir, "notes.txt"): "", s.path("other"): "nothing of the kind"} {
		must.OK(t, os.WriteFile(name, []byte(text), 0o600))
	}
	must.OK(t, os.Chtimes(old, noon, time.Now().Add(-25*time.Hour)))
	must.Get(put(s, "y", "text", false))(t)
	assert.That(t, !present(old), "what a killed one left is still there")
	all := must.Get(s.List(t.Context()))(t)
	got := map[string]string{}
	for _, info := range all {
		got[info.Name] = info.Problem
	}
	want := map[string]string{"x": "", "y": "", "other": "the snapshot is damaged: gzip: invalid header"}
	assert.Diff(t, want, got)
	if runtime.GOOS != "windows" {
		stat, err := os.Stat(s.path("x"))
		folder, _ := os.Stat(s.dir)
		if err != nil || stat.Mode().Perm() != 0o600 || folder.Mode().Perm() != 0o700 {
			t.Errorf("modes %v, %v; %v", stat.Mode(), folder.Mode(), err)
		}
	}
}

func TestConfigOfTheStore(t *testing.T) {
	state := t.TempDir()
	cases := map[string]struct {
		cfg  config.SnapshotStore
		path string // or
		err  string
	}{
		"sqlite":        {config.SnapshotStore{Type: "sqlite"}, filepath.Join(state, "snapshots.db"), ""},
		"file":          {config.SnapshotStore{Type: "file"}, filepath.Join(state, "snapshots"), ""},
		"relative":      {config.SnapshotStore{Type: "file", Config: map[string]any{"path": "a/b"}}, filepath.Join(state, "a", "b"), ""},
		"absolute":      {config.SnapshotStore{Type: "sqlite", Config: map[string]any{"path": filepath.Join(state, "x.db")}}, filepath.Join(state, "x.db"), ""},
		"python's root": {config.SnapshotStore{Type: "file", Config: map[string]any{"root": "./s"}}, filepath.Join(state, "s"), ""},
		"both":          {config.SnapshotStore{Type: "file", Config: map[string]any{"root": "a", "path": "b"}}, "", "path and root mean the same"},
		"root of other": {config.SnapshotStore{Type: "sqlite", Config: map[string]any{"root": "a"}}, "", `unknown key "root"; a store of type sqlite takes "path"`},
		"unknown key":   {config.SnapshotStore{Type: "file", Config: map[string]any{"pth": "a"}}, "", `unknown key "pth"; a store of type file takes "path"`},
		"no text":       {config.SnapshotStore{Type: "file", Config: map[string]any{"path": int64(3)}}, "", "snapshot_store.config.path must be a path"},
		"empty":         {config.SnapshotStore{Type: "file", Config: map[string]any{"path": ""}}, "", "snapshot_store.config.path must be a path"},
		"custom":        {config.SnapshotStore{Type: "custom"}, "", `this host has no store "custom"; it has sqlite and file, and postgres where the state is on a PostgreSQL server`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s, err := Open(c.cfg, state, nil)
			if c.err != "" {
				assert.Fails(t, err, c.err)
				return
			}
			must.OK(t, err)
			defer s.Close()
			must.Get(put(s, "x", "text", false))(t)
			assert.That(t, present(c.path), "nothing is at %s", c.path)
		})
	}
}
