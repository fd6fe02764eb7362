package memory

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/store"
	"a2e/plugins/memory/embed"
)

const (
	maxDedupe    = 1_000 // entries of one request that are compared with all others
	minDuplicate = 0.9   // likeness from which on two contents say the same
)

// likeness compares contents: how many of their words and parts of words are the same. It does not depend on the model of the vectors.
type likeness struct {
	key    string // canonical
	text   string
	exact  []string           // numbers, words with digits, true, false and null
	pairs  map[[2]string]bool // of words that follow each other
	grams  embed.GramSet
	vector embed.Vector
}

func likenessOf(e *entry) likeness {
	var b strings.Builder
	appendText(&b, e.Content)
	l := likeness{key: e.canonical, text: b.String(), pairs: make(map[[2]string]bool)}
	last := ""
	for word := range embed.Words(l.text) {
		l.pairs[[2]string{last, word}] = true
		last = word
	}
	dec := jsontext.NewDecoder(bytes.NewReader(e.Content))
	for token, err := dec.ReadToken(); err == nil; token, err = dec.ReadToken() {
		switch token.Kind() {
		case '"':
			for word := range embed.Words(token.String()) {
				if strings.ContainsFunc(word, unicode.IsDigit) {
					l.exact = append(l.exact, word)
				}
			}
		case '0', 't', 'f', 'n':
			l.exact = append(l.exact, token.String())
		}
	}
	l.grams = embed.Grams(l.text)
	if vectors, err := embed.Hashed().Embed(context.Background(), []string{l.text}); err == nil {
		l.vector = vectors[0]
	}
	return l
}

// to returns the likeness to another content, from 0 to 1. Contents with other numbers, or most
// of their words in another order, are not alike, however long they are.
func (l *likeness) to(o *likeness) float64 {
	switch {
	case !slices.Equal(l.exact, o.exact):
		return 0
	case l.text == o.text:
		return 1
	}
	same := 0
	for pair := range l.pairs {
		if o.pairs[pair] {
			same++
		}
	}
	if 2*same < max(len(l.pairs), len(o.pairs)) { // the same words in another order may say the opposite
		return 0
	}
	return min(l.grams.In(o.text), o.grams.In(l.text), l.vector.Cosine(o.vector))
}

// nearest returns the most alike of others with another key.
func (l *likeness) nearest(others []likeness) (of *likeness, alike float64) {
	for i := range others {
		if o := &others[i]; o.key != l.key {
			if a := l.to(o); a > alike {
				of, alike = o, a
			}
		}
	}
	return of, alike
}

// similar returns the entries of a tier that a search for a content brings up.
func (p *Plugin) similar(ctx context.Context, s *repository, n name, e *entry, vector embed.Vector) (all []likeness, err error) {
	var text strings.Builder
	appendText(&text, e.Content)
	w := &want{pick: &pick{now: p.now()}, cursor: new(cursor), limit: minCandidates}
	w.ask(text.String(), vector)
	err = s.store.Read(ctx, func(tx *store.Tx) error {
		owner, err := p.owner(tx, e.Tier, host.SessionFrom(ctx))
		if err != nil {
			return err
		}
		space, err := spaceOf(tx, n.id, e.Tier, owner)
		if err != nil || space == 0 {
			return err
		}
		hits, err := s.search(tx, w, []int64{space})
		for _, h := range hits {
			if h.canonical, err = canonical(h.Key); err != nil {
				return err
			}
			all = append(all, likenessOf(&h.entry))
		}
		return err
	})
	return all, err
}

// dedupe refuses entries that say nearly the same as another one of their tier, stored or of the
// same request.
func (p *Plugin) dedupe(ctx context.Context, n name, b *batch) error {
	for _, tier := range tiers() {
		places := b.of(tier, func(in *incoming) bool { return in.Dedupe })
		if len(places) == 0 {
			continue
		}
		if len(places) > maxDedupe {
			return violation("/entries", "has %d entries with dedupe; send at most %d in one request", len(places), maxDedupe)
		}
		s, err := p.repositoryOf(ctx, tier, true)
		if err != nil {
			return err
		}
		var fresh []likeness
		for _, i := range places {
			e := &b.entries[i].entry
			its := likenessOf(e)
			others, err := p.similar(ctx, s, n, e, b.vectors[i])
			if err != nil {
				return err
			}
			if of, alike := its.nearest(append(others, fresh...)); alike >= minDuplicate {
				b.duplicates = append(b.duplicates, map[string]any{"entry": i, "key": e.Key, "of": jsontext.Value(of.key), "score": math.Round(alike*1e4) / 1e4})
				b.refuse(i, fmt.Errorf("duplicate: the entry %s says nearly the same (%.2f); change that one, or store this one without dedupe", of.key, alike))
				continue
			}
			fresh = append(fresh, its)
		}
	}
	return nil
}
