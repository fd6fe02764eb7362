package skill

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/yamltree"
	"a2e/protocol"
)

const (
	scalar   = yamltree.Scalar
	sequence = yamltree.List
	mapping  = yamltree.Mapping
)

// node is one YAML value with its line, aliases resolved.
type node struct {
	kind    yamltree.Kind
	line    int
	text    string // of a scalar
	tag     string // of a scalar: !!str, !!int, !!float, !!bool, !!null or !!timestamp
	members []member
	items   []*node
}

// member is one key of a mapping.
type member struct {
	key   string
	line  int
	value *node
}

// nodeOf takes over what was read.
func nodeOf(y *yamltree.Node) *node {
	n := &node{kind: y.Kind, line: y.Line, text: y.Text, tag: y.Tag}
	for _, m := range y.Members {
		n.members = append(n.members, member{m.Key, m.Line, nodeOf(m.Value)})
	}
	for _, item := range y.Items {
		n.items = append(n.items, nodeOf(item))
	}
	return n
}

func (n *node) null() bool { return n.kind == scalar && n.tag == "!!null" }

// at gives the value of a key; nil = there is none.
func (n *node) at(key string) *node {
	if n != nil && n.kind == mapping {
		for _, m := range n.members {
			if m.key == key {
				return m.value
			}
		}
	}
	return nil
}

// what describes a value for a message.
func (n *node) what() string {
	switch {
	case n.kind == mapping:
		return "a mapping"
	case n.kind == sequence:
		return "a list"
	case n.tag == "!!null":
		return "nothing"
	}
	return "a single value"
}

// json gives a value as JSON.
func (n *node) json() (jsontext.Value, error) { return n.appendJSON(nil) }

// appendJSON appends a value as JSON. The error names a number that JSON does not have.
func (n *node) appendJSON(dst []byte) ([]byte, error) {
	var err error
	switch n.kind {
	case mapping:
		dst = append(dst, '{')
		for i, m := range n.members {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(protocol.AppendString(dst, m.key), ':')
			if dst, err = m.value.appendJSON(dst); err != nil {
				return dst, err
			}
		}
		return append(dst, '}'), nil
	case sequence:
		dst = append(dst, '[')
		for i, item := range n.items {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = item.appendJSON(dst); err != nil {
				return dst, err
			}
		}
		return append(dst, ']'), nil
	}
	switch n.tag {
	case "!!null":
		return append(dst, "null"...), nil
	case "!!bool":
		return strconv.AppendBool(dst, strings.EqualFold(n.text, "true")), nil
	case "!!int", "!!float":
		return n.appendNumber(dst)
	}
	return protocol.AppendString(dst, n.text), nil
}

func (n *node) appendNumber(dst []byte) ([]byte, error) {
	if i, err := strconv.ParseInt(n.text, 0, 64); err == nil {
		return strconv.AppendInt(dst, i, 10), nil
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(n.text, "_", ""), 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return dst, fmt.Errorf("the number %.40s in line %d cannot be written in JSON", n.text, n.line)
	}
	return strconv.AppendFloat(dst, f, 'g', -1, 64), nil
}
