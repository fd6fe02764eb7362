package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"a2e/host/sandbox"
	"a2e/protocol"
)

// section is a title and rows of cells under it, which are aligned; one without rows is left out.
type section struct {
	title string
	rows  []row
	after string // a line below them, or ""
}

// row is a line of a section. Its first cell says in a word how it is.
type row struct {
	level level
	cells []string
	fix   string
}

func (s *section) row(l level, fix string, cells ...string) {
	s.rows = append(s.rows, row{l, each(cells, oneLine), oneLine(fix)})
}

func (s *section) note(cells ...string) { s.row(levelNote, "", cells...) }

// sections is all of the report.
func (d *diagnosis) sections() []section {
	all := []section{d.Config.section(), d.places(), d.walls(), d.Store.section(), needsSection("what the config needs", d.Needs),
		needsSection("what the files here would need, once they are trusted: nothing of them was started", d.Untrusted)}
	for _, p := range d.Programs {
		all = append(all, p.section())
	}
	all = append(all, d.installations(), d.leftOut(), d.Sandbox.findings(), d.Sandbox.modes())
	return slices.DeleteFunc(all, func(s section) bool { return len(s.rows) == 0 })
}

// conclude sums the sections up.
func (d *diagnosis) conclude(all []section) {
	d.Checks, d.Summary = []check{}, map[level]int{levelFine: 0, levelWarning: 0, levelError: 0}
	for _, s := range all {
		for _, r := range s.rows {
			d.Checks = append(d.Checks, check{s.title, r.level, strings.Join(slices.DeleteFunc(slices.Clone(r.cells), func(c string) bool { return c == "" }), " "), r.fix})
			if r.level != levelNote {
				d.Summary[r.level]++
			}
		}
	}
	d.OK = d.Summary[levelError] == 0
}

// text is the report for a person.
func (d *diagnosis) text(all []section, p paint, columns int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "a2e %s, protocol %s, %s, %s", d.Version, d.Protocol, d.Go, d.Platform)
	if d.Kernel != "" {
		fmt.Fprintf(&b, ", kernel %s", d.Kernel)
	}
	b.WriteString("\n")
	for _, s := range all {
		fmt.Fprintf(&b, "\n%s\n", wrap(s.title, 0, columns))
		s.write(&b, p, columns)
	}
	fmt.Fprintf(&b, "\n%s, %s, %s\n", p.level(levelFine, fmt.Sprintf("%d fine", d.Summary[levelFine])),
		p.counted(levelWarning, d.Summary[levelWarning], "warning"), p.counted(levelError, d.Summary[levelError], "error"))
	return b.String()
}

// write aligns the rows of the section.
func (s *section) write(b *strings.Builder, p paint, columns int) {
	var widths []int // of all cells but the last of each row
	for _, r := range s.rows {
		for i, c := range r.cells[:len(r.cells)-1] {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], textWidth(c))
		}
	}
	for _, r := range s.rows {
		b.WriteString("  ")
		at := 2
		for i, c := range r.cells[:len(r.cells)-1] {
			word := c
			if i == 0 {
				word = p.level(r.level, c)
			}
			b.WriteString(word + strings.Repeat(" ", widths[i]-textWidth(c)) + columnGap)
			at += widths[i] + len(columnGap)
		}
		b.WriteString(strings.TrimRight(wrap(r.cells[len(r.cells)-1], at, columns), " ") + "\n")
		if r.fix != "" {
			b.WriteString("      fix: " + r.fix + "\n")
		}
	}
	if s.after != "" {
		b.WriteString("  " + wrap(s.after, 2, columns) + "\n")
	}
}

// paint is how a report is shown.
type paint struct{ colors bool }

// level colors a word.
func (p paint) level(l level, word string) string {
	color := map[level]string{levelFine: "32", levelWarning: "33", levelError: "31"}[l]
	if !p.colors {
		return word
	}
	return painted(color, word)
}

// counted says how many there are, in color if there are any.
func (p paint) counted(l level, n int, what string) string {
	text := protocol.Count(n, what)
	if n == 0 {
		return text
	}
	return p.level(l, text)
}

// wrap breaks a text that begins in a column into lines of at most so many columns.
func wrap(text string, at, columns int) string {
	from := at
	if columns-from < leastColumns {
		from = 6
	}
	var b strings.Builder
	for i, word := range strings.Fields(text) {
		switch n := textWidth(word); {
		case i == 0:
			at += n
		case at+1+n > columns:
			b.WriteString("\n" + strings.Repeat(" ", from))
			at = from + n
		default:
			b.WriteString(" ")
			at += 1 + n
		}
		b.WriteString(word)
	}
	return b.String()
}

// mark says whether something is well, in one of two words.
func mark(ok bool, not string) string {
	if ok {
		return "ok"
	}
	return not
}

// orElse returns how well something is: fine, or else.
func orElse(ok bool, not level) level {
	if ok {
		return levelFine
	}
	return not
}

func noted(text, note string) string {
	if note == "" {
		return text
	}
	return text + " (" + note + ")"
}

