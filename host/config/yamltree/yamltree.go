// Package yamltree reads YAML that people write: one document, each value with its position, aliases
// resolved, and all within limits. A key may occur only once, and custom tags have no meaning.
package yamltree

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

// maxProblems is the maximum number of problems reported for one text.
const maxProblems = 1000

// ErrDocuments is the error for a second document in a text.
var ErrDocuments = errors.New("the file holds more than one document (---): keep one")

// Kind is the kind of a value.
type Kind int

// The kinds.
const (
	Scalar Kind = iota
	List
	Mapping
)

// Position is the position of a value or a key in a file.
type Position struct {
	File         string // Rules.File
	Line, Column int    // from 1; 0 = the file as a whole
}

// Where returns p; it makes types that embed a Position share an interface.
func (p Position) Where() Position { return p }

// String returns FILE:LINE:COLUMN.
func (p Position) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// Node is one value.
type Node struct {
	Position
	Kind    Kind
	Text    string // of a scalar
	Tag     string // of a scalar: !!str, !!int, !!float, !!bool, !!null or !!timestamp
	Plain   bool   // of a scalar: without quotes
	Members []Member
	Items   []*Node
}

// Member is one key of a mapping with its value; Position is that of the key.
type Member struct {
	Position
	Key   string
	Value *Node
}

// Problem says what is wrong in a text, and where.
type Problem struct {
	Position
	Message string
}

// String returns FILE:LINE:COLUMN: MESSAGE.
func (p Problem) String() string {
	if p.Line == 0 {
		return p.File + ": " + p.Message
	}
	return p.Position.String() + ": " + p.Message
}

// Rules say how to read a text. Load uses only Depth; Read needs all fields except Merge and
// LinesBefore.
type Rules struct {
	File         string              // file name for the positions
	Depth        int                 // maximum number of levels
	Aliased      int                 // values that aliases may add
	AliasedBytes int                 // bytes of text that they may add
	Merge        bool                // the key << merges mappings
	LinesBefore  int                 // lines of the file before the text; added to the positions
	Name         func(string) string // how messages show a key
}

// Load parses the one document of a text with the library, or returns nil if there is none. Depth is
// checked, but aliases are not limited yet. The error is ErrDocuments, or an error of the library such
// as a *yaml.LoadError.
func (r *Rules) Load(text []byte) (*yaml.Node, error) {
	loader, err := yaml.NewLoader(bytes.NewReader(text),
		yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(r.Depth))))
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
		return doc.Content[0], nil
	case err != nil:
		return nil, err
	}
	return nil, ErrDocuments
}

// Read converts a document of Load, and returns its problems. Unusable parts are skipped; nil =
// nothing can be used.
func (r *Rules) Read(doc *yaml.Node) (*Node, []Problem) {
	p := parser{rules: r, open: map[*yaml.Node]bool{}}
	root := p.convert(doc, 0)
	if p.stopped {
		root = nil
	}
	return root, p.problems
}

// parser converts the library's nodes to ours.
type parser struct {
	rules    *Rules
	problems []Problem
	open     map[*yaml.Node]bool // anchors that are being resolved
	outer    *yaml.Node          // the outermost alias around the current node
	aliased  int
	bytes    int
	stopped  bool
}

// position returns the position of a node in its file.
func (p *parser) position(at *yaml.Node) Position {
	return Position{p.rules.File, at.Line + p.rules.LinesBefore, at.Column}
}

func (p *parser) fail(at *yaml.Node, format string, args ...any) {
	if len(p.problems) < maxProblems {
		p.problems = append(p.problems, Problem{p.position(at), fmt.Sprintf(format, args...)})
	}
}

// stop reports a problem that makes the whole text unusable, at the position of the alias, not of its
// anchor.
func (p *parser) stop(at *yaml.Node, format string, args ...any) *Node {
	if p.outer != nil {
		at = p.outer
	}
	p.stopped = true
	p.fail(at, format, args...)
	return nil
}

