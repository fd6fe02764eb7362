package skill

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/config/yamltree"
	"a2e/host/schema"
)

// schemaBuilder makes a JSON Schema of the inputs or outputs in front matter, which may have
// these forms:
//
//	{topic: {type: string, required: true}, depth: integer}    a mapping by name
//	[{name: topic, type: string, required: true}, depth]       a list
//	{type: object, properties: {…}, required: […]}             a JSON Schema
//
// schema.Compile resolves the references.
type schemaBuilder struct {
	*diagnostics
	key    string
	failed bool
}

func (b *schemaBuilder) refuse(line int, format string, args ...any) {
	b.failed = true
	b.fail(line, b.key+": "+format, args...)
}

// root makes the schema of an object.
func (b *schemaBuilder) root(v *yamltree.Node) *yamltree.Node {
	switch {
	case v.Kind == yamltree.List:
		return b.closed(v, b.listed(v))
	case v.Kind == yamltree.Mapping && isSchema(v):
		made, _ := b.schema(v)
		switch t := made.At("type"); {
		case t != nil && t.Text != "object":
			b.refuse(t.Line, "should be an object: the arguments and results of a skill have names")
		case made.At("$ref") != nil: // the referenced schema has the type, which is checked later
			made.Members = slices.DeleteFunc(made.Members, func(m yamltree.Member) bool { return m.Key == "type" })
		case t == nil:
			made.Set("type", textNode("object"))
		}
		return made
	case v.Kind == yamltree.Mapping:
		return b.closed(v, v)
	}
	b.refuse(v.Line, "should be a mapping such as {topic: {type: string, required: true}}, a list, or a JSON "+
		"Schema, not %s", v.What())
	return v
}

// isSchema reports whether a mapping is a JSON Schema and not a mapping by name.
func isSchema(v *yamltree.Node) bool {
	if p := v.At("properties"); p != nil && p.Kind == yamltree.Mapping && v.At("type") != nil &&
		v.At("type").Kind == yamltree.Scalar {
		return true
	}
	if t := v.At("type"); t != nil && t.Kind == yamltree.Scalar && t.Text == "object" {
		return true
	}
	for _, key := range []string{"$schema", "$ref", "$defs"} {
		if v.At(key) != nil {
			return true
		}
	}
	return false
}

// listed turns a list into a mapping by name.
func (b *schemaBuilder) listed(v *yamltree.Node) *yamltree.Node {
	byName := &yamltree.Node{Kind: yamltree.Mapping, Position: v.Position}
	if len(v.Items) > maxSchemaNodes {
		b.refuse(v.Line, "has more than %d entries", maxSchemaNodes)
		return byName
	}
	for _, item := range v.Items {
		name, value := item, &yamltree.Node{Kind: yamltree.Scalar, Tag: "!!null", Position: item.Position}
		if item.Kind == yamltree.Mapping {
			if name = item.At("name"); name == nil && len(item.Members) == 1 { // - topic: {…}
				m := item.Members[0]
				name, value = textNode(m.Key), m.Value
			} else {
				value = item
			}
		}
		if name == nil || name.Kind != yamltree.Scalar || name.Text == "" {
			b.refuse(item.Line, "each entry needs a name, such as {name: topic, type: string}")
			continue
		}
		if byName.At(name.Text) != nil {
			b.refuse(item.Line, "the name %s appears twice; keep one", quote(name.Text))
			continue
		}
		if value == item {
			value = &yamltree.Node{Kind: yamltree.Mapping, Position: item.Position}
			for _, m := range item.Members {
				if m.Key != "name" {
					value.Members = append(value.Members, m)
				}
			}
		}
		byName.Members = append(byName.Members, yamltree.Member{Position: item.Position, Key: name.Text, Value: value})
	}
	return byName
}

// closed makes the schema of an object with the members of a mapping by name. Inputs
// may have no other members.
func (b *schemaBuilder) closed(v, byName *yamltree.Node) *yamltree.Node {
	object := typed("object")
	object.Line = v.Line
	b.properties(object, byName, nil)
	if b.key == "inputs" {
		closed := &yamltree.Node{Kind: yamltree.Scalar, Tag: "!!bool", Text: "false", Position: v.Position}
		object.Set("additionalProperties", closed)
	}
	return object
}

