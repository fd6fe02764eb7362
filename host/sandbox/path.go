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
	Dir    string `json:"path"`   // as the variable has it
	Reason string `json:"reason"` // the rest of the sentence that Dir begins
}

// SafePath returns the folders in which programs are looked up: the system's own, then those
// of a PATH variable that SortPath keeps. An empty workspace excludes nothing.
func SafePath(pathVar, workspace string) []string {
	dirs, _ := SortPath(pathVar, workspace)
	return dirs
}

// SortPath returns SafePath, and what it left out of the variable. Children see all that
// lies in a folder of their PATH, and run what they find there: so it is absolute, no
// stranger and no child can put anything there, and nothing private lies in it. What is
// not there, or there twice, is left out without a word.
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

// secretFolders are the names of folders in which nothing is for programs to read.
func secretFolders() []string {
	return []string{".ssh", ".gnupg", ".aws", ".azure", ".password-store", ".kube", ".mozilla"}
}

// homeFiles give somebody's home away.
func homeFiles() []string {
	return append(secretFolders(), ".bashrc", ".zshrc", ".profile", ".bash_history", ".zsh_history")
}

// secretFiles hold passwords and keys.
func secretFiles() []string {
	return []string{".netrc", ".git-credentials", ".npmrc", ".pypirc", ".pgpass", ".env", ".docker", ".config"}
}

// privateFolders lists those that no folder of programs may be, nor hold: homes, what
// programs keep there, and what programs have open at the moment.
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

// private tells what keeps a folder, whose links are resolved, from being shown to
// children for the sake of the programs in it; "" where nothing does. closed is
// privateFolders.
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

// Private reports whether a folder holds what is private, and so should not be shown to a
// program as a whole.
func Private(dir string) bool { return private(realPath(dir), privateFolders()) != "" }

// holdsFolder reports whether a folder is one of those, or above it.
func holdsFolder(real string, closed []string) string {
	for _, dir := range closed {
		if within(real, dir) {
			return "is or holds " + dir + ", and so what is private there"
		}
	}
	return ""
}

// holdsOne reports whether something of that name lies in a folder.
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

// WorkdirError says why a folder cannot be run in, and what would be right.
type WorkdirError struct {
	Name   string
	Reason string // the rest of the sentence that Name begins
	Denied bool   // the name leads out of the workspace, or tries to
	Err    error  // of the system, if Reason ends with it
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

// Relative returns an absolute path within a folder relative to it, with slashes, "." being the
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
		return &WorkdirError{Name: name, Reason: "is not a folder"}
	case errors.As(err, &inPath):
		err = inPath.Err
	}
	return &WorkdirError{Name: name, Reason: "cannot be entered: " + err.Error(), Err: err}
}
