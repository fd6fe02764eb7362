package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// DefaultCommands are the programs that may be started when the config names
// none; those that the machine lacks are left out.
func DefaultCommands() []string {
	return []string{
		"bash", "sh", "python3", "ls", "cat", "echo", "sleep", "git", "grep", "sed", "awk", "head", "tail", "wc",
		"sort", "find", "mkdir", "cp", "mv", "touch", "diff", "node", "go", "make",
	}
}

// SafePath gives the folders in which programs are looked up: the system's
// own, then those of a PATH variable that are absolute, exist, lie outside the
// workspace and cannot be written by strangers. An empty workspace excludes
// nothing.
func SafePath(pathVar, workspace string) []string {
	inside := realPath(workspace)
	system := systemDirs()
	var dirs []string
	for i, dir := range append(system, filepath.SplitList(pathVar)...) {
		dir = filepath.Clean(dir)
		if !filepath.IsAbs(dir) || slices.Contains(dirs, dir) {
			continue
		}
		real, err := filepath.EvalSymlinks(dir)
		if err != nil || within(inside, real) || within(inside, dir) {
			continue
		}
		if i < len(system) || ownFolder(real) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// ownFolder tells whether no stranger can change what a folder holds, nor swap
// the folder itself from above.
func ownFolder(real string) bool {
	info, err := os.Stat(real)
	if err != nil || !info.IsDir() || writableByOthers(info) {
		return false
	}
	for parent := filepath.Dir(real); ; parent = filepath.Dir(parent) {
		info, err := os.Stat(parent)
		if err != nil || writableByOthers(info) && info.Mode()&os.ModeSticky == 0 {
			return false
		}
		if parent == filepath.Dir(parent) {
			return true
		}
	}
}

// AllowList is a fixed set of programs by bare name. Each name is bound to one
// real file when the list is made; what a later PATH, link or file of the same
// name says changes nothing. It is safe for concurrent use.
type AllowList struct {
	workspace string            // real path; "" = none
	paths     map[string]string // name → real path
	names     []string          // sorted
	missing   []string          // allowed, but not on this machine
}

// NewAllowList resolves the names in dirs, as SafePath gives them. Names that no
// folder has go to Missing; a name with anything but letters, digits and "._+-"
// is an error, as it could stand for a path or a shell expression.
func NewAllowList(names, dirs []string, workspace string) (*AllowList, error) {
	a := &AllowList{workspace: realPath(workspace), paths: make(map[string]string, len(names))}
	for _, name := range names {
		if !bareName(name) {
			return nil, fmt.Errorf("allowed command %q is no bare program name such as \"git\"", name)
		}
		if _, ok := a.paths[name]; ok || slices.Contains(a.missing, name) {
			continue
		}
		path, err := LookPath(name, dirs, workspace)
		if err != nil {
			a.missing = append(a.missing, name)
			continue
		}
		a.paths[name] = path
		a.names = append(a.names, name)
	}
	slices.Sort(a.names)
	return a, nil
}

// Names lists the programs that may be started, sorted.
func (a *AllowList) Names() []string { return slices.Clone(a.names) }

// Missing lists the allowed names that this machine does not have.
func (a *AllowList) Missing() []string { return slices.Clone(a.missing) }

// DeniedError says why a program may not be started, and which ones may.
type DeniedError struct {
	Name    string
	Reason  string
	Allowed []string
}

// Error implements error.
func (e *DeniedError) Error() string {
	return fmt.Sprintf("command %q is refused: %s; allowed are: %s", e.Name, e.Reason, strings.Join(e.Allowed, ", "))
}

// Resolve gives the real path of an allowed name, checked again now: it must
// still be the same regular executable file outside the workspace. The error
// is a *DeniedError.
func (a *AllowList) Resolve(name string) (string, error) {
	path, ok := a.paths[name]
	switch {
	case !ok && name == "":
		return "", a.denied(name, "it is empty")
	case !ok && slices.Contains(a.missing, name) && a.workspace == filepath.Dir(a.workspace):
		return "", a.denied(name, "every program lies inside the workspace, which is "+a.workspace+"; start the host in the folder to work in, or set workspace in the config")
	case !ok && slices.Contains(a.missing, name):
		return "", a.denied(name, "this machine does not have it")
	case !ok && strings.ContainsAny(name, `/\`):
		return "", a.denied(name, "give a bare program name, not a path")
	case !ok:
		return "", a.denied(name, "it is not on the allow list")
	}
	if err := checkProgram(path, a.workspace); err != nil {
		return "", a.denied(name, err.Error())
	}
	return path, nil
}

func (a *AllowList) denied(name, reason string) error {
	return &DeniedError{Name: name, Reason: reason, Allowed: a.Names()}
}

// LookPath gives the real path of a program: a bare name is looked up in dirs,
// an absolute path stands for itself. It must be an executable regular file
// whose own place and whose link's place lie outside the workspace.
func LookPath(name string, dirs []string, workspace string) (string, error) {
	inside := realPath(workspace)
	if filepath.IsAbs(name) {
		return programAt(filepath.Clean(name), inside)
	}
	if !bareName(name) {
		return "", fmt.Errorf("%q is neither a bare program name nor an absolute path", name)
	}
	for _, dir := range dirs {
		for _, file := range programNames(name) {
			if path, err := programAt(filepath.Join(dir, file), inside); err == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("program %q is in none of %s", name, strings.Join(dirs, ", "))
}

func programAt(path, workspace string) (string, error) {
	if within(workspace, path) {
		return "", fmt.Errorf("%s lies inside the workspace", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	return real, checkProgram(real, workspace)
}

// checkProgram holds for a path that was resolved before: no part of it may
// have become a link since.
func checkProgram(path, workspace string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return errors.New("its file is gone")
	}
	info, err := os.Lstat(real)
	switch {
	case err != nil:
		return errors.New("its file is gone")
	case real != path:
		return errors.New("its file was replaced by a link")
	case within(workspace, real):
		return errors.New("its file lies inside the workspace")
	case !executable(info):
		return errors.New("its file is not executable")
	}
	return nil
}

// bareName tells whether a name can stand for nothing but a program.
func bareName(name string) bool {
	if name == "" || name[0] == '-' || name[0] == '.' {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._+-", c) >= 0) {
			return false
		}
	}
	return true
}

// realPath resolves links where it can; "" stays "".
func realPath(path string) string {
	if path == "" {
		return ""
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

// within tells whether path is dir or lies below it; an empty dir holds nothing.
func within(dir, path string) bool {
	if dir == "" {
		return false
	}
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}