// properties sets the properties of the schema object, and its required names.
func (b *schemaBuilder) properties(object, byName, required *yamltree.Node) {
	made := &yamltree.Node{Kind: yamltree.Mapping, Position: byName.Position}
	names := &yamltree.Node{Kind: yamltree.List, Position: byName.Position}
	if required != nil {
		for _, item := range required.Items {
			names.Items = append(names.Items, textNode(item.Text))
		}
	}
	if byName.Kind != yamltree.Mapping {
		b.refuse(byName.Line, "properties should be a mapping by name, not %s", byName.What())
		return
	}
	for _, m := range byName.Members {
		property, needed := b.schema(m.Value)
		made.Members = append(made.Members, yamltree.Member{Position: m.Position, Key: m.Key, Value: property})
		if needed && !slices.ContainsFunc(names.Items, func(n *yamltree.Node) bool { return n.Text == m.Key }) {
			names.Items = append(names.Items, textNode(m.Key))
		}
	}
	object.Set("properties", made)
	if len(names.Items) > 0 {
		object.Set("required", names)
	}
}

// schema makes the schema of one value, written as a type or as a mapping. required reports
// whether the mapping has required: true.
func (b *schemaBuilder) schema(v *yamltree.Node) (made *yamltree.Node, required bool) {
	empty := &yamltree.Node{Kind: yamltree.Mapping, Position: v.Position}
	switch {
	case v.Kind == yamltree.Scalar && v.Tag == "!!bool": // a schema that allows everything or nothing
		return v, false
	case v.Null():
		return empty, false
	case v.Kind == yamltree.Scalar:
		empty.Set("type", b.typeName(v))
		return empty, false
	case v.Kind == yamltree.List:
		b.refuse(v.Line, "should be a type, or a mapping such as {type: string}, not a list")
		return empty, false
	}
	return b.members(v, empty)
}

// members makes the schema of a mapping.
func (b *schemaBuilder) members(v, made *yamltree.Node) (_ *yamltree.Node, required bool) {
	for _, m := range v.Members {
		if b.failed {
			break
		}
		value := m.Value
		switch m.Key {
		case "required":
			if value.Kind == yamltree.Scalar {
				required = strings.EqualFold(value.Text, "true")
			} else if v.At("properties") == nil {
				made.Set(m.Key, value)
			}
			continue
		case "optional", "$schema", "$id", "id", "$comment":
			continue
		case "type":
			made.Set(m.Key, b.typeName(value))
			continue
		case "properties":
			b.properties(made, value, v.At("required"))
			continue
		case "items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "additionalItems",
			"contains", "propertyNames", "not", "if", "then", "else":
			if m.Key != "items" || value.Kind != yamltree.List {
				value, _ = b.schema(value)
				break
			}
			fallthrough
		case "allOf", "anyOf", "oneOf", "prefixItems":
			value = b.choices(m.Key, value)
		case "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions":
			value = b.named(value)
		}
		made.Set(m.Key, value)
	}
	return made, required
}

// choices makes the schemas of a list.
func (b *schemaBuilder) choices(key string, v *yamltree.Node) *yamltree.Node {
	if v.Kind != yamltree.List || len(v.Items) > maxChoices {
		b.refuse(v.Line, "%s should be a list of at most %d schemas", key, maxChoices)
		return v
	}
	made := &yamltree.Node{Kind: yamltree.List, Position: v.Position}
	for _, item := range v.Items {
		one, _ := b.schema(item)
		made.Items = append(made.Items, one)
	}
	return made
}

// named makes the schemas of a mapping.
func (b *schemaBuilder) named(v *yamltree.Node) *yamltree.Node {
	made := &yamltree.Node{Kind: yamltree.Mapping, Position: v.Position}
	for _, m := range v.Members {
		value := m.Value
		if value.Kind == yamltree.Mapping {
			value, _ = b.schema(value)
		}
		made.Members = append(made.Members, yamltree.Member{Position: m.Position, Key: m.Key, Value: value})
	}
	return made
}

