package sandbox

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"go.uber.org/goleak"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/built"
	"a2e/host/hosttest/must"
)

// newLauncher returns a Launcher that is closed at the end of the test. By default its workspace is the folder that
// contains the folders of all tests.
func newLauncher(t *testing.T, opts Options) *Launcher {
	t.Helper()
	if opts.Home == "" {
		opts.Home = t.TempDir()
	}
	if opts.Workspace == "" {
		opts.Workspace = os.TempDir()
	}
	return homelyLauncher(t, opts)
}

// homelyLauncher returns a Launcher whose children have the sandbox's own home.
func homelyLauncher(t *testing.T, opts Options) *Launcher {
	t.Helper()
	if opts.Launcher == "" {
		opts.Launcher = built.Launcher(t) // hosts in other processes, as roles, use their test binary
	}
	l := must.Get(New(opts))(t)
	t.Cleanup(func() { must.OK(t, l.Close()) })
	return l
}

// program returns the path of a program on this machine.
func program(t *testing.T, name string) string {
	t.Helper()
	path := must.Get(LookPath(name, SafePath(os.Getenv("PATH"), ""), ""))(t)
	return path
}

// shell returns a policy that runs a script, and the buffers of its stdout and stderr.
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
	state, err := begin(t, l, policy).Wait()
	must.That(t, err == nil && state.Code == 0, "%q: %v, %v, stderr %q", script, state, err, stderr)
	return stdout.String()
}

// tryPolicy runs a script that may fail, and returns what it printed on both streams, and its state.
func tryPolicy(t *testing.T, l *Launcher, p Policy, script string, args ...string) (string, State) {
	t.Helper()
	s, stdout, stderr := shell(t, script, args...)
	p.Path, p.Args, p.Stdout, p.Stderr = s.Path, s.Args, s.Stdout, s.Stderr
	state := must.Get(begin(t, l, p).Wait())(t)
	return stdout.String() + stderr.String(), state
}

// try is tryPolicy with only a working folder.
func try(t *testing.T, l *Launcher, dir, script string, args ...string) (string, State) {
	t.Helper()
	return tryPolicy(t, l, Policy{Dir: dir}, script, args...)
}

// begin starts a child with a policy.
func begin(t *testing.T, l *Launcher, policy Policy) *Process {
	t.Helper()
	p := must.Get(l.Command(t.Context(), policy))(t)
	return p
}

// killed kills a child, and waits for its end.
func killed(t *testing.T, p *Process) {
	t.Helper()
	p.Kill()
	_, err := p.Wait()
	assert.That(t, errors.Is(err, ErrKilled), "%v", err)
}

func TestMain(m *testing.M) {
	MaybeRunLauncher()
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}
