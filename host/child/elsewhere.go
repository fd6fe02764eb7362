package child

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"a2e/host"
	"a2e/host/sandbox"
)

// Elsewhere returns where a program is that was not found in the folders where programs are looked up, and why it
// was not found; "" = it is nowhere. It may be in a folder of PATH that children do not get, or in a folder where
// installers for one user put programs: only the start-up files of a shell add that to PATH.
func Elsewhere(name string) (path, why string) {
	if path, err := exec.LookPath(name); err == nil && filepath.IsAbs(path) {
		return path, fmt.Sprintf("it is at %s, in a folder of PATH that children do not get", path)
	}
	for _, dir := range usualDirs() {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return path, fmt.Sprintf("it is at %s, but PATH is %s: a graphical client often starts this host with "+
				"less than a terminal does", path, os.Getenv("PATH"))
		}
	}
	return "", ""
}

// usualDirs returns the folders of programs that a shell often adds to PATH, the newest of several versions first.
// It has the targets of shims instead of the shims, which look in PATH again.
func usualDirs() (dirs []string) {
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/nonexistent"
	}
	for _, pattern := range []string{
		"~/.local/bin", "~/bin", "~/.nvm/versions/node/*/bin", "~/.fnm/node-versions/*/installation/bin",
		"~/.local/share/fnm/node-versions/*/installation/bin", "~/.volta/tools/image/node/*/bin",
		"~/.asdf/installs/*/*/bin", "~/.local/share/mise/installs/*/*/bin", "~/.pyenv/versions/*/bin",
		"~/.rbenv/versions/*/bin", "~/.cargo/bin", "~/go/bin", "~/.bun/bin", "~/.deno/bin", "~/.npm-global/bin",
		"~/miniconda3/bin", "~/anaconda3/bin", "/usr/local/bin", "/opt/homebrew/bin",
		"/home/linuxbrew/.linuxbrew/bin", "/opt/local/bin", "/snap/bin", "/usr/local/go/bin",
	} {
		if rest, ok := strings.CutPrefix(pattern, "~"); ok {
			pattern = home + rest
		}
		found, _ := filepath.Glob(pattern) // the one error is a bad pattern
		slices.SortFunc(found, func(a, b string) int { return compareVersions(b, a) })
		dirs = append(dirs, found...)
	}
	return dirs
}

// compareVersions compares texts by the numbers in them: v9 comes before v10.
func compareVersions(a, b string) int {
	digits := func(r rune) bool { return r < '0' || r > '9' }
	x, y := strings.FieldsFunc(a, digits), strings.FieldsFunc(b, digits)
	for i := range min(len(x), len(y)) {
		m, _ := strconv.Atoi(x[i]) // digits alone; one that is too large counts as the largest
		n, _ := strconv.Atoi(y[i])
		if m != n {
			return m - n
		}
	}
	return cmp.Compare(a, b)
}

// elsewhere returns a *host.Lack that says where a program is that was not found, or err if it is nowhere.
func (p *Program) elsewhere(err error) error {
	if !errors.As(err, new(*sandbox.NotFoundError)) {
		return err
	}
	at, why := Elsewhere(p.Command[0])
	if at == "" {
		return err
	}
	words := each(append([]string{at}, p.Command[1:]...), Scalar)
	return &host.Lack{Err: fmt.Errorf("%w; %s", err, why), Fix: "command: [" + strings.Join(words, ", ") + "]"}
}
