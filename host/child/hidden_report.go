package child

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"a2e/host"
	"a2e/host/guard/wall"
	"a2e/host/sandbox"
)

// maxHidden is how many hidden folders are looked for in one program's needs at most.
const maxHidden = 8

// ReportHidden looks for files that the program needs and the sandbox hides: its own file, the interpreter of that
// file, the files among its arguments, and those that said names, such as the end of its stderr. The error is a
// *host.Lack that says which folder is hidden; its fix is the line of the config that shows all of them to the
// program. nil = nothing is hidden. It changes nothing.
func (p *Program) ReportHidden(said string) error {
	policy, err := p.Policy()
	if policy.DirFile != nil {
		policy.DirFile.Close()
	}
	if err != nil || p.Launcher == nil {
		return nil // whoever starts the program gets the error
	}
	launcher, err := p.Launcher()
	if err != nil {
		return nil // whoever starts the program gets this error too
	}
	needed := slices.Concat(p.runs(policy.Path), p.arguments(), pathsIn(said))
	var lack *host.Lack
	read := slices.Clone(p.Read)
	for range maxHidden {
		what, at := firstHidden(launcher, &policy, needed)
		if what == "" {
			break
		}
		folder := whole(at)
		if slices.Contains(policy.Read, folder) {
			folder = at
		}
		if lack == nil {
			lack = &host.Lack{Err: hiddenError(what, at, folder), Minor: true}
		}
		read, policy.Read = append(read, folder), append(policy.Read, folder)
	}
	if lack == nil {
		return nil
	}
	lack.Fix = "read: [" + strings.Join(each(read, Scalar), ", ") + "]"
	return lack
}

// hiddenError returns the error for a file that the sandbox hides.
func hiddenError(what, at, folder string) error {
	text := "in its sandbox it may not see " + what
	if at != what {
		text += ", which leads to " + at
	}
	if folder == at {
		return fmt.Errorf("%s", text)
	}
	return fmt.Errorf("%s: the sandbox hides %s", text, folder)
}

// firstHidden returns the first path that the sandbox hides. at is where this path leaves the part that the program
// sees.
func firstHidden(launcher *sandbox.Launcher, policy *sandbox.Policy, needed []string) (what, at string) {
	for _, what = range needed {
		if at = launcher.HiddenAt(policy, what); at != "" {
			return what, at
		}
	}
	return "", ""
}

// arguments returns the arguments as paths; most of these do not exist.
func (p *Program) arguments() (all []string) {
	for _, arg := range p.Command[1:] {
		if name, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(name, "-") {
			arg = value
		}
		if arg != "" {
			all = append(all, Absolute(Absolute(p.Workspace, p.Cwd), arg))
		}
	}
	return all
}

// pathsIn returns the absolute paths in a text.
func pathsIn(text string) (all []string) {
	form := regexp.MustCompile(`(?:^|[\s'"\x60(=:])(/[^\s'"\x60():,;]+)`)
	for _, path := range form.FindAllStringSubmatch(text, maxHidden) {
		all = append(all, path[1])
	}
	return all
}

// runs returns what is needed to run a file: the file, and what its first line names, or what pyvenv.cfg names in a
// virtual environment of Python.
func (p *Program) runs(path string) []string {
	all := []string{path}
	begin := make([]byte, MaxShebang)
	f, err := os.Open(path)
	if err != nil {
		return all
	}
	defer f.Close()
	n, _ := io.ReadFull(f, begin)
	if words, err := Shebang(begin[:n]); err == nil && words != nil {
		if filepath.IsAbs(words[0]) {
			return append(all, p.runs(words[0])...)
		}
		if at, err := sandbox.LookPath(words[0], p.searched(path), p.Workspace); err == nil {
			all = append(all, at)
		}
		return all
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(path)), "pyvenv.cfg"))
	if err == nil {
		if home := regexp.MustCompile(`(?m)^home\s*=\s*(/.*\S)\s*$`).FindSubmatch(text); home != nil {
			all = append(all, string(home[1]))
		}
	}
	return all
}

// searched returns the folders in which the program at path finds other programs: those of the sandbox, and its own
// folder, because an interpreter is often in the folder of its scripts.
func (p *Program) searched(path string) []string {
	dirs := slices.Clone(p.dirs())
	if dir := filepath.Dir(path); !p.bare() && !wall.Within(p.Workspace, dir) && !slices.Contains(dirs, dir) {
		dirs = append(dirs, dir)
	}
	return dirs
}

// whole returns the folder that a program must read to use a file: the package of a script, the folder above bin of
// an interpreter, or the folder of the file. It returns the file alone if that folder holds private things.
func whole(path string) string {
	if info, err := os.Stat(path); err != nil || info.IsDir() && filepath.Base(path) != "bin" {
		return path
	}
	dir := filepath.Dir(path)
	if filepath.Base(path) == "bin" {
		dir = path
	}
	switch at := nodePackage(path); {
	case at != "":
		dir = at
	case filepath.Base(dir) == "bin" && !sandbox.Private(filepath.Dir(dir)):
		dir = filepath.Dir(dir)
	default:
		for there(dir, "__init__.py") { // a part of a Python package
			dir = filepath.Dir(dir)
		}
		for _, up := range []string{dir, filepath.Dir(dir)} {
			if there(up, "pyproject.toml") {
				dir = up
				break
			}
		}
	}
	if sandbox.Private(dir) {
		return path
	}
	return dir
}

// nodePackage returns the folder with everything that a script of a Node.js package loads: the outermost
// node_modules around it, or else the folder with its package.json, or a folder above that has the packages of a
// workspace. It returns "" if the file is in no package.
func nodePackage(path string) (found string) {
	for dir := filepath.Dir(path); dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		switch {
		case sandbox.Private(dir):
			return found
		case filepath.Base(dir) == "node_modules":
			found = dir
		case filepath.Base(found) == "node_modules":
		case found == "" && there(dir, "package.json"):
			found = dir
		case found != "" && (there(dir, "node_modules") || there(dir, "pnpm-workspace.yaml")):
			found = dir
		}
	}
	return found
}

// there reports whether a folder has an entry of that name.
func there(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

// Scalar returns a path as an entry of a YAML list, in quotes if it needs them.
func Scalar(path string) string {
	if regexp.MustCompile(`^[A-Za-z/._][A-Za-z0-9/._@+-]*$`).MatchString(path) {
		return path
	}
	return strconv.Quote(path)
}

// each calls do for each entry of a list and returns the results.
func each(all []string, do func(string) string) []string {
	out := make([]string, len(all))
	for i, one := range all {
		out[i] = do(one)
	}
	return out
}