// typeName reads the name of a type, also under names from other languages, or a list of types.
func (b *schemaBuilder) typeName(v *yamltree.Node) *yamltree.Node {
	if v.Kind == yamltree.List {
		made := &yamltree.Node{Kind: yamltree.List, Position: v.Position}
		for _, item := range v.Items {
			made.Items = append(made.Items, b.typeName(item))
		}
		return made
	}
	names := map[string]string{
		"string": "string", "integer": "integer", "number": "number", "boolean": "boolean", "array": "array",
		"object": "object", "null": "null",
		"str": "string", "text": "string", "file": "string", "path": "string", "url": "string", "date": "string",
		"enum": "string",
		"int":  "integer", "float": "number", "double": "number", "bool": "boolean", "list": "array", "dict": "object",
		"map": "object",
	}
	name, known := names[strings.ToLower(v.Text)]
	if v.Kind != yamltree.Scalar || !known {
		b.refuse(v.Line, "the type %s is not known; it is one of string, integer, number, boolean, array and object",
			quote(v.Text))
		return v
	}
	return &yamltree.Node{Kind: yamltree.Scalar, Tag: "!!str", Text: name, Position: v.Position}
}

// Limits of a schema. They keep the time of a check and the length of its error texts in
// proportion to the checked value.
const (
	maxSchemaNodes = 500       // including referenced schemas
	maxSchemaBytes = 128 << 10 // of its JSON, including referenced schemas
	maxChoices     = 32        // of one anyOf, oneOf or allOf
)

// objectSchema is the JSON Schema of the inputs or outputs of a skill, which are an object. It does not
// change.
type objectSchema struct {
	*schema.Schema
	raw   jsontext.Value
	names []string // of all in Properties, in the order of the file
	loose bool     // the skill declares no inputs
}

// schema reads inputs or outputs. If they cannot be used, it adds a problem and returns nil.
func (r *reader) schema(key string, v *yamltree.Node) *objectSchema {
	b := &schemaBuilder{diagnostics: r.diagnostics, key: key}
	made := b.root(v)
	if b.failed {
		return nil
	}
	s, err := compileSchema(made)
	if err == nil && s.Type != "object" {
		err = errors.New("should be an object: the arguments and results of a skill have names")
	}
	if err != nil {
		r.fail(r.keys[key].Line, "%s: %.300s", key, err)
		return nil
	}
	return s
}

// looseInputs returns the schema of a skill that declares no inputs: it allows any arguments, and
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
	if err != nil { // a name that a schema may not have
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

// compileSchema makes a schema that values can be checked against.
func compileSchema(n *yamltree.Node) (*objectSchema, error) {
	raw, err := n.JSON()
	if err != nil {
		return nil, err
	}
	compiled, err := schema.Compile(raw, maxSchemaNodes+1) // and the object itself
	if err == nil && bytes.Contains(raw, []byte(`"$ref"`)) {
		raw, err = compiled.MarshalJSON()
	}
	switch {
	case err != nil:
		return nil, err
	case len(raw) > maxSchemaBytes:
		return nil, fmt.Errorf("has %d bytes as JSON, with what references stand for; at most %d are taken", len(raw),
			maxSchemaBytes)
	}
	if err := compiled.CheckDefaults(); err != nil {
		return nil, fmt.Errorf("is not a JSON Schema that can be used: %w", err)
	}
	s := &objectSchema{Schema: compiled, raw: raw}
	if properties := n.At("properties"); properties != nil {
		for _, m := range properties.Members {
			s.names = append(s.names, m.Key)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(compiled.Properties)) {
		if !slices.Contains(s.names, name) { // it comes from a reference
			s.names = append(s.names, name)
		}
	}
	return s, nil
}

// hint returns the names of the inputs on one line, optional ones in brackets.
func (s *objectSchema) hint() string {
	words := make([]string, len(s.names))
	for i, name := range s.names {
		if words[i] = name; !slices.Contains(s.Required, name) {
			words[i] = "[" + name + "]"
		}
	}
	return strings.Join(words, " ")
}

// definition returns the schema for a message; it is empty for a nil schema.
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
