package schema

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// maxFit is the maximum depth of a schema of arguments for a model's API; deeper schemas become {}.
const maxFit = 16

// Fit returns a schema of a tool's arguments, written with the keywords of JSON Schema 2020-12 that
// models' APIs accept. It allows everything that the original allows, and more if that needs other
// keywords: the host checks each call against the original.
func Fit(schema jsontext.Value) jsontext.Value {
	obj, err := protocol.ParseObject(schema)
	if err != nil {
		obj = protocol.Object{}
	}
	dst := append([]byte(nil), `{"type":"object"`...)
	if val, ok := obj.Get("properties"); !ok || val.Kind() != '{' {
		dst = append(dst, `,"properties":{}`...)
	}
	for key, val := range obj.All() {
		switch string(key) {
		case "type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref": // no API accepts them at the top level
		default:
			dst = appendWord(dst, obj, string(key), jsontext.Value(val), maxFit)
		}
	}
	return append(dst, '}')
}

// appendFit appends a nested schema.
func appendFit(dst []byte, schema jsontext.Value, depth int) []byte {
	obj, err := protocol.ParseObject(schema)
	if err != nil || depth == 0 {
		return append(dst, '{', '}') // true, false, or not a schema
	}
	start := len(dst)
	for key, val := range obj.All() {
		dst = appendWord(dst, obj, string(key), jsontext.Value(val), depth)
	}
	if typ, _ := obj.Get("type"); strings.Contains(string(typ), `"array"`) && !isSchema(obj, "items") {
		dst = append(dst, `,"items":{}`...)
	}
	if len(dst) == start {
		return append(dst, '{', '}')
	}
	dst[start] = '{' // replaces the first comma
	return append(dst, '}')
}

// isSchema reports whether a member of a schema is an object.
func isSchema(obj protocol.Object, key string) bool {
	val, _ := obj.Get(key)
	return val.Kind() == '{'
}

// appendWord appends a comma and a member of a schema, if the APIs accept it in some form.
func appendWord(dst []byte, of protocol.Object, key string, val jsontext.Value, depth int) []byte {
	head := func(key string) []byte { return append(protocol.AppendString(append(dst, ','), key), ':') }
	switch key {
	case "items", "additionalProperties":
		if _, open := of.Get("patternProperties"); val.Kind() == '{' {
			return appendFit(head(key), val, depth-1)
		} else if key == "additionalProperties" && val.Kind() == 'f' && !open {
			return append(head(key), val...)
		}
	case "properties", "$defs", "definitions":
		if all, err := protocol.ParseObject(val); err == nil {
			dst = append(head(key), '{')
			first := len(dst)
			for name, schema := range all.All() {
				dst = protocol.AppendString(appendComma(dst, len(dst)-first), name)
				dst = appendFit(append(dst, ':'), jsontext.Value(schema), depth-1)
			}
			return append(dst, '}')
		}
	case "oneOf", "anyOf", "allOf":
		if _, both := of.Get("anyOf"); key == "oneOf" && both {
			return dst
		}
		var all []jsontext.Value
		if json.Unmarshal(val, &all) == nil && len(all) > 0 {
			if key == "oneOf" {
				key = "anyOf" // the alternatives became wider, so more than one may match
			}
			return appendList(head(key), all, func(dst []byte, one jsontext.Value) []byte {
				return appendFit(dst, one,
					depth-1)
			})
		}
	default:
		if keeps(key, val) {
			return append(head(key), val...)
		}
	}
	return dst
}

// keeps reports whether a member without schemas can stay unchanged.
func keeps(key string, val jsontext.Value) bool {
	switch key {
	case "default", "const":
		return true
	case "description", "title", "format", "pattern":
		return val.Kind() == '"'
	case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength",
		"minItems", "maxItems":
		return val.Kind() == '0' // in draft-04 the exclusive ones are booleans
	case "type":
		return val.Kind() == '"' || val.Kind() == '['
	case "enum", "required":
		return val.Kind() == '[' && len(val) > len("[]")
	case "$ref":
		text, _ := protocol.Value(val).Str()
		return strings.HasPrefix(text, "#/$defs/") || strings.HasPrefix(text, "#/definitions/")
	}
	return false
}

// Strict reports whether OpenAI's strict mode accepts a schema unchanged: each object is closed and
// requires all of its members, and each value has a type.
func Strict(schema jsontext.Value) bool {
	var parsed any
	return json.Unmarshal(schema, &parsed) == nil && strict(parsed)
}

func strict(schema any) bool {
	obj, _ := schema.(map[string]any)
	words := []string{"type", "properties", "required", "additionalProperties", "description", "title", "enum", "items"}
	for key := range obj {
		if !slices.Contains(words, key) {
			return false
		}
	}
	switch obj["type"] {
	case "string", "number", "integer", "boolean":
		return true
	case "array":
		return strict(obj["items"])
	case "object":
	default:
		return false
	}
	members, _ := obj["properties"].(map[string]any)
	required := texts(obj["required"])
	for name, member := range members {
		if !slices.Contains(required, name) || !strict(member) {
			return false
		}
	}
	return obj["additionalProperties"] == false && len(required) == len(members)
}
