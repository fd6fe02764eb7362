package exec

import (
	"cmp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// minSecret is how long a value must be to be looked for: shorter ones stand in every
// second text, and protect nothing.
const minSecret = 4

// secrets are what a child is given and neither a log nor an error shows: its token, and
// the values of its environment.
type secrets struct {
	replace *strings.Replacer
	longest int // bytes of the longest one; 0 = there are none
}

func newSecrets(opts *Options) *secrets {
	var values []string
	for _, v := range opts.Env {
		values = append(append(values, v), strings.Split(v, "\n")...) // a log shows line by line
	}
	values = slices.DeleteFunc(values, func(v string) bool { return len(strings.TrimSpace(v)) < minSecret })
	if token := opts.AuthToken.Reveal(); token != "" {
		values = append(values, token)
	}
	for _, v := range slices.Clone(values) { // as it stands in JSON
		if quoted, err := jsontext.AppendQuote(nil, v); err == nil {
			values = append(values, string(quoted[1:len(quoted)-1]))
		}
	}
	// At one place the replacer takes the first that fits: the longest one.
	slices.SortFunc(values, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	values = slices.Compact(values)
	s := &secrets{}
	pairs := make([]string, 0, 2*len(values))
	for _, v := range values {
		pairs, s.longest = append(pairs, v, "[redacted]"), max(s.longest, len(v))
	}
	s.replace = strings.NewReplacer(pairs...)
	return s
}

// hide replaces each secret in a text.
func (s *secrets) hide(text string) string { return s.replace.Replace(text) }

// head gives about the first n bytes of a text that may be longer, or broken off. No part
// of a secret stays that reaches beyond them.
func (s *secrets) head(text []byte, n int) []byte {
	whole := len(text) <= n
	if !whole {
		text = text[:min(len(text), n+s.longest)]
	}
	shown := s.hide(string(text))
	if !whole { // its last bytes may begin one
		shown = shown[:max(0, min(len(shown)-s.longest, n))]
	}
	return []byte(shown)
}
