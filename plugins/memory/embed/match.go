package embed

import (
	"math/bits"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/blevesearch/snowballstem"
	"github.com/blevesearch/snowballstem/arabic"
	"github.com/blevesearch/snowballstem/english"
	"github.com/blevesearch/snowballstem/german"
	"github.com/blevesearch/snowballstem/porter"
	"github.com/blevesearch/snowballstem/russian"
)

// keyLength is how many letters of a word are used for its keys; the letters after them are mostly
// an ending.
const keyLength = 7

// Keys returns the keys of a word. forms are for its other forms: its first seven letters and its
// stems. misspelt are for misspellings: the seven letters, each time without one of them. Two words
// that differ by one added, missing, replaced or swapped letter share a key. A word of up to three letters
// has no keys, except the root of an Arabic one with three. Words with digits and words of scripts without
// spaces have no keys.
func Keys(word string) (forms, misspelt []string) {
	runes := []rune(word)
	switch {
	case len(runes) < 3 || !isFuzzy(runes):
		return nil, nil
	case len(runes) == 3 && isArabic(runes[0]):
		return []string{arabicRoot(word)}, nil
	case len(runes) == 3:
		return nil, nil
	}
	for _, base := range [][]rune{runes, participle(runes)} {
		head := base[:min(len(base), keyLength)]
		for i := range head {
			if i == 0 || head[i] != head[i-1] {
				misspelt = append(misspelt, string(head[:i])+string(head[i+1:]))
			}
		}
		if len(head) > 0 {
			forms = append(forms, string(head))
		}
	}
	for _, stem := range stems(word) {
		if n := utf8.RuneCountInString(stem); n >= 3 && n < keyLength && !slices.Contains(forms, stem) {
			forms = append(forms, stem)
		}
	}
	return forms, misspelt
}

// participle returns a German participle without its "ge", kündigt for gekündigt and
// einreicht for eingereicht, or nil if the word is not a participle.
func participle(word []rune) []rune {
	if n := len(word); n < 8 || word[n-1] != 't' && (word[n-1] != 'n' || word[n-2] != 'e') {
		return nil
	}
	for _, before := range []string{
		"", "ab", "an", "auf", "aus", "ein", "her", "hin", "mit", "nach", "um", "vor",
		"weg", "zu", "zuruck",
	} {
		if rest, has := strings.CutPrefix(string(word), before+"ge"); has && len(rest) >= 5 {
			return []rune(before + rest)
		}
	}
	return nil
}

// isFuzzy reports whether a word may be misspelt or have another ending. Words with digits and words of
// scripts without spaces do not.
func isFuzzy(word []rune) bool {
	for _, r := range word {
		if unicode.IsDigit(r) || unspaced(r) {
			return false
		}
	}
	return true
}

// stems returns the stems of a word in the languages of its script; the second stem of an
// Arabic word is its root.
func stems(word string) (all [2]string) {
	r, _ := utf8.DecodeRuneInString(word)
	switch {
	case r < 0x0250:
		return [2]string{stem(word, english.Stem), stem(word, german.Stem)}
	case unicode.Is(unicode.Cyrillic, r):
		return [2]string{stem(word, russian.Stem)}
	case isArabic(r):
		return [2]string{stem(word, arabic.Stem), arabicRoot(word)}
	}
	return all
}

// Porter returns the same stem of a word as SQLite's porter tokenizer.
func Porter(word string) string {
	if len(word) < 3 || len(word) > 64 {
		return word
	}
	return stem(word, porter.Stem)
}

func stem(word string, by func(*snowballstem.Env) bool) string {
	env := snowballstem.NewEnv(word)
	by(env)
	return env.Current()
}

// Query has the words that a search looks for, each once. It remembers the words of the texts that it was
// compared with. It is not safe for concurrent use.
type Query struct {
	words []QueryWord
	known map[string][]float64 // likeness of the query's words, by word of a text
	utf8  []byte               // scratch of likeness
}

// maxKnown is the most words of texts that a query remembers.
const maxKnown = 10_000

// QueryWord is one word of a query.
type QueryWord struct {
	Text  string
	Share float64 // weight of such a word, up to 1; function words have a low one

	runes []rune
	plain []rune // see participle; nil = the word is not a participle
	pair  bool   // two characters of a script without spaces
	fuzzy bool   // similar words match it too
	stems [2]string
}

