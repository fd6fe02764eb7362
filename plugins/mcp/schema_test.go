package mcp

import (
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/protocol"
)

func parsed(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// A schema is held against arguments where that has an end; what it cannot say here is the
// server's to decide.
func TestChecker(t *testing.T) {
	for name, c := range map[string]struct{ schema, args, path string }{
		"fits":                      {`{"type":"object","properties":{"a":{"type":"string"}}}`, `{"a":"x"}`, ""},
		"wrong type below":          {`{"type":"object","properties":{"a":{"type":"object","properties":{"b":{"type":"string"}}}}}`, `{"a":{"b":1}}`, "/arguments/a/b"},
		"a pattern":                 {`{"type":"object","properties":{"a":{"type":"string","pattern":"^[a-z]+$"}}}`, `{"a":"1"}`, "/arguments/a"},
		"unknown":                   {`{"type":"object","properties":{}}`, `{"a":"1"}`, "/arguments/a"},
		"others allowed":            {`{"type":"object","properties":{},"additionalProperties":true}`, `{"a":"1"}`, ""},
		"nothing declared":          {`{"type":"object"}`, `{"a":"1"}`, ""},
		"refers to itself":          {`{"type":"object","properties":{"a":{"$ref":"#/properties/a"}}}`, `{"a":1}`, ""},
		"a default that is no text": {`{"type":"object","properties":{"a":{"type":"string","default":3}}}`, `{"a":"x"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			args, err := protocol.ParseObject([]byte(c.args))
			if err != nil {
				t.Fatal(err)
			}
			err = checker(parsed(t, c.schema))(args)
			path := ""
			if wrong, ok := err.(*protocol.Error); ok {
				path = wrong.Detail["errors"].([]protocol.FieldError)[0].Path
			}
			if path != c.path {
				t.Errorf("%s against %.200s: %v, want it blamed on %q", c.args, c.schema, err, c.path)
			}
		})
	}
}
