package redact_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/redact"
)

func TestValuesAreHidden(t *testing.T) {
	s := redact.New(nil)
	s.Add("X", "s3cret-value")
	s.Add("API_KEY", "hunter")
	s.Add("PEM", "-----BEGIN-----\nQUJDREVG\n-----END-----")
	s.Add("HEADER", "Bearer tok-123456")
	s.Add("LONGER", "s3cret-value-and-more")
	s.Add("QUOTED", `a"b\c<d>`)
	s.AddURL("https://me:pa55-w0rd@example.com/?sig=abc-1234&page=2")
	for in, want := range map[string]string{
		"x s3cret-value y":                   "x [redacted] y",
		"s3cret-value-and-more s3cret-value": "[redacted] [redacted]",
		"hunters":                            "[redacted]s",
		"line QUJDREVG of it":                "line [redacted] of it",
		"tok-123456":                         "[redacted]",
		`{"a":"a\"b\\c<d>"}`:                 `{"a":"[redacted]"}`,
		`{"a":"a\"b\\c\u003cd\u003e"}`:       `{"a":"[redacted]"}`,
		"pa55-w0rd abc-1234":                 "[redacted] [redacted]",
		"nothing of it: page=2, production":  "nothing of it: page=2, production",
	} {
		assert.Equal(t, s.Text(in), want, "%q became", in)
		if in[0] == '{' {
			assert.Equal(t, string(s.Line([]byte(in))), want, "the line %q became", in)
		}
	}
}

// What is no secret stays readable: to hide it would spoil every second answer.
func TestPlainSettingsStay(t *testing.T) {
	s := redact.New(nil)
	dir := t.TempDir()
	for name, value := range map[string]string{
		"LOG_LEVEL": "debug", "NODE_ENV": "production", "PORT": "8080", "LANG": "C.UTF-8", "LC_ALL": "de_DE.UTF-8", "HOME": dir,
		"DIRS": dir + ":" + dir, "TOKENIZERS_PARALLELISM": "false", "HOST": "127.0.0.1", "SIZE": "10MB", "AUTHOR_NAME": "somebody",
	} {
		s.Add(name, value)
		assert.Equal(t, s.Text(value), value, "%s=… became", name)
	}
	assert.Equal(t, s.Longest(), 0, "something is looked for")
	var none *redact.Set
	none.Add("API_KEY", "hunter")
	assert.That(t, none.Text("hunter") == "hunter" && none.Longest() == 0, "a nil set hides something")
}

// A secret that looks like a part of JSON must not break a line.
func TestLinesStayValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secret := rapid.SampledFrom([]string{"12345678", `"a":1,"b"`, `":":`, "a2e-1.0", "{}[]", `\\\\`, `xx"y`, "null:"}).Draw(t, "secret")
		text := rapid.StringMatching(`[a-z"\\ ]{0,8}`).Draw(t, "text")
		s := redact.New(nil)
		s.AddSecret(secret)
		quoted := must.Get(jsontext.AppendQuote(nil, text+secret+text))(t)
		line := s.Line(fmt.Appendf(nil, `{"a":1,"b":{"c":[%s,12345678]},"n":123456789,"d":%s}`, quoted, quoted))
		must.That(t, jsontext.Value(line).IsValid(), "not valid: %s", line)
		must.That(t, strings.Contains(string(line), redact.Text) && strings.Contains(string(line), ",12345678]"),
			"with the secret %q: %s", secret, line)
	})
}

// A base set goes on growing after others were made of it.
func TestBaseGrows(t *testing.T) {
	base := redact.New(nil)
	s := redact.New(base)
	s.AddSecret("own-secret")
	base.AddSecret("late-secret-of-base")
	assert.Equal(t, s.Text("own-secret late-secret-of-base"), "[redacted] [redacted]")
	assert.That(t, base.Text("own-secret") == "own-secret" && s.Longest() == len("late-secret-of-base"),
		"the base has what is not its own, or the other way round")
}

func TestHeadShowsNoPart(t *testing.T) {
	s := redact.New(nil)
	s.AddSecret("abcdefghij")
	text := []byte("0123456789abcdefghij")
	for n := range len(text) + 5 {
		got := string(s.Head(text, n))
		assert.That(t, !strings.Contains(got, "abc") && (len(got) <= n || n >= len(text)), "the first %d bytes: %q", n, got)
	}
}

func TestWriterSeesPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := redact.New(nil)
		s.AddSecret("aaab-secret")
		s.AddSecret("aab-other")
		text := strings.Join(rapid.SliceOf(rapid.SampledFrom([]string{"aaab-secret", "aab-other", "a", "b-", "aaab-", "x", "\n"})).Draw(t, "text"), "")
		var out bytes.Buffer
		w := s.Writer(&out)
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			must.Get(w.Write([]byte(rest[:n])))(t)
			rest = rest[n:]
		}
		must.OK(t, w.Close())
		want := s.Text(text)
		must.Equal(t, out.String(), want, "%q became", text)
	})
}

// An answer whose id has a secret in it would find no request: a client may well number its
// messages by a name that it was given in a variable.
func TestAddressesStay(t *testing.T) {
	s := redact.New(nil)
	s.AddSecret("demo-1")
	for in, want := range map[string]string{
		`{"type":"x","id":"demo-1-2","req_id":"demo-1","data":{"id":"demo-1","req_id":["demo-1"]}}`: `{"type":"x","id":"demo-1-2","req_id":"demo-1","data":{"id":"[redacted]","req_id":["[redacted]"]}}`,
		`{"jsonrpc":"2.0","id":"demo-1","method":"demo-1","params":{"method":"demo-1"}}`:            `{"jsonrpc":"2.0","id":"demo-1","method":"demo-1","params":{"method":"[redacted]"}}`,
		`{"type":"TASK_RESULT","task_id":"demo-1","summary":"id demo-1"}`:                           `{"type":"TASK_RESULT","task_id":"demo-1","summary":"id [redacted]"}`,
		`{"demo-1":{"demo-1":"req_id"},"message":"\\\"demo-1\":","code":"demo-1"}`:                  `{"demo-1":{"[redacted]":"req_id"},"message":"\\\"[redacted]\":","code":"[redacted]"}`,
	} {
		assert.Equal(t, string(s.Line([]byte(in))), want, "%s\nbecame", in)
	}
}
