package schema_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/schema"
)

// oddSchema is an entry of testdata/peers/schemas.json: the schemas of a tool, and the schemas that the host offers
// instead. Without Offered or Shaped, the host offers the server's schema unchanged.
type oddSchema struct {
	Name     string         `json:"name"`
	Input    jsontext.Value `json:"input"`
	Offered  jsontext.Value `json:"offered"`
	Withheld string         `json:"withheld"`
	Output   jsontext.Value `json:"output"`
	Shaped   jsontext.Value `json:"shaped"` // null = there is no output schema
	Result   jsontext.Value `json:"result"`
}

func oddSchemas(t testing.TB) (all []oddSchema) {
	t.Helper()
	must.OK(t, json.Unmarshal(must.Get(os.ReadFile("../../testdata/peers/schemas.json"))(t), &all))
	must.That(t, len(all) >= 40, "there are %d odd schemas", len(all))
	return all
}

// normalise is NormaliseInput or NormaliseOutput.
type normalise func(jsontext.Value) (jsontext.Value, []string, error)

func TestNormalise(t *testing.T) {
	for _, c := range oddSchemas(t) {
		check := func(what string, raw, want jsontext.Value, made normalise) {
			out, dropped, err := made(raw)
			if want == nil {
				want = raw
			}
			assert.That(t, err == nil, "%s: %s %s: %v", c.Name, what, raw, err)
			assert.Equal(t, string(out), string(want), "%s: %s %s", c.Name, what, raw)
			if again, _, err := made(out); err != nil || string(again) != string(out) {
				t.Errorf("%s: %s changes twice: %s to %s %v", c.Name, what, out, again, err)
			}
			unchanged := string(raw) == string(out)
			assert.That(t, !unchanged || len(dropped) == 0, "%s: %s: dropped %v", c.Name, what, dropped)
		}
		if _, _, err := schema.NormaliseInput(c.Input); c.Withheld != "" {
			must.Fails(t, err, c.Withheld, "%s", c.Name)
			continue
		}
		if c.Input != nil || c.Offered != nil {
			check("input", c.Input, c.Offered, schema.NormaliseInput)
		}
		if c.Output == nil {
			continue
		}
		if out, _, err := schema.NormaliseOutput(c.Output); string(c.Shaped) == "null" {
			assert.That(t, err != nil, "%s: output %s became %s", c.Name, c.Output, out)
			continue
		}
		check("output", c.Output, c.Shaped, schema.NormaliseOutput)
	}
}

// TestNormaliseBounds: parts of a schema that clients cannot read are cut off where this allows more values, or the
// schema is refused.
func TestNormaliseBounds(t *testing.T) {
	nested := func(n int, open, shut string) string {
		return strings.Repeat(open, n) + `{"type":"string"}` + strings.Repeat(shut, n)
	}
	object := func(a string) jsontext.Value { return jsontext.Value(`{"type":"object","properties":{"a":` + a + `}}`) }
	brackets, nines := strings.Repeat("[", 200)+strings.Repeat("]", 200), strings.Repeat("9", 5000)
	parens := strings.Repeat("(", 99) + strings.Repeat(")", 99)
	for name, c := range map[string]struct {
		in     jsontext.Value
		input  string // a part of the normalised input schema
		output bool   // whether the schema can be normalised as an output schema
	}{
		"some levels": {object(nested(30, `{"items":`, `}`)), `"string"`, true},
		"many levels": {object(nested(900, `{"items":`, `}`)), `{"items":{}}`, false},
		"a deep note": {object(`{"x-note":` + brackets + `}`), `{"a":{}}`, true},
		"a deep enum": {object(`{"enum":[` + brackets + `]}`), `{"a":{}}`, false},
		"a number":    {object(`{"default":[` + nines + `],"maximum":` + nines + `}`), `{"a":{}}`, true},
		"references":  {jsontext.Value(chained(200)), `"d199":{},"d200":{}`, false},
		"groups":      {object(`{"pattern":"` + parens + `"}`), `{"a":{}}`, false},
	} {
		out, _, err := schema.NormaliseInput(c.in)
		assert.That(t, err == nil && strings.Contains(string(out), c.input), "%s: %.300s %v", name, out, err)
		_, _, err = schema.NormaliseOutput(c.in)
		assert.Equal(t, err == nil, c.output, "%s as that of results", name)
	}
	for name, c := range map[string]struct{ in, why string }{
		"twice a key": {`{"type":"object","type":"object"}`, "a key is there twice"},
		"not UTF-8":   {`{"type":"object","title":"` + "\xff" + `"}`, "not UTF-8"},
		"half a pair": {`{"type":"object","title":"\ud800"}`, "not UTF-8"},
		"very long":   {`{"type":"object","title":"` + strings.Repeat("x", 2<<20) + `"}`, "at most"},
	} {
		_, _, err := schema.NormaliseInput(jsontext.Value(c.in))
		assert.That(t, err != nil && strings.Contains(err.Error(), c.why), "%s: %v, want %q", name, err, c.why)
	}
}

// chained returns a schema with n references. Each leads to a schema that contains the next reference, and the last
// one leads nowhere.
func chained(n int) string {
	text := `{"type":"object","$defs":{"d0":{"not":{"$ref":"#/none"}}`
	for i := range n {
		text += fmt.Sprintf(`,"d%d":{"not":{"allOf":[{"$ref":"#/$defs/d%d/not"}]}}`, i+1, i)
	}
	return text + `}}`
}

// FuzzNormalise: normalising a normalised schema changes nothing, and no normalised schema of an object refuses a
// value that the original allows.
func FuzzNormalise(f *testing.F) {
	for _, c := range oddSchemas(f) {
		f.Add([]byte(c.Input), []byte(`{"a":"x","n":1,"s":[null,{}]}`))
		f.Add([]byte(c.Output), []byte(c.Result))
	}
	f.Fuzz(func(t *testing.T, raw, value []byte) {
		for name, made := range map[string]normalise{"input": schema.NormaliseInput, "output": schema.NormaliseOutput} {
			out, _, err := made(raw)
			if err != nil {
				continue
			}
			var shape struct {
				Type       string                    `json:"type"`
				Properties map[string]map[string]any `json:"properties"`
				Required   []string                  `json:"required"`
			}
			err = json.Unmarshal(out, &shape)
			if err != nil || shape.Type != "object" || shape.Properties == nil && name == "input" {
				t.Fatalf("%s %s became %s: %v", name, raw, out, err)
			}
			if again, _, err := made(out); err != nil || string(again) != string(out) {
				t.Fatalf("%s %s became %s, then %s %v", name, raw, out, again, err)
			}
			was, err := schema.Compile(jsontext.Value(raw), 1000)
			if err != nil || !jsontext.Value(value).IsValid() || jsontext.Value(value).Kind() != '{' {
				continue
			}
			is, err := schema.Compile(out, 1000)
			if err == nil && was.Check(value, "") == nil && is.Check(value, "") != nil {
				t.Fatalf("%s %s allows %s, and %s does not: %v", name, raw, value, out, is.Check(value, ""))
			}
		}
	})
}
