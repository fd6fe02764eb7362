package protocol

import "bytes"

// outline returns the members of an invalid object that can still be read: those before a syntax error and, if the
// error is within a value (a lone surrogate, invalid UTF-8, a duplicate key, too deep nesting), also those after it.
// It leaves out members that appear twice and plain values with an error; objects and arrays may have errors inside.
// If another object follows in the text, outline returns nil, as it is not clear which of the two is meant.
func outline(raw []byte) []member {
	s := scanner{b: raw}
	if s.space(); !s.take('{') {
		return nil
	}
	at := make(map[string]int) // index in s.members, by key; -1 = the key appears twice
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

// loose reads one member of an object and ignores errors inside its key and value; ok is false if it cannot find
// their ends.
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

// skip skips a value without checking its content, and without recursion, as a hostile value may nest millions deep.
// It returns false if the value has no end.
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

// keyOf decodes the key of a skipped member; ok is false if the key is invalid.
func keyOf(raw []byte, key name) (text string, ok bool) {
	quoted := Value(raw[key.from-1 : key.to+1])
	if !sound(quoted) {
		return "", false
	}
	return quoted.Str()
}

// sound reports whether a skipped value can be used: it is valid, or an object or array, whose reader
// parses it again.
func sound(val []byte) bool {
	if val[0] == '{' || val[0] == '[' {
		return true
	}
	s := scanner{b: val}
	return s.document() == nil
}

// SplitArray returns the elements of a text that is a JSON array; elements may be invalid. ok reports whether the
// text is an array.
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