// NewQuery returns a query of the first limit different words of a text.
func NewQuery(text string, limit int) *Query {
	q := &Query{}
	s := splitter{yield: func(word []rune, pair bool) bool {
		if !slices.ContainsFunc(q.words, func(w QueryWord) bool { return slices.Equal(w.runes, word) }) {
			w := QueryWord{Text: string(word), Share: share(word), runes: slices.Clone(word), pair: pair}
			if w.fuzzy = len(word) >= 3 && !pair && isFuzzy(word); w.fuzzy {
				w.stems, w.plain = stems(w.Text), participle(word)
			}
			q.words = append(q.words, w)
		}
		return len(q.words) < limit
	}}
	s.split(text)
	return q
}

// share returns the weight of a word, independent of the other words.
func share(word []rune) float64 {
	if slices.ContainsFunc(word, func(r rune) bool { return unicode.Is(unicode.Hiragana, r) }) {
		return 0.4 // hiragana are mostly endings and particles
	}
	return float64(importance(word)) / 9
}

// Words returns the words of the query, in order.
func (q *Query) Words() []QueryWord { return q.words }

// Function reports whether a word says little about the topic of a text.
func (w *QueryWord) Function() bool { return w.Share <= float64(trifle)/9 }

// Pair reports whether a word is two characters of a script without spaces.
func (w *QueryWord) Pair() bool { return w.pair }

const (
	nearWords = 3    // words at most this far apart count as neighbours
	neighbour = 0.25 // additional weight of neighbours, relative to the weight of their words
	sameRoot  = 0.75 // likeness of Arabic words with the same root
	isMatch   = 0.65 // least likeness of a word that counts as a word of the query
)

// In returns how much of the query a text has, from 0 to 1: the weighted share of the query's words
// that it has exactly or in a similar form. Words that are neighbours as in the query count more, and
// long texts count a little less. Only the first 16 KiB of the text are compared.
func (q *Query) In(text string, weights []float64) float64 {
	m := match{
		q: q, likeness: make([]float64, len(q.words)), last: make([]int, len(q.words)),
		together: make([]bool, len(q.words)),
	}
	for i := range m.last {
		m.last[i] = -nearWords - 1
	}
	s := splitter{yield: m.take}
	s.split(cut(text, maxLook))
	var has, all float64
	for i, w := range weights {
		has += w * m.likeness[i]
		all += w
		if i > 0 {
			pair := neighbour * min(w, weights[i-1])
			all += pair
			if m.together[i] {
				has += pair * min(m.likeness[i], m.likeness[i-1])
			}
		}
	}
	if all == 0 {
		return 0
	}
	return has / all * (1 - 0.1*float64(m.at)/float64(m.at+100))
}

// match compares a text with a query.
type match struct {
	q        *Query
	at       int       // words so far
	likeness []float64 // the best for each word of the query
	last     []int     // place of its last match
	together []bool    // whether it was near the previous word of the query
}

func (m *match) take(word []rune, pair bool) bool {
	m.at++
	for i, like := range m.q.likeness(word, pair) {
		if like == 0 {
			continue
		}
		m.likeness[i] = max(m.likeness[i], like)
		if like < isMatch {
			continue
		}
		m.last[i] = m.at
		if i > 0 && m.at-m.last[i-1] <= nearWords {
			m.together[i] = true
		}
		if i+1 < len(m.last) && m.at-m.last[i+1] <= nearWords {
			m.together[i+1] = true
		}
	}
	return true
}

// likeness returns how similar each word of the query is to a word of a text, from 0 to 1, or nil if no word is
// similar.
func (q *Query) likeness(word []rune, pair bool) []float64 {
	q.utf8 = q.utf8[:0]
	for _, r := range word {
		q.utf8 = utf8.AppendRune(q.utf8, r)
	}
	if all, known := q.known[string(q.utf8)]; known {
		return all
	}
	text := string(q.utf8)
	var all []float64
	var own [2]string // stems, made when they are needed
	for i := range q.words {
		like := 0.0
		if w := &q.words[i]; slices.Equal(w.runes, word) {
			like = 1
		} else if w.fuzzy && !pair && len(word) >= 3 {
			like = w.likeness(word, text, &own)
		}
		if all == nil && like > 0 {
			all = make([]float64, len(q.words))
		}
		if like > 0 {
			all[i] = like
		}
	}
	if q.known == nil {
		q.known = make(map[string][]float64, 512)
	}
	if len(q.known) < maxKnown {
		q.known[text] = all
	}
	return all
}

// likeness returns how similar another word is to w, from 0 to 1. text is that word as a string, and own has its
// stems, which likeness sets when it needs them.
func (w *QueryWord) likeness(word []rune, text string, own *[2]string) float64 {
	p := commonPrefix(w.runes, word)
	anywhere := isArabic(w.runes[0]) && isArabic(word[0])
	if p >= 3 || anywhere {
		if own[0] == "" {
			*own = stems(text)
		}
		root := w.stems[1] != "" && w.stems[1] == own[1]
		switch {
		case w.stems[0] == own[0] || root && !anywhere:
			return 0.95
		case root:
			return sameRoot
		}
	}
	like := alike(w.runes, word, p)
	if like < isMatch {
		like = max(like, alikePlain(w, word))
	}
	return like
}

