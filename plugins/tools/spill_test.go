package tools

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// spilled writes one file through s and gives its path.
func spilled(t *testing.T, s *spiller, tool, text string) string {
	t.Helper()
	w, path, err := s.Create(tool)
	must.OK(t, err)
	must.Get(io.WriteString(w, text))(t)
	must.OK(t, w.Close())
	return path
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestSpillNamesStayInTheFolder(t *testing.T) {
	s := newSpiller(t.TempDir())
	for _, tool := range []string{"plain", "../../up", "a/b", "", "nul\x00", strings.Repeat("x", 500), "größe", `c:\x`} {
		path := spilled(t, s, tool, "x")
		assert.That(t, filepath.Dir(path) == s.dir && isSpillName(filepath.Base(path)), "tool %.20q: file %s", tool, path)
	}
	assert.Equal(t, len(names(t, s.dir)), 8, "… files, want 8")
}

func TestSpillRemovesTheOldestFirst(t *testing.T) {
	for kept, bound := range map[int]func(*spiller){3: func(s *spiller) { s.maxFiles = 3 }, 4: func(s *spiller) { s.maxBytes = 400 }} {
		s := newSpiller(t.TempDir())
		bound(s)
		var paths []string
		for range 6 {
			paths = append(paths, filepath.Base(spilled(t, s, "tool", strings.Repeat("x", 100))))
		}
		got := names(t, s.dir)
		assert.Equal(t, strings.Join(got, " "), strings.Join(paths[6-kept:], " "), "kept %v, want the last %d of %v", got, kept, paths)
	}
}

func TestSpillRemovesOnlyItsOwn(t *testing.T) {
	s := newSpiller(t.TempDir())
	s.maxFiles = 1
	old := spilled(t, s, "tool", "old")
	for _, name := range []string{"notes.txt", "x.spill", "00000000-0000-7000-8000-000000000000.spill", "zz000000-0000-7000-8000-000000000000-a.spill"} {
		must.OK(t, os.WriteFile(filepath.Join(s.dir, name), []byte("mine"), 0o600))
	}
	held, heldPath, err := s.Create("tool")
	must.OK(t, err)
	last := spilled(t, s, "tool", "new")
	if _, err := os.Stat(old); err == nil {
		t.Error("the oldest file is still there")
	}
	for _, p := range []string{heldPath, last} {
		_, err := os.Stat(p)
		assert.That(t, err == nil, "removed too much: %v", err)
	}
	must.OK(t, held.Close())
	if got := len(names(t, s.dir)); got != 5 {
		t.Errorf("%d files, want the 4 of others and the newest: %v", got, names(t, s.dir))
	}
}

func TestSpillBoundsOneFile(t *testing.T) {
	s := newSpiller(t.TempDir())
	s.maxBytes = 400
	part := strings.Repeat("1234567890", 4)
	w, path, err := s.Create("tool")
	must.OK(t, err)
	for range 3 {
		n, err := io.WriteString(w, part)
		must.That(t, n == len(part) && err == nil, "wrote %d, %v", n, err)
	}
	must.OK(t, w.Close())
	b, err := os.ReadFile(path)
	want := (part + part + part)[:100] + "\n[20 more bytes were not kept]\n"
	assert.That(t, err == nil && string(b) == want, "file holds %q, %v", b, err)
}

func TestSpillWithoutAFolder(t *testing.T) {
	_, _, err := newSpiller("").Create("tool")
	assert.That(t, err != nil, "no folder is set, yet a file was made")
	file := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	_, _, err = newSpiller(file).Create("tool")
	assert.That(t, err != nil, "the folder cannot be made, yet a file was")
}

// Files that are written at the same time take together no more than all may have, however
// many there are.
func TestWallSpillsTogether(t *testing.T) {
	s := newSpiller(t.TempDir())
	s.maxBytes = 40_000
	var open []io.WriteCloser
	for range 30 {
		w, _, err := s.Create("tool")
		must.OK(t, err)
		if n, err := w.Write(make([]byte, 20_000)); n != 20_000 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		open = append(open, w)
	}
	total := func() (sum int64) {
		for _, name := range names(t, s.dir) {
			info := must.Get(os.Stat(filepath.Join(s.dir, name)))(t)
			sum += info.Size()
		}
		return sum
	}
	assert.Equal(t, total(), s.maxBytes, "… bytes while they are written")
	for _, w := range open {
		assert.OK(t, w.Close())
	}
	got := total()
	assert.That(t, got <= s.maxBytes && s.held == 0, "%d bytes in the end, %d held", got, s.held)
	text, err := os.ReadFile(spilled(t, s, "tool", strings.Repeat("x", 10_000)))
	assert.That(t, err == nil && len(text) == 10_000, "after it: %d bytes, %v", len(text), err)
}

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
			if got, err := called(t, roomy, "tool", `{}`); err != nil || string(got.Data) != string(whole) || *got.Truncated {
				t.Fatalf("data of just the limit: %v, truncated %v", err, *got.Truncated)
			}
			p := withTools(t, Options{MaxOutputBytes: 1000}, gives("tool", Outcome{Data: data, Summary: "found"}))
			got := must.Get(called(t, p, "tool", `{}`))(t)
			var cut struct {
				Spilled string `json:"spilled"`
			}
			err := json.Unmarshal(got.Data, &cut)
			must.That(t, err == nil, "%s: %v", got.Data, err)
			kept, err := os.ReadFile(cut.Spilled)
			assert.That(t, err == nil && string(kept) == string(whole), "the file %q does not hold the whole: %v", cut.Spilled, err)
			assert.That(t, *got.Truncated && got.Success && len(got.Data) <= 1000 && len(got.Data) >= 600,
				"truncated %v, %d bytes of data", *got.Truncated, len(got.Data))
			assert.That(t, strings.Contains(string(got.Summary), "found (cut: ") && strings.Contains(string(got.Summary), "data.spilled"),
				"summary %s", got.Summary)
		})
	}
}

