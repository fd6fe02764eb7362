package cli

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"
)

type helpCmd struct {
	Topic string `complete:"topic" arg:"" optional:"" help:"The page. Default: a list of all."`
}

// page is one page of the documentation.
type page struct {
	topic string
	text  string
}

// Run prints the page, or a line for each.
func (h helpCmd) Run(sys *System) error {
	all, err := helpPages(sys.Pages)
	if err != nil {
		return err
	}
	var t table
	t.header("PAGE", "DESCRIPTION")
	var known, short, found []string
	for _, p := range all {
		known, short = append(known, p.topic), append(short, path.Base(p.topic))
		t.row(p.topic, p.about())
		if p.topic == h.Topic || path.Base(p.topic) == h.Topic {
			found = append(found, p.text)
		}
	}
	switch {
	case h.Topic == "":
		return t.show(sys)
	case found == nil:
		return fail(exitUsage, unknownAs("page", h.Topic, slices.Compact(slices.Sorted(slices.Values(short))), known))
	}
	return sys.showPage(strings.Join(found, "\n"))
}

// helpPages reads the pages. One is called as its folder; where several folders have the same
// name, as far up as it takes to tell them apart.
func helpPages(pages fs.FS) ([]page, error) {
	reference, err := configReference()
	if err != nil {
		return nil, err
	}
	all := []page{{"config", reference}}
	if pages == nil {
		return nil, errors.New("this program was built without its pages")
	}
	var files []string
	err = fs.WalkDir(pages, ".", func(file string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, file)
		}
		return err
	})
	for _, file := range files {
		text, readErr := fs.ReadFile(pages, file)
		err = cmp.Or(err, readErr)
		all = append(all, page{topicOf(file, files), string(text)})
	}
	slices.SortFunc(all, func(a, b page) int { return strings.Compare(a.topic, b.topic) })
	return all, err
}

// topicOf returns what a page is called.
func topicOf(file string, files []string) string {
	dir := path.Dir(file)
	if dir == "." {
		return "a2e"
	}
	topic := path.Base(dir)
	for up := path.Dir(dir); up != "."; up = path.Dir(up) {
		same := func(other string) bool { return other != file && strings.HasSuffix("/"+path.Dir(other), "/"+topic) }
		if topic != "config" && !slices.ContainsFunc(files, same) {
			break
		}
		topic = path.Join(path.Base(up), topic)
	}
	return topic
}

// about returns the first sentence of the page, behind its title.
func (p page) about() string {
	for paragraph := range strings.SplitSeq(p.text, "\n\n") {
		if !strings.HasPrefix(paragraph, "#") {
			sentence, _, _ := strings.Cut(oneLine(paragraph), ". ")
			return strings.TrimSuffix(sentence, ".")
		}
	}
	return ""
}

// detailsText has what details returns, each behind a line with the words that call the command.
//
//go:embed details.txt
var detailsText string

// details returns what --help says of each command beside its flags, with an example. The keys
// are the words that call it.
func details() map[string]string {
	all := map[string]string{}
	for part := range strings.SplitSeq("\n"+detailsText, "\n=== ") {
		command, text, _ := strings.Cut(part, "\n")
		all[command] = strings.TrimSpace(text)
	}
	return all
}

// printHelp prints the help of a command as kong does. That of the program is one screen: a line for
// each command, and the rest by their names.
func printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	if command := ctx.Selected(); command != nil {
		command.Detail = details()[command.Path()]
		return kong.DefaultHelpPrinter(options, ctx)
	}
	var b strings.Builder
	title := ""
	line := func(group, name, about string) {
		if group == title {
			group = ""
		} else {
			title = group
		}
		fmt.Fprintf(&b, "%-7s%-12s%s\n", group, name, about)
	}
	fmt.Fprintf(&b, "Usage: a2e [command] [flags]\n\n%s\n", ctx.Model.Help)
	b.WriteString(`Example: printf '%s\n' '{"type":"ping","id":"1"}' | a2e` + "\n\n")
	var rest []string
	for _, command := range ctx.Model.Children {
		if command.Group == nil {
			rest = append(rest, command.Name)
		} else {
			line(command.Group.Title, command.Name, command.Help)
		}
	}
	line("Other", strings.Join(rest, ", "), "")
	for _, flag := range ctx.Model.Flags {
		line("Flags", fmt.Sprintf("%-21s", flag), firstSentence(flag.Help))
	}
	b.WriteString("\nSee a2e COMMAND --help for a command, and a2e help for the pages.\n")
	_, err := io.WriteString(ctx.Stdout, b.String())
	return err
}

type manCmd struct{}

