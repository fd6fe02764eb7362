package skill

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"a2e/host/yamltree"
)

// document is a SKILL.md taken apart.
type document struct {
	front *yamltree.Node // nil = it cannot be used
	body  string         // what follows the front matter, lines ended by \n
}

// split takes the text of a SKILL.md apart. What is wrong with it goes to n.
func split(text []byte, n *notes) (d document) {
	switch {
	case bytes.HasPrefix(text, []byte("\xff\xfe")), bytes.HasPrefix(text, []byte("\xfe\xff")):
		n.fail(1, "the file is in UTF-16; save it as UTF-8")
		return d
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && size == 1 || r == 0 {
			what := "bytes that are no UTF-8"
			if r == 0 {
				what = "a NUL character"
			}
			n.fail(1+bytes.Count(text[:at], []byte("\n")), "there are %s in the file; a SKILL.md is text in UTF-8", what)
			return d
		}
		at += size
	}
	first, rest, _ := strings.Cut(string(text), "\n")
	if strings.TrimRight(first, " \t") != "---" {
		n.hint(1, "there is no front matter; begin the file with a line ---, name: and description:, and another line ---")
		return document{front: &yamltree.Node{Kind: yamltree.Mapping, Line: 1}, body: strings.TrimSpace(string(text))}
	}
	front, body, ok := cutFront(rest)
	switch {
	case !ok:
		n.fail(1, "the front matter has no end; put a line --- after it")
		return d
	case len(front) > maxFrontBytes:
		n.fail(1, "the front matter has %d bytes; at most %d are taken", len(front), maxFrontBytes)
		return d
	}
	return document{front: parseFront([]byte(front), 2, n), body: strings.TrimSpace(body)}
}

// cutFront cuts a text at the line that ends the front matter.
func cutFront(text string) (front, body string, ok bool) {
	at := 0
	for line := range strings.Lines(text) {
		if bare := strings.TrimRight(line, " \t\n"); bare == "---" || bare == "..." {
			return text[:at], text[at+len(line):], true
		}
		at += len(line)
	}
	return "", "", false
}

// paragraph returns the first paragraph of Markdown that is no heading, on one line.
func paragraph(body string) string {
	for part := range strings.SplitSeq(body, "\n\n") {
		var lines []string
		for line := range strings.Lines(part) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				lines = append(lines, line)
			}
		}
		if len(lines) > 0 {
			return cutText(strings.Join(lines, " "), maxDescription)
		}
	}
	return ""
}

// cutText returns at most the first size bytes of a text, not ending inside a character.
func cutText(text string, size int) string {
	if len(text) <= size {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size]
}

// What front matter may be like.
const (
	maxFrontBytes = 64 << 10
	maxDepth      = 32
	maxAliased    = 1000     // values that aliases may add
	maxAliasedLen = 64 << 10 // bytes of text that they may add
	maxNotes      = 50       // of one file
	maxQuoted     = 500      // lines of front matter that is not valid: more of them are not tried one by one
)

// Note is one thing that is said of a file.
type Note struct {
	Line int // from 1; 0 = the file as a whole
	Text string
}

// notes gathers what there is to say of one SKILL.md.
type notes struct {
	problems []Note // it cannot be used
	hints    []Note // it can, but not all of it has an effect
}

func (n *notes) fail(line int, format string, args ...any) {
	n.problems = noted(n.problems, line, format, args)
}

func (n *notes) hint(line int, format string, args ...any) {
	n.hints = noted(n.hints, line, format, args)
}

// sort puts all that is said in the order of the file.
func (n *notes) sort() {
	byLine := func(a, b Note) int { return a.Line - b.Line }
	slices.SortStableFunc(n.problems, byLine)
	slices.SortStableFunc(n.hints, byLine)
}

func noted(all []Note, line int, format string, args []any) []Note {
	if len(all) >= maxNotes {
		return all
	}
	return append(all, Note{line, fmt.Sprintf(format, args...)})
}

// parseFront reads front matter that begins in some line of its file. nil = it cannot be
// used, and notes say why.
func parseFront(text []byte, line int, n *notes) *yamltree.Node {
	rules := yamltree.Rules{Depth: maxDepth, Aliased: maxAliased, AliasedBytes: maxAliasedLen, LinesBefore: line - 1, Name: quote}
	doc, err := rules.Load(text)
	if err != nil {
		again, lines := quoteLines(text, &rules)
		var second error
		if doc, second = rules.Load(again); len(lines) == 0 || second != nil {
			n.failYAML(err, line-1)
			return nil
		}
		for _, l := range lines {
			n.hint(l+line-1, "the value is not valid YAML and is read as a text; put it in quotes")
		}
	}
	if doc == nil {
		return &yamltree.Node{Kind: yamltree.Mapping, Line: line}
	}
	read, wrong := rules.Read(doc)
	for _, w := range wrong {
		n.fail(w.Line, "%s", w.Text)
	}
	if read == nil {
		return nil
	}
	switch {
	case read.Null():
		return &yamltree.Node{Kind: yamltree.Mapping, Line: line}
	case read.Kind != yamltree.Mapping:
		n.fail(read.Line, "the front matter is %s; it should be a mapping such as \"name: my-skill\"", read.What())
		return nil
	}
	return read
}

// quoteLines puts quotes around the values of those top-level lines that are not valid by
// themselves, such as `argument-hint: [file] [line]` and `description: Note: it is slow`:
// public skills are full of them. It gives the lines changed, from 1.
func quoteLines(text []byte, rules *yamltree.Rules) (again []byte, changed []int) {
	lines := strings.SplitAfter(string(text), "\n")
	if len(lines) > maxQuoted {
		return nil, nil
	}
	for i, line := range lines {
		bare := strings.TrimRight(line, "\r\n")
		key, value, ok := strings.Cut(bare, ":")
		value = strings.TrimSpace(value)
		if !ok || value == "" || strings.ContainsFunc(key, noKey) || strings.IndexByte(`|>'"{&*!`, value[0]) >= 0 {
			continue // what begins like this is meant as YAML
		}
		if value[0] == '[' && strings.ReplaceAll(key, "-", "_") != "argument_hint" {
			continue
		}
		if i+1 < len(lines) && strings.TrimLeft(lines[i+1], " \t") != lines[i+1] {
			continue // it goes on in the next line
		}
		if _, err := rules.Load([]byte(bare)); err == nil {
			continue
		}
		lines[i] = key + ": '" + strings.ReplaceAll(value, "'", "''") + "'" + line[len(bare):]
		changed = append(changed, i+1)
	}
	return []byte(strings.Join(lines, "")), changed
}

func noKey(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
}

// failYAML notes why text that comes after so many lines of its file is no YAML.
func (n *notes) failYAML(err error, before int) {
	var at *yaml.LoadError
	if !errors.As(err, &at) {
		n.fail(before+1, "not valid YAML: %s", err)
		return
	}
	line := max(at.Mark.Line, 1)
	if at.ContextMark.Line > 0 && strings.Contains(at.Message, "end of stream") {
		line = at.ContextMark.Line // where what has no end begins
	}
	n.fail(line+before, "not valid YAML: %.200s", at.Message)
}
