package schema

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// dialect is a dialect of JSON Schema.
type dialect int

const (
	draft2020 dialect = iota // MCP's default
	draft2019
	draft7
	draft6
	draft4
	unknown
)

// The values of $schema.
const (
	name7    = "http://json-schema.org/draft-07/schema#"
	name2020 = "https://json-schema.org/draft/2020-12/schema"
)

// dialectOf returns the dialect for a value of $schema, in any spelling.
func dialectOf(name string) dialect {
	name = strings.TrimSuffix(name, "#")
	if _, path, ok := strings.Cut(name, "://json-schema.org/"); ok && strings.HasPrefix(name, "http") {
		switch strings.TrimSuffix(path, "/") {
		case "draft-04/schema":
			return draft4
		case "draft-06/schema":
			return draft6
		case "draft-07/schema":
			return draft7
		case "draft/2019-09/schema":
			return draft2019
		case "draft/2020-12/schema":
			return draft2020
		}
		return unknown
	}
	if name == "" || strings.HasPrefix(name, "https://spec.openapis.org/oas/3.1/dialect/") {
		return draft2020 // a vocabulary without rules
	}
	return unknown
}

// idWord returns the keyword for the id of a schema.
func idWord(d dialect) string {
	if d == draft4 {
		return "id"
	}
	return "$id"
}

// tuples reports whether the dialect has items: [...].
func (d dialect) tuples() bool { return d == draft7 || d == draft6 || d == draft4 }

// form says what the value of a keyword should be.
type form int

const (
	formUnknown form = iota
	formAny
	formPlainList
	formText
	formFlag
	formNumber
	formCount
	formEnum
	formType
	formPattern
	formNames
	formNameLists
	formSchema
	formSchemas
	formSchemaMap
	formPatternMap
	formDependencies
	formItems
	formReference
	formOwn // handled by the keyword's name
)

var forms = sync.OnceValue(func() map[string]form {
	return map[string]form{
		"const": formAny, "default": formAny, "enum": formEnum, "type": formType, "pattern": formPattern,
		"items": formItems, "examples": formPlainList, "required": formNames, "dependentRequired": formNameLists,
		"dependencies": formDependencies, "title": formText, "description": formText, "format": formText,
		"contentEncoding": formText, "contentMediaType": formText, "$comment": formText, "uniqueItems": formFlag,
		"readOnly": formFlag, "writeOnly": formFlag, "deprecated": formFlag, "nullable": formFlag,
		"minimum": formNumber, "maximum": formNumber, "exclusiveMinimum": formNumber,
		"exclusiveMaximum": formNumber, "multipleOf": formNumber, "minLength": formCount, "maxLength": formCount,
		"minItems": formCount, "maxItems": formCount, "minProperties": formCount, "maxProperties": formCount,
		"minContains": formCount, "maxContains": formCount, "additionalItems": formSchema,
		"additionalProperties": formSchema, "unevaluatedItems": formSchema, "unevaluatedProperties": formSchema,
		"contains": formSchema, "propertyNames": formSchema, "not": formSchema, "if": formSchema,
		"then": formSchema, "else": formSchema, "contentSchema": formSchema, "allOf": formSchemas,
		"anyOf": formSchemas, "oneOf": formSchemas, "prefixItems": formSchemas, "properties": formSchemaMap,
		"patternProperties": formPatternMap, "dependentSchemas": formSchemaMap, "$defs": formSchemaMap,
		"definitions": formSchemaMap, "$ref": formReference, "$dynamicRef": formReference, "$schema": formOwn,
		"$id": formOwn, "id": formOwn, "$anchor": formOwn, "$dynamicAnchor": formOwn, "$recursiveRef": formOwn,
		"$recursiveAnchor": formOwn, "$vocabulary": formOwn, "$async": formOwn,
	}
})

// notes are keywords that neither allow nor forbid anything.
var notes = []string{
	"title", "description", "$comment", "examples", "default", "readOnly", "writeOnly", "deprecated", "nullable",
	"contentEncoding", "contentMediaType", "contentSchema", "format",
}

// subschema is a schema that is being normalised.
type subschema struct {
	*normaliser
	at      string
	level   int
	obj     protocol.Object
	members members
	loss    loss
	changed bool

	inner   map[string]loss // by keyword: the losses of the schemas in it
	opened  bool            // patternProperties lost an entry
	unbound bool            // a reference was dropped that made the keywords next to it meaningless
	never   bool            // it allows nothing
}

// keep writes a member; was is its old value.
func (s *subschema) keep(key string, val, was jsontext.Value) {
	s.members = append(s.members, member{key, val})
	s.changed = s.changed || !bytes.Equal(val, was)
}

// skip drops a keyword.
func (s *subschema) skip(key string, l loss) {
	if slices.Contains(notes, key) {
		l = exact
	}
	s.drop(s.at, key)
	s.changed, s.loss = true, max(s.loss, l)
}

