package cli

import (
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"
)

type manCmd struct{}

// Run prints the manual page. It has the commands of the parser, and the general sections of the
// page about the command line.
func (manCmd) Run(cmd *commands, sys *System) error {
	parser, err := newParser(cmd, sys)
	if err != nil {
		return err
	}
	about, err := fs.ReadFile(sys.Pages, "host/cli/README.md")
	if err != nil {
		return err
	}
	day := time.Now() // SOURCE_DATE_EPOCH makes builds reproducible
	if seconds, err := strconv.ParseInt(sys.getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		day = time.Unix(seconds, 0)
	}
	var m manual
	m.line(fmt.Sprintf(".TH A2E 1 %q %q %q", day.UTC().Format(time.DateOnly), "a2e "+version(), "User Commands"))
	m.line(".SH NAME")
	m.line(`a2e \- agent\-to\-environment host`)
	m.line(".SH SYNOPSIS")
	m.line(".B a2e")
	m.line(`[\fICOMMAND\fR] [\fIflags\fR]`)
	m.line(".SH DESCRIPTION")
	m.text("Without a command a2e serves an agent: it reads one JSON request per line on stdin and answers on " +
		"stdout. The other commands are for people and scripts.")
	m.line(".SH OPTIONS")
	m.text("Every command takes these.")
	m.flags(parser.Model.Flags)
	m.line(".SH COMMANDS")
	for _, leaf := range parser.Model.Leaves(true) {
		m.command(leaf)
	}
	m.line(".SH EXIT STATUS")
	m.markdown(string(about), "Exit codes")
	m.line(".SH ARGUMENTS")
	m.markdown(string(about), "Arguments")
	m.line(".SH OUTPUT")
	m.markdown(string(about), "Output")
	m.line(".SH ENVIRONMENT")
	m.item("A2E_CONFIG", "The config file, where --config names none.")
	m.item("NO_COLOR", "No colors, also on a terminal.")
	m.item("COLUMNS", "How wide tables on a terminal are, in place of its width.")
	m.line(".SH SEE ALSO")
	m.text("`a2e help` lists the pages of the documentation, such as `a2e help config`, the reference of the config.")
	_, err = io.WriteString(sys.Out, m.b.String())
	return err
}

// manual builds a page in the language of man(7).
type manual struct{ b strings.Builder }

func (m *manual) line(roff string) { m.b.WriteString(roff + "\n") }

// item adds a name with its description.
func (m *manual) item(name, about string) {
	m.line(".TP")
	m.line(".B " + roff(name))
	m.line(roff(about))
}

func (m *manual) flags(flags []*kong.Flag) {
	for _, f := range flags {
		if !f.Hidden && f.Name != "help" {
			m.item(f.String(), f.Help)
		}
	}
}

// text adds a paragraph. `words` in it become bold.
func (m *manual) text(paragraph string) {
	m.line(roffCode().ReplaceAllString(roff(strings.ReplaceAll(paragraph, "\n", " ")), `\fB$1\fR`))
}

// command adds a command with its arguments, flags and examples.
func (m *manual) command(leaf *kong.Node) {
	m.line(".SS " + roff(strings.TrimSuffix(leaf.Summary(), " [flags]")))
	m.text(leaf.Help)
	for _, p := range leaf.Positional {
		m.item(p.Summary(), p.Help)
	}
	m.flags(leaf.Flags)
	for paragraph := range strings.SplitSeq(details()[leaf.Path()], "\n\n") {
		title, lines, example := strings.Cut(paragraph, ":\n  ")
		switch {
		case paragraph == "":
		case example:
			m.line(".PP\n" + roff(title) + ":\n.PP\n.nf")
			for line := range strings.SplitSeq(lines, "\n") {
				m.line("    " + roff(strings.TrimPrefix(line, "  ")))
			}
			m.line(".fi")
		default:
			m.line(".PP")
			m.text(paragraph)
		}
	}
}

// markdown adds the paragraphs and tables of a section of a page, up to the first example.
func (m *manual) markdown(page, title string) {
	_, text, _ := strings.Cut(page, "\n## "+title+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	for i, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		switch {
		case strings.HasPrefix(paragraph, "|"):
			for _, row := range strings.Split(paragraph, "\n")[2:] {
				cells := strings.Split(strings.Trim(row, "| "), " | ")
				m.item(cells[0], strings.Join(cells[1:], " "))
			}
		case strings.Contains(paragraph, "```"):
			return // an example and the text that belongs to it
		default:
			if i > 0 {
				m.line(".PP")
			}
			m.text(paragraph)
		}
	}
}

// roffMarks escapes characters that have a meaning or another look in roff.
var roffMarks = strings.NewReplacer(`\`, `\e`, "-", `\-`,
	"'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, `"`, `\(dq`)

// roffCode matches `code` after escaping by roff.
var roffCode = lazily(`\\\(ga(.*?)\\\(ga`)

// roff escapes a line of text.
func roff(text string) string {
	var b strings.Builder
	if strings.HasPrefix(text, ".") {
		b.WriteString(`\&`) // so that it is not a roff request
	}
	for _, r := range roffMarks.Replace(text) {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\[u%04X]`, r)
		}
	}
	return b.String()
}
