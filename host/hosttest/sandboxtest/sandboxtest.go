// Package sandboxtest makes launchers for tests.
package sandboxtest

import (
	"os"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
)

// Main is the TestMain of a package whose children start through the test binary. What they
// say does not depend on who runs the tests: a shell warns of a locale that the machine lacks.
func Main(m *testing.M) {
	sandbox.MaybeRunLauncher()
	_ = os.Setenv("LC_ALL", "C")
	os.Exit(m.Run())
}

// New returns a launcher whose children start as hosttest.Launcher says. It closes with the
// test, which fails if that does.
func New(t testing.TB, opts sandbox.Options) *sandbox.Launcher {
	t.Helper()
	opts.Launcher = hosttest.Launcher(t)
	l := must.Get(sandbox.New(opts))(t)
	t.Cleanup(func() { must.OK(t, l.Close()) })
	return l
}

// For is New for a host.Env.
func For(t testing.TB, opts sandbox.Options) func() (*sandbox.Launcher, error) {
	t.Helper()
	l := New(t, opts)
	return func() (*sandbox.Launcher, error) { return l, nil }
}
