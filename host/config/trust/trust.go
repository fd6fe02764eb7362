// Package trust keeps the list of files that a user has checked and trusts: the path of each file, and
// the SHA-256 of its content, so that a changed file is not trusted any more.
//
// A list that another user could have written is not used.
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

// fileName is the name of the list in the user's config folder of a2e.
const fileName = "trusted.json"

// maxBytes is the maximum size of the list.
const maxBytes = 16 << 20

// List is the list in a folder, which need not exist. The zero value trusts nothing and cannot be
// changed.
type List struct {
	Dir string // the user's config folder of a2e; "" = there is none
}

// File is a trusted file.
type File struct {
	Path   string `json:"path"`   // absolute, without links
	SHA256 string `json:"sha256"` // of its content, in hex
}

// Sum returns the SHA-256 of content, in hex.
func Sum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// Check returns the reason why the content of a file is not trusted, or nil if it is trusted.
func (l List) Check(path string, content []byte) error {
	entries, err := l.Files()
	if err != nil {
		return err
	}
	at := slices.IndexFunc(entries, func(e File) bool { return e.Path == path })
	switch {
	case at < 0:
		return errors.New("nobody has run `a2e trust` for it")
	case entries[at].SHA256 != Sum(content):
		return errors.New("it has changed since `a2e trust`")
	}
	return nil
}

// Add trusts a file with this content, and with no other.
func (l List) Add(path string, content []byte) error {
	return l.change(func(entries []File) ([]File, error) {
		entries = slices.DeleteFunc(entries, func(e File) bool { return e.Path == path })
		return append(entries, File{path, Sum(content)}), nil
	})
}

// Remove removes a file from the list. It is an error if the file is not in the list.
func (l List) Remove(path string) error {
	return l.change(func(entries []File) ([]File, error) {
		kept := slices.DeleteFunc(slices.Clone(entries), func(e File) bool { return e.Path == path })
		if len(kept) == len(entries) {
			return nil, fmt.Errorf("%s is not trusted anyway", path)
		}
		return kept, nil
	})
}

// Files returns the trusted files, sorted by path, or none if there is no list. The error says why the
// list cannot be used.
func (l List) Files() ([]File, error) {
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
	var entries []File
	if err == nil && json.Unmarshal(data, &entries, json.RejectUnknownMembers(true)) != nil {
		err = fmt.Errorf("%s: it is damaged; remove it and trust the files again", filepath.Join(l.Dir, fileName))
	}
	if err != nil {
		return nil, fmt.Errorf("the list of trusted files is not used: %w", err)
	}
	return entries, nil
}

// lockWait is the maximum time to wait for another process that changes the list.
const lockWait = 10 * time.Second

// change replaces the list by the result of do, under a lock.
func (l List) change(do func([]File) ([]File, error)) error {
	if _, err := l.Files(); err != nil { // before a folder is made
		return err
	}
	dir, err := private.MakeDir(l.Dir)
	if err != nil {
		return fmt.Errorf("the list of trusted files cannot be written: %w", err)
	}
	return errors.Join(l.changeIn(dir, do), dir.Close())
}

func (l List) changeIn(dir *private.Dir, do func([]File) ([]File, error)) error {
	const name = fileName + ".lock"
	lock, err := dir.Lock(name, nil, lockWait)
	if err != nil {
		return fmt.Errorf("the list of trusted files cannot be written: %w", err)
	}
	defer func() { _, _ = dir.Remove(name), lock.Close() }() // a process that waits for it makes a new one
	entries, err := l.Files()
	if err != nil {
		return err
	}
	if entries, err = do(entries); err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	text, err := json.Marshal(entries, jsontext.WithIndent("  "))
	if err == nil {
		err = dir.Replace(fileName, append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("the list of trusted files cannot be written: %w", err)
	}
	return nil
}
