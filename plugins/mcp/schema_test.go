package mcp

import (
	"strings"
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

func TestParameters(t *testing.T) {
	got := parameters(parsed(t, `{"type":"object","required":["z","b"],"properties":{
		"a":{"type":["string","null"],"description":"an a"},"b":{"type":"integer"},"c":{"enum":["x","y"],"type":"string"},"d":{"anyOf":[{"type":"string"},{"type":"number"}]},
		"e":{"type":"object","properties":{"f":{"type":"boolean"}},"required":["f"]},"g":true,"h":{"type":["string","number"],"title":"H"},"i":{"enum":[1,"x"]},"z":{"type":"array","items":{}}}}`), 0)
	want := `[{"name":"b","type":"integer","description":"","required":true,"enum":null,"properties":null},` +
		`{"name":"z","type":"array","description":"","required":true,"enum":null,"properties":null},` +
		`{"name":"a","type":"string","description":"an a","required":false,"enum":null,"properties":null},` +
		`{"name":"c","type":"string","description":"","required":false,"enum":["x","y"],"properties":null},` +
		`{"name":"d","type":"any","description":"","required":false,"enum":null,"properties":null},` +
		`{"name":"e","type":"object","description":"","required":false,"enum":null,"properties":{"f":{"name":"f","type":"boolean","description":"","required":true,"enum":null,"properties":null}}},` +
		`{"name":"g","type":"any","description":"","required":false,"enum":null,"properties":null},` +
		`{"name":"h","type":"any","description":"H","required":false,"enum":null,"properties":null},` +
		`{"name":"i","type":"any","description":"","required":false,"enum":null,"properties":null}]`
	raw, err := json.Marshal(got, json.Deterministic(true))
	if err != nil || string(raw) != want {
		t.Errorf("parameters:\n%s\nwant\n%s\n%v", raw, want, err)
	}
	if none := parameters(nil, 0); none == nil || len(none) != 0 {
		t.Errorf("of no schema: %v", none)
	}
}

// A schema is held against arguments where that has an end; what it cannot say here is the
// server's to decide.
func TestChecker(t *testing.T) {
	double := `{"type":"object","properties":{"a":{"$ref":"#/$defs/d00"}},"$defs":{"d30":{"type":"string"}`
	for i := range 30 {
		double += strings.NewReplacer("N", string(rune('0'+i/10))+string(rune('0'+i%10)), "M", string(rune('0'+(i+1)/10))+string(rune('0'+(i+1)%10))).
			Replace(`,"dN":{"allOf":[{"$ref":"#/$defs/dM"},{"$ref":"#/$defs/dM"}]}`)
	}
	double += `}}`
	for name, c := range map[string]struct{ schema, args, path string }{
		"fits":                      {`{"type":"object","properties":{"a":{"type":"string"}}}`, `{"a":"x"}`, ""},
		"wrong type below":          {`{"type":"object","properties":{"a":{"type":"object","properties":{"b":{"type":"string"}}}}}`, `{"a":{"b":1}}`, "/arguments/a/b"},
		"a reference":               {`{"type":"object","properties":{"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"number"}}}`, `{"a":"x"}`, "/arguments/a"},
		"a pattern":                 {`{"type":"object","properties":{"a":{"type":"string","pattern":"^[a-z]+$"}}}`, `{"a":"1"}`, "/arguments/a"},
		"unknown":                   {`{"type":"object","properties":{}}`, `{"a":"1"}`, "/arguments/a"},
		"others allowed":            {`{"type":"object","properties":{},"additionalProperties":true}`, `{"a":"1"}`, ""},
		"nothing declared":          {`{"type":"object"}`, `{"a":"1"}`, ""},
		"others of a type":          {`{"type":"object","additionalProperties":{"type":"number"}}`, `{"a":"1"}`, "/arguments"},
		"refers to itself":          {`{"type":"object","properties":{"a":{"$ref":"#/properties/a"}}}`, `{"a":1}`, ""},
		"is a tree":                 {`{"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"t":{"$ref":"#/$defs/t"}}}}}`, `{"t":{"t":1}}`, ""},
		"doubles with each step":    {double, `{"a":"x"}`, ""},
		"refers elsewhere":          {`{"type":"object","properties":{"a":{"$ref":"https://example.org/s"}}}`, `{"a":1}`, ""},
		"is no schema":              {`{"type":7}`, `{"a":1}`, ""},
		"is no pattern":             {`{"type":"object","properties":{"a":{"pattern":"(?=x)"}}}`, `{"a":"x"}`, ""},
		"a dynamic reference":       {`{"type":"object","properties":{"a":{"$dynamicRef":"#x"}}}`, `{"a":1}`, ""},
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
