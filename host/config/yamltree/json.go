package yamltree

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"

	"a2e/protocol"
)

// Null reports whether a value is null, or missing in the text.
func (n *Node) Null() bool { return n.Kind == Scalar && n.Tag == "!!null" }

// At returns the value of a key, or nil if there is none or n is not a mapping.
func (n *Node) At(key string) *Node {
	if n != nil && n.Kind == Mapping {
		for _, m := range n.Members {
			if m.Key == key {
				return m.Value
			}
		}
	}
	return nil
}

// Set sets a key of a mapping, and replaces an existing one.
func (n *Node) Set(key string, value *Node) {
	for i := range n.Members {
		if n.Members[i].Key == key {
			n.Members[i].Value = value
			return
		}
	}
	n.Members = append(n.Members, Member{value.Position, key, value})
}

// What returns the kind of a value for a message, for example "a mapping".
func (n *Node) What() string {
	switch {
	case n.Kind == Mapping:
		return "a mapping"
	case n.Kind == List:
		return "a list"
	case n.Null():
		return "nothing"
	}
	return "a single value"
}

// JSON returns a value as JSON. Numbers keep their digits if JSON allows them. For a value that JSON
// does not have, the error contains its line.
func (n *Node) JSON() (jsontext.Value, error) { return n.appendJSON(nil) }

func (n *Node) appendJSON(dst []byte) (_ []byte, err error) {
	switch n.Kind {
	case Mapping:
		dst = append(dst, '{')
		for i, m := range n.Members {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(protocol.AppendString(dst, m.Key), ':')
			if dst, err = m.Value.appendJSON(dst); err != nil {
				return dst, err
			}
		}
		return append(dst, '}'), nil
	case List:
		dst = append(dst, '[')
		for i, item := range n.Items {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = item.appendJSON(dst); err != nil {
				return dst, err
			}
		}
		return append(dst, ']'), nil
	}
	return n.appendScalar(dst)
}

func (n *Node) appendScalar(dst []byte) ([]byte, error) {
	switch n.Tag {
	case "!!null":
		return append(dst, "null"...), nil
	case "!!bool":
		b, err := strconv.ParseBool(strings.ToLower(n.Text))
		if err != nil {
			return dst, fmt.Errorf("line %d: %.64q is neither true nor false", n.Line, n.Text)
		}
		return strconv.AppendBool(dst, b), nil
	case "!!int", "!!float":
		if v := jsontext.Value(n.Text); v.IsValid() && v.Kind() == '0' {
			return append(dst, n.Text...), nil
		}
		if i, err := strconv.ParseInt(n.Text, 0, 64); err == nil {
			return strconv.AppendInt(dst, i, 10), nil
		}
		f, err := strconv.ParseFloat(strings.ReplaceAll(n.Text, "_", ""), 64)
		if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			return dst, fmt.Errorf("line %d: the number %.40s cannot be written in JSON", n.Line, n.Text)
		}
		return strconv.AppendFloat(dst, f, 'g', -1, 64), nil
	}
	return protocol.AppendString(dst, n.Text), nil
}

// Limits of ToJSON.
const (
	maxDepth     = 64
	maxAliased   = 100_000 // values that aliases may add
	maxText      = 4 << 20 // bytes of text that aliases may add
	maxLineDepth = 4       // lines are kept to this depth; no problem is reported for deeper values
	maxLinePath  = 256     // bytes of the path of a value whose line is kept
)

// Line returns the line of the value at a JSON Pointer, or of its nearest parent in lines, which
// ToJSON returns. It returns 0 if there is none.
func Line(lines map[string]int, pointer string) int {
	for {
		if n, ok := lines[pointer]; ok {
			return n
		}
		i := strings.LastIndexByte(pointer, '/')
		if i < 0 {
			return 0
		}
		pointer = pointer[:i]
	}
}

// ToJSON converts a text with one YAML document to JSON. lines are the lines of the values near the
// top, by their JSON Pointers. The error contains the line.
func ToJSON(text []byte) (raw jsontext.Value, lines map[string]int, err error) {
	rules := Rules{
		Depth: maxDepth, Aliased: maxAliased, AliasedBytes: maxText,
		Name: func(key string) string { return fmt.Sprintf("%.64q", key) },
	}
	doc, err := rules.Load(text)
	var at *yaml.LoadError
	switch {
	case errors.Is(err, ErrDocuments):
		return nil, nil, err
	case errors.As(err, &at):
		return nil, nil, fmt.Errorf("line %d: not valid YAML: %s", at.Mark.Line, at.Message)
	case err != nil:
		return nil, nil, fmt.Errorf("not valid YAML: %w", err)
	case doc == nil:
		return nil, nil, errors.New("the file is empty")
	}
	root, wrong := rules.Read(doc)
	if len(wrong) > 0 {
		return nil, nil, fmt.Errorf("line %d: %s", wrong[0].Line, wrong[0].Message)
	}
	lines = map[string]int{}
	root.note(lines, "", root.Line, 0)
	raw, err = root.JSON()
	return raw, lines, err
}

// note records the line of a value, or of its key if it has one. Paths of all values could take a
// million times the size of the file.
func (n *Node) note(lines map[string]int, path string, line, depth int) {
	if depth > maxLineDepth || len(path) > maxLinePath {
		return
	}
	lines[path] = line
	for _, m := range n.Members {
		m.Value.note(lines, string(jsontext.Pointer(path).AppendToken(m.Key)), m.Line, depth+1)
	}
	for i, item := range n.Items {
		item.note(lines, path+"/"+strconv.Itoa(i), item.Line, depth+1)
	}
}
