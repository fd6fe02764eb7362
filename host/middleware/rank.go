package middleware

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"
	"unicode"
)

// The parameters of the ranking function. k1 and b are the usual ones; the
// weights say how much a term counts in each field of a tool.
const (
	bm25K1 = 1.2
	bm25B  = 0.75

	nameWeight        = 3.0
	tagWeight         = 2.0
	descriptionWeight = 1.0
)

// searchIndex ranks tools and skills by BM25, as Robertson and Zaragoza define it in "The
// Probabilistic Relevance Framework: BM25 and Beyond" (2009), formula 3.15:
//
//	score(D, Q) = Σ idf(t) · tf·(k1+1) / (tf + k1·(1 − b + b·|D|/avgdl))
//
// Fields are weighted as in their section 3.6: tf and |D| are sums over the
// fields, each times its weight. The idf has 1 added inside the logarithm, so
// that a term which most documents hold still counts for something.
type searchIndex struct {
	docs    []*searchDoc
	shelf   *searchDocs
	average float64        // mean weighted length of a document
	holders map[string]int // of the query's terms: how many documents hold it
}

// searchDoc is one component: the weighted count of each term, and their sum.
type searchDoc struct {
	name, description string
	tags              []string
	counts            map[string]float64
	length            float64
}

// maxSearchDocs is how many documents are kept for the next search.
const maxSearchDocs = 20_000

// searchDocs keeps documents from one search to the next.
type searchDocs struct {
	mu  sync.Mutex
	all map[string]*searchDoc // by name; guarded by mu
}

// of returns the document of a component. It makes a new one if the description or the tags have changed.
func (s *searchDocs) of(name, description string, tags []string) *searchDoc {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.all[name]; d != nil && d.description == description && slices.Equal(d.tags, tags) {
		return d
	}
	if s.all == nil || len(s.all) >= maxSearchDocs {
		s.all = make(map[string]*searchDoc)
	}
	d := &searchDoc{
		name: strings.Clone(name), description: strings.Clone(description), tags: slices.Clone(tags),
		counts: make(map[string]float64),
	}
	d.count(tokens(name), nameWeight)
	if whole := joined(name); d.counts[whole] == 0 {
		d.counts[whole] = nameWeight // "readfile" finds read_file; it does not count for the length
	}
	for _, tag := range tags {
		d.count(tokens(tag), tagWeight)
	}
	d.count(tokens(description), descriptionWeight)
	s.all[d.name] = d
	return d
}

// add adds a component to the index.
func (x *searchIndex) add(name, description string, tags []string) {
	d := x.shelf.of(name, description, tags)
	n := float64(len(x.docs))
	x.average = (x.average*n + d.length) / (n + 1)
	x.docs = append(x.docs, d)
}

// joined returns a name in lower case and stemmed, without the marks between its words.
func joined(name string) string {
	return stem(strings.ToLower(strings.Map(func(r rune) rune {
		if strings.ContainsRune("_-. /", r) {
			return -1
		}
		return r
	}, name)))
}

func (d *searchDoc) count(terms []string, weight float64) {
	for _, t := range terms {
		d.counts[t] += weight
		d.length += weight
	}
}

// scores returns how well each document fits a query; 0 = it holds none of its terms.
func (x *searchIndex) scores(query string) []float64 {
	terms, all := queryTerms(query), make([]float64, len(x.docs))
	x.holders = make(map[string]int, len(terms))
	for _, d := range x.docs {
		for _, t := range terms {
			if d.counts[t] > 0 {
				x.holders[t]++
			}
		}
	}
	for i, d := range x.docs {
		all[i] = x.score(d, terms)
	}
	return all
}

func (x *searchIndex) score(d *searchDoc, terms []string) float64 {
	sum := 0.0
	for _, t := range terms {
		tf := d.counts[t]
		if tf == 0 {
			continue
		}
		n, held := float64(len(x.docs)), float64(x.holders[t])
		idf := math.Log(1 + (n-held+0.5)/(held+0.5))
		sum += idf * tf * (bm25K1 + 1) / (tf + bm25K1*(1-bm25B+bm25B*d.length/x.average))
	}
	return sum
}

// maxQuery is how many bytes of a query count, because each of its terms is looked up in each tool.
const maxQuery = 4 << 10

// queryTerms returns each term of a query once. Words that say nothing about a
// tool are left out, unless the query has no others.
func queryTerms(query string) []string {
	all := tokens(strings.ToValidUTF8(query[:min(len(query), maxQuery)], ""))
	slices.Sort(all)
	all = slices.Compact(all)
	kept := slices.DeleteFunc(slices.Clone(all), isStopWord)
	if len(kept) == 0 {
		return all
	}
	return kept
}

