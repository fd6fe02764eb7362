package sandbox

import (
	"bytes"
	"os"
	"testing"
	"time"
)

// newLauncher makes a Launcher that is closed with the test. Where the test does
// not say otherwise the folders of all tests are its workspace.
func newLauncher(t *testing.T, opts Options) *Launcher {
	t.Helper()
	if opts.Home == "" {
		opts.Home = t.TempDir()
	}
	if opts.Workspace == "" {
		opts.Workspace = os.TempDir()
	}
	l, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// program finds a real one on this machine.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := LookPath(name, SafePath(os.Getenv("PATH"), ""), "")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// shell is a policy that runs a script, with its two streams.
func shell(t *testing.T, script string, args ...string) (Policy, *bytes.Buffer, *bytes.Buffer) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	argv := append([]string{"sh", "-c", script, "sh"}, args...)
	return Policy{Path: program(t, "sh"), Args: argv, Stdout: &stdout, Stderr: &stderr}, &stdout, &stderr
}

// runShell runs a script that must succeed, and returns what it printed.
func runShell(t *testing.T, l *Launcher, script string, change func(*Policy)) string {
	t.Helper()
	policy, stdout, stderr := shell(t, script)
	if change != nil {
		change(&policy)
	}
	p, err := l.Command(t.Context(), policy)
	if err != nil {
		t.Fatal(err)
	}
	state, err := p.Wait()
	if err != nil || state.Code != 0 {
		t.Fatalf("%q: %v, %v, stderr %q", script, state, err, stderr)
	}
	return stdout.String()
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}
