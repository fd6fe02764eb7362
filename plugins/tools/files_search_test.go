package tools

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/protocol"
)

func TestListDir(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"b": "12345", "a/x": "", ".hidden": "1", "C": ""})
	want := []listEntry{{".hidden", entryFile, 1}, {"C", entryFile, 0}, {"a", entryDir, 0}, {"b", entryFile, 5}}
	for _, a := range []args{{}, {"path": ""}, {"path": "."}, {"path": "a/.."}, {"path": "./"}} {
		got, out := mustCall[listData](t, w, "list_dir", a)
		diff := cmp.Diff(want, got.Entries)
		assert.That(t, diff == "" && !out.Truncated, "%v (truncated %v):\n%s", a, out.Truncated, diff)
	}
	must.OK(t, os.Mkdir(filepath.Join(w.dir, "none"), 0o777))
	got, _ := mustCall[listData](t, w, "list_dir", args{"path": "none"})
	assert.That(t, got.Entries != nil && len(got.Entries) == 0, "an empty folder: %#v", got.Entries)
	w.fails(t, "list_dir", args{"path": "b"}, protocol.CodeToolError, "not a folder")
	w.fails(t, "list_dir", args{"path": "no"}, protocol.CodeToolError, "does not exist")
}

func TestListDirIsBounded(t *testing.T) {
	w := newWorkspace(t, 8<<20, nil)
	w.put(t, "0", "")
	for i := range maxListed {
		must.OK(t, os.Link(filepath.Join(w.dir, "0"), filepath.Join(w.dir, fmt.Sprint(i+1))))
	}
	got, out := mustCall[listData](t, w, "list_dir", args{})
	assert.That(t, len(got.Entries) == maxListed && out.Truncated, "%d entries, truncated %v", len(got.Entries),
		out.Truncated)
	small := openWorkspace(t, w.dir, 2000)
	got, out = mustCall[listData](t, small, "list_dir", args{})
	raw, err := json.Marshal(got)
	assert.That(t, err == nil && len(raw) <= 2000 && len(got.Entries) >= 10 && out.Truncated,
		"%d entries in %d bytes, truncated %v: %v", len(got.Entries), len(raw), out.Truncated, err)
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
		{"**/*.go", 0, []string{
			".hidden/h.go", "main.go", "src-old/z.go", "src/deep/y.go", "src/x.go", "src/x_test.go",
			"we[ird]/q.go",
		}, false},
		{"**/*.go", 3, []string{".hidden/h.go", "main.go", "src-old/z.go"}, true},
		{"**/*.go", 7, []string{
			".hidden/h.go", "main.go", "src-old/z.go", "src/deep/y.go", "src/x.go", "src/x_test.go",
			"we[ird]/q.go",
		}, false},
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
		got, out := mustCall[globData](t, w, "glob", args{"pattern": c.pattern, "limit": c.limit})
		diff := cmp.Diff(c.want, got.Matches)
		assert.That(t, diff == "" && out.Truncated == c.cut, "%s, limit %d (truncated %v):\n%s", c.pattern, c.limit,
			out.Truncated, diff)
	}
	for pattern, code := range map[string]protocol.ErrorCode{
		"": protocol.CodeToolError, "[": protocol.CodeToolError, "{a": protocol.CodeToolError,
		"/*":   protocol.CodeToolDenied,
		"../*": protocol.CodeToolDenied, "a/../*": protocol.CodeToolDenied, "**/..": protocol.CodeToolDenied,
		"./": protocol.CodeToolError,
	} {
		w.fails(t, "glob", args{"pattern": pattern}, code, "pattern")
	}
	// Each pair of braces would double the time of every match.
	few, many := strings.Repeat("{*,*}", 9), strings.Repeat("{*,*}", 60)
	got, _ := mustCall[globData](t, w, "glob", args{"pattern": few + "main.go"})
	assert.That(t, slices.Equal(got.Matches, []string{"main.go"}), "%s: %v", few, got.Matches)
	w.fails(t, "glob", args{"pattern": many + "main.go"}, protocol.CodeToolError, "too many alternatives")
	w.fails(t, "glob", args{"pattern": strings.Repeat("{{a,b},{a,b},{a,b},x}", 4)}, protocol.CodeToolError,
		"too many alternatives")
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
		{args{"pattern": "func"}, []grepMatch{
			hit("a-x", 1, "func"), hit("b.go", 2, "func One() {}"),
			hit("b.go", 4, "func two() {}"), hit("latin", 1, "func \uFFFD"),
		}, 1},
		{
			args{"pattern": "^func$", "ignore_case": true},
			[]grepMatch{hit("a-x", 1, "func"), hit("a/a.go", 2, "FUNC")},
			1,
		},
		{args{"pattern": `func \w+\(\)`, "path": "b.go"}, []grepMatch{
			hit("b.go", 2, "func One() {}"),
			hit("b.go", 4, "func two() {}"),
		}, 0},
		{args{"pattern": `\.go|^$`, "path": "./b.go"}, []grepMatch{hit("b.go", 3, "")}, 0},
		{args{"pattern": "package", "path": "a"}, []grepMatch{hit("a/a.go", 1, "package a")}, 0},
		{args{"pattern": "func", "path": ".git"}, []grepMatch{hit(".git/x", 1, "func")}, 0},
		{args{"pattern": "func", "path": "bin"}, []grepMatch{}, 1},
		{args{"pattern": "nothing", "path": "a"}, []grepMatch{}, 0},
	} {
		got, out := mustCall[grepData](t, w, "grep", c.a)
		diff := cmp.Diff(grepData{c.want, c.skipped}, got)
		assert.That(t, diff == "" && !out.Truncated, "%v (truncated %v):\n%s", c.a, out.Truncated, diff)
	}
	got, out := mustCall[grepData](t, w, "grep", args{"pattern": "func", "limit": 2})
	assert.That(t, len(got.Matches) == 2 && out.Truncated, "limit 2: %+v, truncated %v", got, out.Truncated)
	for words, a := range map[string]args{
		"RE2": {"pattern": "("}, "empty": {"pattern": ""}, "limit": {"pattern": "x", "limit": -2},
		"does not exist": {"pattern": "x", "path": "none"}, "5000 bytes": {"pattern": strings.Repeat("x", 5000)},
	} {
		w.fails(t, "grep", a, protocol.CodeToolError, words)
	}
}

