package skill

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
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
	p := parser{notes: n, offset: line - 1, open: map[*yaml.Node]bool{}}
	doc, err := loadYAML(text)
	if err != nil {
		again, lines := quoteLines(text)
		var second error
		if doc, second = loadYAML(again); len(lines) == 0 || second != nil {
			p.failYAML(err)
			return nil
		}
		for _, l := range lines {
			n.hint(l+p.offset, "the value is not valid YAML and is read as a text; put it in quotes")
		}
	}
	if doc == nil {
		return &node{kind: mapping, line: line}
	}
	root := p.convert(doc.Content[0], 0)
	switch {
	case root == nil || p.stopped:
		return nil
	case root.null():
		return &node{kind: mapping, line: line}
	case root.kind != mapping:
		n.fail(root.line, "the front matter is %s; it should be a mapping such as \"name: my-skill\"", root.what())
		return nil
	}
	return root
}

// loadYAML reads the one document of a text; nil = there is none.
func loadYAML(text []byte) (*yaml.Node, error) {
	loader, err := yaml.NewLoader(bytes.NewReader(text), yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxDepth))))
	if err != nil {
		return nil, err
	}
	var doc, second yaml.Node
	switch err := loader.Load(&doc); {
	case errors.Is(err, io.EOF), err == nil && len(doc.Content) == 0:
		return nil, nil
	case err != nil:
		return nil, err
	}
	if err := loader.Load(&second); !errors.Is(err, io.EOF) {
		if err == nil {
			err = errors.New("there is more than one document")
		}
		return nil, err
	}
	return &doc, nil
}

// quoteLines puts quotes around the values of those top-level lines that are not valid by
// themselves, such as `argument-hint: [file] [line]` and `description: Note: it is slow`:
// public skills are full of them. It gives the lines changed, from 1.
func quoteLines(text []byte) (again []byte, changed []int) {
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
		if _, err := loadYAML([]byte(bare)); err == nil {
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

// parser turns the library's nodes into ours.
type parser struct {
	*notes
	offset     int                 // of the lines
	open       map[*yaml.Node]bool // anchors being resolved
	aliases    int                 // how many aliases deep the walk is
	aliasLine  int                 // of the outermost of them
	aliased    int
	aliasedLen int
	stopped    bool
}

func (p *parser) failYAML(err error) {
	var at *yaml.LoadError
	if !errors.As(err, &at) {
		p.fail(p.offset+1, "not valid YAML: %s", err)
		return
	}
	line := max(at.Mark.Line, 1)
	if at.ContextMark.Line > 0 && strings.Contains(at.Message, "end of stream") {
		line = at.ContextMark.Line // where what has no end begins
	}
	p.fail(line+p.offset, "not valid YAML: %.200s", at.Message)
}

// stop notes what makes the whole text useless.
func (p *parser) stop(y *yaml.Node, format string, args ...any) *node {
	line := y.Line
	if p.aliases > 0 {
		line = p.aliasLine
	}
	if !p.stopped {
		p.stopped = true
		p.fail(line+p.offset, format, args...)
	}
	return nil
}

// convert gives nil when the value cannot be used; the problem is noted.
func (p *parser) convert(y *yaml.Node, depth int) *node {
	if p.aliases > 0 {
		p.aliased++
		p.aliasedLen += len(y.Value)
	}
	switch {
	case p.stopped:
		return nil
	case depth > maxDepth:
		return p.stop(y, "more than %d levels deep", maxDepth)
	case p.aliased > maxAliased || p.aliasedLen > maxAliasedLen:
		return p.stop(y, "aliases stand for more than %d values or %d bytes", maxAliased, maxAliasedLen)
	}
	n := &node{line: y.Line + p.offset}
	switch y.Kind {
	case yaml.AliasNode:
		return p.alias(y, depth)
	case yaml.MappingNode:
		n.kind = mapping
		p.mapping(n, y, depth)
	case yaml.SequenceNode:
		n.kind = sequence
		for _, c := range y.Content {
			if item := p.convert(c, depth+1); item != nil {
				n.items = append(n.items, item)
			}
		}
	default:
		n.text, n.tag = y.Value, y.ShortTag()
		if n.tag == "!!merge" {
			n.tag = "!!str"
		}
	}
	switch y.ShortTag() {
	case "!!map", "!!seq", "!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp", "!!merge":
		return n
	}
	p.fail(n.line, "own tags (!name) have no meaning here")
	return nil
}

func (p *parser) alias(y *yaml.Node, depth int) *node {
	if y.Alias == nil || p.open[y.Alias] {
		return p.stop(y, "an alias stands within its own anchor")
	}
	if p.aliases == 0 {
		p.aliasLine = y.Line
	}
	p.open[y.Alias] = true
	p.aliases++
	n := p.convert(y.Alias, depth+1)
	p.aliases--
	delete(p.open, y.Alias)
	return n
}

func (p *parser) mapping(n *node, y *yaml.Node, depth int) {
	lines := map[string]int{}
	for i := 0; i+1 < len(y.Content); i += 2 {
		k, v := y.Content[i], y.Content[i+1]
		line := k.Line + p.offset
		for k.Kind == yaml.AliasNode && k.Alias != nil {
			k = k.Alias
		}
		switch {
		case k.Kind == yaml.ScalarNode && k.ShortTag() == "!!merge":
			p.fail(line, "<< has no meaning here; write out what it stands for")
			continue
		case k.Kind != yaml.ScalarNode || k.ShortTag() == "!!null":
			p.fail(line, "a key must be a text")
			continue
		}
		value := p.convert(v, depth+1)
		if first, twice := lines[k.Value]; twice {
			p.fail(line, "the key %s stands twice, first in line %d; keep one", quote(k.Value), first)
			continue
		}
		lines[k.Value] = line
		if value != nil {
			n.members = append(n.members, member{key: k.Value, line: line, value: value})
		}
	}
}
