package cli

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/text/width"
)

const (
	usualColumns = 80 // where the environment does not tell how wide the terminal is
	leastColumns = 16 // that the last column of a table keeps, however narrow that is
	columnGap    = "  "
)

// columns is how wide the output may be.
func (s *System) columns() int {
	if n, err := strconv.Atoi(s.getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return usualColumns
}

// table prints aligned columns. Its cells may come from an agent: each becomes one
// line that does nothing to a terminal.
type table struct {
	rows [][]string
}

// row adds one; all have as many cells as the first.
func (t *table) row(cells ...string) {
	for i, c := range cells {
		cells[i] = oneLine(c)
	}
	t.rows = append(t.rows, cells)
}

// print writes the rows, of which the last column is cut so that a line has at most
// this many columns.
func (t *table) print(w io.Writer, columns int) error {
	var b strings.Builder
	widths := t.widths()
	for _, cells := range t.rows {
		left := columns
		for i, c := range cells[:len(cells)-1] {
			b.WriteString(c)
			b.WriteString(strings.Repeat(" ", widths[i]-textWidth(c)))
			b.WriteString(columnGap)
			left -= widths[i] + len(columnGap)
		}
		b.WriteString(cut(cells[len(cells)-1], max(left, leastColumns)))
		line := strings.TrimRight(b.String(), " ")
		b.Reset()
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// widths returns the width of each column but the last.
func (t *table) widths() []int {
	if len(t.rows) == 0 {
		return nil
	}
	widths := make([]int, len(t.rows[0])-1)
	for _, cells := range t.rows {
		for i := range widths {
			widths[i] = max(widths[i], textWidth(cells[i]))
		}
	}
	return widths
}

// oneLine makes text safe for a terminal: white space of any kind becomes one
// space, and characters that cannot be seen, which may move the cursor or turn the
// direction of writing, become escapes such as \x1b.
func oneLine(text string) string {
	var b strings.Builder
	for word := range strings.FieldsSeq(text) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		for _, r := range word {
			if unicode.IsPrint(r) {
				b.WriteRune(r)
			} else {
				b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
			}
		}
	}
	return b.String()
}

// cut shortens text to a width, with an ellipsis in place of the rest.
func cut(text string, columns int) string {
	used, keep := 0, 0 // keep: the bytes that leave room for the ellipsis
	for i, r := range text {
		used += runeWidth(r)
		if used > columns {
			return text[:keep] + "…"
		}
		if used < columns {
			keep = i + utf8.RuneLen(r)
		}
	}
	return text
}

// textWidth is the number of columns that a terminal shows text in.
func textWidth(text string) (n int) {
	for _, r := range text {
		n += runeWidth(r)
	}
	return n
}

func runeWidth(r rune) int {
	switch {
	case r < 0x300: // nearly always
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// escapeUnseen writes the characters of a JSON text that a terminal would not show
// but obey as \u escapes, which mean the same. Line ends stay.
func escapeUnseen(text []byte) []byte {
	from := 0 // what comes before is in out
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

// seenWriter passes lines of JSON on with escapeUnseen.
type seenWriter struct {
	w    io.Writer
	rest []byte // of a line that has not ended
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
