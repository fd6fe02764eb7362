package pattern_test

import (
	"errors"
	"regexp/syntax"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/host/schema/pattern"
)

// TestStepsBoundPrograms: no program has more instructions than Steps counts, and Steps does not count many for a
// small program.
func TestStepsBoundPrograms(t *testing.T) {
	piece := rapid.SampledFrom([]string{
		"a", "abc", ".", `\w`, `\pL`, `[^a-f]`, "(a|b|cd)", "x*", "(?:y+z)?", "^", "$", `\b`, "a{3}", "(b{2,5}){3}",
		"c{4,}", "(?:d{0,7}|e)*", "(f)", "(?i)gh", "|", "i{0}", "(?:j{1}){1,}",
	})
	property.Check(t, func(r *rapid.T) {
		expr := strings.Join(rapid.SliceOfN(piece, 1, 12).Draw(r, "pieces"), "")
		if n := rapid.IntRange(0, 9).Draw(r, "times"); n > 1 {
			expr = "(?:" + expr + "){" + string(rune('0'+n)) + "}"
		}
		parsed, err := syntax.Parse(expr, syntax.Perl)
		if err != nil {
			r.Skip(err)
		}
		program := must.Get(syntax.Compile(parsed.Simplify()))(r)
		steps, err := pattern.Steps(expr, 1<<20)
		have := len(program.Inst)
		assert.That(r, err == nil && steps >= have && steps <= 3*have+40, "%s: %d steps counted (%v), the program "+
			"has %d", expr, steps, err, have)
	})
}

func TestCompile(t *testing.T) {
	for expr, most := range map[string]int{"a{1000}": 1003, "(a{10}){10}": 133} {
		re, steps, err := pattern.Compile(expr, most)
		assert.That(t, err == nil && steps == most && re.MatchString(strings.Repeat("a", 1000)), "%s: %d steps, %v",
			expr, steps, err)
		var tooMany *pattern.StepsError
		if _, _, err := pattern.Compile(expr, most-1); !errors.As(err, &tooMany) || tooMany.Most != most-1 {
			t.Errorf("%s with one less: %v", expr, err)
		}
	}
	var bad *syntax.Error
	_, _, err := pattern.Compile("(", 10)
	assert.That(t, errors.As(err, &bad), "no expression: %v", err)
}
