package mcp

import (
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

func TestRefers(t *testing.T) {
	for schema, want := range map[string]bool{
		`{"type":"object","properties":{"name":{"type":"string"}}}`: false,
		`{"$ref":"#"}`: true,
		`{"type":"object","allOf":[{"$\u0072ef":"#"}]}`:                      true,
		`{"type":"object","properties":{"a":{"$dynamicRef":"#"}}}`:           true,
		`{"type":"object","description":"as in $ref","properties":{"a":{}}}`: false,
	} {
		if got := refers(jsontext.Value(schema)); got != want {
			t.Errorf("%s: %t", schema, got)
		}
	}
}
