package mcp

import (
	"maps"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	v1 "github.com/go-json-experiment/json/v1"

	"a2e/host/schema"
	"a2e/protocol"
)

// The bounds of what is made of a schema.
const (
	maxSchemaSize = 2000 // parts, references followed: what holding arguments against it costs
	maxProblem    = 500  // bytes of what is wrong, as a message says it
	maxQuoted     = 64   // bytes of a name that a message quotes
)

// encode returns a value of the SDK as JSON, as the SDK itself would write it.
func encode(v any) (jsontext.Value, error) {
	return json.Marshal(v, v1.OmitEmptyWithLegacySemantics(true), json.Deterministic(true))
}

// checker makes the check of a tool's arguments. The schema is made ready at the first
// call; with one that makes no sense here, or would cost too much, the server decides.
func checker(tool any) func(protocol.Object) error {
	ready := sync.OnceValue(func() *schema.Schema {
		s, err := schema.Compile(closedSchema(tool), maxSchemaSize)
		if err != nil {
			return nil
		}
		return s
	})
	return func(args protocol.Object) error {
		s := ready()
		if s == nil || len(args.Raw()) > s.MaxBytes() {
			return nil
		}
		if wrong := s.Check(args.Raw(), "/arguments"); wrong != nil {
			return protocol.Violation(wrong...)
		}
		return nil
	}
}

// closedSchema has a tool that declares all it takes take nothing else.
func closedSchema(tool any) any {
	obj, _ := tool.(map[string]any)
	if _, declared := obj["properties"].(map[string]any); !declared {
		return tool
	}
	for _, key := range []string{"additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "if", "$ref", "$dynamicRef", "dependentSchemas"} {
		if _, open := obj[key]; open {
			return tool
		}
	}
	obj = maps.Clone(obj)
	obj["additionalProperties"] = false
	return obj
}

// clip shortens text to about n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
