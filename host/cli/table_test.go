package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"
	"pgregory.net/rapid"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/protocol"
)

func TestOneLineDoesNothingToATerminal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                              "",
		"plain text, äöü 漢字 😀":          "plain text, äöü 漢字 😀",
		" two\r\n\tlines\u2028here ":    "two lines here",
		"\x1b[31mred\x1b[0m":            `\x1b[31mred\x1b[0m`,
		"a\x00b\x07c\x7fd":              `a\x00b\ac\x7fd`,
		"csi \u009b2J":                  `csi \u009b2J`,
		"turned \u202eround\u2066":      `turned \u202eround\u2066`,
		"hidden\u200bspace":             `hidden\u200bspace`,
		"no utf8 \xff\xfe":              "no utf8 \ufffd\ufffd",
		"👩🏽\u200d💻 🏳️\u200d🌈":           "👩🏽\u200d💻 🏳️\u200d🌈",
		"🙂\u200d↔\ufe0f ❤\ufe0f\u200d🔥": "🙂\u200d↔\ufe0f ❤\ufe0f\u200d🔥",
		"no\u200djoiner":                `no\u200djoiner`,
		"^\u200d ^\u200d🌈 🌈\u200d":      `^\u200d ^\u200d🌈 🌈\u200d`,
	} {
		assert.Equal(t, oneLine(text), want, "%q", text)
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text    string
		columns int
		want    string
	}{
		{"abc", 3, "abc"},
		{"abcd", 3, "ab…"},
		{"", 0, ""},
		{"a", 0, "…"},
		{"漢字", 4, "漢字"},
		{"漢字だ", 4, "漢…"},
		{"漢字だ", 5, "漢字…"},
		{"❤️❤️", 3, "❤️…"},
		{"👨\u200d👩\u200d👧 kin", 6, "👨\u200d👩\u200d👧 kin"},
		{"👨\u200d👩\u200d👧 kin", 5, "👨\u200d👩\u200d👧 k…"},
		{"🇩🇪🇫🇷", 3, "🇩🇪…"},
		{"e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"},
		{"e\u0301e\u0301e\u0301", 2, "e\u0301…"},
	} {
		assert.Equal(t, cut(c.text, c.columns), c.want, "%q in %d columns", c.text, c.columns)
	}
}

func TestTableIsAlignedAndAsWideAsAsked(t *testing.T) {
	t.Parallel()
	var tab table
	tab.header("KEY", "N", "TEXT")
	tab.row("漢字", "1", strings.Repeat("x", 100))
	tab.row("longer key", "22", "a\nb")
	tab.row("k", "3", "")
	var b strings.Builder
	must.OK(t, tab.print(&b, 40, false))
	want := "KEY         N   TEXT\n" +
		"漢字        1   " + strings.Repeat("x", 23) + "…\n" +
		"longer key  22  a b\n" +
		"k           3\n"
	assert.Equal(t, b.String(), want)
	b.Reset()
	must.OK(t, tab.print(&b, 16, false)) // too narrow for three columns
	want = "漢字\n  n 1\n  text xxxxxxxx…\nlonger key\n  n 22\n  text a b\nk\n  n 3\n"
	assert.Equal(t, b.String(), want)
	tab.rows[1][1] = "failed"
	b.Reset()
	must.OK(t, tab.print(&b, unbounded, true))
	for _, has := range []string{"\x1b[1mKEY\x1b[0m ", "\x1b[31mfailed\x1b[0m", strings.Repeat("x", 100) + "\n"} {
		assert.Contains(t, b.String(), has, "no …")
	}
	b.Reset()
	tab.rows = tab.rows[:1]
	must.OK(t, tab.print(&b, 80, false))
	assert.Equal(t, b.String(), "", "of no row it prints")
}

// TestTablesFitTheTerminal: no line of a table is wider than the terminal, however wide the cells are.
func TestTablesFitTheTerminal(t *testing.T) {
	t.Parallel()
	property.Check(t, func(t *rapid.T) {
		var tab table
		n := rapid.IntRange(1, 10).Draw(t, "columns")
		cells := rapid.SliceOfN(rapid.String(), n, n)
		tab.header(cells.Draw(t, "names")...)
		for range rapid.IntRange(1, 3).Draw(t, "rows") {
			tab.row(cells.Draw(t, "cells")...)
		}
		wide := rapid.IntRange(2, 200).Draw(t, "terminal")
		var b strings.Builder
		must.OK(t, tab.print(&b, wide, false))
		for line := range strings.Lines(b.String()) {
			n := textWidth(strings.TrimSuffix(line, "\n"))
			must.That(t, n <= wide, "a line of %d on %d columns: %q", n, wide, line)
		}
	})
}

// TestEscapeUnseenKeepsTheMeaning: the printed JSON means the same as before, and nothing in it controls a terminal.
func TestEscapeUnseenKeepsTheMeaning(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"plain äöü 😀", "esc \x1b[2J", "csi \u009b2J", "del \x7f", "turn \u202e",
		"far \U000e0001 end", "nbsp \u00a0", "line\nend", "",
	} {
		raw := must.Get(json.Marshal(map[string]any{"text": text, "list": []int{1, 2}}))(t)
		got := escapeUnseen(raw)
		assert.Equal(t, oneLine(string(got)), string(got), "%q is printed as %q", text, got)
		var back struct {
			Text string `json:"text"`
		}
		err := json.Unmarshal(got, &back, json.RejectUnknownMembers(false))
		assert.That(t, err == nil && back.Text == text, "%q comes back as %q, %v, from %s", text, back.Text, err, got)
	}
	got := escapeUnseen([]byte("{\n  \"a\": 1\n}"))
	assert.Equal(t, string(got), "{\n  \"a\": 1\n}", "the line ends of the JSON did not stay: %q", got)
}

