// Package pattern makes patterns that others wrote safe to use: what a regular expression
// or a glob costs is known before it is made, and refused where it is too much.
package pattern

import (
	"fmt"
	"regexp"
	"regexp/syntax"
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
	return fmt.Sprintf("it has more than %d steps once its repetitions are written out; use smaller counts in {}, or * and +", e.Most)
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
