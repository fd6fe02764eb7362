package sandbox

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
)

// LeftOut is a folder of a PATH variable that children do not get.
type LeftOut struct {
	Dir    string // as the variable has it
	Reason string // the rest of the sentence that Dir begins
}

// SafePath gives the folders in which programs are looked up: the system's own, then those
// of a PATH variable that SortPath keeps. An empty workspace excludes nothing.
func SafePath(pathVar, workspace string) []string {
	dirs, _ := SortPath(pathVar, workspace)
	return dirs
}

// SortPath gives SafePath, and what it left out of the variable. Children see all that
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
			reason = "can be changed by others than you and root, or is no folder"
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

// holdsFolder tells whether a folder is one of those, or above it.
func holdsFolder(real string, closed []string) string {
	for _, dir := range closed {
		if within(real, dir) {
			return "is or holds " + dir + ", and so what is private there"
		}
	}
	return ""
}

// holdsOne tells whether something of that name lies in a folder.
func holdsOne(dir string, names []string) string {
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return "holds " + name + ", which is private"
		}
	}
	return ""
}
