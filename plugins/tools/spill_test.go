package tools

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"a2e/host/child/spill"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/protocol"
)

var missingIn = regexp.MustCompile(`é\\n\[\d+ bytes are missing here; all of it is in spill:///([^]]+)\]\\né`)

func TestLongOutputIsSpilled(t *testing.T) {
	type match struct {
		Line int    `json:"line"`
		Text string `json:"text"`
	}
	long := strings.Repeat("é", 3000)
	matches := make([]match, 200)
	for i := range matches {
		matches[i] = match{i, "some text"}
	}
	for name, data := range map[string]any{
		"a text":          map[string]any{"content": long, "path": "x"},
		"a list":          map[string]any{"matches": matches},
		"no object":       long,
		"a list alone":    matches,
		"two long ones":   map[string]any{"stdout": long, "stderr": long},
		"its own spilled": map[string]any{"spilled": "/etc/passwd", "content": long},
		"a deep object":   map[string]any{"tree": map[string]any{"a": long, "b": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			whole := must.Get(protocol.AppendJSON(nil, data))(t)
			roomy := withTools(t, Options{MaxOutputBytes: len(whole)}, gives("tool", Outcome{Data: data}))
			if got, err := called(t, roomy, "tool", `{}`); err != nil || string(got.Data) != string(whole) ||
				*got.Truncated {
				t.Fatalf("data of just the limit: %v, truncated %v", err, *got.Truncated)
			}
			p := withTools(t, Options{MaxOutputBytes: 1000}, gives("tool", Outcome{Data: data, Summary: "found"}))
			got := must.Get(called(t, p, "tool", `{}`))(t)
			var cut struct {
				Spilled string `json:"spilled"`
			}
			err := json.Unmarshal(got.Data, &cut)
			must.That(t, err == nil, "%s: %v", got.Data, err)
			if strings.Contains(string(whole), long) && name != "two long ones" {
				uri := missingIn.FindStringSubmatch(string(got.Data))
				must.That(t, uri != nil, "no text is cut in its middle: %s", got.Data)
				kept, err := os.ReadFile(filepath.Join(filepath.Dir(cut.Spilled), uri[1]))
				assert.That(t, err == nil && string(kept) == long, "%s holds %d bytes, %v", uri[1], len(kept), err)
			}
			kept, err := os.ReadFile(cut.Spilled)
			assert.That(t, err == nil && string(kept) == string(whole), "the file %q does not hold the whole: %v",
				cut.Spilled, err)
			assert.That(t, *got.Truncated && got.Success && len(got.Data) <= 1000 && len(got.Data) >= 600,
				"truncated %v, %d bytes of data", *got.Truncated, len(got.Data))
			assert.That(t, strings.Contains(string(got.Summary), "found (cut: ") &&
				strings.Contains(string(got.Summary), "data.spilled"),
				"summary %s", got.Summary)
		})
	}
}

func TestLongOutputWithoutAFolder(t *testing.T) {
	p := withTools(t, Options{MaxOutputBytes: 100}, gives("tool",
		Outcome{Data: map[string]string{"content": strings.Repeat("x", 300)}}))
	p.spill = spill.New("", nil)
	got := must.Get(called(t, p, "tool", `{}`))(t)
	want := `{"content":"` + strings.Repeat("x", 73) + `"}`
	assert.That(t, string(got.Data) == want && *got.Truncated, "got %s, want %s", got.Data, want)
	assert.Contains(t, string(got.Summary), "could not be kept", "summary %s", got.Summary)
}

func TestCutValue(t *testing.T) {
	for _, tc := range []struct {
		v     string
		limit int
		want  string
	}{
		{`"abcdef"`, 8, `"abcdef"`},
		{`"abcdef"`, 5, `"abc"`},
		{`"abcdef"`, 2, `""`},
		{`"abcdef"`, -5, `""`},
		{`"aé"`, 4, `"a"`},
		{`"a\nb"`, 4, `"a"`},
		{`"a\nb"`, 5, `"a\n"`},
		{`"a\"b"`, 4, `"a"`},
		{`"\u00e9x"`, 4, `"é"`},
		{`"\u00e9x"`, 3, `""`},
		{`"\ud83d\ude00x"`, 5, `""`},
		{`"\ud83d\ude00x"`, 6, `"😀"`},
		{`"😀x"`, 6, `"😀"`},
		{`"😀x"`, 5, `""`},
		{`[1,22,333]`, 10, `[1,22,333]`},
		{`[1,22,333]`, 9, `[1,22]`},
		{`[1,22,333]`, 3, `[1]`},
		{`[1,22,333]`, 2, `[null]`},
		{`[]`, 0, `[]`},
		{`["abcdef",1]`, 7, `["abc"]`},
		{`[["abcdef",1]]`, 8, `[["ab"]]`},
		{`[[["abcdef",1]]]`, 10, `[[null]]`},
		{`{"a":1,"b":[2,3]}`, 16, `{"a":1,"b":[2]}`},
		{`{"a":"xxxxxxxxx","b":1}`, 17, `{"a":"xxx","b":1}`},
		{`123456`, 3, `null`},
		{`{"aaaa":1,"bbbb":2,"cccc":3,"dddd":4}`, 24, `{"aaaa":1}`},
	} {
		assert.Equal(t, string(new(cutter).value([]byte(tc.v), tc.limit, 2)), tc.want, "%s to %d", tc.v, tc.limit)
	}
}

// TestCutDataProperties: however data is cut, the rest is valid JSON and within the limit.
func TestCutDataProperties(t *testing.T) {
	text := rapid.String().Filter(utf8.ValidString)
	leaf := rapid.OneOf(rapid.Map(text, func(s string) any { return s }), rapid.Map(rapid.Int(),
		func(n int) any { return n }),
		rapid.Map(rapid.SliceOf(text), func(l []string) any { return l }), rapid.Map(rapid.MapOf(text, text),
			func(m map[string]string) any { return m }))
	property.Check(t, func(t *rapid.T) {
		data := rapid.OneOf(rapid.Map(rapid.MapOfN(text, leaf, 0, 5), func(m map[string]any) any { return m }),
			leaf).Draw(t, "data")
		whole := must.Get(protocol.AppendJSON(nil, data))(t)
		limit := rapid.IntRange(0, len(whole)).Draw(t, "limit")
		got := jsontext.Value(new(cutter).data(whole, "/s", limit))
		must.That(t, got.IsValid() && got.Kind() == '{', "%s cut to %d: %s is not a JSON object", whole, limit, got)
		const frame = 500 // keys and empty values stay, whatever the limit
		must.That(t, len(got) <= limit+frame+len(whole)/2, "%s cut to %d: %d bytes", whole, limit, len(got))
	})
}
