package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong in a file.
type Problem struct {
	File    string
	Line    int // from 1; 0 = the file as a whole
	Column  int // from 1, in characters
	Message string
}

// String gives FILE:LINE:COLUMN: MESSAGE.
func (p Problem) String() string { return placed(p.File, p.Line, p.Column, p.Message) }

// Warning is one thing that is accepted without effect.
type Warning struct {
	File    string
	Line    int
	Column  int
	Message string
}

// String gives FILE:LINE:COLUMN: MESSAGE.
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

// Error gives one line for each problem.
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

// Nearest gives the candidate that s was probably meant to be, or "".
func Nearest(s string, candidates []string) string {
	fold := func(s string) string { return strings.ReplaceAll(strings.ToLower(s), "-", "_") }
	best, bestDistance := "", 2+len(s)/4
	for _, c := range candidates {
		if d := distance(fold(s), fold(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance counts the letters to insert, remove, replace or swap with their
// neighbour to get from a to b.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}

// Suggest says what would be right instead of s.
func Suggest(s string, known []string) string {
	if s == "" || !isName(s) {
		return "known are " + strings.Join(known, ", ")
	}
	if near := Nearest(s, known); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "known are " + strings.Join(known, ", ")
}

// isName tells whether s looks like a key or a name rather than like content,
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
