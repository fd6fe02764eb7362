package redact_test

import (
	"bytes"
	stdjson "encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/guard/redact"
	"a2e/host/hosttest/must"
)

// ascii quotes a text as JSON in the way that Python and PHP do: with escapes for all but ASCII.
func ascii(text string) []byte {
	out := []byte{'"'}
	for _, r := range text {
		switch {
		case r == '/':
			out = append(out, `\/`...)
		case r >= 0x10000:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04X`, high, low)
		case r < ' ' || r > '~' || strings.ContainsRune("\"\\<>&='", r):
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			out = utf8.AppendRune(out, r)
		}
	}
	return append(out, '"')
}

// holds reports whether a decoded value contains the secret in one of its texts.
func holds(v any, secret string) bool {
	switch v := v.(type) {
	case string:
		return strings.Contains(v, secret)
	case []any:
		for _, one := range v {
			if holds(one, secret) {
				return true
			}
		}
	case map[string]any:
		for key, one := range v {
			if strings.Contains(key, secret) || holds(one, secret) {
				return true
			}
		}
	}
	return false
}

// FuzzRedact: no secret is left in a text, however the text is quoted and cut, and a line of JSON stays a line of JSON.
func FuzzRedact(f *testing.F) {
	f.Add("hunter22", "aab-aaab", "x hunter22 hunter2hunter22", uint8(3))
	f.Add(`a"b\c<d>&'=/`, "pässwörd😀", "\\\"", uint8(1))
	f.Add("-----BEGIN\nQUJD RA==\nEND", "Bearer tok-1%23", "https://me:pass@x/?sig=1", uint8(0))
	f.Fuzz(func(t *testing.T, one, two, text string, n uint8) {
		base := redact.New(nil)
		s := redact.New(base)
		s.AddSecret(one)
		base.AddSecret(two)
		for _, secret := range []string{one, two} {
			// shorter secrets are not looked for, and the text that replaces a secret may look like another secret
			if len(strings.TrimSpace(secret)) < 4 || !utf8.ValidString(secret) || strings.ContainsAny(secret, "[]") ||
				strings.Contains(redact.Text, strings.TrimSpace(secret)) {
				continue
			}
			text := strings.ToValidUTF8(text, "?")
			whole := text + secret + text
			hidden := s.Text(whole)
			must.That(t, !strings.Contains(hidden, secret), "%q is left: %q", secret, hidden)
			must.Equal(t, s.Text(hidden), hidden, "not the same twice")
			must.That(t, !strings.Contains(s.Text(url.QueryEscape(whole)), url.QueryEscape(secret)),
				"%q is left in a URL", secret)
			head := string(s.Head([]byte(whole), int(n)))
			must.That(t, len(head) <= max(int(n), len(hidden)) && !strings.Contains(head, secret),
				"the first %d bytes: %q", n, head)
			inPieces(t, s, whole, secret, int(n)+1)
			inLines(t, s, whole, secret)
		}
	})
}

// inPieces fails if the secret is left when the text is written n bytes at a time.
func inPieces(t *testing.T, s *redact.Set, whole, secret string, n int) {
	var out bytes.Buffer
	w := s.Writer(&out)
	for rest := whole; rest != ""; rest = rest[min(n, len(rest)):] {
		must.Get(w.Write([]byte(rest[:min(n, len(rest))])))(t)
	}
	must.OK(t, w.Close())
	must.That(t, !strings.Contains(out.String(), secret), "in pieces of %d: %q", n, out.String())
}

// inLines fails if the secret is left in a line of JSON that has the text as several encoders write it, or as JSON in
// a string of JSON.
func inLines(t *testing.T, s *redact.Set, whole, secret string) {
	plain := must.Get(jsontext.AppendQuote(nil, whole))(t)
	html := must.Get(stdjson.Marshal(whole))(t)
	nested := must.Get(jsontext.AppendQuote(nil, fmt.Sprintf(`{"a":%s,"b":%s}`, plain, html)))(t)
	for _, value := range [][]byte{plain, html, ascii(whole), nested} {
		line := fmt.Appendf(nil, `{"type":"x","id":7,"data":{"c":[%s,12345678],%s:1},"message":%s}`, value, value,
			value)
		hidden := s.Line(bytes.Clone(line))
		var v map[string]any
		if err := json.Unmarshal(hidden, &v); err != nil {
			t.Fatalf("%v: %s\nbecame %s", err, line, hidden)
		}
		for _, key := range []string{"data", "message"} {
			must.That(t, !holds(v[key], secret), "%q is left: %s\nbecame %s", secret, line, hidden)
		}
	}
}
