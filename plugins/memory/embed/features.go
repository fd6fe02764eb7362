package embed

import "unicode/utf8"

// maxLook is how much of a text is looked at for its features, in bytes.
const maxLook = 16 << 10

// The kinds of features, mixed into their hashes: a word is not a pair of words.
const (
	kindWord uint64 = iota + 1
	kindGram3
	kindGram4
	kindPair
	kindRune
)

// start and end mark the ends of a word in its n-grams. No word has them.
const (
	start rune = 2
	end   rune = 3
)

// weights says how much each kind of feature counts.
type weights struct {
	word, gram3, gram4, pair, single int32
}

// features finds what a text consists of: words, their n-grams of three and four
// characters, and pairs of words. It holds no state between texts but its
// buffers.
type features struct {
	weights
	add    func(hash uint64, weight int32)
	split  splitter
	padded [maxWord + 2]rune // a word between start and end
	last   uint64            // the hash of the word before that is not a function word; 0 = none
}

// of calls add for each feature of the text, repeated ones too.
func (f *features) of(text string) {
	f.last, f.split.ended, f.split.yield = 0, false, f.take
	f.split.split(cut(text, maxLook))
}

// take finds the features of one word.
func (f *features) take(word []rune, pair bool) bool {
	if pair {
		f.takePair(word)
		return true
	}
	n := copy(f.padded[1:], word)
	f.padded[0], f.padded[n+1] = start, end
	hash := wordHash(word)
	share := importance(word)
	f.add(mix(hash+kindWord), f.word*share)
	f.grams(f.padded[:n+2], share)
	if share > trifle {
		f.follow(hash)
	}
	return true
}

// takePair takes two characters of a script without spaces, or one that is alone.
func (f *features) takePair(word []rune) {
	f.add(mix(wordHash(word)+kindWord), f.word*usual)
	f.add(mix(uint64(word[0])+kindRune), f.single*usual)
	f.last = 0
}

// wordHash tells words apart.
func wordHash(word []rune) uint64 {
	hash := uint64(0)
	for _, r := range word {
		hash = mix(hash ^ uint64(r))
	}
	return hash
}

// grams takes the n-grams of a word with its marks. Three runes fill 63 bits.
func (f *features) grams(padded []rune, share int32) {
	for i := 0; i+3 <= len(padded); i++ {
		three := mix(uint64(padded[i])<<42 | uint64(padded[i+1])<<21 | uint64(padded[i+2]))
		f.add(mix(three+kindGram3), f.gram3*share)
		if i+4 <= len(padded) {
			f.add(mix(three^uint64(padded[i+3])+kindGram4), f.gram4*share)
		}
	}
}

// follow takes the pair of this word and the one before.
func (f *features) follow(hash uint64) {
	if f.last != 0 {
		f.add(mix(f.last^mix(hash)+kindPair), f.pair*usual)
	}
	f.last = hash
}

// The importance of a word. There are no counts to learn it from: function words
// are known, and long words are rarer than short ones.
const (
	trifle int32 = 1
	usual  int32 = 8
)

// importance weighs a word.
func importance(word []rune) int32 {
	if isFunctionWord(word) {
		return trifle
	}
	switch n := len(word); {
	case n == 1:
		return 3
	case n <= 3:
		return 7
	case n <= 5:
		return usual
	}
	return 9
}

// isFunctionWord tells whether a word is one of the commonest of English, or
// what is left of one at an apostrophe: they say little about what a text is about.
func isFunctionWord(word []rune) bool {
	var buf [8]byte
	if len(word) > len(buf) {
		return false
	}
	for i, r := range word {
		if r >= utf8.RuneSelf {
			return false
		}
		buf[i] = byte(r)
	}
	switch string(buf[:len(word)]) {
	case "a", "an", "the", "and", "or", "but", "if", "then", "than", "so", "as", "of", "at", "by", "for", "with", "about", "into", "to", "from", "in", "on", "off", "out",
		"is", "am", "are", "was", "were", "be", "been", "being", "has", "have", "had", "do", "does", "did", "can", "could", "will", "would", "shall", "should", "may", "might", "must",
		"i", "me", "my", "we", "us", "our", "you", "your", "he", "him", "his", "she", "her", "it", "its", "they", "them", "their", "this", "that", "these", "those", "there", "here",
		"what", "which", "who", "whom", "whose", "when", "where", "why", "how", "not", "no", "nor", "s", "t", "d", "m", "re", "ll", "ve", "don", "doesn", "isn", "didn", "also", "just", "too", "very",
		"der", "die", "das", "und", "ist", "ein", "eine", "einen", "dem", "den", "des", "zu", "mit", "auf", "im", "wie", "fur", "von", "nicht", "sich", "wird", "werden", "wir":
		return true
	}
	return false
}

// cut gives the first limit bytes of text at most, ending between two runes.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for i := limit; i > limit-utf8.UTFMax; i-- {
		if utf8.RuneStart(text[i]) {
			return text[:i]
		}
	}
	return text[:limit] // no UTF-8 here
}

// mix is the finaliser of splitmix64: every bit of the answer depends on all of x.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
