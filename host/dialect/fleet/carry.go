package fleet

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"a2e/host/wall"
	"a2e/protocol/fleet"
)

// What a result carries of the changes at most, in bytes.
const (
	maxPatch = 2 << 20
	maxFile  = 1 << 20
	maxBytes = 4 << 20 // of all files together
)

// carry puts what the files hold that a task has changed in the workspace into its result, but
// for those that agents must not see.
func (f *Front) carry(result *fleet.Result) {
	if !f.opts.Carry || len(result.Artifacts.FilesChanged) == 0 {
		return
	}
	root, err := os.OpenRoot(f.opts.Workspace)
	if err != nil {
		return
	}
	defer root.Close()
	guard, room := f.opts.Wall.In(root), maxBytes
	for _, name := range result.Artifacts.FilesChanged {
		file := fleet.File{Path: name}
		var err error
		switch file.Content, err = read(root, guard, name, min(maxFile, room)); {
		case errors.Is(err, fs.ErrNotExist):
			file.Gone = true
		case errors.Is(err, errTooLarge):
			file.Left = err.Error()
		case err != nil:
			file.Left = "it is no regular file that may be read"
		}
		room -= len(file.Content)
		result.Artifacts.Files = append(result.Artifacts.Files, file)
	}
}

var errTooLarge = errors.New("it is too large")

// read returns what a regular file of the workspace holds. A pipe is not waited for.
func read(root *os.Root, guard *wall.Guard, name string, most int) ([]byte, error) {
	open := guard.OpenFile
	if guard == nil {
		open = func(name string, flag int) (*os.File, error) { return root.OpenFile(name, os.O_RDONLY|flag, 0) }
	}
	file, err := open(name, syscall.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fs.ErrInvalid
	}
	content, err := io.ReadAll(io.LimitReader(file, int64(most)+1))
	if err == nil && len(content) > most {
		return nil, errTooLarge
	}
	return content, err
}

// carryPatch puts the changes that a branch has into the result.
func (f *Front) carryPatch(ctx context.Context, w *worktree, result *fleet.Result) {
	if !f.opts.Carry || result.Artifacts.Branch == "" {
		return
	}
	patch, err := w.main.Diff(ctx, maxPatch, w.base, result.Artifacts.Branch)
	if err != nil {
		result.NextSteps = append(result.NextSteps, "fetch the branch "+result.Artifacts.Branch+" from the worker's repository, as the result does not carry it: "+reason(err))
		return
	}
	result.Artifacts.Patch = patch
}
