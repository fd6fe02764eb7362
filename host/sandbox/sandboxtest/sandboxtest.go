// Package sandboxtest makes launchers for tests.
package sandboxtest

import (
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
)

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
