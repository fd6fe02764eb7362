package memory

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"

	"a2e/host/state/store"
	"a2e/plugins/memory/embed"
)

const (
	maxWords      = 10_000 // words of an entry that are indexed
	maxKeyed      = 2_000  // different words of an entry for which keys are indexed
	maxQueryWords = 32     // words of a query
	maxPostings   = 2_000  // entries of one word that a search looks at
	maxFuzzy      = 12     // words of a query for which similar words are searched
	fewPostings   = 50     // a word that more entries have is not searched in misspelt forms
	fuzzyLikeness = 0.6    // weight of a similar word, before the texts are compared
	maxDropped    = 4      // searches for entries with all common words, each with one word less
)

// indexWords puts the words of a text and their keys into the indexes. Each word has the mark of its
// space, so that a search in one space is not slowed by the words of others. If words is false, it
// indexes only the keys.
func indexWords(tx *store.Tx, entry, space int64, text string, words bool) error {
	var all, keys strings.Builder
	mark := spaceMark(space)
	seen := make(map[string]bool)
	n := 0
	for word := range embed.Words(text) {
		if n++; n > maxWords {
			break
		}
		all.WriteString(mark + word + " ")
		if len(seen) >= maxKeyed || seen[word] {
			continue
		}
		seen[word] = true
		forms, misspelt := embed.Keys(word)
		for _, key := range slices.Concat(forms, misspelt) {
			keys.WriteString(mark + key + " ")
		}
	}
	if words {
		if err := inText.Put(tx, entry, all.String()); err != nil {
			return err
		}
	}
	if keys.Len() == 0 {
		return nil
	}
	return inForms.Put(tx, entry, keys.String())
}

const (
	maxCaughtUp   = 200       // entries of an older version that one request indexes
	caughtUpBytes = 256 << 10 // and the bytes after which it takes no more
)

// catchUp makes the keys of entries that an older version of a2e stored without keys or with fewer.
// Each call handles some entries, the newest first. Until then these entries are found by their exact
// words and the keys they have.
func (s *repository) catchUp(ctx context.Context) error {
	if s.keyed.Load() {
		return nil
	}
	var upto int64
	some := false
	if err := s.store.Read(ctx, func(tx *store.Tx) (err error) {
		some, err = tx.Get("SELECT upto FROM memory_unkeyed", nil, &upto)
		return err
	}); err != nil {
		return err
	}
	if !some {
		s.keyed.Store(true)
		return nil
	}
	return s.store.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Get("SELECT upto FROM memory_unkeyed", nil, &upto); err != nil {
			return err
		}
		var found []*row
		bytes := 0
		err := tx.Each("SELECT "+columns+fromEntries+"WHERE e.id <= $1 ORDER BY e.id DESC LIMIT $2", []any{
			upto,
			maxCaughtUp,
		}, func(scan func(...any) error) error {
			r := new(row)
			err := scan(r.columns()...)
			if err == nil && bytes < caughtUpBytes {
				found = append(found, r)
				bytes += r.size()
			}
			return err
		})
		for _, r := range found {
			if err == nil {
				err = inForms.Remove(tx, r.id) // the fewer keys of an older version
			}
			if err == nil {
				err = indexWords(tx, r.id, r.space, r.text(), false)
			}
		}
		if err != nil {
			return err
		}
		if len(found) == 0 {
			_, err = tx.Exec("DELETE FROM memory_unkeyed")
			return err
		}
		rest := found[len(found)-1].id - 1
		if _, err := tx.Exec("DELETE FROM memory_vectors WHERE entry > $1 AND entry <= $2 AND NOT EXISTS (SELECT 1 "+
			"FROM memory_meta WHERE name = 'model')", rest, upto); err != nil {
			return err
		}
		_, err = tx.Exec("UPDATE memory_unkeyed SET upto = $1", rest)
		return err
	})
}

// spaceMark returns the prefix of each word of a space. Digits and a consonant at the
// front of a word do not change how the stemmer treats its end.
func spaceMark(space int64) string { return strconv.FormatInt(space, 10) + "x" }

// words is the result of looking up the words of a query in the index.
type words struct {
	tx      *store.Tx
	spaces  []int64
	query   *embed.Query
	terms   []term
	weights []float64 // of the words, in the order of the query
	oldest  int64     // id of the oldest entry in the spaces; 0 = not read yet
}

// term is a word of a query in the index.
type term struct {
	embed.QueryWord
	exact, near []int64 // entries with the word, and with words that share a key with it, the newest first
	common      bool    // more entries have the word than are listed
	weight      float64 // share of the word times its rarity
}

// lookUp finds the entries that have the words of a query or, where these are few, similar
// words. It weighs each word by its rarity (inverse document frequency).
func lookUp(tx *store.Tx, query *embed.Query, spaces []int64) (*words, error) {
	w := &words{tx: tx, spaces: spaces, query: query}
	total := 0
	if _, err := tx.Get("SELECT coalesce(sum(entries), 0) FROM memory_spaces WHERE id IN (SELECT CAST(value AS "+
		"BIGINT) FROM json_each($1))", []any{store.JSON(spaces)}, &total); err != nil {
		return nil, err
	}
	if err := w.findEntries(); err != nil {
		return nil, err
	}
	for i := range w.terms {
		t := &w.terms[i]
		count, err := w.count(t)
		if err != nil {
			return nil, err
		}
		t.weight = t.Share * rarity(total, count)
		switch {
		case count == 0 && t.Pair():
			t.weight = 0
		case count == 0:
			t.weight *= 0.3
		}
		w.weights = append(w.weights, t.weight)
	}
	return w, nil
}

