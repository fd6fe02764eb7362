package embed

import (
	"context"
	"math/bits"
	"sync"
	"unicode/utf8"
)

const (
	hashedName = "a2e-hashed-1"
	hashedSize = 512
	blocks     = 32 // components that one feature touches, one of each block
)

// hashed is the built-in embedder.
type hashed struct {
	pool sync.Pool // of *sums
}

// Hashed returns an embedder of 512 dimensions for vectors that are compared at once. It
// works offline, keeps nothing, and gives the same vectors on every machine.
//
// It is lexical: texts are near each other that share words, parts of words or
// neighbouring words. So it finds other forms of a word, misspelt ones and
// another word order; it knows no synonyms and no meanings, and of a language
// nothing but a list of the commonest English and German words, which count
// little. What lies beyond the first 16 KiB of a text is not looked at.
func Hashed() Embedder {
	h := &hashed{}
	h.pool.New = func() any { return newSums() }
	return h
}

// Model returns the name and size of the built-in vectors.
func (*hashed) Model() Model { return Model{Name: hashedName, Size: hashedSize} }

// Embed returns the vectors of texts. It fails only if ctx has ended.
func (h *hashed) Embed(ctx context.Context, texts []string) ([]Vector, error) {
	s := h.pool.Get().(*sums)
	defer h.pool.Put(s)
	out := make([]Vector, len(texts))
	for i, text := range texts {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		out[i] = s.vector(text)
	}
	return out, nil
}

// sums adds up the features of a text. Everything is counted in integers, which
// add up alike on every machine.
type sums struct {
	features features
	counts   table
	total    [hashedSize]int32
}

func newSums() *sums {
	s := &sums{}
	// found by trial on testdata/retrieval.json, where half and double do about as well
	s.features.weights = weights{word: 12, gram3: 16, gram4: 10, pair: 8, single: 6}
	s.features.add = s.counts.add
	return s
}

// vector returns the vector of a text, nil if it has no words.
func (s *sums) vector(text string) Vector {
	s.counts.reset(2048)
	s.features.of(text)
	clear(s.total[:])
	for _, c := range s.counts.cells {
		if c.times > 0 {
			s.spread(c.hash, damped(c.weight, c.times))
		}
	}
	var v [hashedSize]float32
	for i, n := range s.total {
		v[i] = float32(n)
	}
	return Quantise(v[:])
}

// spread adds a feature: its weight, or minus its weight, to one component of
// each block, both as its hash says.
func (s *sums) spread(hash uint64, weight int32) {
	// eight blocks take their bits from one word, a byte each
	const part, step = hashedSize / blocks * 8, hashedSize / blocks
	for from := 0; from < hashedSize; from += part {
		hash = mix(hash)
		total := (*[part]int32)(s.total[from : from+part])
		bytes := hash
		for at := 0; at < part; at += step {
			sign := int32(int8(bytes)) >> 31 // 0 or -1
			i := at | int(bytes&(step-1))
			total[i&(part-1)] += (weight ^ sign) - sign // the mask spares a bounds check
			bytes >>= 8
		}
	}
}

// damped returns the weight of a feature that occurs so many times: it grows with
// the logarithm, so that a text is not about its most repeated word alone.
func damped(weight, times int32) int32 {
	octave := bits.Len32(uint32(times)) - 1
	// in steps of 1/8 octave, linear between powers of two
	eighths := int32(octave)*8 + (times-1<<octave)*8>>octave
	return weight * (16 + eighths) / 16
}

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

// isFunctionWord reports whether a word is one of the commonest of English, or
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

// cut returns the first limit bytes of text at most, ending between two runes.
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

// GramSet is what a query consists of: its words and their character n-grams. It
// never changes, so that any number of goroutines may use it. Its zero value is
// that of a query without words.
type GramSet struct {
	table table
	total int64 // weight of all
}

// Grams returns the hashes of the character n-grams of a text, each once, for In.
// Only the first 16 KiB are looked at.
func Grams(text string) GramSet {
	var g GramSet
	g.table.reset(8)
	f := features{weights: gramWeights(), add: g.table.add}
	f.of(text)
	for _, c := range g.table.cells {
		g.total += int64(c.weight)
	}
	return g
}

// gramWeights weighs what makes up a GramSet: no pairs, as it is about what a
// text has, not in which order.
func gramWeights() weights { return weights{word: 4, gram3: 2, gram4: 3, single: 1} }

// In returns the share of g's n-grams that text has, from 0 to 1: a measure of
// relevance that holds up to typos and other forms of a word. Those of function
// words weigh little, those of long words more. The length of text does not
// matter, but only its first 16 KiB are looked at. An empty g gives 0.
func (g GramSet) In(text string) float64 {
	if g.total == 0 {
		return 0
	}
	var found int64
	seen := make([]bool, len(g.table.cells))
	f := features{weights: gramWeights()}
	f.add = func(hash uint64, _ int32) {
		i := g.table.index(hash)
		if c := g.table.cells[i]; c.times > 0 && !seen[i] {
			seen[i] = true
			found += int64(c.weight)
		}
	}
	f.of(text)
	return float64(found) / float64(g.total)
}

// table counts features: an open hash table that keeps its memory, within reason.
type table struct {
	cells []cell // a power of two of them
	used  int
}

type cell struct {
	hash          uint64
	weight, times int32 // times 0 = free
}

// largeTable is how many cells a table keeps for the next text.
const largeTable = 1 << 13

// reset empties the table, which gets at least size cells, a power of two.
func (t *table) reset(size int) {
	if len(t.cells) < size || len(t.cells) > largeTable {
		t.cells = make([]cell, size)
	}
	clear(t.cells)
	t.used = 0
}

// add counts a feature once more. Its weight is the largest it came with.
func (t *table) add(hash uint64, weight int32) {
	if weight == 0 {
		return
	}
	if t.used*2 >= len(t.cells) {
		t.grow()
	}
	c := &t.cells[t.index(hash)]
	if c.times == 0 {
		t.used++
	}
	c.hash, c.weight, c.times = hash, max(c.weight, weight), c.times+1
}

// index returns the cell of hash, or the free one where it belongs.
func (t *table) index(hash uint64) int {
	mask := uint64(len(t.cells) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		if c := &t.cells[i]; c.times == 0 || c.hash == hash {
			return int(i)
		}
	}
}

// grow doubles the table.
func (t *table) grow() {
	old := t.cells
	t.cells = make([]cell, 2*len(old))
	for _, c := range old {
		if c.times > 0 {
			t.cells[t.index(c.hash)] = c
		}
	}
}
