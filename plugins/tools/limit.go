package tools

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// limited gives a result's data as the answer holds it. Data longer than max
// bytes goes whole into a spill file; the answer gets what fits of it, under
// the same names, and the file's path:
//
//	{"matches":[first ones…],"spilled":"/state/spill/….spill"}
//
// Data that is no object is under "head". Without a spill folder, or when the
// disk fails, there is no "spilled", and the summary says why.
func (s *spiller) limited(tool string, out *Outcome, data []byte, limit int) []byte {
	if limit <= 0 || len(data) <= limit {
		return data
	}
	out.Truncated = true
	path, err := s.keep(tool, data)
	note := fmt.Sprintf("cut: the whole result of %d bytes is in the file that data.spilled names", len(data))
	if err != nil {
		note = fmt.Sprintf("cut: the result had %d bytes and could not be kept whole", len(data))
	}
	if out.Summary != "" {
		note = out.Summary + " (" + note + ")"
	}
	out.Summary = note
	return cutData(data, path, limit)
}

// keep writes data to a new spill file and gives its path.
func (s *spiller) keep(tool string, data []byte) (string, error) {
	w, path, err := s.Create(tool)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(w, bytes.NewReader(data))
	if closing := w.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return "", fmt.Errorf("spill file: %w", err)
	}
	return path, nil
}

// maxCutDepth is how far down cutting looks for the member that is too long.
const maxCutDepth = 4

// piece is one member of an object that is cut.
type piece struct {
	key []byte
	val []byte
}

// cutData shortens data, valid JSON, to about limit bytes, and adds the path of
// the file that has the whole.
func cutData(data []byte, spilled string, limit int) []byte {
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
	dst := cutMembers(pieces, limit-len(`,"spilled":""`)-len(spilled), maxCutDepth)
	if spilled == "" {
		return dst
	}
	dst = dst[:len(dst)-1]
	if len(dst) > 1 {
		dst = append(dst, ',')
	}
	return append(protocol.AppendString(append(dst, `"spilled":`...), spilled), '}')
}

// cutMembers makes an object of about limit bytes: the smallest members stay
// whole, the others share the rest. Of very many only the first are kept.
func cutMembers(pieces []piece, limit, depth int) []byte {
	left := limit - len("{}") + len(",") // the last member has none
	for i := range pieces {
		if left -= len(protocol.AppendString(nil, pieces[i].key)) + len(`:,`); left < limit/3 && (i > 0 || left < 0) {
			pieces = pieces[:i]
			break
		}
	}
	bySize := make([]int, len(pieces))
	for i := range bySize {
		bySize[i] = i
	}
	slices.SortStableFunc(bySize, func(a, b int) int { return cmp.Compare(len(pieces[a].val), len(pieces[b].val)) })
	for n, i := range bySize {
		pieces[i].val = cutValue(pieces[i].val, left/(len(bySize)-n), depth)
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

// cutValue gives v, or what fits of it in about limit bytes: the start of a
// string, the first elements of an array, the members of an object each cut in
// its turn, else null.
func cutValue(v []byte, limit, depth int) []byte {
	switch {
	case len(v) <= limit:
		return v
	case v[0] == '"':
		return append(slices.Clip(v[:stringCut(v, limit-1)]), '"')
	case v[0] == '[' && depth > 0:
		return cutArray(v, limit, depth-1)
	case v[0] == '{' && depth > 0:
		var pieces []piece
		if o, err := protocol.ParseObject(v); err == nil {
			for key, val := range o.All() {
				pieces = append(pieces, piece{key, val})
			}
		}
		return cutMembers(pieces, limit, depth-1)
	}
	return []byte("null")
}

// cutArray keeps the elements that fit, or a part of the first.
func cutArray(v []byte, limit, depth int) []byte {
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
				return append(append([]byte{'['}, cutValue(element, limit-len("[]"), depth)...), ']')
			}
			break
		}
		end = dec.InputOffset()
	}
	return append(slices.Clip(v[:end]), ']')
}

// stringCut gives the largest place up to limit at which a quoted string can be
// cut: not within a character, an escape or a pair of surrogates.
func stringCut(v []byte, limit int) int {
	at := 1
	for next := at; next <= limit && next < len(v); {
		at = next
		switch c := v[at]; {
		case c == '\\' && v[at+1] == 'u':
			next += len(`\u0000`)
			if hi := v[at+2] | 0x20; hi == 'd' && bytes.IndexByte([]byte("89abAB"), v[at+3]) >= 0 {
				next += len(`\u0000`)
			}
		case c == '\\':
			next += 2
		case c < 0x80:
			next++
		case c < 0xe0:
			next += 2
		case c < 0xf0:
			next += 3
		default:
			next += 4
		}
	}
	return at
}
