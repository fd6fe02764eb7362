package hosttest

import (
	"slices"
	"strings"
)

// wrongValues returns, for each field whose JSON type the schema fixes, a value
// of another type.
func (s *Schema) wrongValues() map[string]string {
	wrong := map[string]string{}
	properties, _ := s.Schema["properties"].(map[string]any)
	for name, schema := range properties {
		switch name {
		case "a2e", "version", "type", "id", "ts", "req_id": // the envelope
			continue
		}
		allowed := s.types(schema)
		for _, candidate := range []struct{ kind, value string }{
			{"object", `{"grease":[1]}`}, {"array", `[{"grease":1}]`}, {"string", `"grease"`}, {"number", `12.5`},
		} {
			if len(allowed) > 0 && !slices.Contains(allowed, candidate.kind) {
				wrong[name] = candidate.value
				break
			}
		}
	}
	return wrong
}

// types returns the JSON types that a schema allows, or nil if it allows any.
func (s *Schema) types(schema any) (all []string) {
	m, _ := schema.(map[string]any)
	switch t := m["type"].(type) {
	case string:
		return []string{t}
	case []any:
		for _, one := range t {
			all = append(all, one.(string))
		}
		return all
	}
	if ref, ok := m["$ref"].(string); ok {
		defs, _ := s.Schema["$defs"].(map[string]any)
		return s.types(defs[strings.TrimPrefix(ref, "#/$defs/")])
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		options, _ := m[key].([]any)
		for _, option := range options {
			types := s.types(option)
			if types == nil {
				return nil
			}
			all = append(all, types...)
		}
	}
	return all
}