// TestGrepFindsEveryLine: grep finds the same lines as a plain search line by line: neither its buffers nor its quick
// search for fixed text changes that.
func TestGrepFindsEveryLine(t *testing.T) {
	w := newWorkspace(t, 0, nil)
	exprs := rapid.SampledFrom([]string{
		"ab", "a+b", "(ab|b)a", "^a", "b$", "^$", "(?i)AB", "a.b", "(ab)+", "a{2}",
		"[ab]b", "x?ab", "(a)b", "ba*", "é", "\uFFFD", "a*\uFFFD", `\bab`, "(?s)a.*b", "k",
		"ab|ba", "ka|a?k", "(ab|ka)b|é$", "a(b|k)+é", "s|ks", "(?i)KS|as", "k(?i)S", "[^a]b", "()", "ab|", "(?i)É|sk",
		"[ak]s+b",
	})
	pieces := []string{
		"a", "b", "ab", "k", "s", "S", "é", "É", "\u212a", "\u017f", " ", "\xff", "\r", "\n", "\n",
		"\r\n",
	}
	property.Check(t, func(r *rapid.T) {
		expr, text := exprs.Draw(r, "expr"), strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 80).Draw(r,
			"text"), "")
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
		data, _ := mustCall[grepData](t, w, "grep", args{
			"pattern":     strings.TrimPrefix(expr, "(?i)"),
			"ignore_case": strings.HasPrefix(expr, "(?i)"),
		})
		got := []int{}
		for _, m := range data.Matches {
			got = append(got, m.Line)
		}
		diff := cmp.Diff(want, got)
		must.Equal(r, diff, "", "%s in %q", expr, text)
	})
}

// TestGrepOrder: grep searches files in parallel; its answer is the same as that of a search of one file after another.
func TestGrepOrder(t *testing.T) {
	content := map[string]string{}
	want := []grepMatch{}
	for i := range 200 {
		name := fmt.Sprintf("%d/%03d", i/50, i)
		content[name] = strings.Repeat("-\n", i%7*1000) + "found"
		if i%3 == 0 {
			content[name] = "binary\x00found"
			continue
		}
		want = append(want, grepMatch{name, i%7*1000 + 1, "found"})
	}
	w := newWorkspace(t, 0, content)
	for _, limit := range []int{1, 40, 100, len(want), 1000} {
		got, out := mustCall[grepData](t, w, "grep", args{"pattern": "found", "limit": limit})
		n := min(limit, len(want))
		assert.Diff(t, want[:n], got.Matches)
		skipped := n/2 + 1 // of every three files, the first is binary and skipped
		if limit >= len(want) {
			skipped = 200 - len(want)
		}
		assert.Equal(t, got.Skipped, skipped, "limit %d: skipped", limit)
		assert.Equal(t, out.Truncated, limit < len(want), "limit %d: truncated", limit)
	}
}

