package cli

import (
	"cmp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// styleRule is a horizontal line, as wide as most answers.
var styleRule = strings.Repeat("─", 40)

// markdown styles an answer for a terminal while it arrives. A line that begins as text is shown at
// once, up to a mark that is not closed yet. Other lines are shown when they are complete, and
// tables after their last row.
type markdown struct {
	columns func() int // width of the terminal, for tables

	line   string   // the part of the last line that is not shown yet
	before rune     // the character before line; 0 = it starts a line
	fence  string   // the mark that ends the code block; "" = not in a code block
	rows   []string // rows of a table that is not complete
}

var (
	textBegun = lazily("^ *(\\*\\*|`)?[\\pL\\pN(\"']")
	heading   = lazily(`^#{1,6} +`)
	ruleMarks = lazily(`^(-{3,}|\*{3,}|_{3,})$`)
	rowMarks  = lazily(`^[ |:-]*-[ |:-]*$`) // between the head of a table and its rows
	codes     = lazily(`\x1b\[[0-9;]*m`)

	// span matches marked text. Each group has a style in spanStyles; the group of a link is
	// followed by the group of its address.
	span = lazily("^(?:\\\\([!-/:-@\\[-`{-~])|``(.+?)``|`([^`]+)`" +
		`|\*\*\*([^\s*]|[^\s*][^*]*[^\s*])\*\*\*|\*\*([^\s*]|[^\s*].*?\S)\*\*|\*([^\s*]|[^\s*][^*]*[^\s*])\*` +
		`|__([^\s_]|[^\s_].*?\S)__\b|_([^\s_]|[^\s_][^_]*[^\s_])_\b|~~(\S|\S.*?\S)~~|\[([^\[\]]+)\]\(([^()\s]+)\))`)
	spanBegun = lazily("^(\\\\|~|(\\*{1,3}|_{1,2}|~~|`+)(\\S.*)?|\\[[^\\[\\]]*(\\](\\([^()\\s]*)?)?)$")
)

var spanStyles = []string{"", styleCode, styleCode, "1;3", "1", "3", "1", "3", "9", styleLink}

// write adds the next piece of the answer and returns the text that can be shown.
func (m *markdown) write(text string) (out string) {
	for piece := range strings.Lines(text) {
		line, ended := strings.CutSuffix(piece, "\n")
		m.line += line
		switch {
		case ended:
			out += m.whole()
		case m.before != 0:
			out += m.styled("", false)
		case m.fence == "" && textBegun().MatchString(m.line):
			out += m.table() + m.styled("", false)
		}
	}
	return out
}

// flush returns the rest of the answer at its end.
func (m *markdown) flush() (out string) {
	if m.before != 0 || m.line != "" {
		out = strings.TrimSuffix(m.whole(), "\n")
	}
	out += m.table()
	*m = markdown{columns: m.columns}
	return out
}

// whole returns a complete line, or the rest of it.
func (m *markdown) whole() (out string) {
	line := strings.TrimSpace(m.line)
	marks := line[:len(line)-len(strings.TrimLeft(line, "`~"))]
	switch {
	case m.before != 0:
		out = m.styled("", true) + "\n"
	case m.fence != "" && strings.HasPrefix(line, m.fence) && strings.Trim(line, m.fence[:1]) == "":
		m.fence = ""
	case m.fence != "":
		out = painted(styleCode, m.line) + "\n"
	case len(marks) >= 3 && !strings.ContainsAny(line[len(marks):], "`~"):
		out, m.fence = m.table(), marks
	case strings.HasPrefix(line, "|"):
		m.rows = append(m.rows, line)
	case ruleMarks().MatchString(line):
		out = m.table() + painted(styleDim, styleRule) + "\n"
	default:
		out = m.table() + m.block() + "\n"
	}
	m.line, m.before = "", 0
	return out
}

// block returns a heading, a quote, a list item or text.
func (m *markdown) block() string {
	text := strings.TrimLeft(m.line, " ")
	indent := m.line[:len(m.line)-len(text)]
	switch marks := heading().FindString(text); {
	case marks != "":
		m.line = text[len(marks):]
		return m.styled(styleHead, true)
	case strings.HasPrefix(text, ">"):
		m.line = strings.TrimLeft(text, "> ")
		return indent + painted(styleDim, "│ ") + m.styled(styleDim, true)
	case len(text) > 1 && strings.Contains("-*+", text[:1]) && text[1] == ' ':
		m.line = text[2:]
		return indent + "• " + m.styled("", true)
	}
	return m.styled("", true)
}

// styled returns the styled text of the line. Unless last is set, it stops at a mark that is not closed yet.
func (m *markdown) styled(base string, last bool) (out string) {
	for m.line != "" {
		i := strings.IndexAny(m.line, "\\`*_~[")
		if i < 0 {
			i = len(m.line)
		}
		if i > 0 {
			out += painted(base, m.take(i))
			continue
		}
		at := span().FindStringSubmatchIndex(m.line)
		within := unicode.IsLetter(m.before) || unicode.IsDigit(m.before) // inside a name such as snake_case
		switch {
		case at == nil && !last && spanBegun().MatchString(m.line), at != nil && at[1] == len(m.line) && !last:
			return out
		case at == nil, m.line[0] == '_' && within: // the character marks nothing
			out += painted(base, m.take(len(m.line)-len(strings.TrimLeft(m.line, m.line[:1]))))
		default:
			out += marked(base, m.take(at[1]), at)
		}
	}
	return out
}

// marked returns a span with its style. at has the positions of its groups.
func marked(base, text string, at []int) string {
	group := 1
	for at[2*group] < 0 {
		group++
	}
	inner, style := text[at[2*group]:at[2*group+1]], spanStyles[group-1]
	both := strings.Trim(base+";"+style, ";")
	switch style {
	case "":
		return painted(base, inner)
	case styleCode:
		return painted(both, cmp.Or(strings.TrimSpace(inner), inner))
	case styleLink:
		if url := text[at[2*group+2]:at[2*group+3]]; inner != url {
			return painted(both, inner) + painted(strings.Trim(base+";"+styleDim, ";"), " ("+url+")")
		}
		return painted(both, inner)
	}
	inside := markdown{line: inner}
	return inside.styled(both, true)
}

// take removes and returns the first n bytes of the line.
func (m *markdown) take(n int) (text string) {
	text, m.line = m.line[:n], m.line[n:]
	m.before, _ = utf8.DecodeLastRuneInString(text)
	return text
}

// table returns the table that is complete.
func (m *markdown) table() string {
	rows := m.rows
	m.rows = nil
	var out strings.Builder
	if len(rows) < 2 || !rowMarks().MatchString(rows[1]) { // it is not a table
		for _, row := range rows {
			text := markdown{line: row}
			out.WriteString(text.styled("", true) + "\n")
		}
		return out.String()
	}
	var t table
	for i, row := range rows {
		if i == 1 {
			continue
		}
		row = strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(row, "|"), "|"), `\|`, "\x00")
		cells := each(strings.Split(row, "|"), func(cell string) string {
			text := markdown{line: strings.ReplaceAll(strings.TrimSpace(cell), "\x00", "|")}
			return codes().ReplaceAllString(text.styled("", true), "")
		})
		if i > 0 { // as many cells as the first row
			cells = append(cells, make([]string, len(t.rows[0]))...)[:len(t.rows[0])]
		}
		t.row(cells...)
	}
	t.head = true
	_ = t.print(&out, m.columns(), true) // writing to memory cannot fail
	return out.String()
}
