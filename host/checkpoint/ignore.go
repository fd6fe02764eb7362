package checkpoint

import (
	"path"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// ignoreFile names what is left out in its folder and below; what is longer is cut.
const (
	ignoreFile     = ".gitignore"
	maxIgnoreBytes = 256 << 10
)

// rules are those of one .gitignore, and of those in the folders above.
type rules struct {
	above    *rules
	dir      string // that they stand in
	patterns []ignorePattern
}

type ignorePattern struct {
	glob     string // of a whole path below dir, or of a bare name
	plain    bool   // glob has no special characters
	whole    bool
	keep     bool // it takes back what a former one says
	dirsOnly bool
}

// newRules reads the text of a .gitignore.
func newRules(above *rules, dir, text string) *rules {
	r := &rules{above: above, dir: dir}
	for line := range strings.Lines(text) {
		if p, ok := newPattern(strings.TrimRight(line, "\r\n")); ok {
			r.patterns = append(r.patterns, p)
		}
	}
	if r.patterns == nil {
		return above
	}
	return r
}

func newPattern(line string) (p ignorePattern, ok bool) {
	for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
		line = line[:len(line)-1]
	}
	if line == "" || line[0] == '#' {
		return p, false
	}
	line, p.keep = strings.CutPrefix(line, "!")
	line, p.dirsOnly = strings.CutSuffix(line, "/")
	p.whole = strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	p.glob = strings.NewReplacer("{", `\{`, "}", `\}`).Replace(line) // which are no alternatives here
	p.plain = !strings.ContainsAny(p.glob, `*?[\`)
	return p, line != "" && doublestar.ValidatePattern(p.glob)
}

func (p *ignorePattern) match(rel, base string) bool {
	name := base
	if p.whole {
		name = rel
	}
	if p.plain {
		return p.glob == name
	}
	return doublestar.MatchUnvalidated(p.glob, name)
}

// ignores reports whether a path is left out, as far as no folder above it is.
func (r *rules) ignores(name string, dir bool) bool {
	base := path.Base(name)
	for ; r != nil; r = r.above {
		rel := strings.TrimPrefix(name[min(len(r.dir), len(name)):], "/")
		for i := len(r.patterns) - 1; i >= 0; i-- {
			if p := &r.patterns[i]; (dir || !p.dirsOnly) && p.match(rel, base) {
				return !p.keep
			}
		}
	}
	return false
}
