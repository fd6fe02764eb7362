package protocol

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
	"unicode/utf8"
)

// maxDepth limits how deep arrays and objects nest in one line, so that a
// hostile line cannot exhaust the stack.
const maxDepth = 1000

// maxMembers limits the table of one line: a line of 16 MiB could have millions of
// members, and pings after that line would wait.
const maxMembers = 100_000

// maxLinearKeys is the number of keys of one object up to which the scanner
// compares a new key with each earlier one; further keys go into a keySet.
const maxLinearKeys = 24

// span is a part of the scanned text. It has offsets instead of a slice so that the
// tables have no pointers, which the garbage collector would have to follow.
type span struct{ from, to uint32 }

func (s span) of(text []byte) []byte { return text[s.from:s.to:s.to] }

// name is a key: its raw text between the quotes.
type name struct {
	span
	escaped bool // contains a backslash
}

// text returns the decoded key.
func (n name) text(text []byte) []byte {
	if n.escaped {
		return unquote(text[n.from-1 : n.to+1])
	}
	return n.of(text)
}

// member is one member of an object.
type member struct {
	key  name
	val  span
	kids int32 // number of direct members of an object value; they follow in the table
}

// scanner checks one JSON text in a single pass: RFC 8259 syntax, UTF-8, paired
// surrogates, no duplicate key at any depth. Every message goes through it, and a
// generic decoder would take several times as long. FuzzScan compares it with
// json/v2.
type scanner struct {
	b       []byte
	i       int
	depth   int
	keys    []name   // of the open objects, innermost last
	members []member // of the outermost object and of the objects directly in it
	dup     bool     // the error is a duplicate key
}

// reset readies the scanner for another text; its tables keep their memory.
func (s *scanner) reset(b []byte) {
	s.b, s.i, s.depth, s.dup = b, 0, 0, false
	s.keys, s.members = s.keys[:0], s.members[:0]
}

func (s *scanner) errorf(format string, args ...any) error {
	return fmt.Errorf("at byte %d: "+format, append([]any{s.i}, args...)...)
}

