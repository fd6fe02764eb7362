package tools

import (
	"strings"
	"unicode"
)

// tokens splits text into search terms: at everything that is no letter or
// digit, at the humps of camelCase and between letters and digits; lower case,
// stemmed. Scripts written without spaces give one term per character.
func tokens(text string) []string {
	var out []string
	var word []rune
	flush := func() {
		if len(word) > 0 {
			out = append(out, stem(strings.ToLower(string(word))))
			word = word[:0]
		}
	}
	runes := []rune(text)
	for i, r := range runes {
		switch {
		case unicode.Is(unicode.Mn, r): // a combining accent belongs to the letter before it
		case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai):
			flush()
			out = append(out, string(r))
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			flush()
		default:
			if i > 0 && wordStarts(runes, i) {
				flush()
			}
			word = append(word, r)
		}
	}
	flush()
	return out
}

// wordStarts tells whether a new word begins at the letter or digit runes[i],
// judged by its neighbours: "readFile", "HTTPServer" (at the S), "utf8".
func wordStarts(runes []rune, i int) bool {
	before, r := runes[i-1], runes[i]
	if unicode.IsDigit(before) != unicode.IsDigit(r) {
		return true
	}
	if !unicode.IsUpper(r) {
		return false
	}
	nextLower := i+1 < len(runes) && unicode.IsLower(runes[i+1])
	return unicode.IsLower(before) || unicode.IsUpper(before) && nextLower
}

// stem brings the forms of an English word together: plurals as Harman's
// S-stemmer does ("How effective is suffixing?", JASIS 42, 1991), then -ing and
// -ed where a vowel is left before them, then the spelling differences that
// these leave behind. Words in other scripts stay as they are.
func stem(w string) string {
	for i := range len(w) {
		if w[i] < 'a' || w[i] > 'z' {
			return w
		}
	}
	if len(w) < 3 {
		return w
	}
	w = singular(w)
	for _, suffix := range [...]string{"ing", "ed"} {
		if root, ok := strings.CutSuffix(w, suffix); ok && len(root) >= 3 && strings.ContainsAny(root, "aeiouy") && !strings.HasSuffix(root, "e") {
			w = root
			break
		}
	}
	if len(w) > 3 {
		w = strings.TrimSuffix(w, "e")
	}
	if n := len(w); n > 2 && w[n-1] == w[n-2] {
		w = w[:n-1]
	}
	if n := len(w); n > 2 && w[n-1] == 'y' {
		w = w[:n-1] + "i"
	}
	return w
}

// singular takes the plural's ending off.
func singular(w string) string {
	n := len(w)
	switch {
	case n < 4 || w[n-1] != 's':
		return w
	case strings.HasSuffix(w, "ies"):
		return w[:n-3] + "y"
	case strings.HasSuffix(w, "ss") || strings.HasSuffix(w, "us") || strings.HasSuffix(w, "is"):
		return w
	}
	return w[:n-1]
}
