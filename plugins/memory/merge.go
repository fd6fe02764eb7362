package memory

import (
	"context"
	"errors"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/protocol"
)

// mergeAhead merges the entries that have merge set with the stored entries, so that their vectors
// can be made before the transaction. If the stored version has changed by then, mergeNow merges again.
func (p *Plugin) mergeAhead(ctx context.Context, n name, b *batch) error {
	for _, tier := range tiers() {
		places := b.of(tier, func(in *incoming) bool { return in.Merge })
		if len(places) == 0 {
			continue
		}
		s, err := p.repositoryOf(ctx, tier, true)
		if err != nil {
			return err
		}
		now := p.now()
		if err := s.store.Read(ctx, func(tx *store.Tx) error {
			owner, err := p.owner(tx, tier, host.SessionFrom(ctx))
			if err != nil {
				return err
			}
			space, err := spaceOf(tx, n.id, tier, owner)
			if err != nil {
				return err
			}
			for _, i := range places {
				was, err := current(tx, space, b.entries[i].canonical, now)
				if err != nil {
					return err
				}
				if b.entries[i].mergeWith(was, p.opts.MaxEntryBytes) != nil {
					b.entries[i].merged = -1 // mergeNow tries again and reports the error
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// mergeNow merges an entry with was, which is not the version that mergeAhead saw.
func (w *writing) mergeNow(i int, was *row) error {
	in := w.entries[i]
	if err := in.mergeWith(was, w.opts.MaxEntryBytes); err != nil {
		return err
	}
	w.vectors[i] = nil // put lets it wait for a new one
	return nil
}

// mergeWith sets the entry to the result of merging the sent entry into was; was nil = there is no stored entry.
func (in *incoming) mergeWith(was *row, maxBytes int) error {
	in.entry, in.merged = in.sent, 0
	if was != nil {
		in.merged = was.version
		if !in.given["content"] {
			in.Content = was.Content
		} else {
			in.Content = mergePatch(was.Content, in.sent.Content)
		}
		if !in.given["tags"] {
			in.Tags = was.Tags
		}
		if !in.given["source"] {
			in.Source = was.Source
		}
		if !in.given["score"] {
			in.Weight = was.Weight
		}
		if !in.given["ttl"] {
			in.TTL = was.TTL
		}
	} else if in.given["content"] {
		in.Content = mergePatch(nil, in.sent.Content)
	} else {
		return errors.New("content is missing, and there is no entry of this key to merge with")
	}
	return in.check(maxBytes)
}

// mergePatch returns value with the members of patch set and without those that are null in patch
// (RFC 7396).
func mergePatch(value, patch jsontext.Value) jsontext.Value {
	changes, err := protocol.ParseObject(patch)
	if err != nil {
		return patch
	}
	from, err := protocol.ParseObject(value)
	if err != nil {
		from = protocol.Object{}
	}
	return mergeObjects(nil, from, changes)
}

// mergeObjects appends the object from with the changes applied to dst.
func mergeObjects(dst []byte, from, changes protocol.Object) []byte {
	start := len(dst)
	member := func(name []byte, value protocol.Value, changed bool) {
		dst = append(protocol.AppendString(append(dst, ','), name), ':')
		to, isObject := changes.Child(string(name))
		if !changed || !isObject {
			dst = append(dst, value...)
			return
		}
		child, _ := from.Child(string(name))
		dst = mergeObjects(dst, child, to)
	}
	for name, value := range from.All() {
		change, changed := changes.Get(string(name))
		if changed && change.Kind() == 'n' {
			continue
		}
		if changed {
			value = change
		}
		member(name, value, changed)
	}
	for name, change := range changes.All() {
		if _, there := from.Get(string(name)); !there && change.Kind() != 'n' {
			member(name, change, true)
		}
	}
	if len(dst) == start {
		return append(dst, "{}"...)
	}
	dst[start] = '{'
	return append(dst, '}')
}
