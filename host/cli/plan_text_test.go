package cli

import (
	"bytes"
	"strings"
	"testing"
	"unicode"

	"github.com/go-json-experiment/json"
	"pgregory.net/rapid"

	"a2e/protocol"
)

// boardOf makes a board of columns and their titles, in turn.
func boardOf(t interface{ Fatal(...any) }, name, about string, columns []string, titles [][]string) *planBoard {
	text := []byte{'{'}
	for i, column := range columns {
		rows := []map[string]string{}
		for _, title := range titles[i] {
			rows = append(rows, map[string]string{"title": title})
		}
		raw, err := json.Marshal(rows)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(protocol.AppendString(text, column), ':'), raw...)
	}
	tasks, err := protocol.ParseObject(append(text, '}'))
	if err != nil {
		t.Fatal(err)
	}
	return &planBoard{PlanID: "0123456789ab", Name: name, Description: about, Columns: columns, Tasks: tasks}
}

func printed(t interface{ Fatal(...any) }, b *planBoard, columns int) string {
	var out bytes.Buffer
	if err := b.print(&out, columns); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestBoardAsText(t *testing.T) {
	t.Parallel()
	words := strings.Repeat("four ", 30)
	for name, tc := range map[string]struct {
		board   *planBoard
		columns int
		want    string
	}{
		"side by side": {boardOf(t, "release", "Ship it.\nSoon.", []string{"todo", "done"}, [][]string{{"write", "test it"}, {}}), 80, `
release  0123456789ab  2 tasks
Ship it. Soon.

todo (2)   done (0)
---------  --------
- write
- test it
`},
		"wrapped": {boardOf(t, "n", "", []string{"a", "b"}, [][]string{{words}, {"short"}}), 32, `
n  0123456789ab  2 tasks

a (1)                    b (1)
-----------------------  -------
- four four four four    - short
  four four four four
  four four four four …
`},
		"bands": {boardOf(t, "n", "", []string{"first", "second", "third"}, [][]string{{"one thing to do"}, {}, {"another one to do"}}), 30, `
n  0123456789ab  2 tasks

first (1)          second (0)
-----------------  ----------
- one thing to do

third (1)
-------------------
- another one to do
`},
		"hostile": {boardOf(t, "\x1b[2J", "\u202e", []string{"\a"}, [][]string{{"\x1b]0;owned\x07\r\nnext", "漢字"}}), 80, `
\x1b[2J  0123456789ab  2 tasks
\u202e

\a (2)
---------------------
- \x1b]0;owned\a next
- 漢字
`},
		"no column": {boardOf(t, "n", "", nil, nil), 80, "\nn  0123456789ab  0 tasks\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := "\n" + printed(t, tc.board, tc.columns); got != tc.want {
				t.Errorf("it shows%s\nshould be%s", got, tc.want)
			}
		})
	}
}

// Whatever stands on a board, no line is wider than the terminal, and nothing in
// it can be seen as anything but text.
func TestBoardsFitTheTerminal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
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
			if n := textWidth(line); n > wide {
				t.Fatalf("a line of %d on %d columns: %q", n, wide, line)
			}
			for _, r := range line {
				if !unicode.IsPrint(r) {
					t.Fatalf("%q in %q", r, line)
				}
			}
		}
	})
}

func TestWrap(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text           string
		columns, lines int
		want           string
	}{
		{"", 5, 3, ""},
		{"one two", 7, 3, "one two"},
		{"one two", 6, 3, "one|two"},
		{"one two", 3, 3, "one|two"},
		{"onetwo", 3, 3, "one|two"},
		{"one twothree", 4, 4, "one|twot|hree"},
		{"one two three", 5, 2, "one|two …"},
		{"漢字漢字", 5, 3, "漢字|漢字"},
		{"漢字", 1, 2, "漢|…"},
	} {
		if got := strings.Join(wrap(tc.text, tc.columns, tc.lines), "|"); got != tc.want {
			t.Errorf("%q in %d columns: %q, should be %q", tc.text, tc.columns, got, tc.want)
		}
	}
}