// Run prints the manual page: the commands as the parser has them, and what the page of the
// command line says of all of them.
func (manCmd) Run(cmd *commands, sys *System) error {
	parser, err := newParser(cmd, sys)
	if err != nil {
		return err
	}
	about, err := fs.ReadFile(sys.Pages, "host/cli/README.md")
	if err != nil {
		return err
	}
	var m manual
	m.line(fmt.Sprintf(".TH A2E 1 %q %q %q", madeOn(sys), "a2e "+version(), "User Commands"))
	m.section("NAME")
	m.line(`a2e \- agent\-to\-environment host`)
	m.section("SYNOPSIS")
	m.line(".B a2e")
	m.line(`[\fICOMMAND\fR] [\fIflags\fR]`)
	m.section("DESCRIPTION")
	m.text("Without a command a2e serves an agent: it reads one JSON request per line on stdin and answers on stdout. The other commands are for people and scripts.")
	m.section("OPTIONS")
	m.text("Every command takes these.")
	m.flags(parser.Model.Flags)
	m.section("COMMANDS")
	for _, leaf := range parser.Model.Leaves(true) {
		m.command(leaf)
	}
	for _, title := range []string{"Exit codes", "Arguments", "Output"} {
		m.section(strings.ToUpper(strings.Replace(title, "Exit codes", "Exit status", 1)))
		m.markdown(string(about), title)
	}
	m.section("ENVIRONMENT")
	m.item("A2E_CONFIG", "The config file, where \\-\\-config names none.")
	m.item("NO_COLOR", "No colors, also on a terminal.")
	m.item("COLUMNS", "How wide tables on a terminal are, in place of its width.")
	m.section("SEE ALSO")
	m.text("`a2e help` lists the pages of the documentation, such as `a2e help config`, the reference of the config.")
	_, err = io.WriteString(sys.Out, m.b.String())
	return err
}

// madeOn is the day of the page: that of SOURCE_DATE_EPOCH, so that the same program makes the
// same bytes, or today.
func madeOn(sys *System) string {
	day := time.Now()
	if seconds, err := strconv.ParseInt(sys.getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		day = time.Unix(seconds, 0)
	}
	return day.UTC().Format(time.DateOnly)
}

// manual is a page in the language of man(7).
type manual struct{ b strings.Builder }

func (m *manual) line(text string) { m.b.WriteString(text + "\n") }

func (m *manual) section(title string) { m.line(".SH " + title) }

// item adds a name with what is said of it, which is roff already.
func (m *manual) item(name, about string) {
	m.line(".TP")
	m.line(`.B ` + roff(name))
	m.filled(about)
}

// command adds a command with its flags.
func (m *manual) command(leaf *kong.Node) {
	m.line(".SS " + roff(strings.TrimSuffix(leaf.Summary(), " [flags]")))
	m.text(leaf.Help)
	for _, p := range leaf.Positional {
		m.item(p.Summary(), roff(p.Help))
	}
	m.flags(leaf.Flags)
	for paragraph := range strings.SplitSeq(details()[leaf.Path()], "\n\n") {
		if paragraph == "" {
			continue
		}
		title, lines, shown := strings.Cut(paragraph, ":\n  ")
		m.line(".PP")
		if !shown {
			m.text(paragraph)
			continue
		}
		m.line(title + ":")
		m.line(".PP")
		m.line(".nf")
		for line := range strings.SplitSeq(lines, "\n") {
			m.unfilled("    " + strings.TrimPrefix(line, "  "))
		}
		m.line(".fi")
	}
}

func (m *manual) flags(flags []*kong.Flag) {
	for _, f := range flags {
		if f.Hidden || f.Name == "help" {
			continue
		}
		name := "--" + f.Name
		if f.Short != 0 {
			name = "-" + string(f.Short) + ", " + name
		}
		switch {
		case f.IsBool():
		case f.Enum != "":
			name += " " + strings.Trim(strings.ReplaceAll(f.Enum, ",", "|"), "|")
		default:
			name += " " + f.FormatPlaceHolder()
		}
		m.item(name, roff(f.Help))
	}
}

// markdown adds the paragraphs and tables of a section of a page; examples stay there.
func (m *manual) markdown(page, title string) {
	_, text, _ := strings.Cut(page, "\n## "+title+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	for i, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		switch {
		case strings.HasPrefix(paragraph, "|"):
			for _, row := range strings.Split(paragraph, "\n")[2:] {
				cells := strings.Split(strings.Trim(row, "| "), " | ")
				m.item(cells[0], roff(strings.Join(cells[1:], " ")))
			}
		case strings.Contains(paragraph, "```"):
			return // an example, and what belongs to it
		default:
			if i > 0 {
				m.line(".PP")
			}
			m.text(paragraph)
		}
	}
}

// text adds a paragraph, in which `words` are bold.
func (m *manual) text(paragraph string) {
	var b strings.Builder
	for i, part := range strings.Split(paragraph, "`") {
		if i%2 == 0 {
			b.WriteString(roff(part))
		} else {
			b.WriteString(`\fB` + roff(part) + `\fR`)
		}
	}
	m.filled(b.String())
}

// manWidth is how long lines of the source are at most, in bytes.
const manWidth = 78

// filled adds roff that is filled into lines when it is shown.
func (m *manual) filled(text string) {
	line := ""
	flush := func() {
		if line != "" {
			if line[0] == '.' || line[0] == '\'' {
				line = `\&` + line
			}
			m.line(line)
		}
		line = ""
	}
	for word := range strings.FieldsSeq(text) {
		if len(line)+len(word) >= manWidth {
			flush()
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	flush()
}

// unfilled adds a line that stays one, however long it is.
func (m *manual) unfilled(line string) {
	text := roff(line)
	for len(text) > manWidth-1 {
		at := strings.LastIndexByte(text[:manWidth-1], ' ')
		if at <= len("    ") {
			break // one long word
		}
		m.line(text[:at+1] + `\`)
		text = text[at+1:]
		if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
			text = `\&` + text
		}
	}
	m.line(text)
}

// roff escapes what has a meaning in roff, or another look.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, `"`, `\(dq`).Replace(text)
	var b strings.Builder
	for _, r := range text {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\[u%04X]`, r)
		}
	}
	return b.String()
}