// findEntries finds the entries of each word. It uses two statements for all words, as the fixed cost of a
// statement is far larger than that of a word.
func (w *words) findEntries() error {
	var exact, near []string
	for _, word := range w.query.Words() {
		w.terms = append(w.terms, term{QueryWord: word})
		exact = append(exact, w.any(word.Text))
	}
	found, err := inText.Find(w.tx, 0, maxPostings+1, exact...)
	if err != nil {
		return err
	}
	var fuzzy []*term
	for i := range w.terms {
		t := &w.terms[i]
		t.exact = found[i]
		keys, misspelt := embed.Keys(t.Text)
		if len(keys) == 0 || len(t.exact) > maxPostings || len(fuzzy) == maxFuzzy {
			continue
		}
		if len(t.exact) <= fewPostings {
			keys = append(keys, misspelt...)
		}
		fuzzy, near = append(fuzzy, t), append(near, w.any(keys...))
	}
	found, err = inForms.Find(w.tx, 0, maxPostings+1, near...)
	for i, rows := range found {
		fuzzy[i].near = rows
	}
	return err
}

// count returns how many entries have a word, an estimate for a common word, and sets t.common.
func (w *words) count(t *term) (int, error) {
	ids := t.exact
	if len(ids) == 0 {
		ids = t.near
	}
	if t.common = len(ids) > maxPostings; !t.common {
		return len(ids), nil
	}
	if w.oldest == 0 {
		oldest := "SELECT min((SELECT min(id) FROM memory_entries WHERE space = CAST(value AS BIGINT))) " +
			"FROM json_each($1)"
		if _, err := w.tx.Get(oldest, []any{store.JSON(w.spaces)}, &w.oldest); err != nil {
			return 0, err
		}
	}
	// assumes that the word is as frequent in older entries as in those looked at
	return int(float64(len(ids)) * float64(ids[0]-w.oldest+1) / float64(ids[0]-ids[len(ids)-1]+1)), nil
}

// rarity returns the inverse document frequency of a word that count of total entries have.
func rarity(total, count int) float64 {
	count = min(count, total)
	return math.Log(1 + (float64(total-count)+0.5)/(float64(count)+0.5))
}

// The indexes, of the words and of their keys.
var (
	inText  = store.Words{Table: "memory_text", Column: "words", Stem: embed.Porter}
	inForms = store.Words{Table: "memory_forms", Column: "keys"}
)

// any returns the index expression for entries of the spaces that have at least one of the words.
func (w *words) any(words ...string) string {
	var all []string
	for _, space := range w.spaces {
		for _, word := range words {
			// quoted, so that no word is read as an operator
			all = append(all, `"`+spaceMark(space)+strings.ReplaceAll(word, `"`, `""`)+`"`)
		}
	}
	return strings.Join(all, " OR ")
}

// best returns the n entries whose words of the query have the highest total weight; allowed nil = all entries.
func (w *words) best(n int, allowed map[int64]bool) ([]int64, error) {
	has := make(map[int64]float64)
	add := func(ids []int64, weight float64) {
		for _, id := range ids {
			if allowed == nil || allowed[id] {
				has[id] += weight
			}
		}
	}
	var common []*term
	onlyFunction := !slices.ContainsFunc(w.terms, func(t term) bool {
		return !t.Function() &&
			len(t.exact)+len(t.near) > 0
	})
	for i := range w.terms {
		t := &w.terms[i]
		if t.Function() && !onlyFunction {
			continue
		}
		add(t.exact, t.weight)
		if len(t.near) > 0 {
			known := make(map[int64]bool, len(t.exact))
			for _, id := range t.exact {
				known[id] = true
			}
			add(slices.DeleteFunc(t.near, func(id int64) bool { return known[id] }), t.weight*fuzzyLikeness)
		}
		if t.common {
			common = append(common, t)
		}
	}
	if err := w.together(common, n, add); err != nil {
		return nil, err
	}
	type scored struct {
		id  int64
		has float64
	}
	all := make([]scored, 0, len(has))
	for id, has := range has {
		all = append(all, scored{id, has})
	}
	slices.SortFunc(all, func(a, b scored) int { return cmp.Or(cmp.Compare(b.has, a.has), cmp.Compare(b.id, a.id)) })
	ids := make([]int64, min(n, len(all)))
	for i := range ids {
		ids[i] = all[i].id
	}
	return ids, nil
}

// together adds older entries that have several common words: first those with all of them, then
// those with all but the commonest, and so on.
func (w *words) together(common []*term, n int, add func([]int64, float64)) error {
	slices.SortFunc(common, func(a, b *term) int { return cmp.Compare(b.weight, a.weight) })
	found := 0
	for range maxDropped {
		if len(common) < 2 || found >= n {
			return nil
		}
		var all []string
		weight := 0.0
		for _, t := range common {
			all = append(all, "("+w.any(t.Text)+")")
			weight += t.weight
		}
		ids, err := inText.Find(w.tx, 0, maxPostings+1, strings.Join(all, " AND "))
		if err != nil {
			return err
		}
		add(ids[0], weight)
		found += len(ids[0])
		common = common[:len(common)-1]
	}
	return nil
}

// in returns how well a text matches the words of the query, from 0 to 1.
func (w *words) in(text string) float64 { return w.query.In(text, w.weights) }