// TestSeenWriter: each line is escaped as a whole, whatever pieces it is written in.
func TestSeenWriter(t *testing.T) {
	t.Parallel()
	const text = "{\"a\":\"\u009b ä 漢\"}\n{\"b\":\"\u202e\"}\n"
	const want = `{"a":"\u009b ä 漢"}` + "\n" + `{"b":"\u202e"}` + "\n"
	for size := 1; size <= len(text); size++ {
		var b strings.Builder
		w := &seenWriter{w: &b}
		for chunk := range slices.Chunk([]byte(text), size) {
			n, err := w.Write(chunk)
			must.That(t, err == nil && n == len(chunk), "%d, %v", n, err)
		}
		assert.Equal(t, b.String(), want, "in pieces of %d bytes", size)
	}
}

func TestShortTime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 5, 12, 0, 0, 0, time.FixedZone("", 3600))
	for seconds, want := range map[float64]string{
		float64(now.Unix()) + 0.7:         "03-05 12:00",
		float64(now.Unix()) - 63*24*3600:  "01-01 12:00",
		float64(now.Unix()) - 100*24*3600: "2025-11-25",
		0:                                 "1970-01-01",
	} {
		assert.Equal(t, shortTime(seconds, now), want, "%f", seconds)
	}
}

// boardOf makes a board of columns, and of the titles in each.
func boardOf(t must.TB, name, about string, columns []string, titles [][]string) *planBoard {
	text := []byte{'{'}
	for i, column := range columns {
		rows := []map[string]string{}
		for _, title := range titles[i] {
			rows = append(rows, map[string]string{"title": title})
		}
		raw := must.Get(json.Marshal(rows))(t)
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(protocol.AppendString(text, column), ':'), raw...)
	}
	tasks := must.Get(protocol.ParseObject(append(text, '}')))(t)
	return &planBoard{PlanID: "0123456789ab", Name: name, Description: about, Columns: columns, Tasks: tasks}
}

func printed(t must.TB, b *planBoard, columns int) string {
	var out bytes.Buffer
	must.OK(t, b.print(&out, columns))
	return out.String()
}

func TestBoardAsText(t *testing.T) {
	t.Parallel()
	board := boardOf(t, "\x1b[2J", "\u202e", []string{"\a", "done", "long"},
		[][]string{{"\x1b]0;owned\x07\r\nnext", "漢字"}, {}, {strings.Repeat("four ", 30)}})
	want := `\x1b[2J  0123456789ab  3 tasks
\u202e

\a (2)
- \x1b]0;owned\a next
- 漢字

done (0)

long (1)
- four four four four four four four f…
`
	assert.Equal(t, printed(t, board, 39), want)
}

// TestBoardsFitTheTerminal: no line of a board is wider than the terminal, and all that is printed is visible text.
func TestBoardsFitTheTerminal(t *testing.T) {
	t.Parallel()
	property.Check(t, func(t *rapid.T) {
		columns := rapid.SliceOfNDistinct(rapid.StringN(1, 30, -1), 1, 8, rapid.ID).Draw(t, "columns")
		titles := make([][]string, len(columns))
		for i := range columns {
			titles[i] = rapid.SliceOfN(rapid.String(), 0, 4).Draw(t, "titles")
		}
		b := boardOf(t, rapid.String().Draw(t, "name"), rapid.String().Draw(t, "description"), columns, titles)
		wide := rapid.IntRange(50, 200).Draw(t, "terminal")
		text := printed(t, b, wide)
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			n := textWidth(line)
			must.That(t, n <= wide, "a line of %d on %d columns: %q", n, wide, line)
			runes := []rune(line)
			for i, r := range runes {
				must.That(t, unicode.IsPrint(r) || joinsEmoji(runes, i), "%q in %q", r, line)
			}
		}
	})
}

func TestCorrectionsInTheirPlace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		span *[2]int
		want string
		ok   bool
	}{
		{nil, "X", true},
		{&[2]int{0, 0}, "Xäöü", true},
		{&[2]int{3, 3}, "äöüX", true},
		{&[2]int{1, 2}, "äXü", true},
		{&[2]int{0, 3}, "X", true},
		{&[2]int{0, 4}, "", false},
		{&[2]int{2, 1}, "", false},
		{&[2]int{-1, 1}, "", false},
	} {
		got, ok := corrected("äöü", "X", c.span)
		assert.That(t, got == c.want && ok == c.ok, "%v gives %q, %t", c.span, got, ok)
	}
}

func TestShortDurations(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 123 * time.Nanosecond: "123ns", 12345 * time.Nanosecond: "12.35µs",
		1234567 * time.Nanosecond: "1.23ms", 61234 * time.Millisecond: "1m1.2s", 1500 * time.Millisecond: "1.5s",
	} {
		assert.Equal(t, shortDuration(d), want, "%d ns", d)
	}
}
