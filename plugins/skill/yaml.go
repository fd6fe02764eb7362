package skill

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"a2e/host/yamltree"
)

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
func parseFront(text []byte, line int, n *notes) *node {
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
		return &node{kind: mapping, line: line}
	}
	read, wrong := rules.Read(doc)
	for _, w := range wrong {
		n.fail(w.Line, "%s", w.Text)
	}
	if read == nil {
		return nil
	}
	root := nodeOf(read)
	switch {
	case root.null():
		return &node{kind: mapping, line: line}
	case root.kind != mapping:
		n.fail(root.line, "the front matter is %s; it should be a mapping such as \"name: my-skill\"", root.what())
		return nil
	}
	return root
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
