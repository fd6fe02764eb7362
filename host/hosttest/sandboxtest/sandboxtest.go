// Package sandboxtest makes launchers for tests.
package sandboxtest

import (
	"os"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
)

// Main is the TestMain of a package whose children start through the test binary. It sets the locale C, as
// a shell prints a warning if the machine lacks the user's locale.
func Main(m *testing.M) {
	sandbox.MaybeRunLauncher()
	_ = os.Setenv("LC_ALL", "C")
	os.Exit(m.Run())
}

// New returns a launcher that uses the program of hosttest.Launcher. It is closed at the end of the
// test, which fails if Close fails.
func New(t testing.TB, opts sandbox.Options) *sandbox.Launcher {
	t.Helper()
	opts.Launcher = hosttest.Launcher(t)
	l := must.Get(sandbox.New(opts))(t)
	t.Cleanup(func() { must.OK(t, l.Close()) })
	return l
}

// For is like New for a host.Env.
func For(t testing.TB, opts sandbox.Options) func() (*sandbox.Launcher, error) {
	t.Helper()
	l := New(t, opts)
	return func() (*sandbox.Launcher, error) { return l, nil }
}
