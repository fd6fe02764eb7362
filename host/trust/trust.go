// Package trust keeps the list of the files that a user has looked at and trusts: the path
// of each, and the SHA-256 of its content, so that a file that changes is not trusted any more.
//
// The list lies in the user's own config folder. One that somebody else could have written
// is not believed.
package trust

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
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

// Sum gives the SHA-256 of a content, in hex.
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

// Entries gives the list, by path; none where there is none. The error says why it cannot be
// believed.
func (l List) Entries() ([]Entry, error) {
	if l.Dir == "" {
		return nil, errNoFolder
	}
	root, err := os.OpenRoot(l.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the list of trusted files cannot be read: %w", err)
	}
	defer func() { _ = root.Close() }()
	entries, err := read(root)
	if err != nil {
		return nil, fmt.Errorf("the list of trusted files %s is not believed: %w", filepath.Join(l.Dir, fileName), err)
	}
	return entries, nil
}

var errNoFolder = errors.New("there is no config folder to keep a list of trusted files in: set HOME, or XDG_CONFIG_HOME to an absolute path")

// read reads the list of a folder.
func read(root *os.Root) ([]Entry, error) {
	info, err := root.Lstat(fileName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is no regular file; remove it and trust anew")
	}
	file, err := root.Open(fileName)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if err := ours(root, file, info); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err != nil {
		return nil, err
	}
	var entries []Entry
	if err := json.Unmarshal(data, &entries, json.RejectUnknownMembers(true)); err != nil || len(data) > maxBytes {
		return nil, errors.New("it is damaged; remove it and trust anew")
	}
	return entries, nil
}

// ours tells why somebody else than this user could have written an open file, which Lstat
// saw as before.
func ours(root *os.Root, file *os.File, before os.FileInfo) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(info, before) {
		return errors.New("it was replaced just now; try again")
	}
	if err := onlyOurs(info); err != nil {
		return fmt.Errorf("the file %w", err)
	}
	dir, err := root.Stat(".")
	if err != nil {
		return err
	}
	if err := onlyOurs(dir); err != nil {
		return fmt.Errorf("its folder %w", err)
	}
	return nil
}

// change writes the list that do makes of the one there is.
func (l List) change(do func([]Entry) ([]Entry, error)) error {
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
		err = os.MkdirAll(l.Dir, 0o700)
	}
	if err == nil {
		err = l.replace(append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("the list of trusted files cannot be written: %w", err)
	}
	_, err = l.Entries() // what was written is believed, or this says why not
	return err
}

// replace puts a whole list in the place of the old one.
func (l List) replace(text []byte) (err error) {
	file, err := os.CreateTemp(l.Dir, ".trusted-") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	_, err = io.Copy(file, bytes.NewReader(text))
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), filepath.Join(l.Dir, fileName))
}
