package cli_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/sandbox"
)

// root is the project's folder, from this package's.
const root = "../.."

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher() // children of hosts within this program
	if os.Getenv(noisyRole) != "" {
		noisy()
		return
	}
	os.Exit(m.Run())
}

// workDir returns an empty folder with the binary in it, which is home as well.
func workDir(t testing.TB) string {
	t.Helper()
	path, dir := hosttest.Program(t, "a2e"), t.TempDir()
	if err := os.Link(path, filepath.Join(dir, "a2e")); err != nil {
		must(t, os.WriteFile(filepath.Join(dir, "a2e"), got(os.ReadFile(path))(t), 0o755))
	}
	return dir
}

// must fails the test of an error.
func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// got returns what a call gave, and fails the test of its error.
func got[T any](val T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return val
	}
}

// command prepares a command in dir with a clean environment.
func command(t testing.TB, dir, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_STATE_HOME=", "XDG_CONFIG_HOME=", "A2E_CONFIG=")
	return cmd
}

// The binary must not hold what costs milliseconds at each start before main runs: this
// library compiles its own schemas then. It is for tests.
func TestNothingSlowIsLinkedIn(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", ".")
	cmd.Dir = root
	out := got(cmd.Output())(t)
	if !strings.Contains(string(out), "a2e/plugins") || strings.Contains(string(out), "santhosh-tekuri/jsonschema") {
		t.Errorf("the binary is made of:\n%s", out)
	}
}

// wallGit runs git in a folder.
func wallGit(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "safe.directory=*"}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
}
