package skill

import (
	"slices"
	"strings"
)

// schemaBuilder makes one JSON Schema out of the ways in which front matter writes inputs
// and outputs:
//
//	{topic: {type: string, required: true}, depth: integer}    a mapping by name
//	[{name: topic, type: string, required: true}, depth]       a list
//	{type: object, properties: {…}, required: […]}             a JSON Schema
//
// What references stand for is put in their place, so that a schema can neither go round
// in a circle nor grow beyond its bounds when it is used.
type schemaBuilder struct {
	*notes
	key    string
	defs   map[string]*node // $defs and definitions
	open   []string         // references being resolved
	count  int
	failed bool
}

func (b *schemaBuilder) refuse(line int, format string, args ...any) {
	b.failed = true
	b.fail(line, b.key+": "+format, args...)
}

// root makes the schema of an object.
func (b *schemaBuilder) root(v *node) *node {
	switch {
	case v.kind == sequence:
		return b.closed(v, b.listed(v))
	case v.kind == mapping && isSchema(v):
		b.defs = map[string]*node{}
		for _, key := range []string{"$defs", "definitions"} {
			if defs := v.at(key); defs != nil && defs.kind == mapping {
				for _, m := range defs.members {
					b.defs["#/"+key+"/"+m.key] = m.value
				}
			}
		}
		made, _ := b.schema(v)
		if t := made.at("type"); t == nil {
			made.set("type", textNode("object"))
		} else if t.text != "object" {
			b.refuse(t.line, "should be an object: the arguments and results of a skill have names")
		}
		return made
	case v.kind == mapping:
		return b.closed(v, v)
	}
	b.refuse(v.line, "should be a mapping such as {topic: {type: string, required: true}}, a list, or a JSON Schema; here is %s", v.what())
	return v
}

// isSchema tells a JSON Schema from a mapping by name.
func isSchema(v *node) bool {
	if p := v.at("properties"); p != nil && p.kind == mapping && v.at("type") != nil && v.at("type").kind == scalar {
		return true
	}
	if t := v.at("type"); t != nil && t.kind == scalar && t.text == "object" {
		return true
	}
	for _, key := range []string{"$schema", "$ref", "$defs"} {
		if v.at(key) != nil {
			return true
		}
	}
	return false
}

// listed makes a mapping by name of a list.
func (b *schemaBuilder) listed(v *node) *node {
	byName := &node{kind: mapping, line: v.line}
	if len(v.items) > maxSchemaNodes {
		b.refuse(v.line, "has more than %d entries", maxSchemaNodes)
		return byName
	}
	for _, item := range v.items {
		name, value := item, &node{kind: scalar, tag: "!!null", line: item.line}
		if item.kind == mapping {
			if name = item.at("name"); name == nil && len(item.members) == 1 { // - topic: {…}
				m := item.members[0]
				name, value = textNode(m.key), m.value
			} else {
				value = item
			}
		}
		if name == nil || name.kind != scalar || name.text == "" {
			b.refuse(item.line, "each entry needs a name, such as {name: topic, type: string}")
			continue
		}
		if byName.at(name.text) != nil {
			b.refuse(item.line, "the name %s stands twice; keep one", quote(name.text))
			continue
		}
		if value == item {
			value = &node{kind: mapping, line: item.line}
			for _, m := range item.members {
				if m.key != "name" {
					value.members = append(value.members, m)
				}
			}
		}
		byName.members = append(byName.members, member{key: name.text, line: item.line, value: value})
	}
	return byName
}

// closed makes the schema of an object that has the members of a mapping by name. Inputs
// may have no others.
func (b *schemaBuilder) closed(v, byName *node) *node {
	object := typed("object")
	object.line = v.line
	b.properties(object, byName, nil)
	if b.key == "inputs" {
		object.set("additionalProperties", &node{kind: scalar, tag: "!!bool", text: "false", line: v.line})
	}
	return object
}

// properties gives an object its properties, and what of them is required.
func (b *schemaBuilder) properties(object, byName, required *node) {
	made, names := &node{kind: mapping, line: byName.line}, &node{kind: sequence, line: byName.line}
	if required != nil {
		for _, item := range required.items {
			names.items = append(names.items, textNode(item.text))
		}
	}
	if byName.kind != mapping {
		b.refuse(byName.line, "properties should be a mapping by name; here is %s", byName.what())
		return
	}
	for _, m := range byName.members {
		property, needed := b.schema(m.value)
		made.members = append(made.members, member{key: m.key, line: m.line, value: property})
		if needed && !slices.ContainsFunc(names.items, func(n *node) bool { return n.text == m.key }) {
			names.items = append(names.items, textNode(m.key))
		}
	}
	object.set("properties", made)
	if len(names.items) > 0 {
		object.set("required", names)
	}
}