func TestGrepOverBuffers(t *testing.T) {
	var text strings.Builder
	for i := range 30_000 {
		fmt.Fprintf(&text, "line %d of many\n", i+1)
	}
	lines := text.Len()
	text.WriteString(strings.Repeat("-", 3*searchBytes+50) + "needle" + strings.Repeat("é", 500) + "\nafter the needle")
	w := newWorkspace(t, 0, map[string]string{"f": text.String()})
	must.That(t, lines >= 2*searchBytes, "only %d bytes of lines", lines)
	got, _ := mustCall[grepData](t, w, "grep", args{"pattern": "line (1|15000|30000) of"})
	want := []grepMatch{
		{"f", 1, "line 1 of many"},
		{"f", 15_000, "line 15000 of many"},
		{"f", 30_000, "line 30000 of many"},
	}
	assert.Diff(t, want, got.Matches)
	got, _ = mustCall[grepData](t, w, "grep", args{"pattern": "needle"})
	must.That(t, len(got.Matches) == 2 && got.Matches[0].Line == 30_001 &&
		got.Matches[1] == (grepMatch{"f", 30_002, "after the needle"}),
		"got %+v", got.Matches)
	m := got.Matches[0].Text
	assert.That(t, len(m) <= maxLineText && strings.Contains(m, "-needleé") && !strings.Contains(m, "\uFFFD"),
		"the long line is shown as %d bytes: %q", len(m), m)
}

func TestSearchAnswersAreBounded(t *testing.T) {
	const most = 4000
	w := newWorkspace(t, most, nil)
	for i := range 300 {
		w.put(t, fmt.Sprintf("dir%d/\"quoted\" %d\n", i%7, i), strings.Repeat("\"\\\t", 50))
	}
	globbed, out := mustCall[globData](t, w, "glob", args{"pattern": "**"})
	raw, err := json.Marshal(globbed)
	assert.That(t, err == nil && len(raw) <= most && len(globbed.Matches) >= 50 && out.Truncated,
		"glob: %d matches in %d bytes, truncated %v: %v", len(globbed.Matches), len(raw), out.Truncated, err)
	grepped, out := mustCall[grepData](t, w, "grep", args{"pattern": "."})
	raw, err = json.Marshal(grepped)
	assert.That(t, err == nil && len(raw) <= most && len(grepped.Matches) >= 5 && out.Truncated,
		"grep: %d matches in %d bytes, truncated %v: %v", len(grepped.Matches), len(raw), out.Truncated, err)
}

func TestWalkIsBoundedInDepth(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{filepath.Join(strings.Repeat("d/", maxWalkDepth), "seen"): ""})
	if got, out := mustCall[globData](t, w, "glob", args{"pattern": "**/seen"}); len(got.Matches) != 1 || out.Truncated {
		t.Fatalf("at the limit: %v, truncated %v", got.Matches, out.Truncated)
	}
	w.put(t, filepath.Join(strings.Repeat("d/", maxWalkDepth+1), "unseen"), "")
	if got, out := mustCall[globData](t, w, "glob", args{"pattern": "**/unseen"}); len(got.Matches) != 0 ||
		!out.Truncated {
		t.Errorf("past the limit: %v, truncated %v", got.Matches, out.Truncated)
	}
}

// manyAs is a name or a line that hostile patterns can match in very many ways.
var manyAs = strings.Repeat("a", 200)

// TestWallGrepPrograms guards against expressions whose program takes the host's memory and still runs minutes after
// the call: the size of a program is known before it is built.
func TestWallGrepPrograms(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"a.txt": manyAs + "\n"})
	for i, expr := range []string{
		strings.Repeat(`a{1000}`, 500), strings.Repeat(`(a{1,1000})`, 15), strings.Repeat(`(?:a?){1000}`, 11),
		strings.Repeat(`x{0,999}y{0,999}`, 8),
		strings.Repeat(`(\pL{900}|\pN{900})`, 9), strings.Repeat(`(([ab]{0,10}){0,10}){0,10}`, 20),
		strings.Repeat(`.*.*.*=.{1000}`, 12),
		strings.Repeat(`\pL{99}`, 120), strings.Repeat(`(?i)(\w{1000}|\W{1000})`, 6),
		strings.Repeat(`(((a{10}){10}){10})`, 12),
		strings.Repeat(`((((((((((a{2}){2}){2}){2}){2}){2}){2}){2}){2})b)`, 20),
		strings.Repeat(`[^a]{0,1000}(?:b{0,1000})?`, 12),
		strings.Repeat(`\PL`, 1300), // each class has hundreds of ranges
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			w.fails(t, "grep", args{"pattern": expr}, protocol.CodeToolError, "steps")
		})
	}
	// Patterns that people write are far from the bound.
	for _, expr := range []string{`a{200}`, `^(?:a{1,3}|[[:alpha:]]{2,64})+$`, `(?i)(A|B|\pL){1,100}`} {
		got, _ := mustCall[grepData](t, w, "grep", args{"pattern": expr})
		assert.Equal(t, len(got.Matches), 1, "%s matches … lines, want 1", expr)
	}
}

