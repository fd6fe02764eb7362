package tools

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/child/spill"
	"a2e/protocol"
)

// limited returns a result's data, cut for the answer. Data longer than maxOutput
// bytes is kept whole in a spill file; the answer has the part that fits, under
// the same names, and the file's path:
//
//	{"matches":[first ones…],"spilled":"/state/spill/….spill"}
//
// Data that is not an object is under "head". A long text is cut to its beginning and its end, and a
// file of its own has the whole text, which read_file reads by lines. Without a spill folder, or when
// the disk fails, there is no "spilled", and the summary says that the rest could not be kept.
func (s *Set) limited(ctx context.Context, tool string, out *Outcome, data []byte) []byte {
	if s.maxOutput <= 0 || len(data) <= s.maxOutput {
		return data
	}
	out.Truncated = true
	path := ""
	note := fmt.Sprintf("cut: the result had %d bytes, and the rest could not be kept", len(data))
	if file, err := s.spill.Keep(ctx, tool, data); err == nil {
		path = file.Path()
		note = fmt.Sprintf("cut: read_file %s, which data.spilled names too, has the whole result of %d bytes",
			file.URI(), len(data))
	}
	if out.Summary != "" {
		note = out.Summary + " (" + note + ")"
	}
	out.Summary = note
	c := &cutter{ctx: ctx, tool: tool, spill: s.spill}
	if blocks, rest, ok := contentOf(data); ok {
		return c.result(blocks, rest, path, s.maxOutput)
	}
	return c.data(data, path, s.maxOutput)
}

// cutter shortens the data of one result.
type cutter struct {
	ctx   context.Context // of the call
	tool  string
	spill *spill.Keeper // keeps texts and binary content whole; nil = they are not kept
	texts int           // number of texts that were kept
	files int           // number of files with binary content
}

// The bounds for texts that are shortened in the middle and kept whole in a file.
const (
	leastText = 512 // bytes of room; with less, a text has its beginning only
	mostTexts = 8
)

// text shortens a text, and returns it as JSON.
func (c *cutter) text(text string, limit int) []byte {
	limit -= len(`""`)
	if limit < leastText {
		fitting, _ := textFits([]byte(text[:min(len(text), max(limit, 0)+utf8.UTFMax)]), limit)
		return protocol.AppendString(nil, text[:fitting])
	}
	all := ""
	if c.spill != nil && c.texts < mostTexts {
		c.texts++
		if file, err := c.spill.Keep(c.ctx, c.tool, []byte(text)); err == nil {
			all = file.URI()
		}
	}
	return protocol.AppendString(nil, spill.Shorten(text, limit, all))
}

// maxCutDepth is how many levels deep cutting looks for a member that is too long.
const maxCutDepth = 4

// piece is one member of an object that is cut.
type piece struct {
	key []byte
	val []byte
}

// data shortens data, valid JSON, to about limit bytes, and adds the path of
// the file with the whole data.
func (c *cutter) data(data []byte, spilled string, limit int) []byte {
	var pieces []piece
	o, err := protocol.ParseObject(data)
	if err != nil {
		pieces = append(pieces, piece{[]byte("head"), data})
	}
	for key, val := range o.All() {
		if string(key) != "spilled" {
			pieces = append(pieces, piece{key, val})
		}
	}
	dst := c.members(pieces, limit-len(`,"spilled":""`)-len(spilled), maxCutDepth)
	if spilled == "" {
		return dst
	}
	dst = dst[:len(dst)-1]
	if len(dst) > 1 {
		dst = append(dst, ',')
	}
	return append(protocol.AppendString(append(dst, `"spilled":`...), spilled), '}')
}

// members makes an object of about limit bytes: the smallest members stay
// whole, the others share the rest. If there are very many, it keeps only the first ones.
func (c *cutter) members(pieces []piece, limit, depth int) []byte {
	left := limit - len("{}") + len(",") // the last member has none
	for i := range pieces {
		if left -= len(protocol.AppendString(nil, pieces[i].key)) + len(`:,`); left < limit/3 && (i > 0 || left < 0) {
			pieces = pieces[:i]
			break
		}
	}
	for n, i := range smallestFirst(len(pieces), func(i int) int { return len(pieces[i].val) }) {
		pieces[i].val = c.value(pieces[i].val, left/(len(pieces)-n), depth)
		left -= len(pieces[i].val)
	}
	dst := []byte{'{'}
	for i, p := range pieces {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(protocol.AppendString(dst, p.key), ':')
		dst = append(dst, p.val...)
	}
	return append(dst, '}')
}

// smallestFirst returns the indices of n parts in the order of their sizes.
func smallestFirst(n int, size func(i int) int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(size(a), size(b)) })
	return all
}

// value returns v, or a part that fits in about limit bytes: both ends of a
// string, the first elements of an array, the members of an object with each one
// cut, or null.
func (c *cutter) value(v []byte, limit, depth int) []byte {
	switch {
	case len(v) <= limit:
		return v
	case v[0] == '"':
		text, _ := protocol.Value(v).Str()
		return c.text(text, limit)
	case v[0] == '[' && depth > 0:
		return c.array(v, limit, depth-1)
	case v[0] == '{' && depth > 0:
		var pieces []piece
		if o, err := protocol.ParseObject(v); err == nil {
			for key, val := range o.All() {
				pieces = append(pieces, piece{key, val})
			}
		}
		return c.members(pieces, limit, depth-1)
	}
	return []byte("null")
}

// array keeps the elements that fit, or a part of the first.
func (c *cutter) array(v []byte, limit, depth int) []byte {
	dec := jsontext.NewDecoder(bytes.NewReader(v), jsontext.AllowDuplicateNames(true))
	if _, err := dec.ReadToken(); err != nil {
		return []byte("[]")
	}
	end := int64(1)
	for first := true; ; first = false {
		element, err := dec.ReadValue()
		if err != nil {
			break
		}
		if dec.InputOffset() >= int64(limit) {
			if first {
				return append(append([]byte{'['}, c.value(element, limit-len("[]"), depth)...), ']')
			}
			break
		}
		end = dec.InputOffset()
	}
	return append(slices.Clip(v[:end]), ']')
}
