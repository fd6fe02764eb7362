// Package pattern makes patterns of others safe to use: it computes the cost of a regular expression
// or a glob before compiling it, and refuses expensive ones.
package pattern

import (
	"context"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"

	"github.com/bmatcuk/doublestar/v4"
)

// MaxSteps is the default limit on the steps of an expression. Each step may be tried for each byte of
// a text; expressions of people have hundreds.
const MaxSteps = 10_000

// runesPerStep is the allowed number of ends of character ranges per step: \pL alone has 1,400.
const runesPerStep = 32

// StepsError says that an expression has too many steps.
type StepsError struct{ Most int }

// Error implements error.
func (e *StepsError) Error() string {
	return fmt.Sprintf("it has more than %d steps once its repetitions are written out; use smaller counts in {}, "+
		"or * and +", e.Most)
}

// Compile compiles an expression in RE2 syntax with at most most steps, and returns the number of its
// steps. The error is a *StepsError for one with more steps, or a syntax error.
func Compile(expr string, most int) (*regexp.Regexp, int, error) {
	steps, err := Steps(expr, most)
	if err != nil {
		return nil, 0, err
	}
	re, err := regexp.Compile(expr)
	return re, steps, err
}

// Steps returns an upper bound on the number of instructions of an expression, without compiling it:
// (x{1000}){3} has three thousand. The error is a *StepsError if there are more than most.
func Steps(expr string, most int) (int, error) {
	parsed, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return 0, err
	}
	c := counter{most: most, runes: most * runesPerStep}
	steps := c.steps(parsed) + 2 // for the begin and the end
	if steps > most || c.runes < 0 {
		return 0, &StepsError{most}
	}
	return steps, nil
}

// counter counts in the same way as syntax.Compile.
type counter struct {
	most  int
	runes int // left for character classes, which are not copied by repetitions
}

// steps returns the steps of re, or most+1 if there are more than most. The parser limits the depth.
func (c *counter) steps(re *syntax.Regexp) int {
	steps := 1
	switch re.Op {
	case syntax.OpLiteral:
		steps = len(re.Rune)
	case syntax.OpCharClass:
		c.runes -= len(re.Rune)
	case syntax.OpCapture, syntax.OpStar:
		steps = 2
	case syntax.OpAlternate:
		steps = len(re.Sub)
	}
	inner := 0
	for _, sub := range re.Sub {
		if inner += c.steps(sub); inner > c.most || c.runes < 0 {
			return c.most + 1
		}
	}
	switch {
	case re.Op != syntax.OpRepeat:
	case re.Max < 0: // x{2,} is xx+
		inner = max(re.Min, 1)*inner + 2
	default: // x{2,5} is xx(x(x(x)?)?)?
		inner = re.Max*inner + re.Max - re.Min
	}
	return min(steps+inner, c.most+1)
}

// Limits on the braces of one glob.
const (
	maxAlternatives = 1000      // patterns without braces
	maxWritten      = 256 << 10 // bytes of all these patterns together
)

// Glob is a pattern for paths. Its braces are written out, because the matcher would try all
// alternatives in one call that cannot be cancelled.
type Glob struct{ ways []string }

// NewGlob makes a Glob from a valid pattern; ok is false if its braces have too many alternatives.
func NewGlob(pattern string) (g Glob, ok bool) {
	room := maxWritten
	g.ways, ok = writtenOut(pattern, &room, nil)
	return g, ok
}

// Match reports whether the pattern matches the whole path. The error is the error of ctx.
func (g Glob) Match(ctx context.Context, path string) (bool, error) {
	for _, way := range g.ways {
		if doublestar.MatchUnvalidated(way, path) {
			return true, nil
		}
		if len(g.ways) > 1 && ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
	return false, nil
}

// writtenOut appends the patterns without braces that a pattern stands for; it returns false if there
// are too many.
func writtenOut(pattern string, room *int, ways []string) ([]string, bool) {
	if *room -= len(pattern) + 1; *room < 0 || len(ways) == maxAlternatives {
		return nil, false
	}
	open, ends := braces(pattern)
	if open < 0 {
		return append(ways, pattern), true
	}
	from, rest := open+1, pattern[ends[len(ends)-1]+1:]
	for _, end := range ends {
		var ok bool
		if ways, ok = writtenOut(pattern[:open]+pattern[from:end]+rest, room, ways); !ok {
			return nil, false
		}
		from = end + 1
	}
	return ways, true
}

// braces finds the first braces of a pattern: the index where they open, and the indexes where their
// alternatives end. open is -1 if there are none.
func braces(pattern string) (open int, ends []int) {
	depth, class := 0, false
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case class || c == '[':
			class = c != ']'
		case c == '{':
			if depth == 0 {
				open = i
			}
			depth++
		case c == ',' && depth == 1:
			ends = append(ends, i)
		case c == '}' && depth > 0:
			if depth--; depth == 0 {
				return open, append(ends, i)
			}
		}
	}
	return -1, nil
}

// Listed reports whether a name is in a list of names and globs.
func Listed(list []string, name string) bool {
	return slices.ContainsFunc(list, func(pattern string) bool {
		return pattern == name ||
			doublestar.MatchUnvalidated(pattern, name)
	})
}
