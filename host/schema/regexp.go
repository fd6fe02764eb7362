package schema

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"a2e/host/schema/pattern"
)

// maxGroups is the maximum nesting depth of the groups of a regular expression.
const maxGroups = 40

// The characters that may follow a backslash.
const (
	syntaxChars = `^$\.*+?()[]{}|/` // with the flag u, ECMAScript allows a backslash before these
	classChars  = "dDsSwW"          // \d and similar ones
	assertions  = "bB"
)

// properties are the names in \p{} that every ECMAScript engine knows.
var properties = sync.OnceValue(func() []string {
	return strings.Fields(`C Cc Cf Cn Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps
	S Sc Sk Sm So Z Zl Zp Zs Letter Lowercase_Letter Uppercase_Letter Mark Number Decimal_Number Punctuation Symbol
	Separator Other Alphabetic Uppercase Lowercase White_Space ASCII Any Emoji ID_Start ID_Continue
	Script=Latin Script=Greek Script=Cyrillic Script=Arabic Script=Hebrew Script=Han Script=Hiragana Script=Katakana
	Script=Hangul Script=Thai Script=Devanagari`)
})

// expression is a regular expression that is being read as ECMAScript with the flag u.
type expression struct {
	src    string
	at     int
	out    strings.Builder
	python bool // Python's re reads it in the same way
	bad    bool
	depth  int

	groups, closed int      // the number of opened groups, and of those that are closed
	names          []string // of groups
	lastGroup      int      // the highest number in a reference such as \1
	namedRefs      []string // the names in \k<name>
}

// ecmaScript returns a regular expression that ECMAScript accepts with the flag u: the same text or,
// if a backslash or a bracket is refused only because of that flag, an equivalent one. python reports
// whether Python's re compiles it too. ok is false if the expression may be invalid.
func ecmaScript(expr string) (out string, python, ok bool) {
	e := &expression{src: expr, python: true}
	size := e.alternatives()
	if e.bad || e.at < len(e.src) || size > pattern.MaxSteps || e.lastGroup > e.groups {
		return "", false, false
	}
	for _, name := range e.namedRefs {
		if !slices.Contains(e.names, name) {
			return "", false, false
		}
	}
	return e.out.String(), e.python, true
}

// next returns the next character, or 0 at the end.
func (e *expression) next() rune {
	if e.at >= len(e.src) {
		return 0
	}
	r, _ := utf8.DecodeRuneInString(e.src[e.at:])
	return r
}

// take reports whether the rest begins with a prefix; if so, it writes and skips the prefix.
func (e *expression) take(prefix string) bool {
	if !strings.HasPrefix(e.src[e.at:], prefix) {
		return false
	}
	e.out.WriteString(prefix)
	e.at += len(prefix)
	return true
}

// digits returns the number of digits that follow.
func (e *expression) digits() int {
	rest := e.src[e.at:]
	return len(rest) - len(strings.TrimLeft(rest, "0123456789"))
}

// fail marks the expression as bad and ends the reading.
func (e *expression) fail() int {
	e.bad, e.at = true, len(e.src)
	return 0
}

// alternatives reads up to the end, or up to the ) of a group; size is the number of steps of its
// program.
func (e *expression) alternatives() (size int) {
	if e.depth++; e.depth > maxGroups {
		return e.fail()
	}
	defer func() { e.depth-- }()
	for !e.bad && e.next() != 0 && e.next() != ')' {
		if e.take("|") {
			continue
		}
		size = min(size+e.term(), pattern.MaxSteps+1)
	}
	return size
}

// term reads one atom with its quantifier, or an assertion.
func (e *expression) term() int {
	size, repeats := e.atom()
	if e.bad {
		return 0
	}
	most, quantified := e.quantifier()
	again := strings.ContainsRune("*+?", e.next()) && e.next() != 0
	if _, _, braces := e.braces(); quantified && (!repeats || again || braces) {
		return e.fail()
	}
	return min(size*max(most, 1), pattern.MaxSteps+1)
}

