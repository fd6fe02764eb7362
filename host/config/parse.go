package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

const (
	maxFileBytes  = 1 << 20
	maxDepth      = 64
	maxFromAlias  = 10_000 // values that aliases may add
	maxKeyProblem = 1000
)

type kind int

const (
	scalar kind = iota
	list
	mapping
)

// node is one YAML value with its place, aliases and merges resolved.
type node struct {
	kind         kind
	line, column int
	text         string // scalar: as it stands in the file, variables not put in
	tag          string // scalar: !!str, !!int, !!float, !!bool, !!null or !!timestamp
	plain        bool   // scalar: without quotes
	members      []member
	items        []*node
}

// member is one key of a mapping.
type member struct {
	key          string
	line, column int
	value        *node
}

func (n *node) null() bool { return n.kind == scalar && n.tag == "!!null" }

// at follows keys; nil when the path ends early.
func (n *node) at(keys ...string) *node {
	for _, key := range keys {
		var next *node
		if n != nil {
			for _, m := range n.members {
				if m.key == key {
					next = m.value
				}
			}
		}
		n = next
	}
	return n
}

// parse reads one document. A file without any gives an empty mapping. The
// node is nil when nothing of the file can be used.
func parse(file string, data []byte) (*node, []Problem) {
	p := parser{file: file, open: map[*yaml.Node]bool{}}
	if len(data) > maxFileBytes {
		p.fail(0, 0, "the file is larger than %d bytes", maxFileBytes)
		return nil, p.problems
	}
	doc, err := load(data)
	switch {
	case err != nil:
		p.failYAML(err)
		return nil, p.problems
	case doc == nil:
		return &node{kind: mapping, line: 1, column: 1}, nil
	}
	root := p.convert(doc.Content[0], 0)
	if p.stopped {
		return nil, p.problems
	}
	if root != nil && root.null() {
		root = &node{kind: mapping, line: root.line, column: root.column}
	}
	return root, p.problems
}

// errDocuments is for a second document in one file.
var errDocuments = errors.New("the file holds more than one document (---): keep one")

func load(data []byte) (*yaml.Node, error) {
	limits := yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxDepth)))
	loader, err := yaml.NewLoader(bytes.NewReader(data), limits)
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
	switch err := loader.Load(&second); {
	case errors.Is(err, io.EOF):
		return &doc, nil
	case err != nil:
		return nil, err
	}
	return nil, errDocuments
}

// parser turns the library's nodes into ours.
type parser struct {
	file      string
	problems  []Problem
	open      map[*yaml.Node]bool // anchors being resolved
	aliases   int                 // how many aliases deep the walk is
	fromAlias int
	stopped   bool
}

func (p *parser) fail(line, column int, format string, args ...any) {
	if len(p.problems) < maxKeyProblem {
		p.problems = append(p.problems, Problem{File: p.file, Line: line, Column: column, Message: fmt.Sprintf(format, args...)})
	}
}

func (p *parser) failYAML(err error) {
	var at *yaml.LoadError
	if !errors.As(err, &at) {
		p.fail(0, 0, "%s", err)
		return
	}
	message := at.Message
	// Such a message quotes the file, and a token may well begin with a star.
	if strings.Contains(message, "anchor") {
		message = "an alias (*name) without its anchor (&name); put a text that begins with * in quotes"
	}
	p.fail(at.Mark.Line, at.Mark.Column, "not valid YAML: %s", message)
}

// convert gives nil when the value cannot be used at all; the problem is noted.
func (p *parser) convert(y *yaml.Node, depth int) *node {
	if p.aliases > 0 {
		p.fromAlias++
	}
	switch {
	case p.stopped:
		return nil
	case depth > maxDepth:
		p.stopped = true
		p.fail(y.Line, y.Column, "more than %d levels deep", maxDepth)
		return nil
	case p.fromAlias > maxFromAlias:
		p.stopped = true
		p.fail(y.Line, y.Column, "aliases stand for more than %d values", maxFromAlias)
		return nil
	}
	n := &node{line: y.Line, column: y.Column}
	switch y.Kind {
	case yaml.AliasNode:
		return p.alias(y, depth)
	case yaml.MappingNode:
		n.kind = mapping
		p.mapping(n, y, depth)
	case yaml.SequenceNode:
		n.kind = list
		for _, c := range y.Content {
			if item := p.convert(c, depth+1); item != nil {
				n.items = append(n.items, item)
			}
		}
	default:
		return p.scalar(n, y)
	}
	if tag := y.ShortTag(); tag != "!!map" && tag != "!!seq" {
		p.fail(y.Line, y.Column, "own tags (!name) have no meaning here")
		return nil
	}
	return n
}

func (p *parser) scalar(n *node, y *yaml.Node) *node {
	n.text, n.tag = y.Value, y.ShortTag()
	n.plain = y.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle|yaml.TaggedStyle) == 0
	switch n.tag {
	case "!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp":
		return n
	case "!!merge":
		n.tag = "!!str"
		return n
	}
	p.fail(y.Line, y.Column, "own tags (!name) have no meaning here")
	return nil
}

func (p *parser) alias(y *yaml.Node, depth int) *node {
	if y.Alias == nil || p.open[y.Alias] {
		p.stopped = true
		p.fail(y.Line, y.Column, "an alias stands within its own anchor")
		return nil
	}
	p.open[y.Alias] = true
	p.aliases++
	n := p.convert(y.Alias, depth+1)
	p.aliases--
	delete(p.open, y.Alias)
	return n
}

// mapping takes the keys of y, own ones before merged ones (<<).
func (p *parser) mapping(n *node, y *yaml.Node, depth int) {
	lines := map[string]int{}
	var merges []*yaml.Node
	for i := 0; i+1 < len(y.Content); i += 2 {
		k, v := y.Content[i], y.Content[i+1]
		for k.Kind == yaml.AliasNode && k.Alias != nil {
			k = k.Alias
		}
		if k.Kind != yaml.ScalarNode || k.ShortTag() == "!!null" {
			p.fail(y.Content[i].Line, y.Content[i].Column, "a key must be a text")
			continue
		}
		if k.ShortTag() == "!!merge" {
			merges = append(merges, v)
			continue
		}
		value := p.convert(v, depth+1)
		if first, twice := lines[k.Value]; twice {
			p.fail(y.Content[i].Line, y.Content[i].Column, "the key %s stands twice, first in line %d: keep one", named(k.Value), first)
			continue
		}
		lines[k.Value] = y.Content[i].Line
		if value != nil {
			n.members = append(n.members, member{key: k.Value, line: y.Content[i].Line, column: y.Content[i].Column, value: value})
		}
	}
	for _, m := range merges {
		p.merge(n, lines, m, depth)
	}
}

// merge adds what `<<` names, one mapping or a list of them, the earlier first.
func (p *parser) merge(n *node, lines map[string]int, y *yaml.Node, depth int) {
	from := p.convert(y, depth+1)
	if from == nil {
		return
	}
	sources := []*node{from}
	if from.kind == list {
		sources = from.items
	}
	for _, source := range sources {
		if source.kind != mapping {
			p.fail(y.Line, y.Column, "<< takes a mapping, or a list of mappings")
			return
		}
		for _, m := range source.members {
			if _, there := lines[m.key]; !there {
				lines[m.key] = m.line
				n.members = append(n.members, m)
			}
		}
	}
}
