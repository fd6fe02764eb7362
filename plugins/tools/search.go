package tools

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"unicode"

	"a2e/host"
	"a2e/host/schema"
	"a2e/protocol"
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

// searchIndex ranks tools by BM25 as Robertson and Zaragoza give it in "The
// Probabilistic Relevance Framework: BM25 and Beyond" (2009), formula 3.15:
//
//	score(D, Q) = Σ idf(t) · tf·(k1+1) / (tf + k1·(1 − b + b·|D|/avgdl))
//
// Fields are weighted as in their section 3.6: tf and |D| are sums over the
// fields, each times its weight. The idf has 1 added inside the logarithm, so
// that a term which most tools hold still counts for something.
type searchIndex struct {
	docs    []searchDoc
	average float64        // mean weighted length of a document
	holders map[string]int // how many documents hold a term
}

// searchDoc is one tool: the weighted count of each term, and their sum.
type searchDoc struct {
	name   string
	counts map[string]float64
	length float64
}

// searchHit is one match: the index of the tool in the order it was added.
type searchHit struct {
	doc           int
	score, weight float64
}

// add appends one tool to the index.
func (x *searchIndex) add(name, description string, tags []string) {
	d := searchDoc{name: name, counts: make(map[string]float64)}
	d.count(tokens(name), nameWeight)
	if whole := joined(name); d.counts[whole] == 0 {
		d.counts[whole] = nameWeight // "readfile" finds read_file; no part of the length
	}
	for _, tag := range tags {
		d.count(tokens(tag), tagWeight)
	}
	d.count(tokens(description), descriptionWeight)
	if x.holders == nil {
		x.holders = make(map[string]int)
	}
	for term := range d.counts {
		x.holders[term]++
	}
	n := float64(len(x.docs))
	x.average = (x.average*n + d.length) / (n + 1)
	x.docs = append(x.docs, d)
}

// joined is a name without the marks between its words.
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

// search returns the tools that hold at least one term of query, the best first;
// equal ones by weight, then by name. A nil weigher makes all weights equal.
func (x *searchIndex) search(query string, weigher host.Weigher) []searchHit {
	terms := queryTerms(query)
	var hits []searchHit
	for i := range x.docs {
		s := x.score(&x.docs[i], terms)
		if s <= 0 {
			continue
		}
		hit := searchHit{doc: i, score: s}
		if weigher != nil {
			hit.weight = weigher.Weight(host.KindTool, x.docs[i].name)
		}
		hits = append(hits, hit)
	}
	slices.SortFunc(hits, func(a, b searchHit) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.weight, a.weight), cmp.Compare(x.docs[a.doc].name, x.docs[b.doc].name))
	})
	return hits
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

// maxQuery is how much of a query counts, in bytes: each of its terms is looked
// for in each tool.
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

// isStopWord takes a stemmed term ("some" is "som").
func isStopWord(term string) bool {
	switch term {
	case "a", "an", "and", "are", "as", "at", "be", "by", "can", "do", "for", "from", "how", "i", "in", "into", "is", "it",
		"me", "my", "of", "on", "or", "so", "som", "that", "the", "them", "this", "to", "want", "what", "which", "with", "you":
		return true
	}
	return false
}

// tokens splits text into search terms: at everything that is no letter or
// digit, at the humps of camelCase and between letters and digits; lower case,
// stemmed. Scripts written without spaces give one term per character.
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

