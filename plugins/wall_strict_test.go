package plugins_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/config"
	"a2e/host/sandbox"
	"a2e/plugins"
)

// loadStrict reads a config whose proc plugin has these allowed commands, with exec: strict.
func loadStrict(t *testing.T, dir string, allowed ...string) error {
	t.Helper()
	text := fmt.Sprintf("workspace: %q\nstate_dir: %q\nplugins:\n  - {name: t, type: tools}\n  - {name: p, type: proc, metadata: {exec: strict, allowed_commands: [%s]}}\n",
		dir, filepath.Join(filepath.Dir(dir), "state"), `"`+strings.Join(allowed, `", "`)+`"`)
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := config.Load(config.Source{Path: file, Dir: dir, Available: plugins.Types()})
	if err != nil {
		return err
	}
	made, err := plugins.New(cfg, plugins.Deps{})
	for _, p := range made {
		_ = p.Close(t.Context())
	}
	if err == nil {
		_, err = plugins.AllowedPrograms(cfg)
	}
	return err
}

// TestWallStrictConfig guards against an allow list under exec: strict on which one entry
// starts everything else.
func TestWallStrictConfig(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, entry := range []string{
		"sh", "bash", "dash", "python3", "python3.11", "python", "pypy3", "perl", "perl5.36", "ruby3.1", "node", "nodejs", "php8.2", "lua5.4", "env", "xargs", "find", "git", "make", "gmake", "npx", "npm",
		"awk", "gawk", "mawk", "sed", "busybox", "timeout", "nice", "nohup", "setsid", "sudo", "ssh", "tar", "vim.basic", "vi", "less", "go", "cargo", "gcc-12", "x86_64-linux-gnu-gcc-12", "docker", "strace", "gdb",
		"python3 -c", "python3 -I -B", "sh -c", "env -i", "env A=1", "env python3", "env -i A=1 python3 -c", "xargs sh", "nice -n", "timeout env", "sudo -n bash", "git -c", "find -exec", "node -e", "ld-linux-x86-64.so.2",
	} {
		t.Run(entry, func(t *testing.T) {
			if err := loadStrict(t, dir, "ls", entry); err == nil || !strings.Contains(err.Error(), `"`+entry+`"`) || !strings.Contains(err.Error(), "tools/run.py") {
				t.Errorf("it is allowed: %v", err)
			}
		})
	}
	for _, entry := range []string{"ls", "cat", "python3 tools/run.py", "python3 -I tools/run.py", "git status", "make test", "sh build.sh", "env python3 x.py", "head", "wc"} {
		if err := loadStrict(t, dir, entry); err != nil {
			t.Errorf("%s: %v", entry, err)
		}
	}
}

// TestWallStrictLinks: what a program is, not what its link is called.
func TestWallStrictLinks(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	put("bash", "\x7fELF")
	put("python3.11", "\x7fELF")
	put("busybox", "\x7fELF")
	put("script", "#!/bin/sh\n")
	put("plain", "\x7fELF")
	for name, to := range map[string]string{"helper": "bash", "run": "python3.11", "two": "helper", "sh": "busybox", "cat": "busybox"} {
		if err := os.Symlink(to, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"helper", "run", "two", "sh", "busybox", "script", "script -x"} {
		t.Run(name, func(t *testing.T) {
			if list, err := sandbox.NewAllowList([]string{name}, []string{bin}, "", true); err == nil {
				t.Errorf("it is allowed: %v", list.Names())
			}
		})
	}
	for _, name := range []string{"plain", "cat", "helper build.sh", "script x"} {
		if _, err := sandbox.NewAllowList([]string{name}, []string{bin}, "", true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWallStrictArguments: what is allowed with arguments starts with these and no others.
func TestWallStrictArguments(t *testing.T) {
	list, err := sandbox.NewAllowList([]string{"sh build.sh", "sh -e test.sh fast", "cat"}, sandbox.SafePath(os.Getenv("PATH"), ""), "", true)
	if err != nil {
		t.Fatal(err)
	}
	for i, words := range [][]string{
		{"sh"}, {"sh", "-c", "id"}, {"sh", "other.sh"}, {"sh", "./build.sh"}, {"sh", "-x", "build.sh"}, {"sh", "build.sh "}, {"sh build.sh"}, {"sh", "-e", "test.sh"}, {"sh", "-e", "test.sh", "slow"},
		{"sh", ""}, {"sh", "--", "build.sh"}, {"sh", "-e", "build.sh"}, {"bash", "build.sh"}, {"", "build.sh"},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			if path, err := list.Resolve("", words...); err == nil {
				t.Errorf("%q starts %s", words, path)
			}
		})
	}
	t.Run("another folder", func(t *testing.T) {
		if path, err := list.Resolve("sub", "sh", "build.sh"); err == nil {
			t.Errorf("it starts %s on a file of another folder", path)
		}
	})
	for _, words := range [][]string{{"sh", "build.sh"}, {"sh", "build.sh", "-c", "x"}, {"sh", "-e", "test.sh", "fast", "more"}, {"cat", "any"}} {
		if _, err := list.Resolve(".", words...); err != nil {
			t.Errorf("%q: %v", words, err)
		}
	}
}
