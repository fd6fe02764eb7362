//go:build linux

package sim

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
)

// noSecrets searches all files of the hosts for the secrets: the state, the audit, the
// records, and the files of their children in the workspace.
func (s *Sim) noSecrets() {
	_ = filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil // ignores deleted and unreadable files
		}
		text, _ := os.ReadFile(path)
		for _, secret := range s.secrets() {
			if at := bytes.Index(text, []byte(secret)); at >= 0 {
				s.fail("the file %s has a secret: %.300q", path, text[max(0, at-100):])
			}
		}
		return nil
	})
}

// atRest is how many goroutines an idle host may have: some for each child, and its own.
const atRest = 400

// routines checks the number of goroutines that a host has printed at its end.
func (h *host) routines() {
	text, _ := os.ReadFile(h.stderr)
	if n := bytes.Count(text, []byte("\ngoroutine ")); n > atRest {
		h.fail("%d goroutines at rest: %s", n, tail(text))
	}
}