// countdown is a context that ends after it was checked a number of times. So it shows whether the work checks its
// context often enough to stop soon after a call is given up.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestWallGrepStops guards against a search that goes on after its call was given up: the search checks its context
// within one long line, and between lines that take long.
func TestWallGrepStops(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{
		"line":  strings.Repeat("a", 250<<10),
		"lines": strings.Repeat(strings.Repeat("a", 4000)+"\n", 60),
		"short": strings.Repeat("aaaaaaa\n", 31<<10),
	})
	for file, expr := range map[string]string{
		"line": strings.Repeat(`(?:a?){1000}`, 4) + "[b-z]", "lines": strings.Repeat(`(.{0,20}x?){30}`, 4) + "[^a]",
		"short": strings.Repeat(`(a{0,30}){30}`, 4) + "[b-z]",
	} {
		t.Run(file, func(t *testing.T) {
			// before the search itself, the call checks its context fewer than 6 times; the search checks it hundreds
			// of times
			_, err := w.call(t, &countdown{t.Context(), 6}, "grep", args{"pattern": expr, "path": file})
			assert.Fails(t, err, context.Canceled.Error(), "the search went on to its end")
		})
	}
}

// TestGrepInLongLines: text that is read one rune at a time is found at the same place as text that is searched by
// bytes.
func TestGrepInLongLines(t *testing.T) {
	text := strings.Repeat("ä", 6_000) + "needle" + strings.Repeat("\xff", 10) + "end"
	w := newWorkspace(t, 0, map[string]string{"a": text})
	for expr, want := range map[string]int{
		`(?:ä{0,30}){30}ne{2}dle`: 1, `^ä+(needle)(?:.{0,30}){30}end$`: 1, `^(?:n{0,30}){30}eedle`: 0,
		`(?:e{0,30}){30}needle$`:          0,
		`(?:e{0,30}){30}edle\x{FFFD}{10}`: 1,
	} {
		got, _ := mustCall[grepData](t, w, "grep", args{"pattern": expr})
		assert.Equal(t, len(got.Matches), want, "%s: … matches", expr)
	}
}

// TestWallGlobStops guards against a glob that goes on after its call was given up: for one path there are up to a
// thousand ways through its braces.
func TestWallGlobStops(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{manyAs: ""})
	for i, pattern := range []string{
		strings.Repeat("*{a,?}", 9) + "c", strings.Repeat("{a,?}*", 9) + "c", strings.Repeat("{*a*a*,*?*?*}", 8) + "c",
		"{" + strings.Repeat("*a*c,", 700) + "*}c",
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			_, err := w.call(t, &countdown{t.Context(), 50}, "glob", args{"pattern": pattern})
			assert.Fails(t, err, context.Canceled.Error(), "the search went on to its end")
		})
	}
}

// TestWallGlobPatterns guards against globs that take very long for one path.
func TestWallGlobPatterns(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"d/" + manyAs: "", manyAs + "/" + manyAs: ""})
	for i, pattern := range []string{
		strings.Repeat("*{a,b}", 9) + "c", strings.Repeat("*{a*,b*}", 8) + "c",
		"**/" + strings.Repeat("*{a,?}", 9) + "c",
		strings.Repeat("{*a,*b}*", 9) + "x", strings.Repeat("*{*,a}", 9) + "z", strings.Repeat("*{a}", 30) + "c",
		strings.Repeat("*{[a],a}", 9) + "c", "*/" + strings.Repeat("*{,a}", 9) + "c",
		"{**/,}" + strings.Repeat("*{a,aa,aaa}", 5) + "c",
		strings.Repeat("*{}", 300) + "c",
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			ended := make(chan error, 1)
			go func() {
				_, err := w.call(t, t.Context(), "glob", args{"pattern": pattern})
				ended <- err
			}()
			select {
			case err := <-ended:
				assert.OK(t, err)
			case <-time.After(patience):
				t.Error("it goes on and on")
			}
		})
	}
	for i, pattern := range []string{
		strings.Repeat("{,}", 10) + strings.Repeat("{}", 1900),
		strings.Repeat("{a}", 1300), strings.Repeat("{a,b}", 11),
	} {
		t.Run(fmt.Sprint("refused ", i), func(t *testing.T) {
			w.fails(t, "glob", args{"pattern": pattern}, protocol.CodeToolError, "too many alternatives")
		})
	}
}

