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

	"a2e/host/wall"
	"a2e/protocol"
)

type writeArgs struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

type writeData struct {
	Path    string `json:"path"`
	Size    int    `json:"size"` // bytes written
	Created bool   `json:"created"`
}

func (f *files) writeTool() Tool {
	return fileTool(protocol.ToolDefinition{
		Name: "write_file",
		Description: "Write a text file of the workspace, replacing what it held. Missing folders are made. The file changes in one step or not at all, " +
			"and keeps its permissions. To change a part of a file use edit_file.",
		InputParameters: []protocol.ToolParameter{
			{Name: "path", Type: "string", Required: true, Description: "File to write, relative to the workspace, under its real path: links are not followed."},
			{Name: "content", Type: "string", Required: true, Description: "The whole new text of the file."},
		},
		OutputParameters: []protocol.ToolParameter{
			{Name: "path", Type: "string", Required: true, Description: "The file written, relative to the workspace."},
			{Name: "size", Type: "integer", Required: true, Description: "Bytes written."},
			{Name: "created", Type: "boolean", Required: true, Description: "Whether the file is new."},
		},
		Idempotent: true,
		Tags:       []string{"file", "write"},
	}, false, f.writeFile)
}

func (f *files) writeFile(ctx context.Context, a *writeArgs) (*Outcome, error) {
	short, err := f.cleanWritten(a.Path)
	if err != nil {
		return nil, err
	}
	release, err := f.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	dir, base, err := f.parent(short, true)
	if err != nil {
		return nil, f.explain(a.Path, err)
	}
	defer dir.Close()
	old, err := f.target(dir, base, short)
	if err != nil {
		return nil, f.explain(a.Path, err)
	}
	if err := replace(dir, base, old, a.Content, ctx.Err); err != nil {
		return nil, f.explain(a.Path, err)
	}
	return &Outcome{
		Data:    writeData{Path: short, Size: len(a.Content), Created: old == nil},
		Summary: fmt.Sprintf("wrote %d bytes to %s", len(a.Content), short),
	}, nil
}

// lock lets one call of this host change files at a time, so that no edit is
// lost between its reading and its writing. The caller calls release.
func (f *files) lock(ctx context.Context) (release func(), err error) {
	select {
	case f.editing <- struct{}{}:
		return func() { <-f.editing }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
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
	file, info, err := f.openExact(dir, base, os.O_WRONLY)
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

// openExact opens the regular file base in dir, and no link of that name.
func (f *files) openExact(dir *os.Root, base string, flag int) (*os.File, fs.FileInfo, error) {
	before, err := dir.Lstat(base)
	if err != nil {
		return nil, nil, err
	}
	if err := checkType(before); err != nil {
		return nil, nil, err
	}
	file, err := dir.OpenFile(base, flag|openNonblock, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.checkFile(file)
	if err == nil && !os.SameFile(before, info) {
		err = errSwapped
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, info, nil
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