// atom reads one atom; repeats reports whether a quantifier may follow, which is false for an
// assertion.
func (e *expression) atom() (size int, repeats bool) {
	r := e.next()
	switch {
	case r == '^' || r == '$':
		e.take(string(r))
		return 1, false
	case r == '(':
		return e.group()
	case r == '[':
		return e.class(), true
	case r == '\\':
		if strings.ContainsRune(assertions, e.after()) {
			e.take(e.src[e.at : e.at+2])
			return 1, false
		}
		e.escape(false)
		return 1, true
	case strings.ContainsRune("*+?", r):
		return e.fail(), false
	case r == '{':
		if _, _, braces := e.braces(); braces {
			return e.fail(), false
		}
		fallthrough
	case r == '}' || r == ']': // a literal, which must be escaped with the flag u
		e.out.WriteByte('\\')
	}
	e.take(string(r))
	return 1, true
}

// after returns the character after a backslash, or utf8.RuneError at the end.
func (e *expression) after() rune {
	if e.at+1 >= len(e.src) {
		return utf8.RuneError
	}
	r, _ := utf8.DecodeRuneInString(e.src[e.at+1:])
	return r
}

// group reads a group or a lookaround.
func (e *expression) group() (size int, repeats bool) {
	number := 0
	switch {
	case e.take("(?:"):
		repeats = true
	case e.take("(?="), e.take("(?!"):
	case e.take("(?<="), e.take("(?<!"): // Python requires a fixed width
		e.python = false
	case e.take("(?<"):
		name := e.name()
		if name == "" || slices.Contains(e.names, name) {
			return e.fail(), false
		}
		e.names = append(e.names, name)
		e.python, repeats = false, true
		e.groups++
	case strings.HasPrefix(e.src[e.at:], "(?"):
		return e.fail(), false
	default:
		e.take("(")
		e.groups++
		number, repeats = e.groups, true
	}
	size = e.alternatives() + 1
	if e.bad || !e.take(")") {
		return e.fail(), false
	}
	e.closed = max(e.closed, number)
	return size, repeats
}

// name reads the name of a group and the > after it, or returns "".
func (e *expression) name() string {
	name, _, found := strings.Cut(e.src[e.at:], ">")
	if !found || name == "" || strings.ContainsFunc(name, func(r rune) bool { return r == '-' || !isNameRune(r) }) ||
		name[0] <= '9' {
		return ""
	}
	e.take(name + ">")
	return name
}

// braces reads {2}, {2,} or {2,5} without skipping it. ok is true for {,5} as well, which each dialect
// reads differently; text is "" then.
func (e *expression) braces() (text string, most int, ok bool) {
	text, _, found := strings.Cut(e.src[e.at:], "}")
	if !found || !strings.HasPrefix(text, "{") || strings.Trim(text[1:], "0123456789,") != "" {
		return "", 0, false
	}
	low, high, comma := strings.Cut(text[1:], ",")
	if low == "" && high == "" || strings.Contains(high, ",") {
		return "", 0, false
	}
	least, err := strconv.Atoi(low)
	if most = least; comma && high != "" {
		var wrong error
		if most, wrong = strconv.Atoi(high); wrong != nil {
			err = wrong
		}
	}
	if err != nil || most < least || most > pattern.MaxSteps {
		return "", 0, true
	}
	return text + "}", most, true
}

// quantifier reads a quantifier, if one follows.
func (e *expression) quantifier() (most int, ok bool) {
	text, most, braces := e.braces()
	switch {
	case braces && text == "":
		return e.fail(), true
	case braces:
		e.take(text)
	case e.take("*"), e.take("+"), e.take("?"):
		most = 2
	default:
		return 1, false
	}
	e.take("?")
	return most, true
}

