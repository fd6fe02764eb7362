package cli

import (
	"cmp"
	_ "embed"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
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
	t.header("PAGE", "WHAT IT SAYS")
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
	_, err = io.WriteString(sys.Out, strings.Join(found, "\n"))
	return err
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
