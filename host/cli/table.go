package cli

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/clipperhouse/displaywidth"
)

const (
	leastColumns = 16 // minimum of a column while another one can shrink
	fewColumns   = 8  // minimum of each column; if that is still too wide, a row takes several lines
	columnGap    = "  "
)

// table prints aligned columns. Its cells may come from an agent: each becomes one line that is
// safe for a terminal.
type table struct {
	head bool // the first row names the columns
	rows [][]string
}

// list prints items as JSON, or as a table with a row for each. If there are no items, none is
// printed to stderr instead; "" = nothing.
func list[T any](sys *System, asJSON bool, all []T, none string, columns []string, row func(T) []string) error {
	if asJSON {
		return printJSON(sys.Out, all)
	}
	if len(all) == 0 && none != "" {
		say(sys.Err, "%s", none)
	}
	var t table
	t.header(columns...)
	for _, one := range all {
		t.row(row(one)...)
	}
	return t.show(sys)
}

// each returns the results of a function for all items.
func each[T, U any](all []T, of func(T) U) []U {
	out := make([]U, len(all))
	for i, one := range all {
		out[i] = of(one)
	}
	return out
}

// header adds the names of the columns. They are shown only if there is a row.
func (t *table) header(names ...string) {
	t.head = true
	t.row(names...)
}

// row adds a row. All rows have as many cells as the first.
func (t *table) row(cells ...string) {
	t.rows = append(t.rows, each(cells, oneLine))
}

// show prints the table to stdout, in the width and colors of stdout.
func (t *table) show(sys *System) error {
	return t.print(sys.Out, sys.columns(), sys.colors(sys.Out.File))
}

// print writes the rows, with at most the given number of columns on a line.
func (t *table) print(w io.Writer, columns int, colors bool) error {
	if len(t.rows) == 0 || t.head && len(t.rows) == 1 {
		return nil
	}
	widths := make([]int, len(t.rows[0]))
	for _, cells := range t.rows {
		for i, c := range cells {
			widths[i] = min(max(widths[i], textWidth(c)), columns)
		}
	}
	var b strings.Builder
	if !fit(widths, columns) {
		t.blocks(&b, columns)
	} else {
		for n, cells := range t.rows {
			writeRow(&b, cells, widths, colors, t.head && n == 0)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// fit narrows columns until a line has at most the given number of columns. It returns false if the
// columns would become too narrow to be useful. The most important columns shrink last: the last
// column is usually a sentence, and the first one a name to type.
func fit(widths []int, columns int) bool {
	last, over := len(widths)-1, len(columnGap)*(len(widths)-1)-columns
	for _, wide := range widths {
		over += wide
	}
	narrow := func(i, least int) {
		give := min(over, widths[i]-least)
		if give > 0 {
			widths[i] -= give
			over -= give
		}
	}
	middle := func(least int) {
		for over > 0 && last > 1 {
			wide := slices.Max(widths[1:last])
			if wide <= least {
				return
			}
			narrow(1+slices.Index(widths[1:last], wide), wide-1)
		}
	}
	narrow(last, max(leastColumns, columns/3))
	middle(leastColumns)
	narrow(last, leastColumns)
	middle(fewColumns)
	narrow(0, leastColumns)
	narrow(last, fewColumns)
	return over <= 0
}

// writeRow writes the cells of one row on a line.
func writeRow(b *strings.Builder, cells []string, widths []int, colors, head bool) {
	for i, c := range cells {
		text := cut(c, widths[i])
		style := ""
		switch {
		case !colors:
		case head:
			style = styleHead
		case i > 0 && i < len(cells)-1:
			style = stateStyles[c]
		}
		b.WriteString(painted(style, text))
		if strings.Join(cells[i+1:], "") == "" {
			break
		}
		b.WriteString(strings.Repeat(" ", widths[i]-textWidth(text)) + columnGap)
	}
	b.WriteByte('\n')
}

// blocks writes each row on several lines, with one cell on each.
func (t *table) blocks(b *strings.Builder, columns int) {
	rows, names := t.rows, make([]string, len(t.rows[0]))
	if t.head {
		rows, names = rows[1:], rows[0]
	}
	for _, cells := range rows {
		for i, c := range cells {
			switch {
			case c == "":
			case i == 0:
				b.WriteString(cut(c, columns) + "\n")
			default:
				b.WriteString(cut(columnGap+strings.TrimLeft(strings.ToLower(names[i])+" "+c, " "), columns) + "\n")
			}
		}
	}
}

// stateStyles are the colors of words for a state.
var stateStyles = map[string]string{
	"ready": styleGood, "connected": styleGood, "done": styleGood, "completed": styleGood, "trusted": styleGood,
	"ok":     styleGood,
	"failed": styleBad, "error": styleBad, "blocked": styleBad, "changed": styleBad, "gone": styleBad,
	"unknown": styleBad,
}

// painted returns a text in a terminal style; "" = no style.
func painted(style, text string) string {
	if style == "" || text == "" {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// oneLine makes text safe for a terminal: white space of any kind becomes one space, and invisible
// characters, which may move the cursor or change the direction of writing, become escapes such as
// \x1b. The joiner in emojis stays.
func oneLine(text string) string {
	var b strings.Builder
	for word := range strings.FieldsSeq(text) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		runes := []rune(word)
		for i, r := range runes {
			if unicode.IsPrint(r) || joinsEmoji(runes, i) {
				b.WriteRune(r)
			} else {
				b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
			}
		}
	}
	return b.String()
}

// joinsEmoji reports whether the character at i is the joiner between two parts of one emoji.
func joinsEmoji(runes []rune, i int) bool {
	if runes[i] != '\u200d' || i == 0 || i == len(runes)-1 {
		return false
	}
	before, after := runes[i-1], runes[i+1]
	skinTone := before >= '\U0001f3fb' && before <= '\U0001f3ff'
	return (unicode.Is(unicode.So, before) || before == '\ufe0f' || skinTone) &&
		unicode.In(after, unicode.So, unicode.Sm) // U+2194, a two-headed arrow, is in Sm
}

// cut shortens text to a width and replaces the rest by an ellipsis.
func cut(text string, columns int) string { return displaywidth.TruncateString(text, columns, "…") }

// textWidth returns the number of columns of a text on a terminal.
func textWidth(text string) int { return displaywidth.String(text) }

// escapeUnseen replaces the characters of a JSON text that a terminal would obey instead of showing
// by \u escapes, which mean the same. Line ends stay.
func escapeUnseen(text []byte) []byte {
	from := 0 // the bytes before from are in out
	var out []byte
	for i := 0; i < len(text); {
		r, size := rune(text[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRune(text[i:])
		}
		if r != '\n' && !unicode.IsPrint(r) {
			out = append(out, text[from:i]...)
			for _, unit := range utf16.Encode([]rune{r}) {
				out = fmt.Appendf(out, `\u%04x`, unit)
			}
			from = i + size
		}
		i += size
	}
	if out == nil {
		return text
	}
	return append(out, text[from:]...)
}

// seenWriter passes lines of JSON through escapeUnseen.
type seenWriter struct {
	w    io.Writer
	rest []byte // the beginning of a line that has not ended
}

// Write implements io.Writer.
func (s *seenWriter) Write(p []byte) (int, error) {
	s.rest = append(s.rest, p...)
	end := bytes.LastIndexByte(s.rest, '\n') + 1
	if _, err := s.w.Write(escapeUnseen(s.rest[:end])); err != nil {
		return 0, err
	}
	s.rest = append(s.rest[:0], s.rest[end:]...)
	return len(p), nil
}