// schema makes the schema of one value, written as a type or as a mapping. required tells
// whether that says so of itself.
func (b *schemaBuilder) schema(v *node) (made *node, required bool) {
	empty := &node{kind: mapping, line: v.line}
	if b.count++; b.count > maxSchemaNodes {
		if !b.failed {
			b.refuse(v.line, "has more than %d parts, with what references stand for", maxSchemaNodes)
		}
		return empty, false
	}
	switch {
	case v.kind == scalar && v.tag == "!!bool": // a schema that fits everything or nothing
		return v, false
	case v.null():
		return empty, false
	case v.kind == scalar:
		empty.set("type", b.typeName(v))
		return empty, false
	case v.kind == sequence:
		b.refuse(v.line, "should be a type, or a mapping such as {type: string}; here is a list")
		return empty, false
	}
	if ref := v.at("$ref"); ref != nil {
		return b.reference(v, ref), false
	}
	return b.members(v, empty)
}

// members makes the schema of a mapping.
func (b *schemaBuilder) members(v, made *node) (_ *node, required bool) {
	for _, m := range v.members {
		if b.failed {
			break
		}
		value := m.value
		switch m.key {
		case "required":
			if value.kind == scalar {
				required = strings.EqualFold(value.text, "true")
			} else if v.at("properties") == nil {
				made.set(m.key, value)
			}
			continue
		case "optional", "$schema", "$id", "id", "$defs", "definitions", "$comment":
			continue
		case "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor":
			b.refuse(m.line, "%s is not understood; write what it stands for", m.key)
			continue
		case "type":
			made.set(m.key, b.typeNames(value))
			continue
		case "properties":
			b.properties(made, value, listNode(v.at("required")))
			continue
		case "items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else":
			if m.key != "items" || value.kind != sequence {
				value, _ = b.schema(value)
				break
			}
			fallthrough
		case "allOf", "anyOf", "oneOf", "prefixItems":
			value = b.choices(m.key, value)
		case "patternProperties", "dependentSchemas", "dependencies":
			value = b.named(value)
		}
		made.set(m.key, value)
	}
	return made, required
}

func listNode(n *node) *node {
	if n != nil && n.kind == sequence {
		return n
	}
	return nil
}

// choices makes the schemas of a list.
func (b *schemaBuilder) choices(key string, v *node) *node {
	if v.kind != sequence || len(v.items) > maxChoices {
		b.refuse(v.line, "%s should be a list of at most %d schemas", key, maxChoices)
		return v
	}
	made := &node{kind: sequence, line: v.line}
	for _, item := range v.items {
		one, _ := b.schema(item)
		made.items = append(made.items, one)
	}
	return made
}

// named makes the schemas of a mapping.
func (b *schemaBuilder) named(v *node) *node {
	made := &node{kind: mapping, line: v.line}
	for _, m := range v.members {
		value := m.value
		if value.kind == mapping {
			value, _ = b.schema(value)
		}
		made.members = append(made.members, member{key: m.key, line: m.line, value: value})
	}
	return made
}

// reference gives what a $ref stands for, with what stands beside it.
func (b *schemaBuilder) reference(v, ref *node) *node {
	target := b.defs[ref.text]
	switch {
	case target == nil:
		b.refuse(ref.line, "$ref: there is no %s in the schema; references go to #/$defs/NAME", quote(ref.text))
		return v
	case slices.Contains(b.open, ref.text):
		b.refuse(ref.line, "$ref: %s refers to itself; write out as many levels as there may be", quote(ref.text))
		return v
	}
	b.open = append(b.open, ref.text)
	made, _ := b.schema(target)
	b.open = b.open[:len(b.open)-1]
	beside := &node{kind: mapping, line: v.line}
	for _, m := range v.members {
		if m.key != "$ref" {
			beside.members = append(beside.members, m)
		}
	}
	if len(beside.members) == 0 || made.kind != mapping {
		return made
	}
	rest, _ := b.members(beside, &node{kind: mapping, line: v.line})
	merged := &node{kind: mapping, line: v.line, members: slices.Clone(made.members)}
	for _, m := range rest.members {
		merged.set(m.key, m.value)
	}
	return merged
}

// typeNames reads the type of a schema: one, or a list.
func (b *schemaBuilder) typeNames(v *node) *node {
	if v.kind == sequence {
		made := &node{kind: sequence, line: v.line}
		for _, item := range v.items {
			made.items = append(made.items, b.typeName(item))
		}
		return made
	}
	return b.typeName(v)
}

// typeName reads the name of a type, also as other languages call it.
func (b *schemaBuilder) typeName(v *node) *node {
	names := map[string]string{
		"string": "string", "integer": "integer", "number": "number", "boolean": "boolean", "array": "array", "object": "object", "null": "null",
		"str": "string", "text": "string", "file": "string", "path": "string", "url": "string", "date": "string", "enum": "string",
		"int": "integer", "float": "number", "double": "number", "bool": "boolean", "list": "array", "dict": "object", "map": "object",
	}
	name, known := names[strings.ToLower(v.text)]
	if v.kind != scalar || !known {
		b.refuse(v.line, "the type %s is not known; it is one of string, integer, number, boolean, array and object", quote(v.text))
		return v
	}
	return &node{kind: scalar, tag: "!!str", text: name, line: v.line}
}
