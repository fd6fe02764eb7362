package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const (
	maxWorkdirBytes = 4096
	maxWorkdirShown = 200 // bytes of a name in an error
)

// WorkdirError says why a folder cannot be run in, and what would be right.
type WorkdirError struct {
	Name   string
	Reason string // the rest of the sentence that Name begins
	Denied bool   // the name leads out of the workspace, or tries to
}

// Error implements error.
func (e *WorkdirError) Error() string {
	name := e.Name
	if len(name) > maxWorkdirShown {
		name = strings.ToValidUTF8(name[:maxWorkdirShown], "") + "…"
	}
	return "folder " + strconv.Quote(name) + " " + e.Reason
}

// OpenWorkdir opens a folder of the workspace to run a program in: dir is for
// Policy.DirFile and the caller's to close, abs for Policy.Dir. name is relative
// to the workspace, "" being the workspace itself, or absolute and within it; links on the way are followed
// as long as they stay inside. root is the workspace and workspace its absolute
// path. What is opened is what the child enters, so a folder that is swapped for
// a link meanwhile is never entered. The error is a *WorkdirError.
func OpenWorkdir(root *os.Root, workspace, name string) (dir *os.File, abs string, err error) {
	short, failed := cleanWorkdir(workspace, name)
	if failed != nil {
		return nil, "", failed
	}
	// "/." keeps it from waiting for the other end of a pipe of that name.
	sub, err := root.OpenRoot(short + "/.")
	if err == nil {
		dir, err = sub.Open(".")
		sub.Close()
	}
	if err != nil {
		return nil, "", workdirError(root, name, err)
	}
	return dir, filepath.Join(workspace, filepath.FromSlash(short)), nil
}

// Relative gives an absolute path within a folder relative to it, with slashes, "." being the
// folder itself; false = it lies elsewhere. dir may be given by way of links, or as what they
// lead to. Only the text is looked at: what is below dir is to be opened by a handle of it.
func Relative(dir, name string) (rel string, ok bool) {
	for _, base := range []string{dir, realPath(dir)} {
		if rel, err := filepath.Rel(base, filepath.Clean(name)); err == nil && filepath.IsLocal(rel) {
			return filepath.ToSlash(rel), true
		}
	}
	return "", false
}

// cleanWorkdir gives a name in its shortest form, relative to the workspace, with slashes.
func cleanWorkdir(workspace, name string) (string, *WorkdirError) {
	switch {
	case name == "":
		return ".", nil
	case strings.ContainsRune(name, 0):
		return "", &WorkdirError{Name: name, Reason: "has a NUL character in it; no file name may have one"}
	case len(name) > maxWorkdirBytes:
		return "", &WorkdirError{Name: name, Reason: "has a name of more than " + strconv.Itoa(maxWorkdirBytes) + " bytes"}
	case filepath.IsAbs(name) || os.IsPathSeparator(name[0]):
		short, ok := Relative(workspace, name)
		if !ok {
			return "", &WorkdirError{Name: name, Reason: "lies outside of the workspace; give a path in it, best relative to it", Denied: true}
		}
		return short, nil
	}
	short := path.Clean(filepath.ToSlash(name))
	if !filepath.IsLocal(filepath.FromSlash(short)) {
		return "", leadsOut(name)
	}
	return short, nil
}

func leadsOut(name string) *WorkdirError {
	return &WorkdirError{Name: name, Reason: "leads out of the workspace; give a path inside it", Denied: true}
}

// workdirError puts an error of os.Root into words, without the paths around it.
func workdirError(root *os.Root, name string, err error) error {
	_, escape := root.Lstat("..") // what os.Root says to a path that leads out
	var inPath *fs.PathError
	switch {
	case errors.Is(err, errors.Unwrap(escape)):
		return leadsOut(name)
	case errors.Is(err, fs.ErrNotExist):
		return &WorkdirError{Name: name, Reason: "does not exist in the workspace"}
	case errors.Is(err, syscall.ENOTDIR):
		return &WorkdirError{Name: name, Reason: "is no folder"}
	case errors.As(err, &inPath):
		err = inPath.Err
	}
	return &WorkdirError{Name: name, Reason: "cannot be entered: " + err.Error()}
}
