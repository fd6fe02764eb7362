// Package sandboxtest makes launchers for tests.
package sandboxtest

import (
	"testing"

	"a2e/host/hosttest"
	"a2e/host/sandbox"
)

// New returns a launcher whose children start as hosttest.Launcher says. It closes with the
// test, which fails if that does.
func New(t testing.TB, opts sandbox.Options) *sandbox.Launcher {
	t.Helper()
	opts.Launcher = hosttest.Launcher(t)
	l, err := sandbox.New(opts)
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
