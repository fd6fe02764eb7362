package schema

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// maxFit is how deep a schema of arguments goes that a model's API is given; below it is anything.
const maxFit = 16

// Fit returns a schema of a tool's arguments in those words of JSON Schema 2020-12 that models'
// APIs take. It allows all that the schema allows, and more where that needs other words: the
// host holds each call against the schema itself.
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
		case "type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref": // no API takes them at the top
		default:
			dst = appendWord(dst, obj, string(key), jsontext.Value(val), maxFit)
		}
	}
	return append(dst, '}')
}

// appendFit appends a schema within another one.
func appendFit(dst []byte, schema jsontext.Value, depth int) []byte {
	obj, err := protocol.ParseObject(schema)
	if err != nil || depth == 0 {
		return append(dst, '{', '}') // true, and what is none
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
	dst[start] = '{' // the first comma
	return append(dst, '}')
}

// isSchema reports whether a member of a schema is an object.
func isSchema(obj protocol.Object, key string) bool {
	val, _ := obj.Get(key)
	return val.Kind() == '{'
}

// appendWord appends a comma and a member of a schema, as far as it can be said.
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
				key = "anyOf" // with wider alternatives more than one may fit
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

// keeps reports whether a member that holds no schema can stay as it is.
func keeps(key string, val jsontext.Value) bool {
	switch key {
	case "default", "const":
		return true
	case "description", "title", "format", "pattern":
		return val.Kind() == '"'
	case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength",
		"minItems", "maxItems":
		return val.Kind() == '0' // the exclusive ones were booleans once
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

// Strict reports whether OpenAI's strict mode takes a schema as it stands: each object is closed
// and requires all of its members, and each value has a type.
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
