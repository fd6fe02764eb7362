package schema

import (
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// applicator normalises a keyword whose value contains schemas.
func (s *subschema) applicator(key string, val jsontext.Value, f form) {
	switch f {
	case formSchema:
		s.single(key, val)
	case formItems:
		if val.Kind() == '[' {
			s.listed(key, val)
			return
		}
		s.single(key, val)
	case formSchemas:
		name := key
		if key == "prefixItems" && s.tuple && !s.dialect.tuples() {
			name, s.changed = "items", true
		}
		s.several(key, name, val)
	case formSchemaMap, formPatternMap, formDependencies, formNameLists:
		s.named(key, val, f)
	}
}

// single normalises a keyword whose value is one schema.
func (s *subschema) single(key string, val jsontext.Value) {
	switch kind := val.Kind(); {
	case s.reopen && (key == "unevaluatedItems" || key == "unevaluatedProperties"):
		s.skip(key, lost)
	case kind != '{' && kind != 't' && kind != 'f':
		s.skip(key, vague)
	default:
		name := s.rest(key)
		s.changed = s.changed || name != key
		s.keep(name, s.child(key, val), val)
	}
}

// rest returns the keyword for the items after a tuple: items in 2020-12, additionalItems in older
// dialects.
func (s *subschema) rest(key string) string {
	items, _ := s.obj.Get("items")
	tuple, both := s.obj.Get("prefixItems")
	switch {
	case key == "additionalItems" && string(items) == "[]":
		return "items" // of all items
	case key == "additionalItems" && items.Kind() == '[' && !s.older() && !both:
		return "items"
	case key == "items" && tuple.Kind() == '[' && s.older() && !s.dialect.tuples():
		return "additionalItems"
	case key == "items" && tuple.Kind() == '[' && s.output && string(items) != "true":
		s.tuple = true
	}
	return key
}

// older reports whether the result is written in draft-07. Output schemas with tuples are: the
// validator of the TypeScript SDK does not know the tuples of 2020-12, and would check every item
// against the schema for the items after the tuple.
func (s *subschema) older() bool { return s.dialect.tuples() || s.tuple }

// listed normalises items: [...], which 2020-12 calls prefixItems.
func (s *subschema) listed(key string, val jsontext.Value) {
	_, both := s.obj.Get("prefixItems")
	switch {
	case string(val) == "[]":
		s.changed = true
	case s.older() && !(both && !s.dialect.tuples()):
		s.several(key, key, val)
	case both:
		s.skip(key, vague)
	default:
		s.tuple = s.output
		s.changed = true
		s.several(key, "prefixItems", val)
	}
}

// several normalises a keyword whose value is a list of schemas, and writes it under another name.
func (s *subschema) several(key, name string, val jsontext.Value) {
	all, ok := list(val)
	if !ok {
		s.skip(key, vague)
		return
	}
	positions := name == "items" || name == "prefixItems"
	changed := false
	var out []jsontext.Value
	for i, one := range all {
		if one.Kind() == 'n' && !positions {
			changed = true
			continue
		}
		made := s.child(key, one, strconv.Itoa(i))
		changed = changed || string(made) != string(one)
		out = append(out, made)
	}
	switch {
	case len(out) == 0:
		s.skip(key, vague)
	case changed:
		s.keep(name, appendList(nil, out, appendValue), val)
	default:
		s.keep(name, val, val)
	}
}

func appendValue(dst []byte, v jsontext.Value) []byte { return append(dst, v...) }

// named normalises a keyword whose value is an object of schemas or of lists of names.
func (s *subschema) named(key string, val jsontext.Value, f form) {
	obj, err := protocol.ParseObject(val)
	if val.Kind() != '{' || err != nil {
		s.skip(key, vague)
		return
	}
	changed := false
	var all members
	for name, was := range obj.All() {
		one := member{string(name), jsontext.Value(was)}
		ok := true
		if f == formPatternMap {
			if one.key, ok = s.expression(one.key); ok && one.key != string(name) {
				_, ok = obj.Get(one.key) // if there are both keys, one would be lost
				ok = !ok && all.find(one.key) < 0
			}
			if !ok { // its names would match other members
				s.opened = true
				s.drop(s.at, key)
				s.loss = lost
			}
		}
		if ok {
			one.val, ok = s.entry(key, string(name), one.val, f)
		}
		if ok {
			all = append(all, one)
		}
		changed = changed || !ok || one.key != string(name) || string(one.val) != string(was)
	}
	if !changed {
		s.keep(key, val, val)
		return
	}
	s.keep(key, all.encode(), val)
}

// entry normalises one entry of the value of such a keyword.
func (s *subschema) entry(key, name string, val jsontext.Value, f form) (out jsontext.Value, ok bool) {
	if f == formNameLists || f == formDependencies && val.Kind() == '[' {
		if out, ok = s.names(val); !ok {
			s.drop(s.at, key)
			s.loss = max(s.loss, vague)
		}
		return out, ok
	}
	out = s.child(key, val, name)
	if key == "properties" { // clients expect objects there
		switch out.Kind() {
		case 't':
			out = jsontext.Value(`{}`)
		case 'f':
			out = jsontext.Value(`{"not":{}}`)
		}
	}
	return out, true
}

// child normalises a schema in the value of a keyword.
func (s *subschema) child(key string, v jsontext.Value, place ...string) jsontext.Value {
	at := s.at + "/" + escaped(key)
	for _, token := range place {
		at += "/" + escaped(token)
	}
	out, l := s.schema(at, v, s.level+1)
	if s.inner == nil {
		s.inner = map[string]loss{}
	}
	s.inner[key] = max(s.inner[key], l)
	s.loss = max(s.loss, l)
	switch key {
	case "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies":
		s.steps[s.at] = append(s.steps[s.at], at)
	}
	return out
}

// remove removes members that were written.
func (s *subschema) remove(keys ...string) {
	s.members = slices.DeleteFunc(s.members, func(m member) bool {
		gone := slices.Contains(keys, m.key)
		s.changed = s.changed || gone
		return gone
	})
}

// settle adjusts keywords that depend on each other. If a schema inside not, if or oneOf now allows
// more, the keyword itself would allow less.
func (s *subschema) settle() {
	if s.inner["not"] > exact {
		s.remove("not")
	}
	if s.inner["if"] > exact {
		s.remove("if", "then", "else")
		s.reopen = true
	}
	if at := s.members.find("oneOf"); at >= 0 && s.inner["oneOf"] > exact {
		s.changed = true
		if s.members.find("anyOf") >= 0 {
			s.remove("oneOf")
			s.reopen = true
		} else {
			s.members[at].key = "anyOf"
		}
	}
	if s.inner["contains"] > exact {
		s.remove("maxContains")
	}
	s.settleContains()
	if at := s.members.find("additionalProperties"); at >= 0 && s.opened {
		s.remove("additionalProperties")
	}
	s.reopen = s.reopen || s.opened
	if s.unbound { // the keywords next to the reference had no meaning, but would have one now
		s.members = slices.DeleteFunc(s.members, func(m member) bool {
			return !slices.Contains(notes, m.key) && m.key != "$defs" && m.key != "definitions" && m.key != "$schema"
		})
	}
	if s.never {
		s.remove("not")
		s.members = append(s.members, member{"not", jsontext.Value(`{}`)})
	}
	s.settleNull()
	if s.at == "" {
		s.settleRoot()
	}
}

// settleContains handles minContains: 0, which the validator of the TypeScript SDK does not know.
func (s *subschema) settleContains() {
	at := s.members.find("minContains")
	if !s.output || at < 0 || strings.Trim(string(s.members[at].val), "0.") != "" || s.members.find("contains") < 0 {
		return
	}
	if s.members.find("maxContains") >= 0 {
		s.drop(s.at, "contains")
		s.loss = lost
	}
	s.remove("contains", "minContains", "maxContains")
	s.reopen = true
}

// settleNull removes nullable where Ajv refuses it.
func (s *subschema) settleNull() {
	null, typ := s.members.find("nullable"), s.members.find("type")
	if null < 0 {
		return
	}
	if typ < 0 || string(s.members[null].val) == "false" && slices.Contains(typesOf(s.members[typ].val), "null") {
		s.remove("nullable")
	}
}

// typesOf returns the types in the value of the keyword type.
func typesOf(v jsontext.Value) (types []string) {
	all, isList := list(v)
	if !isList {
		all = []jsontext.Value{v}
	}
	for _, one := range all {
		text, _ := protocol.Value(one).Str()
		types = append(types, text)
	}
	return types
}

// settleRoot makes sure that the type of the root is object.
func (s *subschema) settleRoot() {
	typ := s.members.find("type")
	switch {
	case typ < 0:
		s.members = slices.Insert(s.members, 0, member{"type", jsontext.Value(`"object"`)})
		typ, s.changed = 0, true
	case !slices.Contains(typesOf(s.members[typ].val), "object"):
		s.wrongRoot = s.members[typ].val
	case s.members[typ].val.Kind() == '[': // the values to check are always objects
		s.members[typ].val, s.changed = jsontext.Value(`"object"`), true
	}
	if s.tuple && s.members.find("$schema") < 0 {
		s.members = slices.Insert(s.members, 0, member{"$schema", jsontext.Value(`"` + name7 + `"`)})
		s.changed = true
	}
	if s.members.find("properties") < 0 && !s.output {
		s.members = slices.Insert(s.members, typ+1, member{"properties", jsontext.Value(`{}`)})
		s.changed = true
	}
}
