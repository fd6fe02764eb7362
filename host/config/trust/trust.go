// Package trust keeps the list of the files that a user has looked at and trusts: the path
// of each, and the SHA-256 of its content, so that a file that changes is not trusted any more.
//
// One that somebody else could have written is not believed.
package trust

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/guard/private"
)

// fileName is the list's, in the user's config folder of a2e.
const fileName = "trusted.json"

// maxBytes bounds the list.
const maxBytes = 16 << 20

// List is the list in a folder, which need not exist. The zero value trusts nothing and
// takes nothing.
type List struct {
	Dir string // the user's config folder of a2e; "" = there is none
}

// Entry is a trusted file.
type Entry struct {
	Path   string `json:"path"`   // absolute, without links
	SHA256 string `json:"sha256"` // of its content, in hex
}

// Sum returns the SHA-256 of a content, in hex.
func Sum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// Check tells why the content of a file is not trusted; nil = it is.
func (l List) Check(path string, content []byte) error {
	entries, err := l.Entries()
	if err != nil {
		return err
	}
	at := slices.IndexFunc(entries, func(e Entry) bool { return e.Path == path })
	switch {
	case at < 0:
		return errors.New("nobody has run `a2e trust` for it")
	case entries[at].SHA256 != Sum(content):
		return errors.New("it has changed since `a2e trust`")
	}
	return nil
}

// Add trusts this content of a file, and no other.
func (l List) Add(path string, content []byte) error {
	return l.change(func(entries []Entry) ([]Entry, error) {
		entries = slices.DeleteFunc(entries, func(e Entry) bool { return e.Path == path })
		return append(entries, Entry{path, Sum(content)}), nil
	})
}

// Remove takes a file off the list. That it is not there is an error.
func (l List) Remove(path string) error {
	return l.change(func(entries []Entry) ([]Entry, error) {
		kept := slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return e.Path == path })
		if len(kept) == len(entries) {
			return nil, fmt.Errorf("%s is not trusted anyway", path)
		}
		return kept, nil
	})
}

// Entries returns the list, by path; none where there is none. The error says why it cannot be
// believed.
func (l List) Entries() ([]Entry, error) {
	if l.Dir == "" {
		return nil, errors.New("there is no config folder to keep a list of trusted files in: set HOME, or " +
			"XDG_CONFIG_HOME to an absolute path")
	}
	dir, err := private.OpenDir(l.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, private.ErrUnsafe):
		return nil, fmt.Errorf("the list of trusted files is not used: %w", err)
	case err != nil:
		return nil, fmt.Errorf("the list of trusted files cannot be read: %w", err)
	}
	data, err := dir.Read(fileName, maxBytes)
	if err = errors.Join(err, dir.Close()); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var entries []Entry
	if err == nil && json.Unmarshal(data, &entries, json.RejectUnknownMembers(true)) != nil {
		err = fmt.Errorf("%s: it is damaged; remove it and trust the files again", filepath.Join(l.Dir, fileName))
	}
	if err != nil {
		return nil, fmt.Errorf("the list of trusted files is not used: %w", err)
	}
	return entries, nil
}

// lockWait bounds the wait for another process that changes the list.
const lockWait = 10 * time.Second

// change writes the list that do makes of the one there is, which nobody else changes meanwhile.
func (l List) change(do func([]Entry) ([]Entry, error)) error {
	if _, err := l.Entries(); err != nil { // before a folder is made
		return err
	}
	dir, err := private.MakeDir(l.Dir)
	if err != nil {
		return fmt.Errorf("the list of trusted files cannot be written: %w", err)
	}
	return errors.Join(l.changeIn(dir, do), dir.Close())
}

func (l List) changeIn(dir *private.Dir, do func([]Entry) ([]Entry, error)) error {
	const name = fileName + ".lock"
	lock, err := dir.Lock(name, nil, lockWait)
	if err != nil {
		return fmt.Errorf("the list of trusted files cannot be written: %w", err)
	}
	defer func() { _, _ = dir.Remove(name), lock.Close() }() // who waits for it makes another one
	entries, err := l.Entries()
	if err != nil {
		return err
	}
	if entries, err = do(entries); err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	text, err := json.Marshal(entries, jsontext.WithIndent("  "))
	if err == nil {
		err = dir.Replace(fileName, append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("the list of trusted files cannot be written: %w", err)
	}
	return nil
}
