package tools

import (
	"bytes"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxLiterals  = 32 // of one expression; with more, every line is tried
	maxFromClass = 8  // characters of a class that become literals
	enoughBytes  = 8  // of a literal; a longer literal is hardly rarer
)

// literal is a text that a match may contain.
type literal struct {
	runes []rune
	fold  bool // upper and lower case are the same
}

// prefilter skips lines that an expression cannot match: each match contains one of its
// literals. The prefilter looks for the byte of each literal that is rarest in usual text.
type prefilter struct {
	anchors []anchor
}

// anchor is a byte that the prefilter looks for.
type anchor struct {
	b    byte
	in   []anchored // the literals that contain it
	next int        // next index of b in the text; len(text) = none
}

// anchored is a literal that contains the byte of an anchor.
type anchored struct {
	*literal
	at int // index of the rune with the byte
}

// newPrefilter returns the prefilter of an expression, or nil if every line has to be tried.
func newPrefilter(expr string) *prefilter {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil
	}
	set := required(re.Simplify())
	if score(set.texts) == 0 {
		return nil
	}
	f := &prefilter{}
	for i := range set.texts {
		if !f.add(&set.texts[i]) {
			return nil
		}
	}
	return f
}

// add adds a literal with its rarest byte as the anchor; false = no byte of the literal can be an anchor.
func (f *prefilter) add(l *literal) bool {
	rarest, at, least := byte(0), -1, 1<<30
	for i, r := range l.runes {
		often := commonness(r)
		if l.fold {
			if !foldsWithinASCII(r) {
				continue
			}
			often += commonness(swapCase(r))
		}
		if often < least {
			rarest, at, least = utf8.AppendRune(nil, r)[0], i, often
		}
	}
	if at < 0 {
		return false
	}
	f.anchor(rarest, anchored{l, at})
	if other := utf8.AppendRune(nil, swapCase(rune(rarest)))[0]; l.fold && other != rarest {
		f.anchor(other, anchored{l, at})
	}
	return true
}

func (f *prefilter) anchor(b byte, a anchored) {
	i := slices.IndexFunc(f.anchors, func(known anchor) bool { return known.b == b })
	if i < 0 {
		i = len(f.anchors)
		f.anchors = append(f.anchors, anchor{b: b})
	}
	f.anchors[i].in = append(f.anchors[i].in, a)
}

// clone returns a prefilter for another goroutine.
func (f *prefilter) clone() *prefilter {
	if f == nil {
		return nil
	}
	return &prefilter{anchors: slices.Clone(f.anchors)}
}

// start begins with a new text.
func (f *prefilter) start() {
	for i := range f.anchors {
		f.anchors[i].next = -1
	}
}

// find returns an index, not less than from, within the first line that has one of the literals,
// or -1 if there is none. Between two calls of start, from may only grow.
func (f *prefilter) find(text []byte, from int) int {
	for {
		var first *anchor
		for i := range f.anchors {
			a := &f.anchors[i]
			a.forward(text, from)
			if first == nil || a.next < first.next {
				first = a
			}
		}
		if first.next == len(text) {
			return -1
		}
		for _, l := range first.in {
			if l.stands(text, first.next) {
				return first.next
			}
		}
		first.forward(text, first.next+1)
	}
}

// forward moves next to the first index of the byte at or after from.
func (a *anchor) forward(text []byte, from int) {
	if a.next >= from {
		return
	}
	if a.next = len(text); from < len(text) {
		if i := bytes.IndexByte(text[from:], a.b); i >= 0 {
			a.next = from + i
		}
	}
}

// stands reports whether the text has the literal around the byte of the anchor at index.
func (l anchored) stands(text []byte, index int) bool {
	for i, end := l.at-1, index; i >= 0; i-- {
		r, size := utf8.DecodeLastRune(text[:end])
		if size == 0 || !l.same(r, l.runes[i]) {
			return false
		}
		end -= size
	}
	for _, want := range l.runes[l.at:] {
		r, size := utf8.DecodeRune(text[index:])
		if size == 0 || !l.same(r, want) {
			return false
		}
		index += size
	}
	return true
}

func (l anchored) same(r, want rune) bool {
	return r == want || l.fold && foldRune(r) == foldRune(want)
}

// foldRune returns the smallest of r and the runes that differ from r by case only.
func foldRune(r rune) rune {
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	return least
}

