package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/sandbox"
	"a2e/host/schema"
	"a2e/protocol"
)

// fixOf returns the command, or the line of the config, that fixes an error; "" = nobody knows.
func fixOf(err error) string {
	lack, missing := (*host.Lack)(nil), (*sandbox.NotFoundError)(nil)
	at := (*fs.PathError)(nil)
	switch {
	case errors.As(err, &lack) && lack.Fix != "":
		return lack.Fix
	case errors.As(err, &missing):
		return installs(missing.Name, missing.Workspace)
	case errors.As(err, &at):
		return fixPath(at)
	}
	return ""
}

// fixPath returns what makes a file or folder usable.
func fixPath(at *fs.PathError) string {
	path := at.Path
	if strings.HasPrefix(filepath.Base(path), ".a2e-doctor-") {
		path = filepath.Dir(path)
	}
	_, gone := os.Stat(path)
	switch {
	case errors.Is(at.Err, fs.ErrNotExist) && gone != nil:
		return "mkdir -p " + quoted(path)
	case errors.Is(at.Err, fs.ErrPermission) && runtime.GOOS != "windows":
		if info, err := os.Stat(path); err == nil && sandbox.OwnedByUs(info) {
			return "chmod u+rwX " + quoted(path)
		}
		return `sudo chown "$(id -un)" ` + quoted(path)
	case errors.Is(at.Err, syscall.ENOSPC):
		return "df -h " + quoted(path)
	}
	return ""
}

// quoted returns a word as a shell takes it.
func quoted(word string) string {
	if strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("/._-+:,=@%", r) && (r > '~' || !strings.ContainsRune("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", r))
	}) {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}

// installs returns how a program comes to where children find it; "" = nobody knows.
func installs(name, workspace string) string {
	if elsewhere, err := exec.LookPath(name); err == nil && filepath.IsAbs(elsewhere) {
		if child.Within(workspace, elsewhere) {
			return "sudo cp " + quoted(elsewhere) + " /usr/local/bin/"
		}
		return "sudo ln -s " + quoted(elsewhere) + " /usr/local/bin/"
	}
	packages, manager := packageOf(name), installer()
	if packages == nil || manager == nil {
		return ""
	}
	one, special := packages[manager[0]]
	if !special {
		one = packages[""]
	}
	if command, whole := strings.CutPrefix(one, "!"); whole {
		return command
	}
	return strings.Join(append(manager[1:], one), " ")
}

// installer returns the name of this machine's package manager, and what installs a package by
// it; nil = there is none that is known.
func installer() []string {
	var sudo []string
	if os.Geteuid() != 0 {
		sudo = []string{"sudo"}
	}
	for _, m := range [][]string{
		{"brew", "brew", "install"}, {"apt-get", "apt-get", "install"}, {"dnf", "dnf", "install"}, {"pacman", "pacman", "-S"},
		{"apk", "apk", "add"}, {"zypper", "zypper", "install"}, {"winget", "winget", "install"},
	} {
		if _, err := exec.LookPath(m[0]); err != nil || m[0] == "brew" && runtime.GOOS != "darwin" {
			continue
		}
		if m[0] == "brew" || m[0] == "winget" {
			return m
		}
		return slices.Concat(m[:1], sudo, m[1:])
	}
	return nil
}

// packageOf returns the package that has a program, by the package manager, "" = any other. One
// that begins with ! is a whole command. nil = it is not known.
func packageOf(program string) map[string]string {
	same := "bash git make curl jq ruby perl gcc clang cmake ffmpeg sqlite3 deno tmux wget rsync zsh fish awk sed find diff"
	const uv = "!curl -LsSf https://astral.sh/uv/install.sh | sh"
	switch program {
	case "node":
		return map[string]string{"": "nodejs", "brew": "node", "winget": "OpenJS.NodeJS"}
	case "npx", "npm":
		return map[string]string{"": "npm", "brew": "node", "winget": "OpenJS.NodeJS"}
	case "python3", "python":
		return map[string]string{"": "python3", "pacman": "python", "winget": "Python.Python.3.13"}
	case "uv", "uvx":
		return map[string]string{"": "uv", "apt-get": uv, "zypper": uv, "winget": "astral-sh.uv"}
	case "pip", "pip3":
		return map[string]string{"": "python3-pip", "brew": "python3", "pacman": "python-pip", "apk": "py3-pip"}
	case "pytest":
		return map[string]string{"": "python3-pytest", "brew": "pytest", "pacman": "python-pytest", "apk": "py3-pytest"}
	case "go":
		return map[string]string{"": "go", "apt-get": "golang-go", "dnf": "golang", "winget": "GoLang.Go"}
	case "cargo", "rustc":
		return map[string]string{"": "cargo", "brew": "rust", "pacman": "rust", "winget": "Rustlang.Rustup"}
	case "rg":
		return map[string]string{"": "ripgrep"}
	case "fd":
		return map[string]string{"": "fd", "apt-get": "fd-find", "dnf": "fd-find"}
	case "docker":
		return map[string]string{"": "docker", "apt-get": "docker.io"}
	case "psql":
		return map[string]string{"": "postgresql", "apt-get": "postgresql-client", "brew": "libpq", "apk": "postgresql-client"}
	case "git":
		return map[string]string{"": "git", "winget": "Git.Git"}
	}
	if slices.Contains(strings.Fields(same), program) {
		return map[string]string{"": program}
	}
	return nil
}

// reasonOf says why something lacks, without what a person cannot use.
func reasonOf(err error) string {
	missing := (*sandbox.NotFoundError)(nil)
	if told, ok := err.(*protocol.Error); ok {
		return told.Message
	}
	if !errors.As(err, &missing) {
		return err.Error()
	}
	text := strings.Replace(err.Error(), missing.Error(), fmt.Sprintf("there is no program %q", missing.Name), 1)
	if hint := schema.DidYouMean(missing.Name, programsIn(missing.Dirs)); hint != "" && packageOf(missing.Name) == nil {
		text += "; " + hint
	}
	return text
}

// programsIn lists the names of the files in folders of programs.
func programsIn(dirs []string) (names []string) {
	for _, dir := range dirs {
		entries, _ := os.ReadDir(dir) // one that cannot be read has none to offer
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// fixSandbox returns the setting of the kernel that keeps namespaces from this user; "" = another
// reason does.
func fixSandbox(mechanism string) string {
	if mechanism != "user_namespace" {
		return ""
	}
	for _, s := range []struct{ key, closed, open string }{
		{"kernel.unprivileged_userns_clone", "0", "1"}, {"kernel.apparmor_restrict_unprivileged_userns", "1", "0"}, {"user.max_user_namespaces", "0", "10000"},
	} {
		text, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(s.key, ".", "/"))
		if err == nil && strings.TrimSpace(string(text)) == s.closed {
			return "sudo sysctl -w " + s.key + "=" + s.open
		}
	}
	return ""
}