func (c *configCheck) section() section {
	s := section{title: "config"}
	for i, p := range c.Problems {
		fix := ""
		if i == len(c.Problems)-1 {
			fix = c.fix
		}
		s.row(levelError, fix, "wrong", p)
	}
	if c.OK {
		s.row(levelFine, "", "ok", cmp.Or(c.File, "no config file; using the defaults"))
	}
	for _, w := range c.Warnings {
		fix := ""
		if strings.Contains(w, "`a2e trust`") {
			fix = "a2e trust"
		}
		s.row(levelWarning, fix, "warning", w)
	}
	if c.offNote != "" {
		s.note("note", c.offNote)
	}
	return s
}

func (d *diagnosis) places() section {
	s := section{title: "folders"}
	for _, f := range d.Folders {
		word, l := mark(f.OK, "wrong"), orElse(f.OK, levelError)
		if f.OK && f.scarce() {
			word, l = "warning", levelWarning
		}
		s.row(l, f.fix, word, f.Name, noted(f.Path, f.Note))
	}
	return s
}

func needsSection(title string, all []needCheck) section {
	s := section{title: title}
	for _, c := range all {
		word := map[level]string{levelFine: "ok", levelWarning: "warning", levelError: "wrong"}[c.Level]
		text := c.Text
		if c.Live {
			text += fmt.Sprintf(" (%d ms)", c.MS)
		}
		if c.Level != levelFine && c.Place != "" {
			text = c.Place + ": " + text
		}
		s.row(c.Level, c.Fix, word, c.Of, text)
	}
	return s
}

func (d *diagnosis) walls() section {
	s := section{title: "the host's own files"}
	for _, w := range d.Walls {
		s.row(orElse(w.OK, levelWarning), "", mark(w.OK, "open"), w.Name, noted(w.Path, w.Note))
	}
	return s
}

func (p *programsCheck) section() section {
	s := section{title: "programs that " + strings.Join(p.Plugins, " and ") + " may start"}
	bad := levelError
	if p.Default {
		s.title += " (the default list, as far as it is here)"
		bad = levelNote
	}
	for _, one := range p.Programs {
		s.row(orElse(one.OK, bad), one.fix, mark(one.OK, "missing"), one.Name, one.Path)
	}
	if len(p.Launchers) > 0 {
		s.after = fmt.Sprintf("These start any program or run any code, whatever else is on the list: %s. exec: strict allows them only with what they shall run.", strings.Join(p.Launchers, ", "))
	}
	return s
}

func (d *diagnosis) installations() section {
	s := section{title: "MCP servers that are installed when they first start"}
	for _, i := range d.Servers {
		s.note(i.State, i.ID, i.Command, i.Home)
	}
	return s
}

func (d *diagnosis) leftOut() section {
	s := section{title: "folders of PATH that children do not get"}
	for _, l := range d.LeftOut {
		s.note("left out", cmp.Or(l.Dir, `""`), "It "+l.Reason+".")
	}
	return s
}

func (s *sandboxCheck) findings() section {
	out := section{title: "sandbox"}
	bad := levelWarning
	if s.Mode == sandbox.Required {
		bad = levelError
	}
	if s.Error != "" {
		out.row(levelError, "", "missing", "it could not be tried: "+s.Error)
	}
	for _, f := range s.Findings {
		name, effect, l := f.Name, f.Effect, orElse(f.OK, bad)
		if f.Optional {
			name += " (optional)"
			l = orElse(f.OK, levelNote)
		}
		fix := ""
		if !f.OK {
			effect, fix = noted("Not available: "+strings.TrimSuffix(effect, "."), f.Reason), fixSandbox(f.Name)
		}
		if s.Mode == sandbox.Off && !f.OK {
			l = levelNote
		}
		out.row(l, fix, mark(f.OK, "missing"), name, effect)
	}
	return out
}

func (s *sandboxCheck) modes() section {
	out := section{title: "what each mode of the sandbox does here"}
	for _, v := range s.Verdicts {
		here, l := "", levelNote
		if v.Mode == s.Mode {
			here, l = " (as configured)", orElse(v.OK, levelError)
		}
		out.row(l, "", "sandbox: "+string(v.Mode)+here, v.Text)
	}
	return out
}

func (c *storeCheck) section() section {
	s := section{title: "store"}
	if c == nil {
		return s
	}
	for _, p := range c.Problems {
		s.row(levelError, "", "wrong", p)
	}
	if c.Advice != "" {
		s.note("advice", c.Advice)
	}
	switch {
	case !c.Exists && len(c.Problems) == 0:
		s.row(levelFine, "", "ok", noted(c.Path, "does not exist yet; it is made when it is needed"))
	case c.OK:
		s.row(levelFine, "", "ok", noted(c.Path, fmt.Sprintf("%d KiB", (c.Bytes+1023)/1024)))
	}
	if c.Server != "" {
		s.note("server", c.Server)
	}
	if c.Exists && c.OK && !c.Checksums && c.Server == "" {
		s.note("note", "its pages have no checksums; export and import gives them some")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Parts)) {
		s.note("part", fmt.Sprintf("%s, version %d", name, c.Parts[name]))
	}
	if c.Model != "" {
		s.note("vectors", "made with "+c.Model)
	}
	return s
}
