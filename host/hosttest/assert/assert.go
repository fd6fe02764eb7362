// Package assert marks a test as failed if a condition does not hold, and lets the test continue;
// package must ends the test. It imports no package of the host, so that the tests of all packages can
// use it. The last arguments of a call, "says", are a format and its arguments, which describe the
// value.
package assert

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// TB is a *testing.T, B or F, or a *rapid.T.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
}

// That fails with the text unless the condition holds.
func That(t TB, holds bool, format string, args ...any) {
	t.Helper()
	if !holds {
		t.Errorf("%s", fmt.Sprintf(format, args...))
	}
}

// OK fails if there is an error.
func OK(t TB, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%v", err)
	}
}

// Equal fails unless both values are equal.
func Equal[T comparable](t TB, got, want T, says ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%sgot %s, want %s", lead(says), shown(got), shown(want))
	}
}

// Slice fails unless both lists have the same elements in order; nil equals an empty list.
func Slice[E comparable](t TB, got, want []E, says ...any) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s(-want +got)\n%s", lead(says), cmp.Diff(fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got)))
	}
}

// Diff fails unless both values are equal for go-cmp, and shows the differences.
func Diff(t TB, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Contains fails unless the text contains part.
func Contains(t TB, text, part string, says ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s%s lacks %s", lead(says), shown(text), shown(part))
	}
}

// Fails fails unless there is an error whose text contains part.
func Fails(t TB, err error, part string, says ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("%sgot the error %v, want one with %q", lead(says), err, part)
	}
}

// Is fails unless the error is the target, or wraps it.
func Is(t TB, err, target error, says ...any) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%sgot the error %v, want %v", lead(says), err, target)
	}
}

// lead returns the text before a failure.
func lead(says []any) string {
	if len(says) == 0 {
		return ""
	}
	return fmt.Sprintf(says[0].(string), says[1:]...) + ": "
}

// shown returns a value for a failure: a string of one line in quotes, a text of several lines on lines of its own.
func shown(v any) string {
	text := fmt.Sprint(v)
	if strings.Contains(text, "\n") {
		return "\n" + text + "\n"
	}
	if text == "" || fmt.Sprintf("%T", v) == "string" {
		return fmt.Sprintf("%q", text)
	}
	return text
}