// class reads a class of characters.
func (e *expression) class() int {
	if !e.take("[^") {
		e.take("[")
	}
	if e.next() == ']' { // an empty class, or one that contains ]: dialects differ
		return e.fail()
	}
	for !e.bad && e.next() != ']' {
		low, single := e.classAtom()
		if e.bad || e.next() != '-' || e.after() == ']' {
			continue
		}
		mark := e.at
		e.at++
		var other expression
		other, other.out = expression{src: e.src, at: e.at, python: true}, strings.Builder{}
		if high, both := other.classAtom(); single && both && !other.bad {
			if high < low {
				return e.fail()
			}
			e.out.WriteByte('-')
			e.classAtom()
			continue
		}
		e.at = mark + 1
		e.out.WriteString(`\-`) // of [\w-.]
	}
	if e.bad || !e.take("]") {
		return e.fail()
	}
	return 1
}

// classAtom reads one character of a class. single is false for a set such as \d.
func (e *expression) classAtom() (r rune, single bool) {
	switch r = e.next(); {
	case r == 0 || strings.HasPrefix(e.src[e.at:], "[:"): // [:alpha:] belongs to another dialect
		e.fail()
	case r == '\\':
		return e.escape(true)
	default:
		e.take(string(r))
	}
	return r, true
}

// escape reads a backslash and the rest of the escape.
func (e *expression) escape(inClass bool) (r rune, single bool) {
	r = e.after()
	rest := e.src[e.at:]
	switch {
	case strings.ContainsRune(classChars, r):
		e.take(rest[:2])
		return 0, false
	case r == 'p' || r == 'P':
		e.python = false
		name, _, found := strings.Cut(rest[2:], "}")
		if !found || !strings.HasPrefix(name, "{") || !slices.Contains(properties(), name[1:]) {
			e.fail()
			return 0, false
		}
		e.take(rest[:2+len(name)+1])
		return 0, false
	case strings.ContainsRune(syntaxChars, r) || inClass && r == '-':
		e.take(rest[:2])
		return r, true
	case r == '_' || r > ' ' && r < 0x7f && !isNameRune(r) || r == '-' || r == ' ':
		e.at++ // the backslash has no meaning, and the flag u refuses it
		e.take(string(r))
		return r, true
	case r >= '1' && r <= '9' && !inClass:
		e.backReference()
		return 0, true
	case r == 'k' && !inClass && strings.HasPrefix(rest, `\k<`):
		e.take(`\k<`)
		e.python = false
		if name := e.name(); name != "" {
			e.namedRefs = append(e.namedRefs, name)
			return 0, true
		}
		e.fail()
		return 0, true
	}
	return e.character(r, inClass), true
}

// backReference reads a back reference such as \1.
func (e *expression) backReference() {
	e.take(`\`)
	n := e.digits()
	number, err := strconv.Atoi(e.src[e.at : e.at+n])
	if err != nil {
		e.fail()
		return
	}
	e.python = e.python && n < 3 && number <= e.closed
	e.lastGroup = max(e.lastGroup, number)
	e.take(e.src[e.at : e.at+n])
}

// character reads an escape for one character.
func (e *expression) character(r rune, inClass bool) rune {
	controls := map[rune]rune{'t': '\t', 'n': '\n', 'r': '\r', 'v': '\v', 'f': '\f', '0': 0}
	if inClass {
		controls['b'] = '\b'
	}
	if value, ok := controls[r]; ok {
		e.take(e.src[e.at : e.at+2])
		if r == '0' && e.digits() > 0 {
			e.fail()
		}
		return value
	}
	if digits := map[rune]int{'x': 2, 'u': 4}[r]; digits > 0 && e.at+2+digits <= len(e.src) {
		text := e.src[e.at+2 : e.at+2+digits]
		value, err := strconv.ParseUint(text, 16, 32)
		if surrogate := value >= 0xd800 && value <= 0xdfff; err == nil && !surrogate {
			e.take(e.src[e.at : e.at+2+digits])
			return rune(value)
		}
	}
	e.fail()
	return 0
}
