package cli

import (
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
	return strings.Trim(line, "> ") == "" || strings.Trim(line, line[:1]) == "" && strings.Contains("#-*_+`~", line[:1]) ||
		line[0] == '|' || strings.HasPrefix(line, "```") || strings.HasPrefix(line, "~~~") || heading().MatchString(line)
}

// What is looked for at the begin of a line, or of what is left of it.
var (
	heading   = lazily(`^#{1,6} +`)
	ruleMarks = lazily(`^(-{3,}|\*{3,}|_{3,})$`)
	rowMarks  = lazily(`^[ |:-]*-[ |:-]*$`) // between the head of a table and its rows
	link      = lazily(`^\[([^\[\]]+)\]\(([^()\s]+)\)`)
	linkBegun = lazily(`^\[[^\[\]]*(\](\([^()\s]*)?)?$`)
)

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
		out.WriteString(m.text(i))
		if m.line == "" {
			break
		}
		shown, used := m.marked(last)
		switch {
		case used > 0:
			out.WriteString(shown)
			m.last, _ = utf8.DecodeLastRuneInString(m.line[:used])
			m.line = m.line[used:]
		case used < 0 && !last: // its end may come
			return out.String()
		default:
			out.WriteString(m.text(len(m.line) - len(strings.TrimLeft(m.line, m.line[:1]))))
		}
	}
	return out.String()
}

// text shows so many bytes of the line as they are.
func (m *markdown) text(n int) string {
	text := m.line[:n]
	if m.line = m.line[n:]; n > 0 {
		m.last, _ = utf8.DecodeLastRuneInString(text)
	}
	return m.painted("", text)
}

func (m *markdown) painted(style, text string) string {
	if m.plain {
		return text
	}
	return painted(strings.Trim(m.base+";"+style, ";"), text)
}

// marked shows what is marked at the begin of the line. used is how many bytes that is: 0 = nothing is marked,
// -1 = the mark does not end in the line, of which more may come unless this is the last of it.
func (m *markdown) marked(last bool) (shown string, used int) {
	mark := m.line[:len(m.line)-len(strings.TrimLeft(m.line, m.line[:1]))]
	rest := m.line[len(mark):]
	switch mark[0] {
	case '\\':
		if len(m.line) == 1 {
			return "", -1
		}
		if next := m.line[1]; next < utf8.RuneSelf && (unicode.IsPunct(rune(next)) || unicode.IsSymbol(rune(next))) {
			return m.painted("", m.line[1:2]), 2
		}
		return "", 0
	case '[':
		if found := link().FindStringSubmatch(m.line); found != nil {
			if shown = m.painted(styleLink, found[1]); found[1] != found[2] {
				shown += m.painted(styleDim, " ("+found[2]+")")
			}
			return shown, len(found[0])
		}
		if linkBegun().MatchString(m.line) {
			return "", -1
		}
		return "", 0
	case '`':
		end := closing(rest, mark, func(string, string) bool { return true })
		if end < 0 || !last && end+len(mark) == len(rest) {
			return "", -1
		}
		return m.painted(styleCode, strings.TrimSpace(rest[:end])), end + 2*len(mark)
	}
	return m.emphasis(mark, rest, last)
}

// emphasis is marked for what stars, underlines and tildes begin.
func (m *markdown) emphasis(mark, rest string, last bool) (shown string, used int) {
	style := map[string]string{"*": "3", "_": "3", "**": "1", "__": "1", "***": "1;3", "~~": "9"}[mark]
	within := mark[0] == '_' && letter(m.last) // a name such as snake_case
	switch {
	case rest == "":
		return "", -1
	case style == "" || within || strings.HasPrefix(rest, " "):
		return "", 0
	}
	end := closing(rest, mark, func(before, after string) bool {
		next, _ := utf8.DecodeRuneInString(after)
		return !strings.HasSuffix(before, " ") && (mark[0] != '_' || !letter(next))
	})
	if end < 0 || !last && end+len(mark) == len(rest) {
		return "", -1
	}
	inner := markdown{line: rest[:end], base: strings.Trim(m.base+";"+style, ";"), plain: m.plain}
	return inner.inline(true), end + 2*len(mark)
}

func letter(r rune) bool { return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r)) }

// closing finds the mark in a text that fits: a run of its character that is as long. -1 = there is none.
func closing(text, mark string, fits func(before, after string) bool) int {
	for at := 0; ; {
		i := strings.IndexByte(text[at:], mark[0])
		if i < 0 {
			return -1
		}
		at += i
		after := strings.TrimLeft(text[at:], mark[:1])
		n := len(text) - at - len(after)
		if n == len(mark) && at > 0 && fits(text[:at], after) {
			return at
		}
		at += n
	}
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
