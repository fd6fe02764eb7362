package memory

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

const maxDedupe = 1_000 // entries of one request that may have dedupe set

// dedupeKey is the key of an entry and its normalised content.
type dedupeKey struct {
	key       string // canonical
	statement string // see statementOf
}

// outside are the characters around a word that have no meaning of their own. A question mark has a
// meaning, and so do signs such as + and -.
const outside = "\"'`´“”„‟‘’‚‛«»‹›()[]{}" +
	".,;:!…·–—،؛。、，；：！「」『』（）।"

// opening are the characters without meaning that may stand before a word; the dot of .env belongs to the word.
const opening = "\"'`´“”„‟‘’‚‛«»‹›([{¡¿「『（"

// statementOf returns a normalised content. Two contents with the same statement differ at most
// in letter case, in spaces and punctuation between words, in the order of an object's members
// and in the English article "the". Nothing else is left out or reduced to a stem: endings tell
// who does what to whom (Russian), articles do the same (German), vowel signs distinguish words
// (Hindi), and negations and tenses change the meaning in all languages.
func statementOf(content jsontext.Value) (string, error) {
	ordered := content.Clone()
	if err := ordered.Format(jsontext.ReorderRawObjects(true)); err != nil {
		return "", err
	}
	fold := cases.Fold()
	var b strings.Builder
	dec := jsontext.NewDecoder(bytes.NewReader(ordered))
	for token, err := dec.ReadToken(); err == nil; token, err = dec.ReadToken() {
		if token.Kind() != '"' {
			b.WriteString(token.String() + "\x00")
			continue
		}
		b.WriteByte('"')
		for _, word := range strings.FieldsFunc(fold.String(norm.NFC.String(token.String())), unicode.IsSpace) {
			word = strings.TrimLeft(strings.TrimRight(word, outside), opening)
			if word != "" && word != "the" {
				b.WriteString(word + " ")
			}
		}
		b.WriteByte(0)
	}
	return b.String(), nil
}

func saidBy(e *entry) (dedupeKey, error) {
	statement, err := statementOf(e.Content)
	return dedupeKey{e.canonical, statement}, err
}

// in returns the first of others with the same statement and another key, or nil if there is none.
func (s *dedupeKey) in(others []dedupeKey) *dedupeKey {
	for i := range others {
		if o := &others[i]; o.key != s.key && o.statement == s.statement {
			return o
		}
	}
	return nil
}

// similar searches the tier of e for entries with a similar content, and returns their keys and statements.
func (p *Plugin) similar(ctx context.Context, s *repository, n name, e *entry, vector embed.Vector) (
	all []dedupeKey, err error,
) {
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
			other, err := saidBy(&h.entry)
			if err != nil {
				return err
			}
			all = append(all, other)
		}
		return err
	})
	return all, err
}

// dedupe refuses entries that have dedupe set and the same statement as another entry of their tier,
// stored or in the same request.
func (p *Plugin) dedupe(ctx context.Context, n name, b *batch) error {
	for _, tier := range tiers() {
		places := b.of(tier, func(in *incoming) bool { return in.Dedupe })
		if len(places) == 0 {
			continue
		}
		if len(places) > maxDedupe {
			return protocol.Wrong("/entries", "has %d entries with dedupe; send at most %d in one request", len(places),
				maxDedupe)
		}
		s, err := p.repositoryOf(ctx, tier, true)
		if err != nil {
			return err
		}
		var fresh []dedupeKey
		for _, i := range places {
			e := &b.entries[i].entry
			its, err := saidBy(e)
			if err != nil {
				return err
			}
			others, err := p.similar(ctx, s, n, e, b.vectors[i])
			if err != nil {
				return err
			}
			if of := its.in(append(others, fresh...)); of != nil {
				duplicate := map[string]any{"entry": i, "key": e.Key, "of": jsontext.Value(of.key)}
				b.duplicates = append(b.duplicates, duplicate)
				const told = "duplicate: the entry %s says the same; change that one, or store this one without dedupe"
				b.refuse(i, fmt.Errorf(told, of.key))
				continue
			}
			fresh = append(fresh, its)
		}
	}
	return nil
}