// keyword normalises one keyword.
func (s *subschema) keyword(key string, val jsontext.Value) {
	f := forms()[key]
	kind := val.Kind()
	if kind == 'n' && f != formUnknown && f != formAny { // serialisers write null for missing values
		s.skip(key, exact)
		return
	}
	switch f {
	case formUnknown:
		s.keepIf(s.plain(val), key, val, exact)
	case formAny:
		s.keepIf(s.plain(val), key, val, lost)
	case formPlainList:
		s.keepIf(kind == '[' && s.plain(val), key, val, exact)
	case formText:
		s.keepIf(kind == '"', key, val, vague)
	case formFlag:
		s.keepIf(kind == 't' || kind == 'f', key, val, vague)
	case formNumber, formCount:
		s.number(key, val, f)
	case formEnum:
		s.enum(key, val)
	case formType:
		s.types(key, val)
	case formPattern:
		s.pattern(key, val)
	case formNames:
		if names, ok := s.names(val); ok {
			s.keep(key, names, val)
		} else {
			s.skip(key, vague)
		}
	case formOwn, formReference:
		s.core(key, val)
	default:
		s.applicator(key, val, f)
	}
}

func (s *subschema) keepIf(ok bool, key string, val jsontext.Value, otherwise loss) {
	if !ok {
		s.skip(key, otherwise)
		return
	}
	s.keep(key, val, val)
}

// number normalises a bound.
func (s *subschema) number(key string, val jsontext.Value, f form) {
	if kind := val.Kind(); (kind == 't' || kind == 'f') && s.dialect == draft4 && strings.HasPrefix(key, "exclusive") {
		bound := "m" + key[len("exclusiveM"):]
		if number, ok := s.obj.Get(bound); ok && kind == 't' && number.Kind() == '0' {
			s.keep(key, jsontext.Value(number), val) // in draft-04 the bound is another keyword
		}
		s.changed = true
		return
	}
	if s.dialect == draft4 && (key == "minimum" || key == "maximum") {
		if flag, _ := s.obj.Get("exclusiveM" + key[1:]); flag.Kind() == 't' {
			s.changed = true
			return
		}
	}
	value, err := strconv.ParseFloat(string(val), 64)
	ok := val.Kind() == '0' && len(val) <= maxNumber && err == nil
	switch {
	case f == formCount:
		ok = ok && value >= 0 && value == math.Trunc(value) && value < 1<<53
	case key == "multipleOf":
		ok = ok && value > 0
	}
	s.keepIf(ok, key, val, vague)
}

// enum normalises the list of allowed values.
func (s *subschema) enum(key string, val jsontext.Value) {
	all, ok := list(val)
	switch {
	case !ok:
		s.skip(key, vague)
	case len(all) == 0:
		s.never, s.changed = true, true
	default:
		s.keepIf(s.plain(val), key, val, lost)
	}
}

// typeNames maps the types of JSON Schema, and other names for them, to the types.
var typeNames = sync.OnceValue(func() map[string]string {
	return map[string]string{
		"string": "string", "str": "string", "text": "string",
		"number": "number", "float": "number", "double": "number",
		"decimal": "number", "integer": "integer", "int": "integer", "int32": "integer", "int64": "integer",
		"long":    "integer",
		"boolean": "boolean", "bool": "boolean",
		"object": "object", "dict": "object", "map": "object", "array": "array",
		"list": "array", "tuple": "array", "null": "null", "none": "null",
	}
})

// types normalises the type, or the list of types.
func (s *subschema) types(key string, val jsontext.Value) {
	all, isList := list(val)
	if !isList {
		all = []jsontext.Value{val}
	}
	var named []string
	for _, one := range all {
		text, ok := protocol.Value(one).Str()
		if name := typeNames()[strings.ToLower(text)]; ok && name != "" {
			text = name
		} else if one.Kind() == 'n' && isList {
			text = "null"
		} else { // for example any or date: what it allows is not known
			s.skip(key, vague)
			return
		}
		if !slices.Contains(named, text) {
			named = append(named, text)
		}
	}
	if len(named) == 0 {
		s.skip(key, vague)
		return
	}
	out := jsontext.Value(appendList(nil, named, protocol.AppendString[string]))
	if !isList {
		out = out[1 : len(out)-1]
	}
	if sameTexts(out, val) {
		out = val
	} else {
		s.loss = max(s.loss, vague)
	}
	s.keep(key, out, val)
}

// sameTexts reports whether two lists of texts are equal, apart from white space.
func sameTexts(a, b jsontext.Value) bool {
	b = slices.Clone(b)
	return b.Compact() == nil && bytes.Equal(a, b)
}

