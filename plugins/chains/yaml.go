package chains

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"

	"a2e/host/yamltree"
	"a2e/protocol"
)

// Bounds of a YAML file, whose aliases may stand for far more than it holds.
const (
	maxYAMLDepth = 64
	maxYAMLBytes = 4 << 20 // of the JSON that it becomes
	maxLineDepth = 4       // levels of the values whose lines are kept: no problem is told of a deeper one
	maxLinePath  = 256     // bytes of the path of such a value
)

// FromYAML makes JSON of a YAML document, and tells the line of each value by its JSON
// Pointer. The error names the line.
func FromYAML(text []byte) (raw jsontext.Value, lines map[string]int, err error) {
	return fromYAML(text)
}

// fromYAML makes JSON of a YAML document, and tells the lines of its values. Numbers keep
// their digits.
func fromYAML(text []byte) (raw []byte, lines map[string]int, err error) {
	rules := yamltree.Rules{Depth: maxYAMLDepth}
	doc, err := rules.Load(text)
	switch {
	case errors.Is(err, yamltree.ErrDocuments):
		return nil, nil, err
	case err != nil:
		return nil, nil, yamlError(err)
	case doc == nil:
		return nil, nil, errors.New("the file is empty; a chain has nodes")
	}
	c := converter{lines: map[string]int{}}
	if err := c.value(doc, "", 0); err != nil {
		return nil, nil, err
	}
	return c.dst, c.lines, nil
}

func yamlError(err error) error {
	var at *yaml.LoadError
	if errors.As(err, &at) {
		return fmt.Errorf("line %d: not valid YAML: %s", at.Mark.Line, at.Message)
	}
	return fmt.Errorf("not valid YAML: %w", err)
}

// converter writes YAML nodes as JSON.
type converter struct {
	dst     []byte
	lines   map[string]int
	aliases int // how many the walk is within: what stands there has a line already
}

func (c *converter) value(y *yaml.Node, path string, deep int) error {
	switch {
	case y.Kind == yaml.AliasNode && y.Alias != nil && deep <= maxYAMLDepth: // one within its own anchor goes deeper and deeper
		c.aliases++
		defer func() { c.aliases-- }()
		return c.value(y.Alias, path, deep+1)
	case deep > maxYAMLDepth:
		return fmt.Errorf("line %d: more than %d levels deep", y.Line, maxYAMLDepth)
	case len(c.dst) > maxYAMLBytes:
		return fmt.Errorf("line %d: aliases stand for more than %d bytes", y.Line, maxYAMLBytes)
	}
	c.note(path, y.Line, deep)
	switch y.Kind {
	case yaml.MappingNode:
		return c.mapping(y, path, deep)
	case yaml.SequenceNode:
		c.dst = append(c.dst, '[')
		for i, item := range y.Content {
			if i > 0 {
				c.dst = append(c.dst, ',')
			}
			if err := c.value(item, c.below(path, strconv.Itoa(i), deep), deep+1); err != nil {
				return err
			}
		}
		c.dst = append(c.dst, ']')
		return nil
	}
	return c.scalar(y)
}

// note keeps the line of a value, that of its key where it has one. Paths of all values
// would take a million times what the file has.
func (c *converter) note(path string, line, deep int) {
	if deep > maxLineDepth || len(path) > maxLinePath || c.aliases > 0 {
		return
	}
	if _, known := c.lines[path]; !known {
		c.lines[path] = line
	}
}

// below gives the path of what lies in a value of some depth, as far as its line is kept.
func (c *converter) below(path, key string, deep int) string {
	if deep >= maxLineDepth || len(path)+len(key) >= maxLinePath {
		return path
	}
	return path + "/" + escapedKey(key)
}

func (c *converter) mapping(y *yaml.Node, path string, deep int) error {
	seen := map[string]int{}
	c.dst = append(c.dst, '{')
	for i := 0; i+1 < len(y.Content); i += 2 {
		k := y.Content[i]
		switch first, twice := seen[k.Value]; {
		case k.Kind != yaml.ScalarNode || k.ShortTag() == "!!null" || k.ShortTag() == "!!merge":
			return fmt.Errorf("line %d: a key must be a text; merges (<<) are not understood here", k.Line)
		case twice:
			return fmt.Errorf("line %d: the key %.64q stands twice, first in line %d: keep one", k.Line, k.Value, first)
		}
		seen[k.Value] = k.Line
		if i > 0 {
			c.dst = append(c.dst, ',')
		}
		c.dst = append(protocol.AppendString(c.dst, k.Value), ':')
		at := c.below(path, k.Value, deep)
		c.note(at, k.Line, deep+1)
		if err := c.value(y.Content[i+1], at, deep+1); err != nil {
			return err
		}
	}
	c.dst = append(c.dst, '}')
	return nil
}

func (c *converter) scalar(y *yaml.Node) error {
	switch y.ShortTag() {
	case "!!null":
		c.dst = append(c.dst, "null"...)
	case "!!bool":
		b, err := strconv.ParseBool(strings.ToLower(y.Value))
		if err != nil {
			return fmt.Errorf("line %d: %.64q is neither true nor false", y.Line, y.Value)
		}
		c.dst = strconv.AppendBool(c.dst, b)
	case "!!int", "!!float":
		return c.number(y)
	case "!!str", "!!timestamp":
		c.dst = protocol.AppendString(c.dst, y.Value)
	default:
		return fmt.Errorf("line %d: %s has no meaning here", y.Line, y.ShortTag())
	}
	return nil
}

// number keeps what JSON can say as it stands, and computes the rest, such as 0x10 or .5.
func (c *converter) number(y *yaml.Node) error {
	if v := jsontext.Value(y.Value); v.IsValid() && v.Kind() == '0' {
		c.dst = append(c.dst, y.Value...)
		return nil
	}
	if n, err := strconv.ParseInt(y.Value, 0, 64); err == nil {
		c.dst = strconv.AppendInt(c.dst, n, 10)
		return nil
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(y.Value, "_", ""), 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return fmt.Errorf("line %d: %.64q is a number that JSON does not have", y.Line, y.Value)
	}
	c.dst = strconv.AppendFloat(c.dst, f, 'g', -1, 64)
	return nil
}
