package sandbox

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// LeftOut is a folder of a PATH variable that children do not get.
type LeftOut struct {
	Dir    string `json:"path"`   // as written in the variable
	Reason string `json:"reason"` // the rest of the sentence that Dir begins
}

// SafePath returns the folders in which programs are looked up: those of the system, then those of a
// PATH variable that SortPath keeps. An empty workspace excludes nothing.
func SafePath(pathVar, workspace string) []string {
	dirs, _ := SortPath(pathVar, workspace)
	return dirs
}

// SortPath returns the folders of SafePath, and those that it left out. Children see everything in a
// folder of their PATH, and run what they find there. So a folder of the variable is kept only if it
// is absolute, if no other user and no child can write to it, and if nothing private lies in it.
// Missing and repeated folders are left out without an entry in left.
func SortPath(pathVar, workspace string) (dirs []string, left []LeftOut) {
	work, closed := realPath(workspace), privateFolders()
	system := systemDirs()
	for i, name := range append(system, filepath.SplitList(pathVar)...) {
		dir := filepath.Clean(name)
		if slices.Contains(dirs, dir) || slices.ContainsFunc(left, func(l LeftOut) bool { return l.Dir == name }) {
			continue
		}
		real, err := filepath.EvalSymlinks(dir)
		reason := ""
		switch {
		case err != nil && filepath.IsAbs(dir):
			continue
		case !filepath.IsAbs(dir):
			reason = "is relative: which folder it is depends on where a program runs"
		case within(work, real) || within(work, dir):
			reason = "lies in the workspace, where an agent can put programs"
		case i < len(system):
		case !ownFolder(real):
			reason = "can be changed by others than you and root, or is not a folder"
		case work != "" && within(real, work):
			reason = "holds the workspace, and what lies beside it"
		default:
			reason = cmp.Or(private(real, closed), holdsOne(real, secretFiles()))
		}
		switch {
		case reason == "":
			dirs = append(dirs, dir)
		case i >= len(system):
			left = append(left, LeftOut{name, reason})
		}
	}
	return dirs, left
}

// secretFolders returns the names of folders whose contents no program should read.
func secretFolders() []string {
	return []string{".ssh", ".gnupg", ".aws", ".azure", ".password-store", ".kube", ".mozilla"}
}

// homeFiles returns names that show that a folder is somebody's home.
func homeFiles() []string {
	return append(secretFolders(), ".bashrc", ".zshrc", ".profile", ".bash_history", ".zsh_history")
}

// secretFiles returns the names of files and folders that hold passwords and keys.
func secretFiles() []string {
	return []string{".netrc", ".git-credentials", ".npmrc", ".pypirc", ".pgpass", ".env", ".docker", ".config"}
}

// privateFolders returns the folders that a folder of programs may neither be nor contain: homes, the
// data that programs keep there, and the folder of temporary files.
func privateFolders() []string {
	all := []string{"/root", "/home", "/Users", realPath(os.TempDir())}
	if home, err := os.UserHomeDir(); err == nil {
		all = append(all, realPath(home))
		for _, name := range []string{".local/share", ".local/state", ".cache"} {
			all = append(all, realPath(filepath.Join(home, name)))
		}
	}
	if config, err := os.UserConfigDir(); err == nil {
		all = append(all, realPath(config))
	}
	return all
}

// private returns the reason why children must not see a folder only because programs lie in it, or ""
// if there is none. real has no links. closed is the result of privateFolders.
func private(real string, closed []string) string {
	if reason := holdsFolder(real, closed); reason != "" {
		return reason
	}
	if parent := filepath.Dir(real); parent == "/home" || parent == "/Users" {
		return "is somebody's home"
	}
	for dir := real; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if slices.Contains(secretFolders(), filepath.Base(dir)) {
			return "lies in " + dir + ", which is private"
		}
	}
	return holdsOne(real, homeFiles())
}

// Private reports whether a folder contains private files, and so should not be shown to a program as a whole.
func Private(dir string) bool { return private(realPath(dir), privateFolders()) != "" }

