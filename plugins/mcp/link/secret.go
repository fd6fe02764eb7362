package link

import (
	"cmp"
	"net/url"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// minSecret is how long a value must be to be looked for: shorter ones stand in every
// second text, and protect nothing.
const minSecret = 4

// hidden stands in place of a secret.
const hidden = "[hidden]"

// secrets are the values of a Config that no log and no error shows.
type secrets struct {
	replace *strings.Replacer // nil = there are none
	longest int               // bytes of the longest one
}

func newSecrets(cfg *Config) *secrets {
	var values []string
	for _, v := range cfg.Env {
		values = append(values, v)
	}
	for _, v := range cfg.Headers {
		values = append(values, v)
		if _, rest, ok := strings.Cut(v, " "); ok { // Bearer TOKEN
			values = append(values, strings.TrimSpace(rest))
		}
	}
	if u, err := url.Parse(cfg.URL); err == nil {
		password, _ := u.User.Password()
		values = append(values, password, url.QueryEscape(password))
		for _, all := range u.Query() {
			for _, v := range all {
				values = append(values, v, url.QueryEscape(v))
			}
		}
	}
	for _, v := range slices.Clone(values) {
		values = append(values, strings.Split(v, "\n")...) // a log shows line by line
	}
	for _, v := range slices.Clone(values) { // as it stands in JSON
		if quoted, err := jsontext.AppendQuote(nil, v); err == nil {
			values = append(values, string(quoted[1:len(quoted)-1]))
		}
	}
	values = slices.DeleteFunc(values, func(v string) bool { return len(strings.TrimSpace(v)) < minSecret })
	// At one place the replacer takes the first that fits: the longest one.
	slices.SortFunc(values, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	values = slices.Compact(values)
	if len(values) == 0 {
		return &secrets{}
	}
	pairs := make([]string, 0, 2*len(values))
	for _, v := range values {
		pairs = append(pairs, v, hidden)
	}
	return &secrets{strings.NewReplacer(pairs...), len(values[0])}
}

// hide replaces each secret in a text.
func (s *secrets) hide(text string) string {
	if s.replace == nil {
		return text
	}
	return s.replace.Replace(text)
}

// head gives the first n bytes of a text, of which at least n+longest should be there. No
// part of a secret stays that reaches beyond them.
func (s *secrets) head(text []byte, n int) string {
	whole := len(text) < n+s.longest
	if !whole {
		text = text[:n+s.longest]
	}
	shown := s.hide(string(text))
	if !whole { // the last bytes may begin a secret
		shown = shown[:max(0, len(shown)-s.longest)]
	}
	return strings.ToValidUTF8(shown[:min(len(shown), n)], "\uFFFD")
}
