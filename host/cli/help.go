package cli

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/mattn/go-isatty"
)

type helpCmd struct {
	Topic string `complete:"topic" arg:"" optional:"" help:"The page. Default: a list of all."`
}

// page is one page of the documentation.
type page struct {
	topic string
	text  string
}

// Run prints the page, or without a topic one line for each page.
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

// pageComment matches a comment line that only a test reads.
var pageComment = lazily(`(?m)^<!--.*?-->\n?`)

// showPage prints a page of the documentation. A program gets the text without comments, a person
// at a terminal gets it with styles and in a pager.
func (s *System) showPage(text string) error {
	text = pageComment().ReplaceAllString(text, "")
	if !isatty.IsTerminal(s.Out.Fd()) {
		_, err := io.WriteString(s.Out, text)
		return err
	}
	if text = renderPage(text); !s.colors(s.Out.File) {
		text = codes().ReplaceAllString(text, "")
	}
	pager := exec.Command("sh", "-c", cmp.Or(s.getenv("PAGER"), "less -R"))
	pager.Stdin, pager.Stdout, pager.Stderr = strings.NewReader(text), s.Out.File, s.Err
	pager.Env = s.Environ
	if s.getenv("LESS") == "" {
		pager.Env = append(pager.Env[:len(pager.Env):len(pager.Env)], "LESS=FRX") // as git sets it
	}
	if s.getenv("TERM") == "dumb" || pager.Run() != nil && pager.ProcessState.ExitCode() == notFound {
		_, err := io.WriteString(s.Out, text)
		return err
	}
	return nil
}

// notFound is the exit code of a shell that does not find the command.
const notFound = 127

// renderPage renders Markdown for a terminal. Table rows become list items, because their texts are
// too long for columns.
func renderPage(text string) string {
	var page markdown
	var b strings.Builder
	for line := range strings.Lines(text) {
		if page.fence == "" && strings.HasPrefix(line, "|") {
			row := strings.ReplaceAll(strings.Trim(line, "| \n"), " | ", " │ ")
			if line = "- " + strings.ReplaceAll(row, `\|`, "|") + "\n"; strings.Trim(row, "│|-: ") == "" {
				continue // the line below the head
			}
		}
		b.WriteString(page.write(line))
	}
	return b.String() + page.flush()
}

// helpPages reads the pages and sorts them by topic.
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

// topicOf returns the topic of a page: the name of its folder, with as many parent folders as it
// takes to be unique.
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

// about returns the first sentence below the title of the page.
func (p page) about() string {
	for paragraph := range strings.SplitSeq(p.text, "\n\n") {
		if !strings.HasPrefix(paragraph, "#") {
			sentence, _, _ := strings.Cut(oneLine(paragraph), ". ")
			return strings.TrimSuffix(sentence, ".")
		}
	}
	return ""
}

// detailsText is the source of details: each text follows a line with the words of its command.
//
//go:embed details.txt
var detailsText string

// details returns what --help prints about each command in addition to its flags, with an example.
// The keys are the words of the command.
func details() map[string]string {
	all := map[string]string{}
	for part := range strings.SplitSeq("\n"+detailsText, "\n=== ") {
		command, text, _ := strings.Cut(part, "\n")
		all[command] = strings.TrimSpace(text)
	}
	return all
}

// printHelp prints the help of a command as kong does. The help of the program fits one screen: a
// line for each command with a group, and the names of the others.
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
