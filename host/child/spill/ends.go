package spill

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"a2e/host/child"
)

// Ends keeps the beginning and the end of what is written to it: enough for a text of both that
// takes up to Room bytes of JSON without its quotes.
type Ends struct {
	Room  int
	head  []byte
	tail  child.Tail
	total int
}

// Write implements io.Writer.
func (e *Ends) Write(p []byte) (int, error) {
	e.total += len(p)
	n := min(len(p), max(e.Room/2, 0)-len(e.head))
	e.head = append(e.head, p[:n]...)
	e.tail.Size = max(e.Room-e.Room/2, 0)
	_, _ = e.tail.Write(p[n:])
	return len(p), nil
}

// known returns what is kept: everything, or the beginning and the end.
func (e *Ends) known() (text []byte, whole bool) {
	end, left := e.tail.Last(e.tail.Size)
	return append(bytes.Clone(e.head), end...), left == 0
}

// size returns how many bytes of JSON the whole text takes, or more than Room if not all of it is kept.
func (e *Ends) size() int {
	known, whole := e.known()
	if !whole {
		return e.Room + 1
	}
	return jsonSize(known)
}

// Text returns what was written, as UTF-8, in at most room bytes of JSON; room is at most Room. This is everything,
// or the beginning and the end with a line between them that says how much is missing. all is the name of the place
// that has everything, which the line names too; "" = there is none.
func (e *Ends) Text(room int, all string) string {
	known, whole := e.known()
	if whole && jsonSize(known) <= room {
		return valid(known)
	}
	const digits = 20
	head := toLine(e.head[:fitting(e.head, room/2)])
	end := known[len(e.head):]
	if whole { // more of it than the head is known
		end = known[len(head):]
	}
	room -= jsonSize(head) + len(mark("", all)) + digits
	end = fromLine(end[len(end)-fittingEnd(end, room):])
	between := mark(fmt.Sprint(e.total-len(head)-len(end)), all)
	if len(head) > 0 && head[len(head)-1] != '\n' {
		between = "\n" + between
	}
	return valid(head) + between + valid(end)
}

// mark returns the line between the beginning and the end.
func mark(missing, all string) string {
	if all != "" {
		all = "; all of it is in " + all
	}
	return "[" + missing + " bytes are missing here" + all + "]\n"
}

// Shorten returns a text that takes at most room bytes of JSON, as Ends does.
func Shorten(text string, room int, all string) string {
	e := Ends{Room: room}
	_, _ = e.Write([]byte(text))
	return e.Text(room, all)
}

// near says how much of a piece its cut may drop to be at the end of a line: one part in near.
const near = 4

// toLine removes an unfinished line from the end of a text, unless that would be much of the text.
func toLine(text []byte) []byte {
	if at := bytes.LastIndexByte(text, '\n') + 1; at > 0 && len(text)-at <= len(text)/near {
		return text[:at]
	}
	return text
}

// fromLine removes an unfinished line from the beginning of a text, unless that would be much of the text.
func fromLine(text []byte) []byte {
	if at := bytes.IndexByte(text, '\n') + 1; at > 0 && at <= len(text)/near {
		return text[at:]
	}
	return text
}

// valid makes text fit for JSON: it replaces bytes that are no UTF-8 by the replacement character.
func valid(text []byte) string {
	return string(bytes.ToValidUTF8(text, []byte(string(utf8.RuneError))))
}

// jsonSize returns the bytes that text takes in JSON, without its quotes.
func jsonSize(text []byte) (size int) {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		size += cost(r, n)
		i += n
	}
	return size
}

// fitting returns how many bytes of text, whole characters only, take at most room bytes of JSON.
func fitting(text []byte, room int) (n int) {
	for n < len(text) {
		r, size := utf8.DecodeRune(text[n:])
		if room -= cost(r, size); room < 0 || r == utf8.RuneError && !utf8.FullRune(text[n:]) {
			break
		}
		n += size
	}
	return n
}

// fittingEnd is fitting for the last bytes.
func fittingEnd(text []byte, room int) (n int) {
	for n < len(text) {
		r, size := utf8.DecodeLastRune(text[:len(text)-n])
		if room -= cost(r, size); room < 0 {
			break
		}
		n += size
	}
	return n
}

// cost returns how many bytes a character of size bytes takes in JSON.
func cost(r rune, size int) int {
	switch {
	case r == utf8.RuneError:
		return len(string(utf8.RuneError))
	case r == '"', r == '\\', r == '\n', r == '\r', r == '\t', r == '\b', r == '\f':
		return 2
	case r < ' ':
		return len(`\u0000`)
	}
	return size
}
