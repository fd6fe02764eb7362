package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pathStage is a machine in small: a home with secrets and programs in it, a workspace,
// and more. Names are relative to its base; that of the workspace is src/work.
func pathStage(t *testing.T) (base string) {
	t.Helper()
	base = realTemp(t)
	for _, name := range []string{
		"users/me/.ssh/id", "users/me/.ssh/bin/id", "users/me/documents/secret", "users/me/src/project/secret", "users/me/share/secret", "users/me/tools/secret",
		"users/me/.config/a2e/secret", "users/me/.config/bin/x", "users/me/.local/share/keyrings/secret", "users/me/.local/state/a2e/secret", "users/me/.cargo/credentials.toml",
		"users/me/.docker/config.json", "users/me/.bashrc", "users/me/.aws/cli/bin/secret",
		"users/other/.profile", "users/other/secret", "project/.env", "project/secret", "project2/.npmrc", "netrc/.netrc", "git/.git-credentials",
		"src/secret", "src/work/file", "src/work/bin/file", "open/secret", "open/below/secret",
		"app/src/secret", "app/lib/data",
		"users/me/.pyenv/versions/3.9/lib/data", "users/me/.nvm/versions/node/v1/lib/data", "users/me/lib/data", "users/me/go/pkg/data",
	} {
		file := filepath.Join(base, name)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(secretText), 0o644)))
	}
	for _, name := range []string{
		"users/me/tool", "users/me/bin/tool", "users/me/scripts/tool", "users/me/.local/bin/tool", "users/me/.cargo/bin/tool", "users/me/go/bin/tool",
		"users/me/.pyenv/shims/tool", "users/me/.nvm/versions/node/v1/bin/tool", "bin/tool", "app/bin/tool", "users/me/.local/share/uv/tools/x/bin/prog", "users/me/work/tool",
	} {
		script(t, base, name)
	}
	err := errors.Join(os.Chmod(filepath.Join(base, "open"), 0o777), os.Symlink("users/me", filepath.Join(base, "link")),
		os.Symlink("../share/uv/tools/x/bin/prog", filepath.Join(base, "users/me/.local/bin/linked")))
	must(t, err)
	t.Setenv("HOME", filepath.Join(base, "users/me"))
	t.Setenv("XDG_CONFIG_HOME", "")
	return base
}

// onPath starts a child with a folder on its PATH, and returns what it prints.
func onPath(t *testing.T, base, entry, script string) string {
	t.Helper()
	work := filepath.Join(base, "src/work")
	l := homelyLauncher(t, Options{Workspace: work, Path: SafePath(entry, work)})
	out, _ := tryPolicy(t, l, Policy{Dir: work}, script)
	return out
}

// TestWallPath: what lies beside programs is not shown to children for the sake of a PATH.
func TestWallPath(t *testing.T) {
	const home = "BASE/users/me"
	for _, try := range []struct{ entry, secret string }{
		{home, ".ssh/id"}, {home, "documents/secret"}, {home, ".config/a2e/secret"}, {home, ".docker/config.json"},
		{home + "/", "documents/secret"}, {home + "/.", "documents/secret"}, {home + "/bin/..", "documents/secret"},
		{"BASE/link", "documents/secret"}, {"BASE/link/.", ".ssh/id"}, {"BASE/users", "documents/secret"}, {"BASE/users", "../other/secret"}, {"/", "documents/secret"},
		{home + "/bin", "src/project/secret"}, {home + "/bin", "share/secret"}, {home + "/bin", "tools/secret"}, {home + "/bin", ".ssh/id"},
		{home + "/scripts", "src/project/secret"}, {home + "/scripts", "documents/secret"},
		{home + "/.ssh", ".ssh/id"}, {home + "/.ssh/bin", ".ssh/bin/id"}, {home + "/.aws/cli/bin", ".aws/cli/bin/secret"},
		{home + "/.config", ".config/a2e/secret"}, {home + "/.config/bin", ".config/a2e/secret"},
		{home + "/.local/bin", ".local/share/keyrings/secret"}, {home + "/.local/bin", ".local/state/a2e/secret"}, {home + "/.local", ".local/share/keyrings/secret"},
		{home + "/.cargo/bin", ".cargo/credentials.toml"}, {home + "/go/bin", ".ssh/id"},
		{"BASE/users/other", "../other/secret"}, {"BASE/project", "../../project/secret"}, {"BASE/project", "../../project/.env"},
		{"BASE/project2", "../../project2/.npmrc"}, {"BASE/netrc", "../../netrc/.netrc"}, {"BASE/git", "../../git/.git-credentials"},
		{"BASE/src", "../../src/secret"}, {"BASE/bin", "../../src/secret"}, {"BASE", "../../src/secret"},
		{"BASE/open", "../../open/secret"}, {"BASE/open/below", "../../open/below/secret"},
	} {
		t.Run(try.entry+" for "+try.secret, func(t *testing.T) {
			base := pathStage(t)
			secret := filepath.Join(base, "users/me", try.secret)
			if text, err := os.ReadFile(secret); string(text) != secretText {
				t.Fatal(err) // the control
			}
			out := onPath(t, base, strings.ReplaceAll(try.entry, "BASE", base), "cat "+secret)
			if strings.Contains(out, secretText) {
				t.Errorf("a child read %s", secret)
			}
		})
	}
}

