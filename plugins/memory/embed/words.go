package embed

import (
	"iter"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxWord is the length of the longest word, in runes; the rest of a longer word becomes the next word.
const maxWord = 64

// Words splits a text into search words, in order, including repeated ones. Words
// consist of letters and digits, in lower case, in compatibility form (NFKD) without
// marks: "Größe" becomes "grosse" and "ﬁle" becomes "file". All other characters
// separate words, except invisible ones such as a soft hyphen, which are ignored.
//
// Scripts written without spaces (Han, kana, Thai...) and Hangul have no usable
// word ends: a run of them becomes its overlapping pairs, "日本語" becomes "日本"
// and "本語". Their letters keep their marks: "が" is not "か".
//
// The text may have any bytes. A word has at most 64 runes; the rest is the next word.
func Words(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		s := splitter{yield: func(word []rune, _ bool) bool { return yield(string(word)) }}
		s.split(text)
	}
}

// splitter finds the words of a text. Its zero value with yield set is ready.
type splitter struct {
	yield func(word []rune, pair bool) bool // pair: of a script without spaces; word is valid until yield returns
	word  []rune                            // so far; in a run of pairs only the last rune
	run   int                               // runes in this run of a script without spaces; 0 = not in one
	ended bool                              // yield has returned false
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

// splitWide splits a run of text without ASCII.
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

// zeroWidthSpace is invisible like the other characters of its class, but it ends a word.
const zeroWidthSpace = '\u200b'

// letter adds a letter to a word of a script with spaces.
func (s *splitter) letter(r rune) {
	if s.run > 0 || len(s.word) == maxWord {
		s.flush()
	}
	s.word = append(s.word, r)
}

// pair adds a letter to a run of a script without spaces.
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

// flush ends the word or run. The one rune left of a run is already in its last
// pair, unless the run has only one rune.
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

// unspaced reports whether r belongs to a script that has no spaces between words,
// or to Hangul, whose words include their particles.
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

// folded returns the usual plain spelling of a letter that Unicode's tables do not
// decompose, or "" for all other letters.
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