// foldsWithinASCII reports whether each case of r is one byte. k and s have a third form
// that takes more bytes: the Kelvin sign and the long s.
func foldsWithinASCII(r rune) bool {
	return r < utf8.RuneSelf && unicode.SimpleFold(unicode.SimpleFold(r)) == r && unicode.SimpleFold(r) < utf8.RuneSelf
}

func swapCase(r rune) rune {
	if r < utf8.RuneSelf && unicode.IsLetter(r) {
		return r ^ 0x20
	}
	return r
}

// byCommonness has the bytes of source code and prose, the most common first.
const byCommonness = " etaoinrslcdu\tpmfh.g,b(y)=\"_v/w:-T;SkxIE{C}A0R*P1NF2L[]'D>O<MB3q+8!4V`6z5U#" +
	"GWH7&j\\|9XK$%?@^~YJQZ"

// commonness returns a measure of how common a rune's first byte is; 0 = rare.
func commonness(r rune) int {
	at := strings.IndexByte(byCommonness, utf8.AppendRune(nil, r)[0])
	if at < 0 {
		return 0
	}
	return len(byCommonness) - at
}

// literals is a list of texts; each match of an expression contains one of them.
type literals struct {
	texts []literal
	exact bool // the expression matches these texts and nothing else
}

var (
	nothing = literals{texts: []literal{{}}, exact: true} // matches "" only
	unknown = literals{texts: []literal{{}}}              // nothing is known of a match
)

// required returns texts such that each match of the expression contains one of them.
func required(re *syntax.Regexp) literals {
	switch re.Op {
	case syntax.OpLiteral:
		if slices.Contains(re.Rune, utf8.RuneError) { // it also matches bytes that are not UTF-8
			return unknown
		}
		return literals{texts: []literal{{re.Rune, re.Flags&syntax.FoldCase != 0}}, exact: true}
	case syntax.OpCharClass:
		return ofClass(re.Rune)
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText,
		syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return nothing
	case syntax.OpCapture:
		return required(re.Sub[0])
	case syntax.OpPlus:
		return literals{texts: required(re.Sub[0]).texts}
	case syntax.OpQuest:
		return union(nothing, required(re.Sub[0]))
	case syntax.OpAlternate:
		all := required(re.Sub[0])
		for _, sub := range re.Sub[1:] {
			all = union(all, required(sub))
		}
		return all
	case syntax.OpConcat:
		return ofSequence(re.Sub)
	}
	return unknown
}

// ofClass returns the characters of a small class; ranges are pairs of first and last character.
func ofClass(ranges []rune) literals {
	set := literals{exact: true}
	for i := 0; i < len(ranges); i += 2 {
		for r := ranges[i]; r <= ranges[i+1]; r++ {
			if len(set.texts) == maxFromClass || r == utf8.RuneError {
				return unknown
			}
			set.texts = append(set.texts, literal{runes: []rune{r}})
		}
	}
	if len(set.texts) == 0 {
		return unknown
	}
	return set
}

func union(a, b literals) literals {
	if len(a.texts)+len(b.texts) > maxLiterals {
		return unknown
	}
	return literals{texts: slices.Concat(a.texts, b.texts), exact: a.exact && b.exact}
}

// ofSequence joins the exact literals of expressions that follow each other, and returns those of the best part.
func ofSequence(subs []*syntax.Regexp) literals {
	best, run, exact := unknown, nothing, true
	take := func(set literals) {
		if score(set.texts) > score(best.texts) {
			best = literals{texts: set.texts}
		}
	}
	for _, sub := range subs {
		next := required(sub)
		if next.exact && len(run.texts)*len(next.texts) <= maxLiterals {
			run = product(run, next)
			continue
		}
		exact = false
		take(run)
		if run = next; !next.exact {
			take(next)
			run = nothing
		}
	}
	if exact {
		return run
	}
	take(run)
	return best
}

func product(a, b literals) literals {
	set := literals{exact: true}
	for _, x := range a.texts {
		for _, y := range b.texts {
			set.texts = append(set.texts, literal{slices.Concat(x.runes, y.runes), x.fold || y.fold})
		}
	}
	return set
}

// score measures how well texts select lines: long texts are rarer, and few texts are found
// more quickly. 0 = not at all.
func score(texts []literal) int {
	shortest := enoughBytes
	for _, t := range texts {
		shortest = min(shortest, len(t.runes))
	}
	if shortest == 0 {
		return 0
	}
	return shortest*maxLiterals + maxLiterals - len(texts)
}
