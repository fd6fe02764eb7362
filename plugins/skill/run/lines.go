package run

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"a2e/protocol"
)

// splitter cuts a stream into lines, in bounded memory.
type splitter struct {
	max  int                           // bytes of a line
	line func(line []byte, whole bool) // without its end, and only its beginning where it is not whole; valid until it returns
	part []byte                        // of the line that has no end yet
	cut  bool                          // that line was longer than max
}

// Write implements io.Writer for one goroutine.
func (s *splitter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		rest = after
		if ended && len(s.part) == 0 && !s.cut && len(line) <= s.max {
			s.line(line, true)
			continue
		}
		room := min(len(line), s.max-len(s.part))
		s.cut = s.cut || room < len(line)
		s.part = append(s.part, line[:room]...)
		if ended {
			s.flush()
		}
	}
	return len(p), nil
}

// end passes on a last line that has no end.
func (s *splitter) end() {
	if len(s.part) > 0 || s.cut {
		s.flush()
	}
}

func (s *splitter) flush() {
	s.line(s.part, !s.cut)
	s.part, s.cut = s.part[:0], false
}

// plain makes text fit for JSON: bytes that are no UTF-8 show as the replacement
// character, and a line loses the end that other systems give it.
func plain(line []byte) string {
	return strings.ToValidUTF8(strings.TrimSuffix(string(line), "\r"), "\uFFFD")
}

// head gives at most the first size bytes of a text, not ending inside a character.
func head(text string, size int) string {
	if len(text) <= size {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size]
}

// tail gives at most the last size bytes of a text, not beginning inside a character.
func tail(text string, size int) string {
	if len(text) <= size {
		return text
	}
	text = text[len(text)-size:]
	for len(text) > 0 && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}
	return text
}

// quoted gives a text as a JSON string of at most max bytes, and whether that is all.
func quoted(text string, max int) (value []byte, all bool) {
	size := len(`""`)
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"', c == '\\', c == '\n', c == '\r', c == '\t', c == '\b', c == '\f':
			size += 2
		case c < ' ':
			size += len(`\u0000`)
		default:
			size++
		}
		if size > max {
			return protocol.AppendString(nil, head(text, i)), false
		}
	}
	return protocol.AppendString(nil, text), true
}
