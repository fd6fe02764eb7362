package protocol

import (
	"strings"
	"unicode/utf8"
)

// Head returns at most the first size bytes of a text, not ending inside a character.
func Head[T ~string | ~[]byte](text T, size int) T {
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

// Tail returns at most the last size bytes of a text, not beginning inside a character.
func Tail(text string, size int) string {
	if len(text) > size {
		text = text[len(text)-size:]
		for len(text) > 0 && !utf8.RuneStart(text[0]) {
			text = text[1:]
		}
	}
	return text
}

// Clip returns about the first size bytes of a text, and marks the cut: for a message.
func Clip[T ~string | ~[]byte](text T, size int) string {
	if len(text) <= size {
		return string(text)
	}
	return strings.ToValidUTF8(string(text[:size]), "") + "…"
}
