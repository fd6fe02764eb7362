package e2e_test

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
)

// root is the project's folder, as a path from this package's folder.
const root = "../../.."

func TestMain(m *testing.M) {
	if file := os.Getenv(echoRole); file != "" {
		if err := playEcho(file, os.Stdin, os.Stdout); err != nil {
			panic(err)
		}
		return
	}
	_ = os.Setenv("LC_ALL", "C.UTF-8") // pages and tests have the messages of programs in English
	// a shell that runs the tests in the background has them ignore SIGINT, and each host would inherit this
	if signal.Ignored(os.Interrupt) {
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
	os.Exit(m.Run())
}

// workDir returns an empty folder with the binary in it. Commands use the folder as their home.
func workDir(t testing.TB) string {
	t.Helper()
	path, dir := hosttest.Program(t, "a2e"), t.TempDir()
	if err := os.Link(path, filepath.Join(dir, "a2e")); err != nil {
		syscall.ForkLock.RLock() // a child forked now would hold the file open for writing: the file could not run
		defer syscall.ForkLock.RUnlock()
		must.OK(t, os.WriteFile(filepath.Join(dir, "a2e"), must.Get(os.ReadFile(path))(t), 0o755))
	}
	return dir
}

// command prepares a command in dir with a clean environment. Where the tests run on PostgreSQL, each
// folder has a schema of its own.
func command(t testing.TB, dir, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_STATE_HOME=", "XDG_CONFIG_HOME=", "A2E_CONFIG=",
		config.EnvState+"="+must.Get(stores.Address(dir))(t))
	return cmd
}

// TestNothingSlowIsLinkedIn: the binary does not have santhosh-tekuri/jsonschema, a library for tests: it compiles
// its own schemas before main runs, which takes milliseconds at each start.
func TestNothingSlowIsLinkedIn(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", ".")
	cmd.Dir = root
	out := must.Get(cmd.Output())(t)
	assert.That(t, strings.Contains(string(out), "a2e/plugins") && !strings.Contains(string(out),
		"santhosh-tekuri/jsonschema"),
		"the binary is made of:\n%s", out)
}

// wallGit runs git in a folder.
func wallGit(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git",
		append([]string{"-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "safe.directory=*"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	must.That(t, err == nil, "git %v: %v: %s", args, err, out)
}
