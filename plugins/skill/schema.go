package skill

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/schema"
	"a2e/host/yamltree"
)

// Bounds of a schema. They keep what one check costs, in time and in the texts of its
// errors, in proportion to what is checked.
const (
	maxSchemaNodes = 500       // with what references stand for
	maxSchemaBytes = 128 << 10 // of its JSON, with what references stand for
	maxChoices     = 32        // of one anyOf, oneOf or allOf
)

// objectSchema is the JSON Schema of the inputs or outputs of a skill: an object. It does not
// change.
type objectSchema struct {
	*schema.Schema
	raw      jsontext.Value
	names    []string                  // of the properties, as they stand in the file
	texts    map[string]bool           // those of type string
	defaults map[string]jsontext.Value // by property
	loose    bool                      // the skill says nothing of its inputs
}

// schema reads inputs or outputs. nil = they cannot be used; the problem is noted.
func (r *reader) schema(key string, v *yamltree.Node) *objectSchema {
	b := &schemaBuilder{notes: r.notes, key: key}
	made := b.root(v)
	if b.failed {
		return nil
	}
	s, err := compileSchema(made)
	if err != nil {
		r.fail(r.keys[key].Line, "%s: %.300s", key, err)
		return nil
	}
	return s
}

// looseInputs is the schema of a skill that says nothing of its inputs: anything goes, and
// "args" is a line of words. named are the names of these words.
func looseInputs(named []string, hint string) *objectSchema {
	properties := &yamltree.Node{Kind: yamltree.Mapping}
	for _, name := range named {
		properties.Set(name, typed("string"))
	}
	if properties.At("args") == nil {
		args := typed("string")
		if hint != "" {
			args.Set("description", textNode(hint))
		}
		properties.Set("args", args)
	}
	object := typed("object")
	object.Set("properties", properties)
	s, err := compileSchema(object)
	if err != nil { // a name that no schema may have
		return looseInputs(nil, "")
	}
	s.loose = true
	return s
}

func textNode(text string) *yamltree.Node {
	return &yamltree.Node{Kind: yamltree.Scalar, Tag: "!!str", Text: text}
}

// typed returns the schema of a type.
func typed(name string) *yamltree.Node {
	n := &yamltree.Node{Kind: yamltree.Mapping}
	n.Set("type", textNode(name))
	return n
}

// compileSchema makes a schema that values can be held against.
func compileSchema(n *yamltree.Node) (*objectSchema, error) {
	raw, err := n.JSON()
	switch {
	case err != nil:
		return nil, err
	case len(raw) > maxSchemaBytes:
		return nil, fmt.Errorf("has %d bytes as JSON, with what references stand for; at most %d are taken", len(raw), maxSchemaBytes)
	}
	compiled, err := schema.Compile(raw, maxSchemaNodes+1) // and the object itself
	if err != nil {
		return nil, err
	}
	if err := compiled.CheckDefaults(); err != nil {
		return nil, fmt.Errorf("is no JSON Schema that can be used: %w", err)
	}
	s := &objectSchema{Schema: compiled, raw: raw, texts: map[string]bool{}, defaults: map[string]jsontext.Value{}}
	properties := n.At("properties")
	if properties == nil {
		return s, nil
	}
	for _, m := range properties.Members {
		s.names = append(s.names, m.Key)
		if t := m.Value.At("type"); t != nil && t.Text == "string" {
			s.texts[m.Key] = true
		}
		if d := m.Value.At("default"); d != nil {
			if s.defaults[m.Key], err = d.JSON(); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// hint names the inputs on one line, optional ones in brackets.
func (s *objectSchema) hint() string {
	words := make([]string, len(s.names))
	for i, name := range s.names {
		if words[i] = name; !slices.Contains(s.Required, name) {
			words[i] = "[" + name + "]"
		}
	}
	return strings.Join(words, " ")
}

// definition returns the schema as a message has it.
func (s *objectSchema) definition() map[string]any {
	members := map[string]any{}
	if s == nil {
		return members
	}
	var dec map[string]jsontext.Value
	if json.Unmarshal(s.raw, &dec) == nil { // it was made from valid JSON
		for key, val := range dec {
			members[key] = val
		}
	}
	return members
}
