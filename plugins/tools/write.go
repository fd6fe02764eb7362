package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"a2e/host/guard/swap"
	"a2e/host/guard/wall"
	"a2e/protocol"
)

type writeArgs struct {
	Path    string `json:"path" need:"File to write, relative to the workspace, under its real path: links are not followed."`
	Content string `json:"content" need:"The whole new text of the file."`

	IfUnchanged *string `json:"if_unchanged" may:"Hash from read_file: write only if the file still has that content."`
}

type writeData struct {
	Path    string `json:"path" need:"The file written, relative to the workspace."`
	Size    int    `json:"size" need:"Bytes written."`
	Created bool   `json:"created" need:"Whether the file is new."`
	Hash    string `json:"hash" need:"SHA-256 of the file as written, for if_unchanged."`
}

func (f *files) writeFile(ctx context.Context, a *writeArgs) (*Outcome, error) {
	if err := checkHash(a.IfUnchanged); err != nil {
		return nil, err
	}
	return f.change(ctx, a.Path, true, func(dir *os.Root, base, short string) (*Outcome, error) {
		old, err := f.target(dir, base, short, a.IfUnchanged != nil)
		if err != nil {
			return nil, err
		}
		ready := ctx.Err
		if old != nil {
			defer old.Close()
		}
		if err := f.checkMask(dir, base, a.Path, a.Content); err != nil {
			return nil, err
		}
		if a.IfUnchanged != nil {
			if ready, err = f.asRead(ctx, dir, base, old, a); err != nil {
				return nil, err
			}
		}
		if err := swap.Replace(dir, base, old, a.Content, ready); err != nil {
			return nil, err
		}
		return &Outcome{
			Data:    writeData{Path: short, Size: len(a.Content), Created: old == nil, Hash: hashOf(a.Content)},
			Summary: fmt.Sprintf("wrote %s to %s", protocol.Count(len(a.Content), "byte"), short),
		}, nil
	})
}

// asRead checks that the file old (nil = no file) has the content that the caller has read. It
// returns a check that the file was not changed since.
func (f *files) asRead(
	ctx context.Context, dir *os.Root, base string, old *os.File, a *writeArgs,
) (func() error, error) {
	if old == nil {
		return nil, protocol.Errorf(protocol.CodeToolError,
			"%s does not exist any more, and nothing was written; leave if_unchanged out to create it",
			f.quote(a.Path))
	}
	info, err := old.Stat()
	if err != nil {
		return nil, err
	}
	hash := sha256.New()
	if _, err := copyUntil(ctx, hash, old); err != nil {
		return nil, err
	}
	if err := f.sameHash(a.Path, *a.IfUnchanged, hex.EncodeToString(hash.Sum(nil))); err != nil {
		return nil, err
	}
	return func() error { return errors.Join(ctx.Err(), unchanged(dir, base, info)) }, nil
}

// checkHash refuses an if_unchanged that no content can have.
func checkHash(hash *string) error {
	if hash == nil {
		return nil
	}
	if raw, err := hex.DecodeString(*hash); err != nil || len(raw) != sha256.Size {
		return protocol.Errorf(protocol.CodeToolError,
			"if_unchanged %s is not a hash: give the one that read_file returned, %d hexadecimal digits, or leave "+
				"it out",
			quotePath(*hash), 2*sha256.Size)
	}
	return nil
}

// sameHash returns an error if the file has another hash than the one that was read.
func (f *files) sameHash(name, wanted, now string) error {
	if strings.EqualFold(wanted, now) {
		return nil
	}
	return protocol.Errorf(protocol.CodeToolError,
		"%s has changed since it was read, and nothing was written; read it again", f.quote(name)).With("hash", now)
}

func hashOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

// copyUntil is io.Copy that stops when the context ends.
func copyUntil(ctx context.Context, to io.Writer, from io.Reader) (n int64, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		part, err := io.CopyN(to, from, 1<<20)
		if n += part; errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}

// change opens the folder of a file and calls by to change the file under its bare name. A lock admits
// one call of all hosts at a time, so that no edit is lost between reading and writing. short is
// the file's clean path.
func (f *files) change(ctx context.Context, name string, create bool,
	by func(dir *os.Root, base, short string) (*Outcome, error),
) (*Outcome, error) {
	f = f.now()
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
	unlock, err := swap.Lock(ctx, dir)
	if err != nil {
		return nil, f.explain(name, err)
	}
	defer unlock()
	out, err := by(dir, base, short)
	return out, f.explain(name, err)
}

// parent opens the folder of a file to be written, one step after the
// other and through no link. It makes missing folders when create is set. The caller
// then uses the bare name of the file in that folder: a folder on the way that is
// swapped for a link cannot lead the write elsewhere.
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

