package tools

import (
	"strings"
	"unicode/utf8"
)

// wireText makes text of a file fit for JSON: bytes that are no UTF-8 show as
// the replacement character.
func wireText(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// jsonSize gives the bytes that text takes in JSON, without its quotes.
func jsonSize(text string) int {
	size := len(text)
	for i := range len(text) {
		size += escapeSize(text[i])
	}
	return size
}

// escapeSize gives how many bytes more than one a byte takes in JSON.
func escapeSize(c byte) int {
	switch {
	case c == '"', c == '\\', c == '\n', c == '\r', c == '\t', c == '\b', c == '\f':
		return 1
	case c < ' ':
		return len(`\u0000`) - 1
	}
	return 0
}

// textFits gives how many bytes of text fit into room bytes of JSON, whole
// characters only, and what they take there.
func textFits(text []byte, room int) (fitting, size int) {
	for i, c := range text {
		next := size + 1 + escapeSize(c)
		if next > room {
			whole := runePrefix(text, i)
			return len(whole), size - (i - len(whole))
		}
		size = next
	}
	return len(text), size
}

// runePrefix gives at most the first size bytes of text, not ending inside a
// character.
func runePrefix(text []byte, size int) []byte {
	if len(text) <= size {
		return text
	}
	for back := 0; back < utf8.UTFMax && back <= size; back++ {
		if utf8.RuneStart(text[size-back]) {
			return text[:size-back]
		}
	}
	return text[:size]
}