func TestLongOutputWithoutAFolder(t *testing.T) {
	p := withTools(t, Options{MaxOutputBytes: 100}, gives("tool", Outcome{Data: map[string]string{"content": strings.Repeat("x", 300)}}))
	p.set.spill = newSpiller("")
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
		{`"abcdef"`, 8, `"abcdef"`}, {`"abcdef"`, 5, `"abc"`}, {`"abcdef"`, 2, `""`}, {`"abcdef"`, -5, `""`},
		{`"aé"`, 4, `"a"`}, {`"a\nb"`, 4, `"a"`}, {`"a\nb"`, 5, `"a\n"`}, {`"a\"b"`, 4, `"a"`}, {`"\u00e9x"`, 4, `"é"`}, {`"\u00e9x"`, 3, `""`},
		{`"\ud83d\ude00x"`, 5, `""`}, {`"\ud83d\ude00x"`, 6, `"😀"`}, {`"😀x"`, 6, `"😀"`}, {`"😀x"`, 5, `""`},
		{`[1,22,333]`, 10, `[1,22,333]`}, {`[1,22,333]`, 9, `[1,22]`}, {`[1,22,333]`, 3, `[1]`}, {`[1,22,333]`, 2, `[null]`}, {`[]`, 0, `[]`},
		{`["abcdef",1]`, 7, `["abc"]`}, {`[["abcdef",1]]`, 8, `[["ab"]]`}, {`[[["abcdef",1]]]`, 10, `[[null]]`},
		{`{"a":1,"b":[2,3]}`, 16, `{"a":1,"b":[2]}`}, {`{"a":"xxxxxxxxx","b":1}`, 17, `{"a":"xxx","b":1}`}, {`123456`, 3, `null`},
		{`{"aaaa":1,"bbbb":2,"cccc":3,"dddd":4}`, 24, `{"aaaa":1}`},
	} {
		assert.Equal(t, string(cutValue([]byte(tc.v), tc.limit, 2)), tc.want, "%s to %d", tc.v, tc.limit)
	}
}

// However data is cut, the rest is valid JSON and within the limit.
func TestCutDataProperties(t *testing.T) {
	text := rapid.String().Filter(utf8.ValidString)
	leaf := rapid.OneOf(rapid.Map(text, func(s string) any { return s }), rapid.Map(rapid.Int(), func(n int) any { return n }),
		rapid.Map(rapid.SliceOf(text), func(l []string) any { return l }), rapid.Map(rapid.MapOf(text, text), func(m map[string]string) any { return m }))
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.OneOf(rapid.Map(rapid.MapOfN(text, leaf, 0, 5), func(m map[string]any) any { return m }), leaf).Draw(t, "data")
		whole := must.Get(protocol.AppendJSON(nil, data))(t)
		limit := rapid.IntRange(0, len(whole)).Draw(t, "limit")
		got := jsontext.Value(cutData(whole, "/s", limit))
		must.That(t, got.IsValid() && got.Kind() == '{', "%s cut to %d: %s is no JSON object", whole, limit, got)
		const frame = 500 // keys and empty values stay, whatever the limit
		must.That(t, len(got) <= limit+frame+len(whole)/2, "%s cut to %d: %d bytes", whole, limit, len(got))
	})
}
