// Package pattern makes patterns that others wrote safe to use: what a regular expression
// or a glob costs is known before it is made, and refused where it is too much.
package pattern

import (
	"context"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"

	"github.com/bmatcuk/doublestar/v4"
)

// MaxSteps bounds the steps of an expression where nothing else does. Each may have to be
// tried for each byte of a text; what people write has hundreds.
const MaxSteps = 10_000

// runesPerStep is how many bounds of character ranges there may be for each step: \pL alone
// has 1,400.
const runesPerStep = 32

// StepsError says that an expression has more steps than are taken.
type StepsError struct{ Most int }

// Error implements error.
func (e *StepsError) Error() string {
	return fmt.Sprintf("it has more than %d steps once its repetitions are written out; use smaller counts in {}, "+
		"or * and +", e.Most)
}

// Compile makes an expression of RE2 syntax with at most so many steps: a *StepsError
// otherwise, or the error of its syntax.
func Compile(expr string, most int) (*regexp.Regexp, int, error) {
	steps, err := Steps(expr, most)
	if err != nil {
		return nil, 0, err
	}
	re, err := regexp.Compile(expr)
	return re, steps, err
}

// Steps bounds from above how many instructions the program of an expression has, without
// making it: (x{1000}){3} is three thousand. More than most is a *StepsError.
func Steps(expr string, most int) (int, error) {
	parsed, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return 0, err
	}
	c := counter{most: most, runes: most * runesPerStep}
	steps := c.steps(parsed) + 2 // it begins and ends
	if steps > most || c.runes < 0 {
		return 0, &StepsError{most}
	}
	return steps, nil
}

// counter counts as syntax.Compile does.
type counter struct {
	most  int
	runes int // left for character classes, of which repetitions make no copies
}

// steps says most+1 past most. The parser bounds the depth.
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

// The bounds of the braces of one glob.
const (
	maxAlternatives = 1000      // ways through them
	maxWritten      = 256 << 10 // bytes to write all of them out
)

// Glob is a pattern for paths, with its braces written out: the matcher goes through all of
// them in one call, which nothing can stop.
type Glob struct{ ways []string }

// NewGlob makes a glob of a valid pattern; ok is false for one with too many alternatives
// in its braces.
func NewGlob(pattern string) (g Glob, ok bool) {
	room := maxWritten
	g.ways, ok = writtenOut(pattern, &room, nil)
	return g, ok
}

// Match reports whether the whole path matches. The error is that of ctx.
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

// writtenOut adds the patterns without braces that a pattern stands for.
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

// braces finds the first braces of a pattern: where they open, and where each of their
// alternatives ends. open is -1 where there are none.
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

// Listed reports whether a name is on a list of names and globs.
func Listed(list []string, name string) bool {
	return slices.ContainsFunc(list, func(pattern string) bool {
		return pattern == name ||
			doublestar.MatchUnvalidated(pattern, name)
	})
}