// TestWallPathPrograms: nor is it for the sake of a program that is started by its path.
func TestWallPathPrograms(t *testing.T) {
	for _, try := range []struct{ program, secret string }{
		{"users/me/tool", "users/me/documents/secret"}, {"users/me/bin/tool", "users/me/src/project/secret"}, {"users/me/bin/tool", "users/me/.ssh/id"},
		{"bin/tool", "src/secret"}, {"users/me/.local/bin/tool", "users/me/.local/share/keyrings/secret"},
	} {
		t.Run(try.program+" for "+try.secret, func(t *testing.T) {
			base := pathStage(t)
			program := filepath.Join(base, try.program)
			must(t, os.WriteFile(program, []byte("#!/bin/sh\necho started; cat "+filepath.Join(base, try.secret)), 0o755))
			l := homelyLauncher(t, Options{Workspace: filepath.Join(base, "src/work")})
			var out strings.Builder
			p := begin(t, l, Policy{Path: program, Stdout: &out, Stderr: &out})
			if _, err := p.Wait(); err != nil || !strings.Contains(out.String(), "started") || strings.Contains(out.String(), secretText) {
				t.Errorf("%v, %s", err, &out)
			}
		})
	}
}

// TestPathPrograms: where people install programs for themselves, they work.
func TestPathPrograms(t *testing.T) {
	for entry, needs := range map[string]string{
		".local/bin": "", ".cargo/bin": "", "go/bin": "go/pkg/data", ".pyenv/shims": ".pyenv/versions/3.9/lib/data",
		".nvm/versions/node/v1/bin": ".nvm/versions/node/v1/lib/data", "bin": "lib/data", "work": "",
	} {
		t.Run(entry, func(t *testing.T) {
			base := pathStage(t)
			home := filepath.Join(base, "users/me")
			command := "tool && echo fine"
			if needs != "" {
				command += " && cat " + filepath.Join(home, needs)
			}
			if out := onPath(t, base, filepath.Join(home, entry), command); !strings.Contains(out, "fine") || needs != "" && !strings.Contains(out, secretText) {
				t.Errorf("it does not work: %s", out)
			}
		})
	}
	base := pathStage(t)
	dirs := SafePath(filepath.Join(base, "users/me/.local/bin"), "")
	if path, err := LookPath("linked", dirs, ""); err != nil || path != filepath.Join(base, "users/me/.local/share/uv/tools/x/bin/prog") {
		t.Errorf("a tool of uv: %q, %v", path, err)
	}
}

// TestSortPath: what is left out is said, with the reason.
func TestSortPath(t *testing.T) {
	base := pathStage(t)
	work := filepath.Join(base, "src/work")
	for entry, reason := range map[string]string{
		"bin": "is relative", ".": "is relative", "": "is relative", work: "lies in the workspace", work + "/bin": "lies in the workspace",
		base + "/src": "holds the workspace", base + "/open": "can be changed by others", base + "/users/me": "is or holds " + base + "/users/me",
		base + "/link": "is or holds " + base + "/users/me", "/": "holds the workspace", base + "/users/other": "holds .profile", base + "/project": "holds .env",
		base + "/users/me/.ssh/bin": "lies in " + base + "/users/me/.ssh", "/home": "is or holds /home", base + "/none": "", base + "/bin": "",
	} {
		_, left := SortPath(base+"/users/me/go/bin"+string(filepath.ListSeparator)+entry, work)
		switch {
		case reason == "" && len(left) > 0:
			t.Errorf("%s: %v", entry, left)
		case reason != "" && (len(left) != 1 || left[0].Dir != entry || !strings.HasPrefix(left[0].Reason, reason)):
			t.Errorf("%s: %v, want %q", entry, left, reason)
		}
	}
}

// TestWallPathBeside: where the workspace lies among what belongs to programs, what lies
// beside it stays unseen.
func TestWallPathBeside(t *testing.T) {
	base := pathStage(t)
	work := filepath.Join(base, "app/src/work")
	must(t, os.Mkdir(work, 0o755))
	for name, entry := range map[string]string{"PATH": filepath.Join(base, "app/bin"), "program": ""} {
		t.Run(name, func(t *testing.T) {
			l := homelyLauncher(t, Options{Workspace: work, Path: SafePath(entry, work)})
			var out strings.Builder
			program := filepath.Join(base, "app/bin/tool")
			must(t, os.WriteFile(program, []byte("#!/bin/sh\ncat "+base+"/app/lib/data && echo fine; cat "+base+"/app/src/secret && echo seen"), 0o755))
			p := begin(t, l, Policy{Path: program, Dir: work, Stdout: &out})
			if _, err := p.Wait(); err != nil || !strings.Contains(out.String(), "fine") || strings.Contains(out.String(), "seen") {
				t.Errorf("%v, %s", err, &out)
			}
		})
	}
}