// convert converts a node. It returns nil if the value cannot be used, and reports the problem.
func (p *parser) convert(y *yaml.Node, depth int) *Node {
	if p.outer != nil {
		p.aliased++
		p.bytes += len(y.Value)
	}
	switch r := p.rules; {
	case p.stopped:
		return nil
	case depth > r.Depth:
		return p.stop(y, "more than %d levels deep", r.Depth)
	case p.aliased > r.Aliased || p.bytes > r.AliasedBytes:
		return p.stop(y, "aliases stand for more than %d values or %d bytes", r.Aliased, r.AliasedBytes)
	}
	n := &Node{Position: p.position(y)}
	switch y.Kind {
	case yaml.AliasNode:
		return p.alias(y, depth)
	case yaml.MappingNode:
		n.Kind = Mapping
		p.mapping(n, y, depth)
	case yaml.SequenceNode:
		n.Kind = List
		for _, c := range y.Content {
			if item := p.convert(c, depth+1); item != nil {
				n.Items = append(n.Items, item)
			}
		}
	default:
		return p.scalar(n, y)
	}
	if tag := y.ShortTag(); tag != "!!map" && tag != "!!seq" {
		p.fail(y, "own tags (!name) have no meaning here")
		return nil
	}
	return n
}

func (p *parser) scalar(n *Node, y *yaml.Node) *Node {
	n.Text, n.Tag = y.Value, y.ShortTag()
	n.Plain = y.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle|
		yaml.TaggedStyle) == 0
	switch n.Tag {
	case "!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp":
		return n
	case "!!merge":
		n.Tag = "!!str"
		return n
	}
	p.fail(y, "own tags (!name) have no meaning here")
	return nil
}

func (p *parser) alias(y *yaml.Node, depth int) *Node {
	if y.Alias == nil || p.open[y.Alias] {
		return p.stop(y, "an alias stands within its own anchor")
	}
	if p.outer == nil {
		p.outer = y
		defer func() { p.outer = nil }()
	}
	p.open[y.Alias] = true
	n := p.convert(y.Alias, depth+1)
	delete(p.open, y.Alias)
	return n
}

// mapping adds the keys of y, its own ones before merged ones (<<).
func (p *parser) mapping(n *Node, y *yaml.Node, depth int) {
	lines := map[string]int{}
	var merges []*yaml.Node
	for i := 0; i+1 < len(y.Content); i += 2 {
		at, v := y.Content[i], y.Content[i+1]
		k := at
		for k.Kind == yaml.AliasNode && k.Alias != nil {
			k = k.Alias
		}
		switch {
		case k.Kind != yaml.ScalarNode || k.ShortTag() == "!!null":
			p.fail(at, "a key must be a string")
			continue
		case k.ShortTag() == "!!merge" && !p.rules.Merge:
			p.fail(at, "<< has no meaning here; write out what it stands for")
			continue
		case k.ShortTag() == "!!merge":
			merges = append(merges, v)
			continue
		}
		value := p.convert(v, depth+1)
		if first, twice := lines[k.Value]; twice {
			p.fail(at, "the key %s appears twice, first in line %d: keep one", p.rules.Name(k.Value), first)
			continue
		}
		lines[k.Value] = p.position(at).Line
		if value != nil {
			n.Members = append(n.Members, Member{p.position(at), k.Value, value})
		}
	}
	for _, m := range merges {
		p.merge(n, lines, m, depth)
	}
}

// merge adds the keys of the value of `<<`, one mapping or a list of them; earlier ones take
// precedence.
func (p *parser) merge(n *Node, lines map[string]int, y *yaml.Node, depth int) {
	from := p.convert(y, depth+1)
	if from == nil {
		return
	}
	sources := []*Node{from}
	if from.Kind == List {
		sources = from.Items
	}
	for _, source := range sources {
		if source.Kind != Mapping {
			p.fail(y, "<< takes a mapping, or a list of mappings")
			return
		}
		for _, m := range source.Members {
			if _, there := lines[m.Key]; !there {
				lines[m.Key] = m.Line
				n.Members = append(n.Members, m)
			}
		}
	}
}
