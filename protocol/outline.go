package protocol

import "bytes"

// outline returns the members of the object that a text with a fault holds, as far as they can be told: those before
// a fault of syntax, and where the fault is within a value (a lone surrogate, bytes that are no UTF-8, a
// duplicate key, nesting that is too deep) also those behind it. A member that stands twice is left out, and so is a
// plain value with a fault; an object or an array may have one. A text that goes on with another object has no
// members: nobody can tell which of the two is meant.
func outline(raw []byte) []member {
	s := scanner{b: raw}
	if s.space(); !s.take('{') {
		return nil
	}
	at := make(map[string]int) // places in s.members, by key; -1 = it stands twice
	for len(s.members) < maxMembers {
		key, val, ok := s.loose()
		if !ok {
			break
		}
		if text, known := keyOf(raw, key); known {
			if _, twice := at[text]; twice {
				at[text] = -1
			} else {
				at[text] = len(s.members)
				s.members = append(s.members, member{key: key, val: val})
			}
		}
		s.space()
		if s.take(',') {
			continue
		}
		if s.take('}') && bytes.IndexByte(raw[s.i:], '{') >= 0 {
			return nil
		}
		break
	}
	once := s.members[:0]
	for i, m := range s.members {
		if text, _ := keyOf(raw, m.key); at[text] == i && sound(m.val.of(raw)) {
			once = append(once, m)
		}
	}
	return once
}

// loose reads one member of an object, faults within its parts passed over; ok is false where that cannot be done.
func (s *scanner) loose() (key name, val span, ok bool) {
	s.space()
	from := s.i
	if s.i >= len(s.b) || s.b[s.i] != '"' || !s.skip() {
		return key, val, false
	}
	key = name{span{uint32(from + 1), uint32(s.i - 1)}, true}
	s.space()
	if !s.take(':') {
		return key, val, false
	}
	s.space()
	from = s.i
	ok = s.skip()
	return key, span{uint32(from), uint32(s.i)}, ok
}

// skip passes over a value without a look at what it holds: a hostile one may nest millions deep. It returns false
// where the value has no end.
func (s *scanner) skip() bool {
	start, open := s.i, 0
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case '"':
			for s.i++; s.i < len(s.b) && s.b[s.i] != '"'; s.i++ {
				if s.b[s.i] == '\\' {
					s.i++
				}
			}
			if s.i >= len(s.b) {
				return false
			}
			s.i++
			if open == 0 {
				return s.i > start
			}
			continue
		case '{', '[':
			open++
		case '}', ']':
			if open == 0 {
				return s.i > start
			}
			if open--; open == 0 {
				s.i++
				return true
			}
		case ',', ' ', '\t', '\r', '\n':
			if open == 0 {
				return s.i > start
			}
		}
		s.i++
	}
	return false
}

// keyOf decodes the key of a member that was skipped over; ok is false where it has a fault.
func keyOf(raw []byte, key name) (text string, ok bool) {
	quoted := Value(raw[key.from-1 : key.to+1])
	if !sound(quoted) {
		return "", false
	}
	return quoted.Str()
}

// sound reports whether a value that was skipped over can be handed on: its faults, if any, are inside of an object
// or an array, which whoever reads it parses.
func sound(val []byte) bool {
	if val[0] == '{' || val[0] == '[' {
		return true
	}
	s := scanner{b: val}
	return s.document() == nil
}

// SplitArray parts a text that is a JSON array, of which some elements may have a fault; ok is false where it is none.
func SplitArray(raw []byte) (all [][]byte, ok bool) {
	s := scanner{b: raw}
	if s.space(); !s.take('[') {
		return nil, false
	}
	for {
		s.space()
		if len(all) == 0 && s.take(']') {
			break
		}
		from := s.i
		if !s.skip() {
			return nil, false
		}
		all = append(all, raw[from:s.i:s.i])
		if s.space(); s.take(']') {
			break
		}
		if !s.take(',') {
			return nil, false
		}
	}
	s.space()
	return all, s.i == len(raw)
}