// TestWallEditSizes guards against an edit whose result is built before its size is known: 1 MB of matches times 10 MB
// is 10 TB.
func TestWallEditSizes(t *testing.T) {
	lines := strings.Repeat("x\r\n", 300_000)
	w := newWorkspace(t, 0, map[string]string{
		"a": strings.Repeat("a", 1<<20), "crlf": lines,
		"one": strings.Repeat("b", maxEditBytes-1) + "a",
	})
	for name, a := range map[string]args{
		"all":            {"path": "a", "old": "a", "new": strings.Repeat("n", 10<<20), "all": true},
		"a little much":  {"path": "a", "old": "a", "new": strings.Repeat("n", 65), "all": true},
		"line breaks":    {"path": "crlf", "old": "x", "new": strings.Repeat("\n", 1<<20), "all": true},
		"breaks as CRLF": {"path": "crlf", "old": "\n", "new": strings.Repeat("\n", 112), "all": true},
		"one":            {"path": "one", "old": "a", "new": "nn"},
	} {
		t.Run(name, func(t *testing.T) { w.fails(t, "edit_file", a, protocol.CodeToolError, "MiB") })
	}
	got, _ := mustCall[editData](t, w, "edit_file", args{
		"path": "a", "old": "a", "new": strings.Repeat("n", 64),
		"all": true,
	})
	assert.Equal(t, got.Size, maxEditBytes, "an edit up to the bound gives … bytes")
}

// TestSearchesAsPeopleMeanThem: a search finds text and names that people take for the same, such as composed and
// decomposed letters. A pattern that can never match is refused with the reason.
func TestSearchesAsPeopleMeanThem(t *testing.T) {
	const composed, apart = "caf\u00e9", "cafe\u0301"
	const resume = apart + "/r\u00e9sum\u00e9.txt"
	w := newWorkspace(t, 0, map[string]string{
		"bom": "\ufefffirst line\nfirst again\n", resume: "text", "app/[id]/page": "x", "app/i/page": "x",
	})
	found, _ := mustCall[grepData](t, w, "grep", args{"path": "bom", "pattern": "^first"})
	assert.That(t, len(found.Matches) == 2 && found.Matches[0].Text == "first line", "%+v", found)
	for _, pattern := range []string{"line\nfirst", `line\nfirst`, `(line|x)\r?\n`, "(?i)line\n"} {
		w.fails(t, "grep", args{"pattern": pattern}, protocol.CodeToolError, "one line at a time")
	}
	for _, pattern := range []string{`[^x]first`, `\s`, `[\s\S]*`, `\\n`} {
		mustCall[grepData](t, w, "grep", args{"pattern": pattern})
	}
	for pattern, want := range map[string]string{
		composed + "/*": resume, "*/re\u0301sum*": resume, apart: apart, "**/*\u00e9.txt": resume,
		"app/[id]/*": "app/i/page", `app/\[id\]/*`: "app/[id]/page",
	} {
		got, out := mustCall[globData](t, w, "glob", args{"pattern": pattern})
		assert.That(t, len(got.Matches) == 1 && got.Matches[0] == want && out.Summary == "",
			"%q: %q, %q", pattern, got.Matches, out.Summary)
	}
	for _, pattern := range []string{"app/[xyz]/*", "none/[id]/*"} {
		got, out := mustCall[globData](t, w, "glob", args{"pattern": pattern})
		assert.Equal(t, len(got.Matches), 0, "%q", pattern)
		assert.Contains(t, out.Summary, `\[ finds one in a name`, "%q", pattern)
	}
	path := composed + "/re\u0301sume\u0301.txt"
	mustCall[editData](t, w, "edit_file", args{"path": path, "old": "text", "new": "changed"})
	read, _ := mustCall[readData](t, w, "read_file", args{"path": path})
	assert.Equal(t, read.Content, "changed")
	write, _ := mustCall[writeData](t, w, "write_file", args{"path": composed + "/\u00fc/new", "content": "x"})
	assert.Equal(t, write.Path, apart+"/\u00fc/new", "a new file in a folder that is there")
}
