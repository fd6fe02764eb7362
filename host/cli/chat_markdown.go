package cli

import (
	"cmp"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// styleRule is a line across, as wide as most answers.
var styleRule = strings.Repeat("─", 40)

// markdown styles an answer for a terminal while it comes. Text is shown as soon as nothing that follows can change
// its style; headings, code and rules wait for the end of their line, tables for their last row.
type markdown struct {
	columns func() int // of the terminal, for tables

	line  string   // the part of the last line that is not shown yet
	begun bool     // a part of that line is shown
	base  string   // the style of the line
	last  rune     // before line
	fence string   // what ends the code; "" = no code has begun
	rows  []string // of a table that has not ended
	plain bool     // marks are taken away and nothing is styled: a cell of a table
}

// write returns what can be shown of the answer with the next piece of it.
func (m *markdown) write(text string) string {
	var out strings.Builder
	for piece := range strings.Lines(text) {
		line, ended := strings.CutSuffix(piece, "\n")
		m.line += line
		switch {
		case ended:
			out.WriteString(m.whole())
		case m.fence == "" && (m.begun || !undecided(m.line)):
			out.WriteString(m.begin() + m.inline(false))
		}
	}
	return out.String()
}

// flush returns the rest of the answer, which has ended.
func (m *markdown) flush() (out string) {
	if m.begun || m.line != "" {
		out = strings.TrimSuffix(m.whole(), "\n")
	}
	out += m.table()
	*m = markdown{columns: m.columns}
	return out
}

// undecided reports whether the begin of a line may still become something else than text.
func undecided(line string) bool {
	line = strings.TrimLeft(line, " ")
	return strings.Trim(line, "> ") == "" || lineBegun().MatchString(line)
}

// What is looked for at the begin of a line, or of what is left of it.
var (
	lineBegun = lazily("^(\\||```|~~~|#{1,6} |(#+|-+|\\*+|_+|\\++|`+|~+)$)")
	heading   = lazily(`^#{1,6} +`)
	ruleMarks = lazily(`^(-{3,}|\*{3,}|_{3,})$`)
	rowMarks  = lazily(`^[ |:-]*-[ |:-]*$`) // between the head of a table and its rows
	spanBegun = lazily("^(\\\\|~|(\\*{1,3}|_{1,2}|~~|`+)(\\S.*)?|\\[[^\\[\\]]*(\\](\\([^()\\s]*)?)?)$")
)

// spans are the marks within a line, each with the style of what they mark.
var spans = []struct {
	pattern func() *regexp.Regexp
	style   string
}{
	{lazily("^\\\\([!-/:-@\\[-`{-~])"), ""},
	{lazily("^`([^`]+)`"), styleCode},
	{lazily("^``(.+?)``"), styleCode},
	{lazily(`^\*\*\*([^\s*]|[^\s*][^*]*[^\s*])\*\*\*`), "1;3"},
	{lazily(`^\*\*([^\s*]|[^\s*].*?\S)\*\*`), "1"},
	{lazily(`^\*([^\s*]|[^\s*][^*]*[^\s*])\*`), "3"},
	{lazily(`^__([^\s_]|[^\s_].*?\S)__(?:\W|$)`), "1"},
	{lazily(`^_([^\s_]|[^\s_][^_]*[^\s_])_(?:\W|$)`), "3"},
	{lazily(`^~~(\S|\S.*?\S)~~`), "9"},
	{lazily(`^\[([^\[\]]+)\]\(([^()\s]+)\)`), styleLink},
}

// whole ends a line.
func (m *markdown) whole() (out string) {
	line := strings.TrimSpace(m.line)
	switch marks := line[:len(line)-len(strings.TrimLeft(line, "`~"))]; {
	case m.begun:
		out = m.inline(true) + "\n"
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
		out = m.begin() + m.inline(true) + "\n"
	}
	m.line, m.begun, m.last = "", false, 0
	return out
}

// begin shows what the line begins with.
func (m *markdown) begin() (out string) {
	if m.begun {
		return ""
	}
	out, m.begun, m.base = m.table(), true, ""
	text := strings.TrimLeft(m.line, " ")
	indent := m.line[:len(m.line)-len(text)]
	switch marks := heading().FindString(text); {
	case marks != "":
		m.line, m.base = text[len(marks):], styleHead
	case strings.HasPrefix(text, ">"):
		out += indent + painted(styleDim, "│ ")
		m.line, m.base = strings.TrimLeft(text, "> "), styleDim
	case len(text) > 1 && strings.Contains("-*+", text[:1]) && text[1] == ' ':
		out += indent + "• "
		m.line = text[2:]
	}
	return out
}

// inline shows the marked text of the line, which ends with it where last is true; else a mark waits for its end.
func (m *markdown) inline(last bool) string {
	var out strings.Builder
	for m.line != "" {
		i := strings.IndexAny(m.line, "\\`*_~[")
		if i < 0 {
			i = len(m.line)
		}
		out.WriteString(m.text(i, "", m.line[:i]))
		if m.line == "" {
			break
		}
		shown, waits := m.span(last)
		if shown == "" && waits {
			break
		}
		if shown == "" { // it marks nothing
			n := len(m.line) - len(strings.TrimLeft(m.line, m.line[:1]))
			shown = m.text(n, "", m.line[:n])
		}
		out.WriteString(shown)
	}
	return out.String()
}

// span shows what is marked at the begin of the line; "" = nothing is, or it waits for the end of the mark.
func (m *markdown) span(last bool) (shown string, waits bool) {
	before := m.last
	for _, s := range spans {
		at := s.pattern().FindStringSubmatchIndex(m.line)
		within := unicode.IsLetter(before) || unicode.IsDigit(before) // of a name such as snake_case
		if at == nil || m.line[0] == '_' && within {
			continue
		}
		if at[1] == len(m.line) && !last {
			return "", true
		}
		inner, used := m.line[at[2]:at[3]], at[3]+at[2]
		switch s.style {
		case styleLink:
			url := m.line[at[4]:at[5]]
			if shown = m.text(at[1], styleLink, inner); inner != url {
				shown += m.painted(styleDim, " ("+url+")")
			}
			return shown, false
		case styleCode:
			return m.text(used, styleCode, cmp.Or(strings.TrimSpace(inner), inner)), false
		case "":
			return m.text(at[3], "", inner), false
		}
		inside := markdown{line: inner, base: strings.Trim(m.base+";"+s.style, ";"), plain: m.plain}
		m.text(used, "", "")
		return inside.inline(true), false
	}
	return "", !last && spanBegun().MatchString(m.line)
}

// text takes so many bytes off the line and shows a text for them.
func (m *markdown) text(n int, style, shown string) string {
	if n > 0 {
		m.last, _ = utf8.DecodeLastRuneInString(m.line[:n])
	}
	m.line = m.line[n:]
	return m.painted(style, shown)
}

func (m *markdown) painted(style, text string) string {
	if m.plain {
		return text
	}
	return painted(strings.Trim(m.base+";"+style, ";"), text)
}

// table shows the table that has ended.
func (m *markdown) table() string {
	rows := m.rows
	m.rows = nil
	var out strings.Builder
	if len(rows) < 2 || !rowMarks().MatchString(rows[1]) { // it is no table
		for _, row := range rows {
			text := markdown{line: row}
			out.WriteString(text.inline(true) + "\n")
		}
		return out.String()
	}
	var t table
	wide := 0
	for i, row := range rows {
		if i == 1 {
			continue
		}
		row = strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(row, "|"), "|"), `\|`, "\x00")
		cells := each(strings.Split(row, "|"), func(cell string) string {
			text := markdown{line: strings.ReplaceAll(strings.TrimSpace(cell), "\x00", "|"), plain: true}
			return text.inline(true)
		})
		if i == 0 {
			wide = len(cells)
		}
		t.row(append(cells, make([]string, wide)...)[:wide]...)
	}
	t.head = true
	_ = t.print(&out, m.columns(), true) // into memory
	return out.String()
}
