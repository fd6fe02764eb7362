package cli

import (
	"strings"
	"testing"
)

// TestChatMarkdown: Markdown looks the same, whatever pieces it is cut into.
func TestChatMarkdown(t *testing.T) {
	const text = "# A *head*\n\nplain **bold** *it* ***both*** `a*b` ~~no~~ snake_case_x _u_ 2 * 3 \\*x [a](b) " +
		"[b](b) [x] **open\n" +
		"- one\n* two\n  1. `three`\n> quote\n---\n```go\n# *raw*\n```\n| a | b |\n|---|:-:|\n| `1` | **x\\|y** " +
		"|\n| 主 | z |\nend"
	const want = "\x1b[1mA \x1b[0m\x1b[1;3mhead\x1b[0m\n\nplain \x1b[1mbold\x1b[0m \x1b[3mit\x1b[0m " +
		"\x1b[1;3mboth\x1b[0m \x1b[36ma*b\x1b[0m \x1b[9mno\x1b[0m snake_case_x \x1b[3mu\x1b[0m 2 * 3 *x " +
		"\x1b[4ma\x1b[0m\x1b[2m (b)\x1b[0m \x1b[4mb\x1b[0m [x] **open\n• one\n• two\n  1. " +
		"\x1b[36mthree\x1b[0m\n\x1b[2m│ \x1b[0m\x1b[2mquote\x1b[0m\n" +
		"\x1b[2m────────────────────────────────────────\x1b[0m\n\x1b[36m# *raw*\x1b[0m\n\x1b[1ma\x1b[0m   " +
		"\x1b[1mb\x1b[0m\n1   x|y\n主  z\nend"
	for size := 1; size <= len(text); size++ {
		var pieces []string
		for rest := []rune(text); len(rest) > 0; rest = rest[min(size, len(rest)):] {
			pieces = append(pieces, string(rest[:min(size, len(rest))]))
		}
		got, m := "", markdown{columns: func() int { return 80 }}
		for _, piece := range pieces {
			got += m.write(piece)
		}
		got += m.flush()
		if merged := strings.NewReplacer("\x1b[0m\x1b[1m", "", "\x1b[0m\x1b[2m",
			"").Replace(got); merged != strings.NewReplacer("\x1b[0m\x1b[1m", "", "\x1b[0m\x1b[2m", "").Replace(want) {
			t.Fatalf("in pieces of %d:\n%q\n%q", size, got, want)
		}
	}
}
