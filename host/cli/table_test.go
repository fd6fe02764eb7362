package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

func TestOneLineDoesNothingToATerminal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                           "",
		"plain text, äöü 漢字 😀":       "plain text, äöü 漢字 😀",
		" two\r\n\tlines\u2028here ": "two lines here",
		"\x1b[31mred\x1b[0m":         `\x1b[31mred\x1b[0m`,
		"a\x00b\x07c\x7fd":           `a\x00b\ac\x7fd`,
		"csi \u009b2J":               `csi \u009b2J`,
		"turned \u202eround\u2066":   `turned \u202eround\u2066`,
		"hidden\u200bspace":          `hidden\u200bspace`,
		"no utf8 \xff\xfe":           "no utf8 \ufffd\ufffd",
	} {
		if got := oneLine(text); got != want {
			t.Errorf("%q gives %q, want %q", text, got, want)
		}
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
		{"e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"},
		{"e\u0301e\u0301e\u0301", 2, "e\u0301…"},
	} {
		if got := cut(c.text, c.columns); got != c.want {
			t.Errorf("%q in %d columns gives %q, want %q", c.text, c.columns, got, c.want)
		}
	}
}

func TestTableIsAlignedAndAsWideAsAsked(t *testing.T) {
	t.Parallel()
	var tab table
	tab.row("KEY", "N", "TEXT")
	tab.row("漢字", "1", strings.Repeat("x", 100))
	tab.row("longer key", "22", "a\nb")
	tab.row("k", "3", "")
	var b strings.Builder
	if err := tab.print(&b, 40); err != nil {
		t.Fatal(err)
	}
	want := "KEY         N   TEXT\n" +
		"漢字        1   " + strings.Repeat("x", 23) + "…\n" +
		"longer key  22  a b\n" +
		"k           3\n"
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
	b.Reset()
	if err := tab.print(&b, 1); err != nil || !strings.Contains(b.String(), strings.Repeat("x", leastColumns-1)+"…\n") {
		t.Errorf("%v, the last column is too narrow:\n%s", err, b.String())
	}
}

func TestColumns(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]int{"120": 120, "": 80, "0": 80, "-3": 80, "wide": 80} {
		sys := System{Environ: []string{"COLUMNS=" + env}}
		if got := sys.columns(); got != want {
			t.Errorf("COLUMNS=%s gives %d, want %d", env, got, want)
		}
	}
}

// What is printed means the same as before, and nothing of it moves a cursor.
func TestEscapeUnseenKeepsTheMeaning(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"plain äöü 😀", "esc \x1b[2J", "csi \u009b2J", "del \x7f", "turn \u202e", "far \U000e0001 end", "nbsp \u00a0", "line\nend", ""} {
		raw, err := json.Marshal(map[string]any{"text": text, "list": []int{1, 2}})
		if err != nil {
			t.Fatal(err)
		}
		got := escapeUnseen(raw)
		if oneLine(string(got)) != string(got) {
			t.Errorf("%q is printed as %q", text, got)
		}
		var back struct {
			Text string `json:"text"`
		}
		if err := json.Unmarshal(got, &back, json.RejectUnknownMembers(false)); err != nil || back.Text != text {
			t.Errorf("%q comes back as %q, %v, from %s", text, back.Text, err, got)
		}
	}
	if got := escapeUnseen([]byte("{\n  \"a\": 1\n}")); string(got) != "{\n  \"a\": 1\n}" {
		t.Errorf("the line ends of the JSON did not stay: %q", got)
	}
}

// However the bytes come, each line is escaped as a whole.
func TestSeenWriter(t *testing.T) {
	t.Parallel()
	const text = "{\"a\":\"\u009b ä 漢\"}\n{\"b\":\"\u202e\"}\n"
	const want = `{"a":"\u009b ä 漢"}` + "\n" + `{"b":"\u202e"}` + "\n"
	for size := 1; size <= len(text); size++ {
		var b strings.Builder
		w := &seenWriter{w: &b}
		for chunk := range slices.Chunk([]byte(text), size) {
			if n, err := w.Write(chunk); err != nil || n != len(chunk) {
				t.Fatalf("%d, %v", n, err)
			}
		}
		if b.String() != want {
			t.Errorf("in pieces of %d bytes: %q, want %q", size, b.String(), want)
		}
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
		if got := shortTime(seconds, now); got != want {
			t.Errorf("%f: %q, want %q", seconds, got, want)
		}
	}
}
