// Package must ends a test at the first error of what it only prepares or looks up. It imports
// nothing of the host, so that the tests of the packages below it can use it too.
package must

import "errors"

// TB is a *testing.T, B or F, or a *rapid.T.
type TB interface {
	Helper()
	Fatal(args ...any)
}

// OK ends the test if there is an error.
func OK(t TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// Get returns what a call gave, or ends the test with its error: must.Get(os.ReadFile(name))(t).
func Get[T any](val T, err error) func(TB) T {
	return func(t TB) T {
		t.Helper()
		OK(t, err)
		return val
	}
}
