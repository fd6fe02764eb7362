package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// chain writes n entries and returns the lines of the file.
func chain(t *testing.T, path string, n int) []string {
	t.Helper()
	l := open(t, Options{Path: path})
	for i := range n {
		l.Take(sample(i))
	}
	closeLog(t, l)
	r := verified(t, path)
	must.Equal(t, r.Entries, n, "… entries")
	return lines(t, path)
}

func TestVerifyFindsTampering(t *testing.T) {
	swap := func(s []string, i, j int) []string { s[i], s[j] = s[j], s[i]; return s }
	edit := func(s []string, i int, old, new string) []string { s[i] = strings.Replace(s[i], old, new, 1); return s }
	cases := map[string]struct {
		tamper func([]string) []string
		line   int
		kind   Kind
	}{
		"a value edited": {func(s []string) []string {
			return edit(s, 4, `"success":true`,
				`"success":false`)
		}, 6, BreakChanged},
		"the first entry edited": {func(s []string) []string { return edit(s, 0, "req-0", "req-x") }, 2, BreakChanged},
		"one byte of a link": {
			func(s []string) []string { return edit(s, 4, s[4][len(s[4])-8:], "abcabc\"}") }, 5,
			BreakChanged,
		},
		"an entry removed":      {func(s []string) []string { return slices.Delete(s, 4, 5) }, 5, BreakChanged},
		"three entries removed": {func(s []string) []string { return slices.Delete(s, 4, 7) }, 5, BreakChanged},
		"neighbours swapped":    {func(s []string) []string { return swap(s, 4, 5) }, 5, BreakOrder},
		"far entries swapped":   {func(s []string) []string { return swap(s, 2, 7) }, 3, BreakOrder},
		"an entry repeated":     {func(s []string) []string { return slices.Insert(s, 5, s[4]) }, 6, BreakOrder},
		"an entry put in": {func(s []string) []string {
			return slices.Insert(s, 5,
				strings.Replace(s[5], "req-5", "req-x", 1))
		}, 7, BreakOrder},
		"a line of text":  {func(s []string) []string { return slices.Insert(s, 5, "hello") }, 6, BreakNotJSON},
		"an empty line":   {func(s []string) []string { return slices.Insert(s, 5, "") }, 6, BreakNotJSON},
		"a brace missing": {func(s []string) []string { s[5] = s[5][:len(s[5])-1]; return s }, 6, BreakNotJSON},
		"a key twice": {func(s []string) []string {
			return edit(s, 5, `"success":true`,
				`"success":true,"success":true`)
		}, 6, BreakNotJSON},
		"JSON broken, link whole": {
			func(s []string) []string { return edit(s, 5, `"success":true`, `"success":tru`) },
			6, BreakNotJSON,
		},
		"upper-case link": {func(s []string) []string {
			s[5] = s[5][:len(s[5])-66] +
				strings.ToUpper(s[5][len(s[5])-66:])
			return s
		}, 6, BreakNotJSON},
		"an over-long line": {func(s []string) []string {
			return slices.Insert(s, 5,
				strings.Repeat("y", 300_000))
		}, 6, BreakNotJSON},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.jsonl")
			s := c.tamper(chain(t, path, 10))
			must.OK(t, os.WriteFile(path, []byte(strings.Join(s, "\n")+"\n"), 0o600))
			r := must.Get(Verify(path, Key{}))(t)
			must.That(t, !r.OK(), "not found")
			assert.That(t, r.Broken.Line == c.line && r.Broken.Kind == c.kind && r.Broken.File == path &&
				r.Broken.Message != "",
				"found %+v, want line %d, %s", *r.Broken, c.line, c.kind)
			assert.Contains(t, r.String(), "BROKEN at "+path, "text: %s", r)
		})
	}
}

func TestVerifyFindsHalfLineAndMissingFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.jsonl")
	for file := range 4 {
		l := open(t, Options{Path: path})
		for i := range 5 {
			l.Take(sample(5*file + i))
		}
		closeLog(t, l)
		if file < 3 {
			for n := 3; n > 0; n-- {
				_ = os.Rename(fmt.Sprint(path, ".", n), fmt.Sprint(path, ".", n+1))
			}
			must.OK(t, os.Rename(path, path+".1"))
		}
	}
	r := verified(t, path)
	must.That(t, len(r.Files) == 4 && r.Entries == 20, "%+v", r)
	middle := must.Get(os.ReadFile(path + ".2"))(t)
	broken := func(what string, kind Kind, file string, line int) {
		t.Helper()
		r, err := Verify(path, Key{})
		assert.That(t, err == nil && !r.OK() && r.Broken.Kind == kind && r.Broken.File == file && r.Broken.Line == line,
			"%s: %v, %v", what, r.Broken, err)
	}
	rewrite := func(data []byte) {
		t.Helper()
		must.OK(t, os.WriteFile(path+".2", data, 0o600))
	}
	rewrite(middle[:len(middle)-20])
	broken("half line in a rotated file", BreakHalf, path+".2", strings.Count(string(middle), "\n"))
	rewrite(middle[:strings.LastIndexByte(string(middle[:len(middle)-1]), '\n')+1])
	broken("last entry of a rotated file removed", BreakChanged, path+".1", 1)
	rewrite(nil)
	broken("a rotated file emptied", BreakChanged, path+".1", 1)
	must.OK(t, os.Remove(path+".2"))
	broken("a rotated file removed", BreakChanged, path+".1", 1)
	rewrite(middle)
	verified(t, path)

	// without the oldest file the rest is a valid chain with an anchor
	must.OK(t, os.Remove(path+".3"))
	if r := verified(t, path); r.Anchor == "" || !strings.Contains(r.String(), "moved away") {
		t.Errorf("%+v", r)
	}
}

func TestVerifyOfNothing(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "missing"), filepath.Join(dir, "no", "folder"), dir} {
		_, err := Verify(path, Key{})
		assert.That(t, err != nil, "%s: no error", path)
	}
	empty := filepath.Join(dir, "empty")
	must.OK(t, os.WriteFile(empty, nil, 0o600))
	r := verified(t, empty)
	assert.That(t, r.Entries == 0 && r.Last == "", "%+v", r)
}

// TestRemovalUnderARunningHostShows: the removal of entries is visible even if the host still runs, because the host
// continues from the last link that it knows and not from the file.
func TestRemovalUnderARunningHostShows(t *testing.T) {
	for name, remove := range map[string]func(path string) error{
		"file removed": os.Remove,
		"file emptied": func(path string) error { return os.Truncate(path, 0) },
		"last entry cut": func(path string) error {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.Truncate(path, int64(strings.LastIndexByte(string(data[:len(data)-1]), '\n')+1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.jsonl")
			l := open(t, Options{Path: path})
			l.Take(sample(0))
			l.Take(sample(1))
			eventually(t, "two entries on disk", func() bool {
				r, err := Verify(path, Key{})
				return err == nil &&
					r.Entries == 2
			})
			must.OK(t, remove(path))
			l.Take(sample(2))
			closeLog(t, l)
			r := must.Get(Verify(path, Key{}))(t)
			assert.That(t, !r.OK() || r.Anchor != "", "nothing shows: %s", r)
		})
	}
}