// names normalises a list of names and removes repeated ones.
func (s *subschema) names(val jsontext.Value) (out jsontext.Value, ok bool) {
	all, ok := list(val)
	if !ok {
		return nil, false
	}
	var names []string
	for _, one := range all {
		if text, isText := protocol.Value(one).Str(); !isText {
			s.loss = max(s.loss, vague)
		} else if !slices.Contains(names, text) {
			names = append(names, text)
		}
	}
	if len(names) == len(all) {
		return val, true
	}
	s.changed = true
	return appendList(nil, names, protocol.AppendString[string]), true
}

// pattern normalises a regular expression.
func (s *subschema) pattern(key string, val jsontext.Value) {
	text, ok := protocol.Value(val).Str()
	if !ok {
		s.skip(key, vague)
		return
	}
	out, ok := s.expression(text)
	switch {
	case !ok:
		s.skip(key, lost)
	case out == text:
		s.keep(key, val, val)
	default:
		s.keep(key, protocol.AppendString(nil, out), val)
	}
}

// expression returns a regular expression that all clients of the schema can compile.
func (s *subschema) expression(text string) (out string, ok bool) {
	out, python, ok := ecmaScript(text)
	return out, ok && (python || !s.output)
}

// isAnchor reports whether a text can be the name of an anchor.
func isAnchor(text string) bool {
	return text != "" && text[0] > '9' &&
		!strings.ContainsFunc(text, func(r rune) bool { return r != '.' && !isNameRune(r) })
}

// core normalises the keywords that name schemas and refer to them.
func (s *subschema) core(key string, val jsontext.Value) {
	text, isText := protocol.Value(val).Str()
	switch key {
	case "$schema":
		s.schemaName(key, val, text)
	case "$vocabulary", "$async": // have no meaning outside a meta-schema, or belong to Ajv
		s.changed = true
	case "$id", "id":
		s.identifier(key, val, text)
	case "$anchor", "$dynamicAnchor":
		if _, twice := s.seen["#"+text]; !isText || twice || !isAnchor(text) || s.older() && s.output {
			s.skip(key, lost)
			return
		}
		s.seen["#"+text] = s.at
		s.keep(key, val, val)
	case "$recursiveAnchor":
		s.keepIf(s.dialect != draft2019, key, val, exact)
	case "$recursiveRef": // refers to the root, because no schema inside has an $id of its own
		if _, both := s.obj.Get("$ref"); s.dialect == draft2019 && !both && text == "#" {
			s.changed = true
			s.keep("$ref", val, val)
			return
		}
		s.keepIf(s.dialect != draft2019, key, val, lost)
	default:
		s.reference(key, val, text, isText)
	}
}

func (s *subschema) schemaName(key string, val jsontext.Value, text string) {
	switch {
	case s.at != "":
		s.changed = true
		if dialectOf(text) != s.dialect {
			s.skip(key, lost)
		}
	case s.older():
		s.spell(key, val, text, name7)
	case dialectOf(text) == draft2020 && strings.Contains(text, "json-schema.org"):
		s.spell(key, val, text, name2020)
	case s.dialect == unknown:
		s.skip(key, lost)
	default:
		s.changed = true // the other keywords stay, as none has another meaning
	}
}

// spell writes a name as validators spell it.
func (s *subschema) spell(key string, val jsontext.Value, text, name string) {
	if text != name {
		s.keep(key, protocol.AppendString(nil, name), val)
		return
	}
	s.keep(key, val, val)
}

// identifier normalises the id of a schema. The id of the root tells nothing to a client that has the
// schema, and some clients refuse two schemas with the same id.
func (s *subschema) identifier(key string, val jsontext.Value, text string) {
	switch {
	case key != idWord(s.dialect), text == "", s.at == "" && !s.resources:
		s.changed = true
	case s.dialect.tuples() && text[0] == '#': // an anchor, before there was $anchor
		s.seen[text] = s.at
		s.changed = s.changed || key != "$id"
		s.keep("$id", val, val)
	case s.output:
		s.skip(key, lost)
	default:
		s.resources = true
		s.keep(key, val, val)
	}
}

// reference normalises $ref or $dynamicRef.
func (s *subschema) reference(key string, val jsontext.Value, text string, isText bool) {
	if !isText {
		s.skip(key, vague)
		return
	}
	within, ok := strings.CutPrefix(text, s.base)
	if ok && s.base != "" && !s.resources && strings.HasPrefix(within, "#") {
		text = within
		s.changed = true
		val = protocol.AppendString(nil, text)
	}
	to, ok := s.follows(text)
	if !ok {
		s.reopen, s.unbound = true, s.dialect.tuples()
		s.skip(key, lost)
		return
	}
	if s.worst > exact { // the schema it refers to may allow more now
		s.loss = max(s.loss, vague)
	}
	s.steps[s.at] = append(s.steps[s.at], to)
	if rest, ok := strings.CutPrefix(text, s.from); ok && s.from != s.to && (rest == "" || rest[0] == '/') {
		s.changed = true
		val = protocol.AppendString(nil, s.to+rest)
	}
	s.keep(key, val, val)
}
