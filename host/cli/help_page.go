package cli

import (
	"cmp"
	"io"
	"os/exec"
	"strings"

	"github.com/mattn/go-isatty"
)

var (
	pageComment = lazily(`(?m)^<!--.*?-->\n?`)
	pageLink    = lazily(`\[([^\]]+)\]\([^)]+\)`)
	pageCode    = lazily("`([^`]+)`")
	pageStrong  = lazily(`\*\*([^*]+)\*\*`)
)

// showPage prints a page of the documentation: as it is but without comments for a program, with
// styles and in a pager for a person at a terminal.
func (s *System) showPage(text string) error {
	text = pageComment().ReplaceAllString(text, "")
	if !isatty.IsTerminal(s.Out.Fd()) {
		_, err := io.WriteString(s.Out, text)
		return err
	}
	text = renderPage(text, s.colors(s.Out.File))
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

// notFound is the exit code of a shell whose command there is not.
const notFound = 127

// renderPage renders Markdown for a terminal. Headings and code get styles, links become their texts,
// and examples are indented. Tables stay as they are.
func renderPage(text string, colors bool) string {
	style := func(code, text string) string {
		if !colors {
			return text
		}
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	var out strings.Builder
	example := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			example = !example
			continue
		case example:
			line = style("2", "    "+line)
		case strings.HasPrefix(line, "#"):
			line = style("1", strings.TrimLeft(line, "# "))
		default:
			line = pageLink().ReplaceAllString(line, "$1")
			line = pageStrong().ReplaceAllStringFunc(line, func(word string) string {
				return style("1", strings.Trim(word, "*"))
			})
			line = pageCode().ReplaceAllStringFunc(line, func(word string) string {
				return style("36", strings.Trim(word, "`"))
			})
		}
		out.WriteString(line + "\n")
	}
	return out.String()
}
