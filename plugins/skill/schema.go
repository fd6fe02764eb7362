package skill

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"

	"a2e/protocol"
)

// Bounds of a schema. They keep what one check costs, in time and in the texts of its
// errors, in proportion to what is checked.
const (
	maxSchemaNodes = 500       // with what references stand for
	maxSchemaBytes = 128 << 10 // of its JSON, with what references stand for
	maxChoices     = 32        // of one anyOf, oneOf or allOf
	maxMisfits     = 20        // that one refusal lists
	maxMatching    = 100e6     // steps of all patterns times bytes of what is checked: seconds
)

// schema is the JSON Schema of the inputs or outputs of a skill: an object. It does not
// change.
type schema struct {
	raw      jsontext.Value
	resolved *jsonschema.Resolved
	names    []string                  // of the properties, as they stand in the file
	required []string                  // of these
	texts    map[string]bool           // those of type string
	defaults map[string]jsontext.Value // by property
	loose    bool                      // the skill says nothing of its inputs
	steps    int                       // of its patterns
}

// schema reads inputs or outputs. nil = they cannot be used; the problem is noted.
func (r *reader) schema(key string, v *node) *schema {
	b := &schemaBuilder{notes: r.notes, key: key}
	made := b.root(v)
	if b.failed {
		return nil
	}
	s, err := compileSchema(made)
	if err != nil {
		r.fail(r.keys[key].line, "%s: %.300s", key, err)
		return nil
	}
	s.steps = b.steps
	return s
}

// looseInputs is the schema of a skill that says nothing of its inputs: anything goes, and
// "args" is a line of words. named are the names of these words.
func looseInputs(named []string, hint string) *schema {
	properties := &node{kind: mapping}
	for _, name := range named {
		properties.set(name, typed("string"))
	}
	if properties.at("args") == nil {
		args := typed("string")
		if hint != "" {
			args.set("description", textNode(hint))
		}
		properties.set("args", args)
	}
	object := typed("object")
	object.set("properties", properties)
	s, err := compileSchema(object)
	if err != nil { // a name that no schema may have
		return looseInputs(nil, "")
	}
	s.loose = true
	return s
}

func textNode(text string) *node { return &node{kind: scalar, tag: "!!str", text: text} }

// typed gives the schema of a type.
func typed(name string) *node {
	n := &node{kind: mapping}
	n.set("type", textNode(name))
	return n
}

// set gives a mapping a key, in the place of one it has.
func (n *node) set(key string, value *node) {
	for i := range n.members {
		if n.members[i].key == key {
			n.members[i].value = value
			return
		}
	}
	n.members = append(n.members, member{key: key, line: value.line, value: value})
}

