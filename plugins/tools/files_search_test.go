package tools

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"a2e/protocol"
)

func TestListDir(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"b": "12345", "a/x": "", ".hidden": "1", "C": ""})
	want := []listEntry{{".hidden", entryFile, 1}, {"C", entryFile, 0}, {"a", entryDir, 0}, {"b", entryFile, 5}}
	for _, a := range []args{{}, {"path": ""}, {"path": "."}, {"path": "a/.."}, {"path": "./"}} {
		got, out := must[listData](t, w, "list_dir", a)
		if diff := cmp.Diff(want, got.Entries); diff != "" || out.Truncated {
			t.Errorf("%v (truncated %v):\n%s", a, out.Truncated, diff)
		}
	}
	if err := os.Mkdir(filepath.Join(w.dir, "none"), 0o777); err != nil {
		t.Fatal(err)
	}
	if got, _ := must[listData](t, w, "list_dir", args{"path": "none"}); got.Entries == nil || len(got.Entries) != 0 {
		t.Errorf("an empty folder: %#v", got.Entries)
	}
	w.fails(t, "list_dir", args{"path": "b"}, protocol.CodeToolError, "no folder")
	w.fails(t, "list_dir", args{"path": "no"}, protocol.CodeToolError, "does not exist")
}

func TestListDirIsBounded(t *testing.T) {
	w := newWorkspace(t, 8<<20, nil)
	for i := range maxListed + 1 {
		w.put(t, fmt.Sprint(i), "")
	}
	got, out := must[listData](t, w, "list_dir", args{})
	if len(got.Entries) != maxListed || !out.Truncated {
		t.Errorf("%d entries, truncated %v", len(got.Entries), out.Truncated)
	}
	small := openWorkspace(t, w.dir, 2000)
	got, out = must[listData](t, small, "list_dir", args{})
	raw, err := json.Marshal(got)
	if err != nil || len(raw) > 2000 || len(got.Entries) < 10 || !out.Truncated {
		t.Errorf("%d entries in %d bytes, truncated %v: %v", len(got.Entries), len(raw), out.Truncated, err)
	}
}

func TestGlob(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{
		"main.go": "", "a.txt": "", "src/x.go": "", "src/x_test.go": "", "src/deep/y.go": "", "src/deep/y.js": "",
		"src-old/z.go": "", ".git/config": "", "lib/.git/HEAD": "", ".hidden/h.go": "", "we[ird]/q.go": "",
	})
	for _, c := range []struct {
		pattern string
		limit   int
		want    []string
		cut     bool
	}{
		{"*.go", 0, []string{"main.go"}, false},
		{"main.go", 0, []string{"main.go"}, false},
		{"./src//*.go", 0, []string{"src/x.go", "src/x_test.go"}, false},
		{"**/*.go", 0, []string{".hidden/h.go", "main.go", "src-old/z.go", "src/deep/y.go", "src/x.go", "src/x_test.go", "we[ird]/q.go"}, false},
		{"**/*.go", 3, []string{".hidden/h.go", "main.go", "src-old/z.go"}, true},
		{"**/*.go", 7, []string{".hidden/h.go", "main.go", "src-old/z.go", "src/deep/y.go", "src/x.go", "src/x_test.go", "we[ird]/q.go"}, false},
		{"src/**", 0, []string{"src/deep", "src/deep/y.go", "src/deep/y.js", "src/x.go", "src/x_test.go"}, false},
		{"s*/*/*.{js,ts}", 0, []string{"src/deep/y.js"}, false},
		{"{src/deep,lib}/*", 0, []string{"src/deep/y.go", "src/deep/y.js"}, false},
		{`we\[ird\]/*`, 0, []string{"we[ird]/q.go"}, false},
		{"*", 0, []string{".hidden", "a.txt", "lib", "main.go", "src", "src-old", "we[ird]"}, false},
		{".git/*", 0, []string{".git/config"}, false},
		{"**/.git/*", 0, []string{".git/config", "lib/.git/HEAD"}, false},
		{"nowhere/*", 0, []string{}, false},
		{"main.go/*", 0, []string{}, false},
		{"[x-z]*", 0, []string{}, false},
	} {
		got, out := must[globData](t, w, "glob", args{"pattern": c.pattern, "limit": c.limit})
		if diff := cmp.Diff(c.want, got.Matches); diff != "" || out.Truncated != c.cut {
			t.Errorf("%s, limit %d (truncated %v):\n%s", c.pattern, c.limit, out.Truncated, diff)
		}
	}
	for pattern, code := range map[string]protocol.ErrorCode{
		"": protocol.CodeToolError, "[": protocol.CodeToolError, "{a": protocol.CodeToolError, "/*": protocol.CodeToolDenied,
		"../*": protocol.CodeToolDenied, "a/../*": protocol.CodeToolDenied, "**/..": protocol.CodeToolDenied, "./": protocol.CodeToolError,
	} {
		w.fails(t, "glob", args{"pattern": pattern}, code, "pattern")
	}
	// Each pair of braces would double the time of every match.
	few, many := strings.Repeat("{*,*}", 9), strings.Repeat("{*,*}", 60)
	if got, _ := must[globData](t, w, "glob", args{"pattern": few + "main.go"}); !slices.Equal(got.Matches, []string{"main.go"}) {
		t.Errorf("%s: %v", few, got.Matches)
	}
	w.fails(t, "glob", args{"pattern": many + "main.go"}, protocol.CodeToolError, "too many alternatives")
	w.fails(t, "glob", args{"pattern": strings.Repeat("{{a,b},{a,b},{a,b},x}", 4)}, protocol.CodeToolError, "too many alternatives")
	w.fails(t, "glob", args{"pattern": "*", "limit": -1}, protocol.CodeToolError, "limit")
}

