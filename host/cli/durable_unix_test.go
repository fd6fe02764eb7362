//go:build unix

package cli_test

import (
	"os"
	"path/filepath"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/store"
	"a2e/protocol"
)

// TestFileTakenAway moves, removes and replaces the store's file while a host uses it. What
// the host cannot keep where others find it, it does not acknowledge.
func TestFileTakenAway(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(t *testing.T, file string){
		"the file is moved": func(t *testing.T, file string) {
			durableMove(t, file, file+".away")
		},
		"the folder is moved, another is in its place": func(t *testing.T, file string) {
			durableMove(t, filepath.Dir(file), filepath.Dir(file)+".away")
			must.OK(t, os.Mkdir(filepath.Dir(file), 0o700))
			other, err := store.Open(t.Context(), file, store.Options{})
			if err == nil {
				err = other.Close()
			}
			must.OK(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := durableDir(t)
			file := filepath.Join(dir, "state", store.FileName)
			h := durableStart(t, dir)
			kept := durableKeep(t, h, "before", 5)
			take(t, file)
			for range 2 {
				durableRefuses(t, h, protocol.CodeRuntimeError, file)
				durableGoesOn(t, h)
			}
			_, err := h.retrieve(map[string]any{"query": "kept"})
			assert.That(t, durableRefusal(err) != nil, "a search gave %v", err)
			durablePutBack(t, file)
			kept = append(kept, durableKeep(t, h, "after", 5)...) // no restart is needed
			h.end()
			there := durableStart(t, dir).versions(kept)
			assert.Equal(t, len(there), len(kept), "of … entries %v are there", there)
			durableCheck(t, filepath.Dir(file))
		})
	}
}

func durableMove(t *testing.T, from, to string) {
	t.Helper()
	must.OK(t, os.Rename(from, to))
}

// durablePutBack undoes what the cases did.
func durablePutBack(t *testing.T, file string) {
	t.Helper()
	for _, path := range []string{file, filepath.Dir(file)} {
		if _, err := os.Stat(path + ".away"); err != nil {
			continue
		}
		must.OK(t, os.RemoveAll(path))
		durableMove(t, path+".away", path)
	}
}
