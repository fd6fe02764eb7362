package schema

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/schema/pattern"
)

// expander replaces references by what they refer to. It follows references within the schema, and
// counts: a schema that doubles with each step would never end.
type expander struct {
	root    any
	dialect dialect
	open    []string // references being followed
	left    int      // schemas that are still allowed
	steps   int      // of all patterns together; each step may be tried for each byte of a text
	err     error
}

func (e *expander) fail(format string, args ...any) {
	if e.err == nil {
		e.err = fmt.Errorf(format, args...)
	}
}

// schema expands one schema. The library reports values that are not schemas.
func (e *expander) schema(v any) any {
	obj, ok := v.(map[string]any)
	if e.left--; e.left < 0 {
		e.fail("has too many parts, with what references stand for")
	}
	if !ok || e.err != nil {
		return v
	}
	out := make(map[string]any, len(obj))
	for _, key := range slices.Sorted(maps.Keys(obj)) {
		switch val := obj[key]; key {
		case "$defs", "definitions", "$anchor", "$comment", "$ref":
		case "$id", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor":
			e.fail("%s is not understood; write what it stands for", key)
		case "$schema":
			if text, _ := val.(string); dialectOf(text) != e.dialect {
				e.fail("$schema: %.80q is another dialect than that of the whole schema", text)
			}
		case "type":
			e.types(val)
			out[key] = val
		case "multipleOf":
			if number, ok := val.(float64); !ok || number*1024 == math.Trunc(number*1024) {
				out[key] = val // a multiple of 0.01 cannot be checked with floats
			}
		case "exclusiveMinimum", "exclusiveMaximum", "minimum", "maximum":
			e.bound(out, obj, key)
		case "items", "additionalItems":
			e.items(out, obj, key)
		case "pattern":
			text, _ := val.(string)
			e.pattern(text)
			out[key] = val
		default:
			out[key] = e.value(key, val)
		}
	}
	if ref, ok := obj["$ref"].(string); ok {
		return e.reference(ref, out)
	}
	return out
}

// types refuses a type that JSON Schema does not have, since no value would match it.
func (e *expander) types(v any) {
	named, isList := v.([]any)
	if !isList {
		named = []any{v}
	}
	for _, one := range named {
		if name, ok := one.(string); ok && name != "null" && !isType(name) {
			e.fail("type: %.80q is not a type; the types are string, integer, number, boolean, object, array, null",
				name)
		}
	}
}

// bound copies a bound. In draft-04 a separate flag says that the bound is exclusive.
func (e *expander) bound(out, obj map[string]any, key string) {
	if exclusive, ok := strings.CutPrefix(key, "exclusiveM"); ok && e.dialect == draft4 {
		if number, ok := obj["m"+exclusive]; ok && obj[key] == true {
			out[key] = number
			delete(out, "m"+exclusive)
		}
		return
	}
	if e.dialect != draft4 || obj["exclusiveM"+key[1:]] != true {
		out[key] = obj[key]
	}
}

// items expands items: [...] and the keyword for the items after them. 2019-09 is the last dialect
// with this form, and the library reads it as 2020-12.
func (e *expander) items(out, obj map[string]any, key string) {
	name, was := key, obj[key]
	if isList(obj["items"]) && e.dialect == draft2019 {
		name = map[string]string{"items": "prefixItems", "additionalItems": "items"}[key]
	}
	out[name] = e.value(key, was)
}

// value expands the schemas in the value of a keyword.
func (e *expander) value(key string, v any) any {
	if obj, ok := v.(map[string]any); ok && key == "patternProperties" {
		for name := range obj {
			e.pattern(name)
		}
	}
	out, _ := Parts(key, v, e.schema)
	return out
}

// Parts returns the value of a keyword of JSON Schema with make applied to each schema in it. holds
// reports whether the value consists of schemas.
func Parts(key string, v any, make func(schema any) any) (out any, holds bool) {
	switch key {
	case "properties", "patternProperties", "dependentSchemas", "dependencies":
		obj, ok := v.(map[string]any)
		if !ok {
			return v, false
		}
		obj = maps.Clone(obj)
		for _, name := range slices.Sorted(maps.Keys(obj)) {
			if key != "dependencies" || !isList(obj[name]) {
				obj[name] = make(obj[name])
			}
		}
		return obj, true
	case "items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties",
		"contains", "propertyNames", "not", "if", "then", "else", "contentSchema", "allOf", "anyOf", "oneOf",
		"prefixItems":
		list, ok := v.([]any)
		if !ok {
			return make(v), true
		}
		list = slices.Clone(list)
		for i := range list {
			list[i] = make(list[i])
		}
		return list, true
	}
	return v, false
}

func isList(v any) bool { _, ok := v.([]any); return ok }

// reference returns the schema that a reference refers to, combined with the keywords next to the
// reference.
func (e *expander) reference(ref string, beside map[string]any) any {
	at, within := strings.CutPrefix(ref, "#")
	switch {
	case !within || at != "" && !strings.HasPrefix(at, "/"):
		e.fail("$ref: %.80q leads out of the schema; references go to #/$defs/NAME", ref)
		return true
	case slices.Contains(e.open, ref):
		e.fail("$ref: %.80q refers to itself; write out as many levels as there may be", ref)
		return true
	}
	target := e.root
	for token := range jsontext.Pointer(at).Tokens() {
		obj, _ := target.(map[string]any)
		target = obj[token]
	}
	if target == nil {
		e.fail("$ref: there is no %.80q in the schema", ref)
		return true
	}
	e.open = append(e.open, ref)
	made := e.schema(target)
	e.open = e.open[:len(e.open)-1]
	if e.dialect.tuples() { // in these dialects the keywords next to a reference have no meaning
		maps.DeleteFunc(beside, func(key string, _ any) bool { return !slices.Contains(notes, key) })
	}
	obj, isObject := made.(map[string]any)
	if len(beside) == 0 || !isObject {
		return made
	}
	merged := maps.Clone(obj)
	for key, val := range beside {
		_, both := merged[key]
		if both && !slices.Contains([]string{"title", "description", "default", "examples"}, key) {
			return map[string]any{"allOf": []any{made, beside}}
		}
		merged[key] = val
	}
	return merged
}

// pattern counts the steps of a pattern. Invalid patterns are found elsewhere.
func (e *expander) pattern(expr string) {
	steps, err := pattern.Steps(expr, pattern.MaxSteps)
	if tooMany := (*pattern.StepsError)(nil); errors.As(err, &tooMany) {
		e.fail("the pattern %.80q cannot be used: %w", expr, tooMany)
	}
	if e.steps += steps; e.steps > pattern.MaxSteps {
		e.fail("the patterns have more than %d steps", pattern.MaxSteps)
	}
}