func TestGrep(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{
		"b.go": "package b\nfunc One() {}\n\nfunc two() {}", "a/a.go": "package a\r\nFUNC\r\n", "a-x": "func\n",
		"bin": "func\x00", ".git/x": "func\n", "latin": "func \xe9\n", "empty": "",
	})
	hit := func(path string, line int, text string) grepMatch { return grepMatch{path, line, text} }
	for _, c := range []struct {
		a       args
		want    []grepMatch
		skipped int
	}{
		{args{"pattern": "func"}, []grepMatch{hit("a-x", 1, "func"), hit("b.go", 2, "func One() {}"), hit("b.go", 4, "func two() {}"), hit("latin", 1, "func \uFFFD")}, 1},
		{args{"pattern": "^func$", "ignore_case": true}, []grepMatch{hit("a-x", 1, "func"), hit("a/a.go", 2, "FUNC")}, 1},
		{args{"pattern": `func \w+\(\)`, "path": "b.go"}, []grepMatch{hit("b.go", 2, "func One() {}"), hit("b.go", 4, "func two() {}")}, 0},
		{args{"pattern": `\.go|^$`, "path": "./b.go"}, []grepMatch{hit("b.go", 3, "")}, 0},
		{args{"pattern": "package", "path": "a"}, []grepMatch{hit("a/a.go", 1, "package a")}, 0},
		{args{"pattern": "func", "path": ".git"}, []grepMatch{hit(".git/x", 1, "func")}, 0},
		{args{"pattern": "func", "path": "bin"}, []grepMatch{}, 1},
		{args{"pattern": "nothing", "path": "a"}, []grepMatch{}, 0},
		{args{"pattern": "a\nFUNC", "path": "a"}, []grepMatch{}, 0},
	} {
		got, out := must[grepData](t, w, "grep", c.a)
		if diff := cmp.Diff(grepData{c.want, c.skipped}, got); diff != "" || out.Truncated {
			t.Errorf("%v (truncated %v):\n%s", c.a, out.Truncated, diff)
		}
	}
	got, out := must[grepData](t, w, "grep", args{"pattern": "func", "limit": 2})
	if len(got.Matches) != 2 || !out.Truncated {
		t.Errorf("limit 2: %+v, truncated %v", got, out.Truncated)
	}
	for words, a := range map[string]args{
		"RE2": {"pattern": "("}, "empty": {"pattern": ""}, "limit": {"pattern": "x", "limit": -2},
		"does not exist": {"pattern": "x", "path": "none"}, "5000 bytes": {"pattern": strings.Repeat("x", 5000)},
	} {
		w.fails(t, "grep", a, protocol.CodeToolError, words)
	}
}

