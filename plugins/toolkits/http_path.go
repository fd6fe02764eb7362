package toolkits

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxDecodings bounds how often a path is decoded: each of the servers that it passes may do
// that once more.
const maxDecodings = 4

// goesDown tells whether no server can read a path, as it stands in a URL, as one that goes
// up: whether it decodes it once or again, cuts parameters off a step (..;a=b), trims it, or
// takes other characters for dots and slashes; nor as the name of a host. What cannot be told is refused.
func goesDown(escaped string) bool {
	for range maxDecodings {
		if !stepsDown(escaped) {
			return false
		}
		decoded, err := url.PathUnescape(escaped)
		if err != nil {
			return !strings.ContainsAny(escaped, ".;") // a lone %, which may yet become part of something
		}
		if decoded == escaped {
			return true
		}
		escaped = decoded
	}
	return false
}

// stepsDown looks at the steps of a path as it stands.
func stepsDown(text string) bool {
	if strings.HasPrefix(text, "//") || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) || strings.Contains(text, "\\") {
		return false
	}
	for step := range strings.FieldsFuncSeq(lookalikes().Replace(norm.NFKC.String(text)), func(r rune) bool { return r == '/' || r == '\\' }) {
		step, _, _ = strings.Cut(step, ";")
		if step = strings.TrimSpace(step); step != "" && strings.Trim(step, ". ") == "" {
			return false
		}
	}
	return true
}

// lookalikes are those that NFKC leaves as they are.
func lookalikes() *strings.Replacer {
	return strings.NewReplacer("\u3002", ".", "\u2044", "/", "\u2215", "/", "\u29f8", "/", "\u2216", "/", "\u29f5", "/", "\u29f9", "/")
}
