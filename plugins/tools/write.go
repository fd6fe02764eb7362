package tools

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"a2e/host/wall"
	"a2e/protocol"
)

type writeArgs struct {
	Path    string `json:"path" need:"File to write, relative to the workspace, under its real path: links are not followed."`
	Content string `json:"content" need:"The whole new text of the file."`
}

type writeData struct {
	Path    string `json:"path" need:"The file written, relative to the workspace."`
	Size    int    `json:"size" need:"Bytes written."`
	Created bool   `json:"created" need:"Whether the file is new."`
}

func (f *files) writeFile(ctx context.Context, a *writeArgs) (*Outcome, error) {
	return f.change(ctx, a.Path, true, func(dir *os.Root, base, short string) (*Outcome, error) {
		old, err := f.target(dir, base, short)
		if err != nil {
			return nil, err
		}
		if err := replace(dir, base, old, a.Content, ctx.Err); err != nil {
			return nil, err
		}
		return &Outcome{
			Data:    writeData{Path: short, Size: len(a.Content), Created: old == nil},
			Summary: fmt.Sprintf("wrote %d bytes to %s", len(a.Content), short),
		}, nil
	})
}

// change has a file changed by its bare name in its folder, one call of this host at a time,
// so that no edit is lost between its reading and its writing. short is its clean path.
func (f *files) change(ctx context.Context, name string, create bool, by func(dir *os.Root, base, short string) (*Outcome, error)) (*Outcome, error) {
	short, err := f.cleanWritten(name)
	if err != nil {
		return nil, err
	}
	select {
	case f.editing <- struct{}{}:
		defer func() { <-f.editing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	dir, base, err := f.parent(short, create)
	if err != nil {
		return nil, f.explain(name, err)
	}
	defer dir.Close()
	out, err := by(dir, base, short)
	return out, f.explain(name, err)
}

// parent opens the folder that a file to be written lies in, one step after the
// other and through no link, making the missing ones when create is set. What
// happens in that folder afterwards is done by the bare name of the file: a
// folder swapped for a link on the way cannot lead it elsewhere.
func (f *files) parent(name string, create bool) (dir *os.Root, base string, err error) {
	folder, base := path.Split(name)
	if dir, err = f.root.OpenRoot("."); err != nil {
		return nil, "", err
	}
	if err := f.checkDir(dir); err != nil {
		return nil, "", errors.Join(err, dir.Close())
	}
	done := ""
	for step := range strings.SplitSeq(strings.TrimSuffix(folder, "/"), "/") {
		if step == "" {
			break
		}
		if done = path.Join(done, step); f.guard.Hides(done, nil) {
			return nil, "", errors.Join(wall.ErrOwn, dir.Close())
		}
		sub, err := f.enter(dir, step)
		if create && errors.Is(err, fs.ErrNotExist) {
			if err = dir.Mkdir(step, 0o777); err == nil || errors.Is(err, fs.ErrExist) {
				sub, err = f.enter(dir, step)
			}
		}
		closed := dir.Close()
		if err != nil {
			return nil, "", errors.Join(err, closed)
		}
		dir = sub
	}
	return dir, base, nil
}

// target looks at the file that is to be replaced: nil when there is none. It
// has to be one that this process may write to, and none of the host's own.
func (f *files) target(dir *os.Root, base, short string) (fs.FileInfo, error) {
	file, info, err := f.openIn(dir, base, os.O_WRONLY, true)
	if f.guard.Keeps(short, info) {
		if err == nil {
			file.Close()
		}
		return nil, wall.ErrOwn
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return info, file.Close()
}

// replace puts a file with the given content in the place of base, whole or not
// at all: it writes a new file beside it and renames that. old is the file to be
// replaced, whose permissions and owner the new one gets, or nil. ready is asked
// last: its error leaves all as it was.
func replace(dir *os.Root, base string, old fs.FileInfo, content string, ready func() error) (err error) {
	mode := fs.FileMode(0o666)
	if old != nil {
		mode = 0o600 // nobody reads it before it has the permissions of the old one
	}
	temp := ".a2e-" + rand.Text() + ".tmp"
	file, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = file.Close() // closed twice when the failure came later
			_ = dir.Remove(temp)
		}
	}()
	if _, err := io.WriteString(file, content); err != nil {
		return err
	}
	if old != nil {
		keepOwner(file, old)
		if err := file.Chmod(old.Mode().Perm()); err != nil {
			return err
		}
	}
	if err := file.Close(); err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	return dir.Rename(temp, base)
}

// maxEditBytes bounds the files that edit_file holds in memory, before the edit and after it.
const maxEditBytes = 64 << 20

type editArgs struct {
	Path string `json:"path" need:"File to edit, relative to the workspace, under its real path: links are not followed."`
	Old  string `json:"old" need:"The text to be replaced, exactly as it is in the file; not empty."`
	New  string `json:"new" need:"The text to put in its place; empty to delete."`
	All  bool   `json:"all" may:"Replace every occurrence instead of exactly one (default false)."`
}

type editData struct {
	Path         string `json:"path" need:"The file edited, relative to the workspace."`
	Replacements int    `json:"replacements" need:"How many occurrences were replaced."`
	Size         int    `json:"size" need:"Size of the file afterwards, in bytes."`
}

func (f *files) editFile(ctx context.Context, a *editArgs) (*Outcome, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	return f.change(ctx, a.Path, false, func(dir *os.Root, base, short string) (*Outcome, error) {
		file, info, err := f.openIn(dir, base, os.O_RDWR, true)
		if err != nil {
			return nil, err
		}
		if f.guard.Keeps(short, info) {
			file.Close()
			return nil, wall.ErrOwn
		}
		text, err := readText(file, a.Path)
		if err != nil {
			return nil, err
		}
		text, n, err := edited(text, a)
		if err != nil {
			return nil, err
		}
		ready := func() error { return errors.Join(ctx.Err(), unchanged(dir, base, info)) }
		if err := replace(dir, base, info, text, ready); err != nil {
			return nil, err
		}
		return &Outcome{
			Data:    editData{Path: short, Replacements: n, Size: len(text)},
			Summary: fmt.Sprintf("replaced %d in %s", n, short),
		}, nil
	})
}

// check refuses an edit that says nothing.
func (a *editArgs) check() error {
	switch {
	case a.Old == "":
		return protocol.Errorf(protocol.CodeToolError, "old is empty; give the text to be replaced, or use write_file for a whole new file")
	case a.Old == a.New:
		return protocol.Errorf(protocol.CodeToolError, "old and new are the same; there is nothing to change")
	}
	return nil
}

// readText reads the file to be edited and closes it.
func readText(file *os.File, name string) (string, error) {
	defer file.Close()
	var text strings.Builder
	n, err := io.Copy(&text, io.LimitReader(file, maxEditBytes+1))
	switch {
	case err != nil:
		return "", err
	case n > maxEditBytes:
		return "", protocol.Errorf(protocol.CodeToolError, "%s is larger than %d MiB, which is what edit_file takes; use a command such as sed", quotePath(name), maxEditBytes>>20)
	case !utf8.ValidString(text.String()):
		return "", protocol.Errorf(protocol.CodeToolError, "%s is not UTF-8 text, so edit_file leaves it alone; use a command that knows its format", quotePath(name))
	}
	return text.String(), nil
}

// edited returns the text after the edit and how many pieces were replaced.
func edited(text string, a *editArgs) (string, int, error) {
	before, after := a.Old, a.New
	if breaks := strings.Count(text, "\n"); breaks > 0 && breaks == strings.Count(text, "\r\n") {
		before, after = withCRLF(before), withCRLF(after)
	}
	n := strings.Count(text, before)
	first := strings.Index(text, before)
	switch {
	case n == 0:
		return "", 0, protocol.Errorf(protocol.CodeToolError,
			"old was not found in %s; it has to match exactly, spaces and line breaks included: read the file again", quotePath(a.Path))
	case before == after:
		return "", 0, protocol.Errorf(protocol.CodeToolError, "old and new differ only in line breaks, which are CRLF in %s; there is nothing to change", quotePath(a.Path))
	case !a.All && strings.LastIndex(text, before) != first:
		return "", 0, protocol.Errorf(protocol.CodeToolError,
			"old occurs %d times in %s and has to occur once: add lines around it, or set all to replace every occurrence", max(n, 2), quotePath(a.Path))
	}
	if size := int64(len(text)) + int64(n)*int64(len(after)-len(before)); size > maxEditBytes {
		return "", 0, protocol.Errorf(protocol.CodeToolError, "%s would have %d bytes after the edit, and edit_file makes files of %d MiB at most; nothing was written: replace less, or use a command such as sed",
			quotePath(a.Path), size, maxEditBytes>>20)
	}
	if a.All {
		return strings.ReplaceAll(text, before, after), n, nil
	}
	return text[:first] + after + text[first+len(before):], 1, nil
}

// withCRLF makes every line break a CRLF.
func withCRLF(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\n", "\r\n")
}

// unchanged sees that the file is still the one that was read, so that what
// another process wrote in the meantime is not lost.
func unchanged(dir *os.Root, base string, old fs.FileInfo) error {
	now, err := dir.Lstat(base)
	if err != nil {
		return err
	}
	if !os.SameFile(old, now) || !now.ModTime().Equal(old.ModTime()) || now.Size() != old.Size() {
		return protocol.Errorf(protocol.CodeToolError, "another process changed %s meanwhile and nothing was written; read it again", quotePath(base))
	}
	return nil
}