// document scans one whole value with nothing but white space around it.
func (s *scanner) document() error {
	s.space()
	if err := s.value(true); err != nil {
		return err
	}
	s.space()
	if s.i < len(s.b) {
		return s.errorf("text after the end of the value")
	}
	return nil
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

// value scans one value. record says whether the members of an object
// go into the table.
func (s *scanner) value(record bool) error {
	if s.i >= len(s.b) {
		return s.errorf("the text ends where a value should be")
	}
	switch c := s.b[s.i]; c {
	case '"':
		_, err := s.str()
		return err
	case '{':
		return s.nested(record, s.object)
	case '[':
		return s.nested(false, s.array)
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	default:
		if c == 'N' || c == 'I' || c == '-' { // Python's json and others write these words
			for _, word := range []string{"NaN", "Infinity", "-Infinity"} {
				if rest := s.b[s.i:]; len(rest) >= len(word) && string(rest[:len(word)]) == word {
					return s.errorf("JSON has no %s; a number must be finite", word)
				}
			}
		}
		if c == '-' || c-'0' < 10 {
			return s.number()
		}
		return s.errorf("%q does not start a value", c)
	}
}

func (s *scanner) nested(record bool, scan func(bool) error) error {
	if s.depth++; s.depth > maxDepth {
		return s.errorf("nested deeper than %d", maxDepth)
	}
	s.i++
	err := scan(record)
	s.depth--
	return err
}

func (s *scanner) object(record bool) error {
	base, seen := len(s.keys), keySet{}
	defer func() { s.keys = s.keys[:base] }()
	s.space()
	if s.take('}') {
		return nil
	}
	for {
		s.space()
		if s.i >= len(s.b) || s.b[s.i] != '"' {
			return s.errorf("a key in double quotes should be here")
		}
		key, err := s.str()
		if err != nil {
			return err
		}
		if err := s.unique(base, &seen, key); err != nil {
			return err
		}
		s.space()
		if !s.take(':') {
			return s.errorf("a colon should follow the key")
		}
		s.space()
		if err := s.memberValue(record, key); err != nil {
			return err
		}
		s.space()
		if s.take('}') {
			return s.distinct(base, &seen)
		}
		if !s.take(',') {
			return s.errorf("a comma or } should be here")
		}
	}
}

// memberValue scans the value of key and puts both into the table.
func (s *scanner) memberValue(record bool, key name) error {
	if !record {
		return s.value(false)
	}
	at, start := len(s.members), s.i
	if at == maxMembers {
		return s.errorf("more than %d members", maxMembers)
	}
	if at == cap(s.members) { // append would copy a large table more often
		s.members = slices.Grow(s.members, max(16, at))
	}
	s.members = append(s.members, member{key: key})
	if err := s.value(s.depth == 1); err != nil {
		return err
	}
	s.members[at].val = span{uint32(start), uint32(s.i)}
	s.members[at].kids = int32(len(s.members) - at - 1)
	return nil
}

// unique adds key to the keys of the innermost object, or returns an error if the object has it already.
// After maxLinearKeys, keys go into seen, which distinct checks at the end of the object.
func (s *scanner) unique(base int, seen *keySet, key name) error {
	known := s.keys[base:]
	if len(known) == maxLinearKeys {
		seen.add(s, key)
		return nil
	}
	for _, k := range known {
		if s.same(k, key) {
			return s.duplicate(key)
		}
	}
	s.keys = append(s.keys, key)
	return nil
}

// keySet has the keys of an object after the first maxLinearKeys, each as 32 bits of hash and 32 bits of
// offset. One object may have millions of keys; a hash table of them would have a cache miss for each.
type keySet struct {
	seed maphash.Seed
	keys []uint64
}

func (k *keySet) add(s *scanner, key name) {
	if k.keys == nil {
		k.seed = maphash.MakeSeed()
	}
	if len(k.keys) == cap(k.keys) { // append would copy a large slice more often
		k.keys = slices.Grow(k.keys, max(64, len(k.keys)))
	}
	k.keys = append(k.keys, maphash.Bytes(k.seed, key.text(s.b))<<32|uint64(key.from))
}

// distinct returns an error if two keys of the innermost object are the same.
func (s *scanner) distinct(base int, seen *keySet) error {
	if len(seen.keys) == 0 {
		return nil
	}
	for _, first := range s.keys[base:] {
		seen.add(s, first)
	}
	slices.Sort(seen.keys)
	for i, k := range seen.keys {
		for j := i + 1; j < len(seen.keys) && seen.keys[j]>>32 == k>>32; j++ {
			if key := s.keyAt(seen.keys[j]); s.same(s.keyAt(k), key) {
				return s.duplicate(key)
			}
		}
	}
	return nil
}

// keyAt returns a key of a set.
func (s *scanner) keyAt(k uint64) name {
	again := scanner{b: s.b, i: int(uint32(k)) - 1} //nolint:gosec // the place is its lower half
	n, _ := again.str()                             // it was scanned before
	return n
}

func (s *scanner) same(a, b name) bool {
	if a.escaped || b.escaped {
		return string(a.text(s.b)) == string(b.text(s.b))
	}
	return a.to-a.from == b.to-b.from && string(a.of(s.b)) == string(b.of(s.b))
}

func (s *scanner) duplicate(key name) error {
	s.dup, s.i = true, int(key.to)+1
	return s.errorf("the key %.64q appears twice in one object", key.text(s.b))
}

func (s *scanner) array(bool) error {
	s.space()
	if s.take(']') {
		return nil
	}
	for {
		s.space()
		if err := s.value(false); err != nil {
			return err
		}
		s.space()
		if s.take(']') {
			return nil
		}
		if !s.take(',') {
			return s.errorf("a comma or ] should be here")
		}
	}
}

func (s *scanner) take(c byte) bool {
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

func (s *scanner) word(w string) error {
	if end := s.i + len(w); end <= len(s.b) && string(s.b[s.i:end]) == w {
		s.i = end
		return nil
	}
	return s.errorf("a word other than true, false and null; text needs double quotes")
}

func (s *scanner) number() error {
	s.take('-')
	if !s.take('0') && !s.digits() {
		return s.errorf("a number needs a digit here")
	}
	if s.take('.') && !s.digits() {
		return s.errorf("a number needs a digit after its point")
	}
	if s.take('e') || s.take('E') {
		if !s.take('+') {
			s.take('-')
		}
		if !s.digits() {
			return s.errorf("a number needs a digit in its exponent")
		}
	}
	return nil
}

func (s *scanner) digits() bool {
	start := s.i
	for s.i < len(s.b) && s.b[s.i]-'0' < 10 {
		s.i++
	}
	return s.i > start
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plain returns the number of leading bytes of b that need no special treatment in
// a string: ASCII without quotes, backslashes and control characters. It checks
// eight bytes at a time.
func plain(b []byte) int {
	i := 0
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		quote, slash := x^('"'*ones), x^('\\'*ones)
		odd := (x | (x-' '*ones)&^x | (quote-ones)&^quote | (slash-ones)&^slash) & highs
		if odd != 0 {
			return i + bits.TrailingZeros64(odd)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			break
		}
	}
	return i
}

// str scans a string and returns the span of its text without the quotes.
func (s *scanner) str() (n name, err error) {
	s.i++
	n.from = uint32(s.i)
	for {
		s.i += plain(s.b[s.i:])
		if s.i >= len(s.b) {
			return n, s.errorf("the string has no end")
		}
		switch c := s.b[s.i]; {
		case c == '"':
			n.to = uint32(s.i)
			s.i++
			return n, nil
		case c == '\\':
			n.escaped = true
			if err := s.escape(); err != nil {
				return n, err
			}
		case c < ' ':
			return n, s.errorf("a control character in a string must be escaped")
		default:
			r, size := utf8.DecodeRune(s.b[s.i:])
			if r == utf8.RuneError && size == 1 {
				return n, s.errorf("bytes that are not UTF-8")
			}
			s.i += size
		}
	}
}

func (s *scanner) escape() error {
	rest := s.b[s.i+1:]
	if len(rest) == 0 {
		return s.errorf("the string has no end")
	}
	switch rest[0] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.i += 2
		return nil
	case 'u':
		r, ok := hex4(rest[1:])
		switch {
		case !ok:
			return s.errorf(`\u needs four hexadecimal digits`)
		case r < 0xd800 || r > 0xdfff:
			s.i += 6
			return nil
		case r < 0xdc00 && len(rest) >= 11 && rest[5] == '\\' && rest[6] == 'u':
			if low, ok := hex4(rest[7:]); ok && low >= 0xdc00 && low <= 0xdfff {
				s.i += 12
				return nil
			}
		}
		return s.errorf("half of a surrogate pair")
	}
	return s.errorf("no such escape in a string")
}

func hex4(b []byte) (r rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, c := range b[:4] {
		switch {
		case c-'0' < 10:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
