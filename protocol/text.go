package protocol

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Head returns at most the first size bytes of a text, without splitting a character.
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

// Tail returns at most the last size bytes of a text, without splitting a character.
func Tail(text string, size int) string {
	if len(text) > size {
		text = text[len(text)-size:]
		for len(text) > 0 && !utf8.RuneStart(text[0]) {
			text = text[1:]
		}
	}
	return text
}

// Clip returns about the first size bytes of a text for a message, with "…" at the end if it cut the text.
func Clip[T ~string | ~[]byte](text T, size int) string {
	if len(text) <= size {
		return string(text)
	}
	return strings.ToValidUTF8(string(text[:size]), "") + "…"
}

// Count returns a number with its noun, such as "1 entry" and "2 entries".
func Count[N ~int | ~int32 | ~int64 | ~uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	stem, y := strings.CutSuffix(noun, "y")
	switch {
	case y && !strings.HasSuffix(stem, "a") && !strings.HasSuffix(stem, "e") && !strings.HasSuffix(stem, "o"):
		noun = stem + "ies"
	case strings.HasSuffix(noun, "s"), strings.HasSuffix(noun, "ch"), strings.HasSuffix(noun, "x"):
		noun += "es"
	default:
		noun += "s"
	}
	return strconv.FormatInt(int64(n), 10) + " " + noun
}