// target opens the file that is to be replaced for writing, and with read for reading as well. It returns
// nil if the file does not exist. It refuses the host's own files.
func (f *files) target(dir *os.Root, base, short string, read bool) (*os.File, error) {
	flag := os.O_WRONLY
	if read {
		flag = os.O_RDWR
	}
	file, info, err := f.openIn(dir, base, flag, true)
	if f.guard.Keeps(short, info) {
		if err == nil {
			file.Close()
		}
		return nil, wall.ErrOwn
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return file, err
}

// maxEditBytes bounds the files that edit_file holds in memory, before the edit and after it.
const maxEditBytes = 64 << 20

type editArgs struct {
	Path string `json:"path" need:"File to edit, relative to the workspace, under its real path: links are not followed."`
	Old  string `json:"old" need:"The text to be replaced, exactly as it is in the file; not empty."`
	New  string `json:"new" need:"The text to put in its place; empty to delete."`
	All  bool   `json:"all" may:"Replace every occurrence instead of exactly one (default false)."`

	IfUnchanged *string `json:"if_unchanged" may:"Hash from read_file: edit only if the file still has that content."`
}

type editData struct {
	Path         string `json:"path" need:"The file edited, relative to the workspace."`
	Replacements int    `json:"replacements" need:"How many occurrences were replaced."`
	Size         int    `json:"size" need:"Size of the file afterwards, in bytes."`
	Hash         string `json:"hash" need:"SHA-256 of the file afterwards, for if_unchanged."`
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
		defer file.Close()
		if f.guard.Keeps(short, info) {
			return nil, wall.ErrOwn
		}
		text, err := readText(file, a.Path)
		if err != nil {
			return nil, err
		}
		if a.IfUnchanged != nil {
			if err := f.sameHash(a.Path, *a.IfUnchanged, hashOf(text)); err != nil {
				return nil, err
			}
		}
		if err := a.checkMask(text, f.secrets); err != nil {
			return nil, err
		}
		text, n, err := edited(text, a)
		if err != nil {
			return nil, err
		}
		ready := func() error { return errors.Join(ctx.Err(), unchanged(dir, base, info)) }
		if err := swap.Replace(dir, base, file, text, ready); err != nil {
			return nil, err
		}
		return &Outcome{
			Data:    editData{Path: short, Replacements: n, Size: len(text), Hash: hashOf(text)},
			Summary: fmt.Sprintf("replaced %d in %s", n, short),
		}, nil
	})
}

// check refuses an edit without an old text or without a change, and an invalid hash.
func (a *editArgs) check() error {
	switch {
	case a.Old == "":
		return protocol.Errorf(protocol.CodeToolError, "old is empty; give the text to be replaced, or use "+
			"write_file for a whole new file")
	case a.Old == a.New:
		return protocol.Errorf(protocol.CodeToolError, "old and new are the same; there is nothing to change")
	}
	return checkHash(a.IfUnchanged)
}

// readText reads the file to be edited.
func readText(file *os.File, name string) (string, error) {
	var text strings.Builder
	n, err := io.Copy(&text, io.LimitReader(file, maxEditBytes+1))
	switch {
	case err != nil:
		return "", err
	case n > maxEditBytes:
		return "", protocol.Errorf(protocol.CodeToolError, "%s is larger than %d MiB, which is what edit_file "+
			"takes; use a command such as sed", quotePath(name), maxEditBytes>>20)
	case !utf8.ValidString(text.String()):
		return "", protocol.Errorf(protocol.CodeToolError, "%s is not UTF-8 text, so edit_file leaves it alone; use "+
			"a command that knows its format", quotePath(name))
	}
	return text.String(), nil
}

// edited returns the text after the edit and the number of replacements. Models write LF; in a file with CRLF, and
// where the old text occurs only with CRLF, the line breaks of old and new become CRLF.
func edited(text string, a *editArgs) (string, int, error) {
	before, after := a.Old, a.New
	breaks := strings.Count(text, "\n")
	if breaks > 0 && breaks == strings.Count(text, "\r\n") || !strings.Contains(text, before) {
		before, after = withCRLF(before), withCRLF(after)
	}
	n := strings.Count(text, before)
	first := strings.Index(text, before)
	switch {
	case n == 0:
		return "", 0, protocol.Errorf(protocol.CodeToolError,
			"old was not found in %s; it has to match exactly, spaces and line breaks included: read the file again",
			quotePath(a.Path))
	case before == after:
		return "", 0, protocol.Errorf(protocol.CodeToolError, "old and new differ only in line breaks, which are "+
			"CRLF in %s; there is nothing to change", quotePath(a.Path))
	case !a.All && strings.LastIndex(text, before) != first:
		return "", 0, protocol.Errorf(protocol.CodeToolError,
			"old occurs %d times in %s and has to occur once: add lines around it, or set all to replace every "+
				"occurrence", max(n, 2), quotePath(a.Path))
	}
	if size := int64(len(text)) + int64(n)*int64(len(after)-len(before)); size > maxEditBytes {
		return "", 0, protocol.Errorf(protocol.CodeToolError, "%s would have %d bytes after the edit, and edit_file "+
			"makes files of %d MiB at most; nothing was written: replace less, or use a command such as sed",
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

// unchanged returns an error if the file is not the one that was read any more, so that
// what another process wrote in the meantime is not lost.
func unchanged(dir *os.Root, base string, old fs.FileInfo) error {
	now, err := dir.Lstat(base)
	if err != nil {
		return err
	}
	if !os.SameFile(old, now) || !now.ModTime().Equal(old.ModTime()) || now.Size() != old.Size() {
		return protocol.Errorf(protocol.CodeToolError, "another process changed %s meanwhile and nothing was "+
			"written; read it again", quotePath(base))
	}
	return nil
}