// alikePlain returns the likeness where one of the words is a participle.
func alikePlain(w *QueryWord, word []rune) float64 {
	mine, its := w.plain, participle(word)
	switch {
	case mine == nil && its == nil:
		return 0
	case mine == nil:
		mine = w.runes
	case its == nil:
		its = word
	}
	return alike(mine, its, commonPrefix(mine, its))
}

func commonPrefix(a, b []rune) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// alike returns the likeness of two words that share their first p letters. It recognises misspellings,
// equal beginnings and parts of compounds.
func alike(a, b []rune, p int) float64 {
	if len(a) > len(b) {
		a, b = b, a
	}
	short, long := len(a), len(b)
	if short < 4 {
		return 0
	}
	like := 0.0
	if p >= 4 && p*2 >= long {
		like = 0.35 + 0.5*float64(p)/float64(long)
	}
	mine, its := letters(a), letters(b)
	if long-short <= 2 && bits.OnesCount64(mine&^its) <= 2 && bits.OnesCount64(its&^mine) <= 2 {
		switch d := edits(a, b); {
		case d == 1:
			return max(like, 0.9-0.5/float64(short))
		case d == 2 && short >= 6:
			return max(like, 0.9-1.2/float64(short))
		}
	}
	if short >= 5 && long > short && (p == short || contains(b, a)) {
		like = max(like, 0.4+0.4*float64(short)/float64(long))
	}
	return like
}

// letters returns a set of the letters of a word, modulo 64. Each letter that only one of two words has
// needs an edit.
func letters(word []rune) (all uint64) {
	for _, r := range word {
		all |= 1 << (uint32(r) % 64)
	}
	return all
}

func contains(word, part []rune) bool {
	for len(word) >= len(part) {
		if slices.Equal(word[:len(part)], part) {
			return true
		}
		word = word[1:]
	}
	return false
}

// edits returns how many letters have to be inserted, deleted, replaced or swapped with the
// next one to turn a into b; 3 stands for 3 or more.
func edits(a, b []rune) int {
	const limit = 3
	var rows [3][maxWord + 1]uint8
	for j := range len(b) + 1 {
		rows[0][j] = uint8(j)
	}
	for i := 1; i <= len(a); i++ {
		row, before, earlier := &rows[i%3], &rows[(i+2)%3], &rows[(i+1)%3]
		row[0] = uint8(i)
		best := row[0]
		for j := 1; j <= len(b); j++ {
			cost := uint8(1)
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(before[j]+1, row[j-1]+1, before[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], earlier[j-2]+1)
			}
			best = min(best, row[j])
		}
		if best >= limit {
			return limit
		}
	}
	return int(min(limit, rows[len(a)%3][len(b)]))
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

// isFunctionWord reports whether a word is one of the commonest of English or German, or
// the part of one at an apostrophe. Such words say little about the topic of a text.
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
	case "a", "an", "the", "and", "or", "but", "if", "then", "than", "so", "as", "of", "at", "by", "for",
		"with", "about", "into", "to", "from", "in", "on", "off", "out", "is", "am", "are", "was", "were",
		"be", "been", "being", "has", "have", "had", "do", "does", "did", "can", "could", "will", "would",
		"shall", "should", "may", "might", "must", "i", "me", "my", "we", "us", "our", "you", "your", "he",
		"him", "his", "she", "her", "it", "its", "they", "them", "their", "this", "that", "these", "those",
		"there", "here", "what", "which", "who", "whom", "whose", "when", "where", "why", "how", "not", "no",
		"nor", "s", "t", "d", "m", "re", "ll", "ve", "don", "doesn", "isn", "didn", "also", "just", "too",
		"very", "der", "die", "das", "und", "ist", "ein", "eine", "einen", "dem", "den", "des", "zu", "mit",
		"auf", "im", "wie", "fur", "von", "nicht", "sich", "wird", "werden", "wir":
		return true
	}
	return false
}

// maxLook is how many bytes of a text a query is compared with.
const maxLook = 16 << 10

// cut returns at most the first limit bytes of text, without splitting a rune.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for i := limit; i > limit-utf8.UTFMax; i-- {
		if utf8.RuneStart(text[i]) {
			return text[:i]
		}
	}
	return text[:limit] // not valid UTF-8
}
