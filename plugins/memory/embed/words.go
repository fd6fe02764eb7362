package embed

import (
	"iter"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxWord bounds a word, in runes; what is longer goes on as the next word.
const maxWord = 64

// Words splits a text into search words, in order, repeated ones too: letters and
// digits, in lower case, in compatibility form (NFKD) without marks, so that
// "Größe" gives "grosse" and "ﬁle" gives "file". Everything else separates words,
// but for invisible characters such as a soft hyphen, which are as if not there.
//
// Scripts written without spaces (Han, kana, Thai...) and Hangul have no word
// ends to go by: a run of them gives its overlapping pairs, "日本語" giving "日本"
// and "本語". Their letters stay whole: "が" is not "か".
//
// Any bytes are safe; a word has at most 64 runes, the rest being the next word.
func Words(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		s := splitter{yield: func(word []rune, _ bool) bool { return yield(string(word)) }}
		s.split(text)
	}
}

// splitter finds the words of a text. Its zero value with yield set is ready.
type splitter struct {
	yield func(word []rune, pair bool) bool // pair: of a script without spaces; the slice is good until yield returns
	word  []rune                            // so far; in a run of pairs the last rune alone
	run   int                               // runes in this run of a script without spaces; 0 = not in one
	ended bool                              // yield wants no more
	wide  norm.Iter
}

// split yields the words of text:
//
//	ASCII ──────────────────────────────► push
//	the rest, run by run ─ NFKC ─┬─ pairs ─► push  (composed: ガ, 한)
//	                             └─ NFKD ──► push  (é as e and a mark, which push drops)
func (s *splitter) split(text string) {
	if s.word == nil {
		s.word = make([]rune, 0, maxWord)
	}
	for i := 0; i < len(text) && !s.ended; {
		if text[i] < utf8.RuneSelf {
			s.pushASCII(text[i])
			i++
			continue
		}
		end := i + 1
		for end < len(text) && text[end] >= utf8.RuneSelf {
			end++
		}
		s.splitWide(text[i:end])
		i = end
	}
	s.flush()
}

// splitWide takes a run of text without ASCII.
func (s *splitter) splitWide(text string) {
	s.wide.InitString(norm.NFKC, text)
	for !s.wide.Done() && !s.ended {
		for seg := s.wide.Next(); len(seg) > 0; {
			r, size := utf8.DecodeRune(seg)
			var parts []byte
			if r >= utf8.RuneSelf && !unspaced(r) {
				parts = norm.NFD.Properties(seg).Decomposition()
			}
			seg = seg[size:]
			if parts == nil {
				s.push(r)
			}
			for len(parts) > 0 {
				part, size := utf8.DecodeRune(parts)
				s.push(part)
				parts = parts[size:]
			}
		}
	}
}

// pushASCII takes the next character of the text.
func (s *splitter) pushASCII(c byte) {
	switch {
	case 'a' <= c && c <= 'z' || '0' <= c && c <= '9':
		s.letter(rune(c))
	case 'A' <= c && c <= 'Z':
		s.letter(rune(c) + 'a' - 'A')
	default:
		s.flush()
	}
}

// push takes the next rune of the text.
func (s *splitter) push(r rune) {
	switch {
	case r < utf8.RuneSelf:
		s.pushASCII(byte(r))
	case unicode.Is(unicode.M, r):
	case r != zeroWidthSpace && unicode.Is(unicode.Cf, r):
	case !unicode.IsLetter(r) && !unicode.IsNumber(r):
		s.flush()
	case unspaced(r):
		s.pair(r)
	default:
		r = unicode.ToLower(r)
		if plain := folded(r); plain != "" {
			for _, c := range plain {
				s.letter(c)
			}
			return
		}
		s.letter(r)
	}
}

// zeroWidthSpace is invisible like the rest of its class, and yet ends a word.
const zeroWidthSpace = '\u200b'

// letter adds to a word with spaces around it.
func (s *splitter) letter(r rune) {
	if s.run > 0 || len(s.word) == maxWord {
		s.flush()
	}
	s.word = append(s.word, r)
}

// pair adds to a run of a script without spaces.
func (s *splitter) pair(r rune) {
	if s.run == 0 {
		s.flush()
	}
	s.word = append(s.word, r)
	s.run++
	if len(s.word) == 2 {
		s.give(true)
		s.word = append(s.word[:0], r)
	}
}

// flush ends the word or run. The one rune left of a run is in its last pair
// already, unless it was alone.
func (s *splitter) flush() {
	if s.run == 1 || s.run == 0 && len(s.word) > 0 {
		s.give(s.run == 1)
	}
	s.word, s.run = s.word[:0], 0
}

// give yields the word.
func (s *splitter) give(pair bool) {
	if !s.ended {
		s.ended = !s.yield(s.word, pair)
	}
}

// unspaced reports whether r is of a script whose words have no spaces between
// them, or, as Hangul, carry their particles with them.
func unspaced(r rune) bool {
	switch {
	case r < 0x0e00:
		return false
	case 0x4e00 <= r && r <= 0x9fff, 0x3040 <= r && r <= 0x30ff, 0xac00 <= r && r <= 0xd7a3:
		return unicode.IsLetter(r)
	}
	return unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul, unicode.Bopomofo,
		unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar)
}

// folded returns the usual spelling of letters that have no plain form in Unicode's
// tables; "" for all others.
func folded(r rune) string {
	switch r {
	case 'ß':
		return "ss"
	case 'æ':
		return "ae"
	case 'œ':
		return "oe"
	case 'ø':
		return "o"
	case 'ł':
		return "l"
	case 'đ', 'ð':
		return "d"
	case 'þ':
		return "th"
	case 'ı':
		return "i"
	case 'ς':
		return "σ"
	}
	return ""
}