// grep returns what a plain search line by line gives: neither the buffers nor
// the look for a needle change that.
func TestGrepFindsEveryLine(t *testing.T) {
	w := newWorkspace(t, 0, nil)
	exprs := rapid.SampledFrom([]string{"ab", "a+b", "(ab|b)a", "^a", "b$", "^$", "(?i)AB", "a.b", "(ab)+", "a{2}", "[ab]b", "x?ab", "(a)b", "ba*", "é", "\uFFFD", "a*\uFFFD", `\bab`, "(?s)a.*b", "k"})
	pieces := []string{"a", "b", "ab", "k", "é", "\u212a", " ", "\xff", "\r", "\n", "\n", "\r\n"}
	rapid.Check(t, func(r *rapid.T) {
		expr, text := exprs.Draw(r, "expr"), strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 80).Draw(r, "text"), "")
		fold := rapid.Bool().Draw(r, "fold")
		w.put(t, "f", text)
		if fold {
			expr = "(?i)" + expr
		}
		want := []int{}
		for i, l := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
			if regexp.MustCompile(expr).MatchString(strings.TrimSuffix(l, "\r")) && text != "" {
				want = append(want, i+1)
			}
		}
		data, _ := must[grepData](t, w, "grep", args{"pattern": strings.TrimPrefix(expr, "(?i)"), "ignore_case": strings.HasPrefix(expr, "(?i)")})
		got := []int{}
		for _, m := range data.Matches {
			got = append(got, m.Line)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			r.Fatalf("%s in %q:\n%s", expr, text, diff)
		}
	})
}

func TestGrepOverBuffers(t *testing.T) {
	var text strings.Builder
	for i := range 30_000 {
		fmt.Fprintf(&text, "line %d of many\n", i+1)
	}
	lines := text.Len()
	text.WriteString(strings.Repeat("-", 3*searchBytes+50) + "needle" + strings.Repeat("é", 500) + "\nafter the needle")
	w := newWorkspace(t, 0, map[string]string{"f": text.String()})
	if lines < 2*searchBytes {
		t.Fatalf("only %d bytes of lines", lines)
	}
	got, _ := must[grepData](t, w, "grep", args{"pattern": "line (1|15000|30000) of"})
	want := []grepMatch{{"f", 1, "line 1 of many"}, {"f", 15_000, "line 15000 of many"}, {"f", 30_000, "line 30000 of many"}}
	if diff := cmp.Diff(want, got.Matches); diff != "" {
		t.Error(diff)
	}
	got, _ = must[grepData](t, w, "grep", args{"pattern": "needle"})
	if len(got.Matches) != 2 || got.Matches[0].Line != 30_001 || got.Matches[1] != (grepMatch{"f", 30_002, "after the needle"}) {
		t.Fatalf("got %+v", got.Matches)
	}
	if m := got.Matches[0].Text; len(m) > maxLineText || !strings.Contains(m, "-needleé") || strings.Contains(m, "\uFFFD") {
		t.Errorf("the long line is shown as %d bytes: %q", len(m), m)
	}
}

func TestSearchAnswersAreBounded(t *testing.T) {
	const most = 4000
	w := newWorkspace(t, most, nil)
	for i := range 300 {
		w.put(t, fmt.Sprintf("dir%d/\"quoted\" %d\n", i%7, i), strings.Repeat("\"\\\t", 50))
	}
	globbed, out := must[globData](t, w, "glob", args{"pattern": "**"})
	raw, err := json.Marshal(globbed)
	if err != nil || len(raw) > most || len(globbed.Matches) < 50 || !out.Truncated {
		t.Errorf("glob: %d matches in %d bytes, truncated %v: %v", len(globbed.Matches), len(raw), out.Truncated, err)
	}
	grepped, out := must[grepData](t, w, "grep", args{"pattern": "."})
	raw, err = json.Marshal(grepped)
	if err != nil || len(raw) > most || len(grepped.Matches) < 5 || !out.Truncated {
		t.Errorf("grep: %d matches in %d bytes, truncated %v: %v", len(grepped.Matches), len(raw), out.Truncated, err)
	}
}

func TestWalkIsBoundedInDepth(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{filepath.Join(strings.Repeat("d/", maxWalkDepth), "seen"): ""})
	if got, out := must[globData](t, w, "glob", args{"pattern": "**/seen"}); len(got.Matches) != 1 || out.Truncated {
		t.Fatalf("at the limit: %v, truncated %v", got.Matches, out.Truncated)
	}
	w.put(t, filepath.Join(strings.Repeat("d/", maxWalkDepth+1), "unseen"), "")
	if got, out := must[globData](t, w, "glob", args{"pattern": "**/unseen"}); len(got.Matches) != 0 || !out.Truncated {
		t.Errorf("past the limit: %v, truncated %v", got.Matches, out.Truncated)
	}
}
