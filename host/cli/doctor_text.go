package cli

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"
)

// text is the report for a person: a section each, in aligned columns.
func (d *diagnosis) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "a2e %s, protocol %s, %s, %s", d.Version, d.Protocol, d.Go, d.Platform)
	if d.Kernel != "" {
		fmt.Fprintf(&b, ", kernel %s", d.Kernel)
	}
	b.WriteString("\n")
	d.Config.print(&b)
	if len(d.Folders) > 0 {
		section(&b, "folders", func(row func(...string)) {
			for _, f := range d.Folders {
				state := "ok"
				if !f.OK {
					state = "wrong"
				}
				row(state, f.Name, noted(f.Path, f.Note))
			}
		})
	}
	printWalls(&b, d.Walls)
	if d.Store != nil {
		d.Store.print(&b)
	}
	for _, p := range d.Programs {
		p.print(&b)
	}
	if len(d.Servers) > 0 {
		section(&b, "MCP servers that are installed when they first start", func(row func(...string)) {
			for _, s := range d.Servers {
				row(s.State, s.ID, s.Command, s.Home)
			}
		})
	}
	if len(d.LeftOut) > 0 {
		section(&b, "folders of PATH that children do not get", func(row func(...string)) {
			for _, l := range d.LeftOut {
				row("left out", cmp.Or(l.Path, `""`), "It "+l.Reason+".")
			}
		})
	}
	d.Sandbox.print(&b)
	return b.String()
}

// section prints a title and rows of cells under it.
func section(b *strings.Builder, title string, rows func(row func(cells ...string))) {
	fmt.Fprintf(b, "\n%s\n", title)
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	rows(func(cells ...string) {
		fmt.Fprintf(table, "  %s\n", strings.Join(cells, "\t"))
	})
	table.Flush() // a strings.Builder takes all
}

func mark(ok bool) string {
	if ok {
		return "ok"
	}
	return "missing"
}

func noted(text, note string) string {
	if note == "" {
		return text
	}
	return text + " (" + note + ")"
}

func (c *configCheck) print(b *strings.Builder) {
	section(b, "config", func(row func(...string)) {
		switch {
		case !c.OK:
			for _, p := range c.Problems {
				row("wrong", p)
			}
		case c.File == "":
			row("ok", "no config file; the defaults")
		default:
			row("ok", c.File)
		}
		for _, w := range c.Warnings {
			row("warning", w)
		}
		if c.offNote != "" {
			row("note", c.offNote)
		}
	})
}

func (p *programsCheck) print(b *strings.Builder) {
	title := "programs that " + strings.Join(p.Plugins, " and ") + " may start"
	if p.Default {
		title += " (the default list, as far as it is here)"
	}
	section(b, title, func(row func(...string)) {
		for _, one := range p.Programs {
			row(mark(one.OK), one.Name, one.Path)
		}
	})
	if len(p.Launchers) > 0 {
		fmt.Fprintf(b, "  These start any program or run any code, whatever else is on the list: %s. exec: strict allows them only with what they shall run.\n", strings.Join(p.Launchers, ", "))
	}
}

func (s *sandboxCheck) print(b *strings.Builder) {
	section(b, "sandbox", func(row func(...string)) {
		if s.Error != "" {
			row("missing", "it could not be tried: "+s.Error)
		}
		for _, f := range s.Findings {
			name, effect := f.Name, f.Effect
			if f.Optional {
				name += " (optional)"
			}
			if !f.OK {
				effect = noted("Not so here: "+strings.TrimSuffix(effect, "."), f.Reason)
			}
			row(mark(f.OK), name, effect)
		}
	})
	if len(s.Verdicts) == 0 {
		return
	}
	section(b, "what each mode of the sandbox does here", func(row func(...string)) {
		for _, v := range s.Verdicts {
			here := ""
			if v.Mode == s.Mode {
				here = " (as configured)"
			}
			row("sandbox: "+string(v.Mode)+here, v.Text)
		}
	})
}