// compileSchema makes a schema that values can be held against.
func compileSchema(n *node) (*schema, error) {
	raw, err := n.json()
	switch {
	case err != nil:
		return nil, err
	case len(raw) > maxSchemaBytes:
		return nil, fmt.Errorf("has %d bytes as JSON, with what references stand for; at most %d are taken", len(raw), maxSchemaBytes)
	}
	parsed := new(jsonschema.Schema)
	if err := parsed.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("is no JSON Schema: %w", err)
	}
	s := &schema{raw: raw, texts: map[string]bool{}, defaults: map[string]jsontext.Value{}, required: parsed.Required}
	if s.resolved, err = parsed.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true}); err != nil {
		return nil, fmt.Errorf("is no JSON Schema that can be used: %w", err)
	}
	properties := n.at("properties")
	if properties == nil {
		return s, nil
	}
	for _, m := range properties.members {
		s.names = append(s.names, m.key)
		if t := m.value.at("type"); t != nil && t.text == "string" {
			s.texts[m.key] = true
		}
		if d := m.value.at("default"); d != nil {
			if s.defaults[m.key], err = d.json(); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// hint names the inputs on one line, optional ones in brackets.
func (s *schema) hint() string {
	words := make([]string, len(s.names))
	for i, name := range s.names {
		if words[i] = name; !slices.Contains(s.required, name) {
			words[i] = "[" + name + "]"
		}
	}
	return strings.Join(words, " ")
}

// definition gives the schema as a message has it.
func (s *schema) definition() map[string]any {
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

// misfits tells what in a value does not fit; path names the value. An empty list is none.
func (s *schema) misfits(raw jsontext.Value, path string) []protocol.FieldError {
	if s.steps*len(raw) > maxMatching { // nothing can stop a match under way
		return []protocol.FieldError{{Path: path, Message: fmt.Sprintf("has %d bytes, too many to be held against the patterns of the schema; at most %d are", len(raw), int(maxMatching)/s.steps)}}
	}
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		return []protocol.FieldError{{Path: path, Message: err.Error()}}
	}
	err := s.resolved.Validate(value)
	if err == nil {
		return nil
	}
	found := misfits(s.resolved.Schema(), value, path)
	if len(found) == 0 {
		found = []protocol.FieldError{{Path: path, Message: innermost(err)}}
	}
	return found[:min(len(found), maxMisfits)]
}

// misfits finds what in a value does not fit a schema, as deep inside as can be told.
func misfits(s *jsonschema.Schema, value any, path string) (all []protocol.FieldError) {
	err := holds(s, value)
	if err == nil {
		return nil
	}
	switch value := value.(type) {
	case map[string]any:
		all = memberMisfits(s, value, path)
	case []any:
		all = itemMisfits(s, value, path)
	}
	for _, part := range s.AllOf {
		all = append(all, misfits(part, value, path)...)
	}
	if len(all) == 0 {
		all = []protocol.FieldError{{Path: path, Message: innermost(err)}}
	}
	return all
}

// itemMisfits looks at the items of a list. Their schema is made ready once: a list may have
// very many that fit.
func itemMisfits(s *jsonschema.Schema, items []any, path string) (all []protocol.FieldError) {
	if s.Items == nil {
		return nil
	}
	ready, err := s.Items.CloneSchemas().Resolve(nil)
	if err != nil {
		return nil
	}
	for i, item := range items {
		if len(all) >= maxMisfits {
			break
		}
		if ready.Validate(item) != nil {
			all = append(all, misfits(s.Items, item, path+"/"+strconv.Itoa(i))...)
		}
	}
	return all
}

// memberMisfits looks at the members of an object.
func memberMisfits(s *jsonschema.Schema, members map[string]any, path string) (all []protocol.FieldError) {
	for _, name := range s.Required {
		if _, there := members[name]; !there {
			all = append(all, protocol.FieldError{Path: below(path, name), Message: "is missing"})
		}
	}
	closed := s.AdditionalProperties != nil && holds(s.AdditionalProperties, "x") != nil && holds(s.AdditionalProperties, 1.0) != nil
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if len(all) >= maxMisfits {
			break
		}
		part, known := s.Properties[name]
		switch {
		case known:
			all = append(all, misfits(part, members[name], below(path, name))...)
		case closed:
			says := meant(name, slices.Collect(maps.Keys(s.Properties)))
			if says == "" {
				says = "there are: " + strings.Join(slices.Sorted(maps.Keys(s.Properties)), ", ")
			}
			all = append(all, protocol.FieldError{Path: below(path, name), Message: "is not known; " + says})
		}
	}
	return all
}

// holds tells why a value does not fit a part of a schema.
func holds(s *jsonschema.Schema, value any) error {
	resolved, err := s.CloneSchemas().Resolve(nil)
	if err != nil {
		return nil
	}
	return resolved.Validate(value)
}

// below gives the JSON Pointer of a member.
func below(path, name string) string {
	return path + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(cutText(name, maxNameBytes))
}

// innermost gives the last of the causes that an error of the library wraps.
func innermost(err error) string {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return strings.ToValidUTF8(fmt.Sprintf("%.300s", err), "")
}