// isStopWord reports whether a stemmed term is a stop word ("some" is "som").
func isStopWord(term string) bool {
	switch term {
	case "a", "an", "and", "are", "as", "at", "be", "by", "can", "do", "for", "from", "how", "i", "in", "into", "is",
		"it",
		"me", "my", "of", "on", "or", "so", "som", "that", "the", "them", "this", "to", "want", "what", "which",
		"with", "you":
		return true
	}
	return false
}

// tokens splits text into search terms: at everything that is no letter or digit, at the humps of camelCase and
// between letters and digits. Terms are in lower case and stemmed. In scripts written without spaces each character
// is a term.
func tokens(text string) []string {
	var out []string
	var word []rune
	flush := func() {
		if len(word) > 0 {
			out = append(out, stem(strings.ToLower(string(word))))
			word = word[:0]
		}
	}
	runes := []rune(text)
	for i, r := range runes {
		switch {
		case unicode.Is(unicode.Mn, r): // a combining accent belongs to the letter before it
		case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai):
			flush()
			out = append(out, string(r))
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			flush()
		default:
			if i > 0 && wordStarts(runes, i) {
				flush()
			}
			word = append(word, r)
		}
	}
	flush()
	return out
}

// wordStarts reports whether a new word begins at the letter or digit runes[i],
// judged by its neighbours: "readFile", "HTTPServer" (at the S), "utf8".
func wordStarts(runes []rune, i int) bool {
	before, r := runes[i-1], runes[i]
	if unicode.IsDigit(before) != unicode.IsDigit(r) {
		return true
	}
	if !unicode.IsUpper(r) {
		return false
	}
	nextLower := i+1 < len(runes) && unicode.IsLower(runes[i+1])
	return unicode.IsLower(before) || unicode.IsUpper(before) && nextLower
}

// stem maps the forms of an English word to one term: plurals as Harman's S-stemmer does ("How effective is
// suffixing?", JASIS 42, 1991), then -ing and -ed if a vowel is left before them, then the spelling differences
// that these leave behind. Words in other scripts stay as they are.
func stem(w string) string {
	for i := range len(w) {
		if w[i] < 'a' || w[i] > 'z' {
			return w
		}
	}
	if len(w) < 3 {
		return w
	}
	w = singular(w)
	for _, suffix := range [...]string{"ing", "ed"} {
		if root, ok := strings.CutSuffix(w, suffix); ok && len(root) >= 3 && strings.ContainsAny(root, "aeiouy") &&
			!strings.HasSuffix(root, "e") {
			w = root
			break
		}
	}
	if len(w) > 3 {
		w = strings.TrimSuffix(w, "e")
	}
	if n := len(w); n > 2 && w[n-1] == w[n-2] {
		w = w[:n-1]
	}
	if n := len(w); n > 2 && w[n-1] == 'y' {
		w = w[:n-1] + "i"
	}
	return w
}

// singular removes the plural ending of a word.
func singular(w string) string {
	n := len(w)
	switch {
	case n < 4 || w[n-1] != 's':
		return w
	case strings.HasSuffix(w, "ies"):
		return w[:n-3] + "y"
	case strings.HasSuffix(w, "ss") || strings.HasSuffix(w, "us") || strings.HasSuffix(w, "is"):
		return w
	}
	return w[:n-1]
}

// ranked is a component of a list to sort: by how well it fits a query, then by weight, then as it came. Components
// of one group that fit about as well are sorted by weight among the places that they have, so that no weight puts
// one before a component of another group that fits better than all of them.
type ranked struct {
	group         string
	score, weight float64
	at            int // in the list as it came
}

// nearly is the share of the best score in a group from which on another member of the group fits about as well.
const nearly = 0.5

func rank(all []ranked) {
	slices.SortFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.weight, a.weight), cmp.Compare(a.at, b.at))
	})
	places := make(map[string][]int)
	for i, r := range all {
		if same := places[r.group]; r.group != "" && r.score > 0 && (same == nil ||
			r.score >= nearly*all[same[0]].score) {
			places[r.group] = append(same, i)
		}
	}
	for _, same := range places {
		group := make([]ranked, len(same))
		for k, i := range same {
			group[k] = all[i]
		}
		slices.SortStableFunc(group, func(a, b ranked) int { return cmp.Compare(b.weight, a.weight) })
		for k, i := range same {
			all[i] = group[k]
		}
	}
}