// holdsFolder returns a reason if a folder is or contains one of the closed folders, or "" otherwise.
func holdsFolder(real string, closed []string) string {
	for _, dir := range closed {
		if within(real, dir) {
			return "is or holds " + dir + ", and so what is private there"
		}
	}
	return ""
}

// holdsOne returns a reason if a folder contains one of the names, or "" otherwise.
func holdsOne(dir string, names []string) string {
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return "holds " + name + ", which is private"
		}
	}
	return ""
}

const (
	maxWorkdirBytes = 4096
	maxWorkdirShown = 200 // bytes of a name in an error
)

// WorkdirError says why a folder cannot be a working directory, and what would be right.
type WorkdirError struct {
	Name   string
	Reason string // the rest of the sentence that Name begins
	Denied bool   // the name leads out of the workspace, or may do so
	Err    error  // the system's error, if Reason ends with it
}

// Error implements error.
func (e *WorkdirError) Error() string {
	name := e.Name
	if len(name) > maxWorkdirShown {
		name = strings.ToValidUTF8(name[:maxWorkdirShown], "") + "…"
	}
	if name == "" {
		return "the workspace " + e.Reason
	}
	return "folder " + strconv.Quote(name) + " " + e.Reason
}

// Unwrap returns Err.
func (e *WorkdirError) Unwrap() error { return e.Err }

// OpenWorkdir opens a folder of the workspace as the working directory of a program. dir is for Policy.DirFile and the
// caller closes it; abs is for Policy.Dir. name is relative to the workspace, or absolute and inside it; "" is the
// workspace itself. Links on the way are followed as long as they stay inside. root is the open workspace, and
// workspace its absolute path. The child enters exactly the folder that was opened, so a folder that is swapped for a
// link meanwhile is never entered. The error is a *WorkdirError.
func OpenWorkdir(root *os.Root, workspace, name string) (dir *os.File, abs string, err error) {
	short, failed := cleanWorkdir(workspace, name)
	if failed != nil {
		return nil, "", failed
	}
	// "/." keeps OpenRoot from blocking on a pipe of that name.
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

// Relative returns an absolute path relative to a folder that contains it, with slashes; "." is the
// folder itself. ok is false if the path is not in the folder. dir may contain links or be resolved.
// Only the text is compared: open the result through a handle of the folder.
func Relative(dir, name string) (rel string, ok bool) {
	for _, base := range []string{dir, realPath(dir)} {
		if rel, err := filepath.Rel(base, filepath.Clean(name)); err == nil && filepath.IsLocal(rel) {
			return filepath.ToSlash(rel), true
		}
	}
	return "", false
}

// cleanWorkdir returns a name in its shortest form, relative to the workspace, with slashes.
func cleanWorkdir(workspace, name string) (string, *WorkdirError) {
	switch {
	case name == "":
		return ".", nil
	case strings.ContainsRune(name, 0):
		return "", &WorkdirError{Name: name, Reason: "has a NUL character in it; no file name may have one"}
	case len(name) > maxWorkdirBytes:
		return "", &WorkdirError{Name: name, Reason: "has a name of more than " + strconv.Itoa(maxWorkdirBytes) +
			" bytes"}
	case filepath.IsAbs(name) || os.IsPathSeparator(name[0]):
		short, ok := Relative(workspace, name)
		if !ok {
			return "", &WorkdirError{Name: name, Reason: "lies outside of the workspace; give a path in it, best " +
				"relative to it", Denied: true}
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

// workdirError turns an error of os.Root into words, without the paths around it.
func workdirError(root *os.Root, name string, err error) error {
	_, escape := root.Lstat("..") // the error of os.Root for a path that leads out
	var inPath *fs.PathError
	switch {
	case errors.Is(err, errors.Unwrap(escape)):
		return leadsOut(name)
	case errors.Is(err, fs.ErrNotExist):
		return &WorkdirError{Name: name, Reason: "does not exist in the workspace"}
	case errors.Is(err, syscall.ENOTDIR):
		return &WorkdirError{Name: name, Reason: "is not a folder"}
	case errors.As(err, &inPath):
		err = inPath.Err
	}
	return &WorkdirError{Name: name, Reason: "cannot be entered: " + err.Error(), Err: err}
}
