package pattern

import (
	"context"

	"github.com/bmatcuk/doublestar/v4"
)

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

// Match tells whether the whole path matches. The error is that of ctx.
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
