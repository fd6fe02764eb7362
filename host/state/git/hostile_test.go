package git_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/sandboxtest"
	"a2e/host/sandbox"
	"a2e/host/state/git"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// TestFilters: a filter in the repository's own config does not run, whatever its name. If the config is too long to
// find every filter, git is not run at all.
func TestFilters(t *testing.T) {
	var long strings.Builder
	for i := range 1200 {
		fmt.Fprintf(&long, "[pad %q]\n\tx%d = y\n", strings.Repeat("p", 1000), i)
	}
	for _, c := range []struct{ what, config, name, refused string }{
		{"plain", "", "evil", ""},
		{"not UTF-8", "", "e\xffvil", ""},
		{"without a name", "", "", ""},
		{"a long config", long.String(), "evil", "too long"},
	} {
		t.Run(c.what, func(t *testing.T) { filter(t, c.config, c.name, c.refused) })
	}
}

func filter(t *testing.T, config, name, refused string) {
	dir := t.TempDir()
	run := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=T",
			"GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@example.com")
		out, err := cmd.CombinedOutput()
		must.That(t, err == nil, "git %v: %v\n%s", args, err, out)
	}
	put := func(name, text string) {
		t.Helper()
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	run("init", "-q", "-b", "trunk")
	put("a.txt", "1\n")
	run("add", ".")
	run("commit", "-q", "-m", "x")
	put("a.txt", "2\n") // the size is the same, so git has to read the file
	put(".gitattributes", "*.txt filter="+name+"\n")
	old := must.Get(os.ReadFile(filepath.Join(dir, ".git", "config")))(t)
	put(".git/config", string(old)+config+"[filter \""+name+"\"]\n\tclean = touch ran; cat\n")

	launcher := must.Get(sandbox.New(sandbox.Options{Workspace: dir}))(t)
	defer launcher.Close()
	repo := must.Get(git.Open(git.Repo{Dir: dir, Launcher: launcher}))(t)
	out, err := repo.Run(t.Context(), "status", "--porcelain=v2")
	got := fmt.Sprint(err)
	assert.That(t, (refused != "" || err == nil && strings.Contains(out.Text, "a.txt")) &&
		strings.Contains(got, refused), "error %v, output %q", err, out.Text)
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("the repository's filter ran")
	}
}
