package tools

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"a2e/protocol"
)

// manyAs is a name or a line that hostile patterns try in ever new ways.
var manyAs = strings.Repeat("a", 200)

// TestWallGrepPrograms guards against expressions whose program takes the host's memory
// and goes on for minutes after the call: what they come to is known before it is made.
func TestWallGrepPrograms(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"a.txt": manyAs + "\n"})
	for i, expr := range []string{
		strings.Repeat(`a{1000}`, 500), strings.Repeat(`(a{1,1000})`, 15), strings.Repeat(`(?:a?){1000}`, 11), strings.Repeat(`x{0,999}y{0,999}`, 8),
		strings.Repeat(`(\pL{900}|\pN{900})`, 9), strings.Repeat(`(([ab]{0,10}){0,10}){0,10}`, 20), strings.Repeat(`.*.*.*=.{1000}`, 12),
		strings.Repeat(`\pL{99}`, 120), strings.Repeat(`(?i)(\w{1000}|\W{1000})`, 6), strings.Repeat(`(((a{10}){10}){10})`, 12),
		strings.Repeat(`((((((((((a{2}){2}){2}){2}){2}){2}){2}){2}){2})b)`, 20), strings.Repeat(`[^a]{0,1000}(?:b{0,1000})?`, 12),
		strings.Repeat(`\PL`, 1300), // each has hundreds of ranges
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			w.fails(t, "grep", args{"pattern": expr}, protocol.CodeToolError, "steps")
		})
	}
	// What people write is not near the bound.
	for _, expr := range []string{`a{200}`, `^(?:a{1,3}|[[:alpha:]]{2,64})+$`, `(?i)(A|B|\pL){1,100}`} {
		if got, _ := must[grepData](t, w, "grep", args{"pattern": expr}); len(got.Matches) != 1 {
			t.Errorf("%s matches %d lines, want 1", expr, len(got.Matches))
		}
	}
}

// countdown is a context that ends when it was looked at so often: work that asks it
// seldom goes on for long after a call was over.
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

// TestWallGrepStops guards against a search that goes on after its call was given up: it
// looks at its context within one long line, and between lines that take long.
func TestWallGrepStops(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{
		"line":  strings.Repeat("a", 250<<10),
		"lines": strings.Repeat(strings.Repeat("a", 4000)+"\n", 60),
		"short": strings.Repeat("aaaaaaa\n", 31<<10),
	})
	for i, expr := range []string{strings.Repeat(`(a{0,30}){30}`, 4) + "[bc]", strings.Repeat(`(.{0,20}x?){30}`, 4) + "[^a]", strings.Repeat(`(?:a?){1000}`, 4) + "[bc]"} {
		for _, file := range []string{"line", "lines", "short"} {
			t.Run(fmt.Sprint(file, i), func(t *testing.T) {
				// 6 is more than there are on the way to the file; within it come hundreds
				_, err := w.call(t, &countdown{t.Context(), 6}, "grep", args{"pattern": expr, "path": file})
				if err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
					t.Errorf("the search went on to its end: %v", err)
				}
			})
		}
	}
}

// TestGrepInLongLines: what is read a rune at a time is found where the bytes have it.
func TestGrepInLongLines(t *testing.T) {
	text := strings.Repeat("ä", 60_000) + "needle" + strings.Repeat("\xff", 10) + "end"
	w := newWorkspace(t, 0, map[string]string{"a": text})
	for expr, want := range map[string]int{
		`(?:ä{0,30}){30}ne{2}dle`: 1, `^ä+(needle)(?:.{0,30}){30}end$`: 1, `^(?:n{0,30}){30}eedle`: 0, `(?:e{0,30}){30}needle$`: 0,
		`(?:e{0,30}){30}edle\x{FFFD}{10}`: 1,
	} {
		got, _ := must[grepData](t, w, "grep", args{"pattern": expr})
		if len(got.Matches) != want {
			t.Errorf("%s: %d matches, want %d", expr, len(got.Matches), want)
		}
	}
}

// TestWallGlobStops guards against a glob that goes on after its call was given up: for one
// path there are up to a thousand ways through its braces.
func TestWallGlobStops(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{manyAs: ""})
	for i, pattern := range []string{
		strings.Repeat("*{a,?}", 9) + "c", strings.Repeat("{a,?}*", 9) + "c", strings.Repeat("{*a*a*,*?*?*}", 8) + "c", "{" + strings.Repeat("*a*c,", 700) + "*}c",
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			_, err := w.call(t, &countdown{t.Context(), 50}, "glob", args{"pattern": pattern})
			if err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
				t.Errorf("the search went on to its end: %v", err)
			}
		})
	}
}

// TestWallGlobPatterns guards against globs that take any time for one path.
func TestWallGlobPatterns(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"d/" + manyAs: "", manyAs + "/" + manyAs: ""})
	for i, pattern := range []string{
		strings.Repeat("*{a,b}", 9) + "c", strings.Repeat("*{a*,b*}", 8) + "c", "**/" + strings.Repeat("*{a,?}", 9) + "c",
		strings.Repeat("{*a,*b}*", 9) + "x", strings.Repeat("*{*,a}", 9) + "z", strings.Repeat("*{a}", 30) + "c",
		strings.Repeat("*{[a],a}", 9) + "c", "*/" + strings.Repeat("*{,a}", 9) + "c", "{**/,}" + strings.Repeat("*{a,aa,aaa}", 5) + "c",
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
				if err != nil {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Error("it goes on and on")
			}
		})
	}
	for i, pattern := range []string{strings.Repeat("{,}", 10) + strings.Repeat("{}", 1900), strings.Repeat("{a}", 1300), strings.Repeat("{a,b}", 11)} {
		t.Run(fmt.Sprint("refused ", i), func(t *testing.T) {
			w.fails(t, "glob", args{"pattern": pattern}, protocol.CodeToolError, "too many alternatives")
		})
	}
}

// TestWallEditSizes guards against an edit whose result nobody computed before it was
// built: 1 MB of matches times 10 MB is 10 TB.
func TestWallEditSizes(t *testing.T) {
	lines := strings.Repeat("x\r\n", 300_000)
	w := newWorkspace(t, 0, map[string]string{"a": strings.Repeat("a", 1<<20), "crlf": lines, "one": strings.Repeat("b", maxEditBytes-1) + "a"})
	for name, a := range map[string]args{
		"all":            {"path": "a", "old": "a", "new": strings.Repeat("n", 10<<20), "all": true},
		"a little much":  {"path": "a", "old": "a", "new": strings.Repeat("n", 65), "all": true},
		"line breaks":    {"path": "crlf", "old": "x", "new": strings.Repeat("\n", 1<<20), "all": true},
		"breaks as CRLF": {"path": "crlf", "old": "\n", "new": strings.Repeat("\n", 112), "all": true},
		"one":            {"path": "one", "old": "a", "new": "nn"},
	} {
		t.Run(name, func(t *testing.T) {
			w.fails(t, "edit_file", a, protocol.CodeToolError, "MiB")
		})
	}
	if got, _ := must[editData](t, w, "edit_file", args{"path": "a", "old": "a", "new": strings.Repeat("n", 64), "all": true}); got.Size != maxEditBytes {
		t.Errorf("an edit up to the bound gives %d bytes", got.Size)
	}
}