// stem brings the forms of an English word together: plurals as Harman's
// S-stemmer does ("How effective is suffixing?", JASIS 42, 1991), then -ing and
// -ed where a vowel is left before them, then the spelling differences that
// these leave behind. Words in other scripts stay as they are.
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
		if root, ok := strings.CutSuffix(w, suffix); ok && len(root) >= 3 && strings.ContainsAny(root, "aeiouy") && !strings.HasSuffix(root, "e") {
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

// singular takes the plural's ending off.
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

// list answers tool/list/req: by name, or with a query by relevance.
func (s *Set) list(ctx context.Context, req *protocol.ToolListRequest, _ host.Emitter) (*protocol.ToolListResponse, error) {
	resp := &protocol.ToolListResponse{Tools: []protocol.ToolDefinition{}}
	content, _ := s.current(ctx, "")
	if strings.TrimSpace(req.Query) == "" {
		for _, t := range content.listed {
			if t.wanted(req) {
				resp.Tools = append(resp.Tools, t.Def)
			}
		}
		return resp, nil
	}
	for _, hit := range content.index().search(req.Query, s.services.Weigher()) {
		if t := content.listed[hit.doc]; t.wanted(req) {
			resp.Tools = append(resp.Tools, t.Def)
			resp.Scores, resp.Weights = append(resp.Scores, hit.score), append(resp.Weights, hit.weight)
		}
	}
	return resp, nil
}

// kindNative is what the public Python SDK's pages call the built-in tools.
const kindNative = "native"

// wanted reports whether a tool passes the filters of a request.
func (t *entry) wanted(req *protocol.ToolListRequest) bool {
	kind := req.FilterKind
	if strings.EqualFold(kind, kindNative) {
		kind = string(KindBuiltin)
	}
	return (kind == "" || strings.EqualFold(kind, string(t.Kind))) && wanted(&t.Def, req)
}

// wanted looks at what a definition tells, so not at the kind.
func wanted(def *protocol.ToolDefinition, req *protocol.ToolListRequest) bool {
	if def.DeferLoading && !req.IncludeDeferred {
		return false
	}
	for _, tag := range req.FilterTags {
		if !slices.ContainsFunc(def.Tags, func(own string) bool { return strings.EqualFold(own, tag) }) {
			return false
		}
	}
	return true
}

// Narrow leaves in a list of another program's tools what a request asks for, as far as the
// program has not looked at that itself. That it has searched is seen by scores, or by what
// it left out of known, which are its tools. changed reports whether resp is another.
func Narrow(services *host.Services, resp *protocol.ToolListResponse, req *protocol.ToolListRequest, known []protocol.ToolDefinition) (changed bool) {
	unwanted := func(def protocol.ToolDefinition) bool { return !wanted(&def, req) }
	if strings.TrimSpace(req.Query) == "" || len(resp.Scores) > 0 {
		n := len(resp.Tools)
		if len(resp.Scores) == 0 {
			resp.Tools = slices.DeleteFunc(resp.Tools, unwanted)
		}
		return len(resp.Tools) < n
	}
	resp.Tools = slices.DeleteFunc(resp.Tools, unwanted)
	searched := len(resp.Tools) < len(slices.DeleteFunc(known, unwanted))
	var x searchIndex
	for _, def := range resp.Tools {
		x.add(def.Name, def.Description, def.Tags)
	}
	found := make([]bool, len(x.docs))
	var out protocol.ToolListResponse
	take := func(doc int, score, weight float64) {
		found[doc] = true
		out.Tools = append(out.Tools, resp.Tools[doc])
		out.Scores, out.Weights = append(out.Scores, score), append(out.Weights, weight)
	}
	for _, hit := range x.search(req.Query, services.Weigher()) {
		take(hit.doc, hit.score, hit.weight)
	}
	for doc := range found {
		if searched && !found[doc] { // it found these in a way of its own
			take(doc, 0, 0)
		}
	}
	*resp = out
	return true
}

// newIndex makes the search index over some tools, in their order.
func newIndex(listed []*entry) *searchIndex {
	var x searchIndex
	for _, t := range listed {
		x.add(t.Def.Name, t.Def.Description, t.Def.Tags)
	}
	return &x
}

// DescribeTool implements host.ToolDescriber.
func (p *Plugin) DescribeTool(name string) (host.ToolDetail, bool) { return p.set.DescribeTool(name) }

// DescribeTool tells of a tool that may be called; false = there is none of that name.
func (s *Set) DescribeTool(name string) (host.ToolDetail, bool) {
	t := s.content.Load().tools[name]
	if t == nil || t.Denied != "" {
		return host.ToolDetail{}, false
	}
	d := t.Detail
	d.Idempotent = d.Idempotent || t.Def.Idempotent
	if len(d.InputSchema) == 0 {
		d.InputSchema = schema.Object(t.Def.InputParameters, true)
	}
	return d, true
}
