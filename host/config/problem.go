package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"a2e/host/schema"
)

// Problem is one thing that is wrong in a file.
type Problem struct {
	File    string
	Line    int // from 1; 0 = the file as a whole
	Column  int // from 1, in characters
	Message string
}

// String returns FILE:LINE:COLUMN: MESSAGE.
func (p Problem) String() string { return placed(p.File, p.Line, p.Column, p.Message) }

// Warning is one thing that is accepted without effect.
type Warning struct {
	File    string
	Line    int
	Column  int
	Message string
}

// String returns FILE:LINE:COLUMN: MESSAGE.
func (w Warning) String() string { return placed(w.File, w.Line, w.Column, w.Message) }

func placed(file string, line, column int, message string) string {
	if line == 0 {
		return file + ": " + message
	}
	return fmt.Sprintf("%s:%d:%d: %s", file, line, column, message)
}

// Error is every problem of a file, in the order of the file.
type Error struct {
	Problems []Problem // at least one
}

// maxShown bounds the text of an Error; Problems holds all.
const maxShown = 50

// Error returns one line for each problem.
func (e *Error) Error() string {
	var b strings.Builder
	for i, p := range e.Problems {
		if i == maxShown {
			fmt.Fprintf(&b, "\n… and %d more", len(e.Problems)-i)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(p.String())
	}
	return b.String()
}

// problemsError sorts the problems by place, drops repetitions (an alias
// repeats what it stands for) and gives nil when there is none.
func problemsError(problems []Problem) error {
	if len(problems) == 0 {
		return nil
	}
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return &Error{Problems: slices.Compact(problems)}
}

// Suggest says what would be right instead of s.
func Suggest(s string, known []string) string {
	if s == "" || !isName(s) {
		return "known are " + strings.Join(known, ", ")
	}
	if hint := schema.DidYouMean(s, known); hint != "" {
		return hint
	}
	return "known are " + strings.Join(known, ", ")
}

// isName reports whether s looks like a key or a name rather than like content,
// which error texts must not show.
func isName(s string) bool {
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("_-./", c) {
			return false
		}
	}
	return len(s) <= 40
}

// named quotes s when it looks like a name, and hides it otherwise.
func named(s string) string {
	if isName(s) {
		return fmt.Sprintf("%q", s)
	}
	return "(not shown: it does not look like a name)"
}
