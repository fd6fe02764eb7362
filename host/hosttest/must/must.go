// Package must ends a test at the first error: in its preparation, or where the rest of the test
// would be meaningless. It imports no package of the host but assert, so that the tests of all packages
// can use it.
package must

import (
	"errors"

	"a2e/host/hosttest/assert"
)

// TB is a *testing.T, B or F, or a *rapid.T.
type TB interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// OK ends the test if there is an error.
func OK(t TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// Get returns the result of a call, or ends the test with its error: must.Get(os.ReadFile(name))(t).
func Get[T any](val T, err error) func(TB) T {
	return func(t TB) T {
		t.Helper()
		OK(t, err)
		return val
	}
}

// That ends the test with the text unless the condition holds.
func That(t TB, holds bool, format string, args ...any) {
	t.Helper()
	assert.That(last{t}, holds, format, args...)
}

// Equal ends the test unless both values are equal.
func Equal[T comparable](t TB, got, want T, says ...any) {
	t.Helper()
	assert.Equal(last{t}, got, want, says...)
}

// Fails ends the test unless there is an error whose text contains part.
func Fails(t TB, err error, part string, says ...any) {
	t.Helper()
	assert.Fails(last{t}, err, part, says...)
}

// last ends a test at its first failure.
type last struct{ TB }

func (l last) Errorf(format string, args ...any) {
	l.Helper()
	l.Fatalf(format, args...)
}
