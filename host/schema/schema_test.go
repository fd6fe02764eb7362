package schema_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/schema"
	"a2e/protocol"
)

// doubling returns a schema whose size doubles with each of 30 references.
func doubling() string {
	text := `{"properties":{"a":{"$ref":"#/$defs/d0"}},"$defs":{"d30":{"type":"string"}`
	for i := range 30 {
		text += fmt.Sprintf(`,"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`, i, i+1, i+1)
	}
	return text + `}}`
}

func TestCompileRefuses(t *testing.T) {
	endless := strings.Repeat("(.?){900}", 20)
	for name, c := range map[string]struct{ schema, why string }{
		"refers to itself": {`{"properties":{"a":{"$ref":"#/properties/a"}}}`, "refers to itself"},
		"is a tree": {
			`{"$ref":"#/$defs/t","$defs":{"t":{"properties":{"t":{"$ref":"#/$defs/t"}}}}}`,
			"refers to itself",
		},
		"loops behind an id":     {`{"properties":{"a":{"$id":"x:y","$ref":"#/$defs/b","$defs":{"b":{"$ref":"#/$defs/b"}}}}}`, "$id is not understood"},
		"doubles with each step": {doubling(), "too many parts"},
		"refers elsewhere": {
			`{"properties":{"a":{"$ref":"https://example.org/s"}}}`,
			"leads out of the schema",
		},
		"refers to an anchor": {
			`{"items":{"$ref":"#x"},"$defs":{"x":{"$anchor":"x"}}}`,
			"leads out of the schema",
		},
		"refers to nothing":        {`{"items":{"$ref":"#/$defs/x"}}`, "there is no"},
		"a dynamic reference":      {`{"properties":{"a":{"$dynamicRef":"#x"}}}`, "$dynamicRef is not understood"},
		"no schema":                {`{"type":7}`, "is not a JSON Schema"},
		"no pattern":               {`{"properties":{"a":{"pattern":"(?=x)"}}}`, "error parsing regexp"},
		"an endless pattern":       {`{"properties":{"a":{"pattern":"` + endless + `"}}}`, "cannot be used"},
		"an endless name":          {`{"patternProperties":{"` + endless + `":true}}`, "cannot be used"},
		"many patterns in a row":   {`{"allOf":[` + strings.Repeat(`{"pattern":"(.?){900}"},`, 99) + `{}]}`, "steps"},
		"no type":                  {`{"items":{"type":["string","any"]}}`, `type: "any" is not a type`},
		"an unknown dialect":       {`{"$schema":"https://example.org/own"}`, "dialect"},
		"a dialect of long ago":    {`{"$schema":"http://json-schema.org/draft-03/schema#"}`, "dialect"},
		"a dialect within another": {`{"not":{"$schema":"http://json-schema.org/draft-04/schema"}}`, "another dialect"},
		"a list where one belongs": {`{"properties":["a"]}`, "is not a JSON Schema"},
	} {
		_, err := schema.Compile(jsontext.Value(c.schema), 500)
		assert.That(t, err != nil && strings.Contains(err.Error(), c.why), "%s: %v, want %q", name, err, c.why)
	}
}

// TestCheck: each problem has its path and says what would be right.
func TestCheck(t *testing.T) {
	const choice = `{"oneOf":[{"properties":{"k":{"const":"a"},"n":{"type":"integer"}},"required":["k","n"]},{"properties":{"k":{"const":"b"},"s":{"maxLength":3}},"required":["k"]}]}`
	for name, c := range map[string]struct {
		schema, value string
		want          []string // "PATH: part of the message"
	}{
		"fits": {`{"properties":{"a":{"type":"string"}}}`, `{"a":"x","b":1}`, nil},
		"a type, value hidden": {
			`{"properties":{"a":{"properties":{"b":{"type":"string"}}}}}`, `{"a":{"b":[1]}}`,
			[]string{"/v/a/b: should be of type string, is of type array"},
		},
		"one of types": {
			`{"items":{"type":["string","null"]}}`, `["x",null,3]`,
			[]string{"/v/2: should be of type string, null, is of type integer"},
		},
		"missing and unknown": {`{"properties":{"name":{},"other":{}},"required":["name"],"additionalProperties":false}`, `{"nmae":1,"x/y~z":2}`, []string{"/v/name: is missing", `/v/nmae: is not known; did you mean "name"?`, "/v/x~1y~0z: is not known; there are: name, other"}},
		"nothing is known": {`{"additionalProperties":false}`, `{"a":1}`, []string{"/v/a: is not known; there " +
			"are none"}},
		"others of a type": {
			`{"properties":{"a":{}},"additionalProperties":{"type":"number"}}`,
			`{"a":"x","b":"y"}`,
			[]string{"/v/b: should be of type number"},
		},
		"names by a pattern": {
			`{"patternProperties":{"^x":{}},"additionalProperties":false,"required":["y"]}`,
			`{"xa":1}`,
			[]string{"/v/y: is missing"},
		},
		"a reference": {`{"properties":{"a":{"$ref":"#/$defs/n","description":"d"}},"$defs":{"n":{"type":"number"}}}`, `{"a":"x"}`, []string{"/v/a: should be of type number"}},
		"beside a reference": {
			`{"properties":{"a":{"$ref":"#/$defs/n","minimum":7}},"$defs":{"n":{"minimum":3}}}`,
			`{"a":5}`,
			[]string{"/v/a: minimum: 5/1 is less than 7"},
		},
		"a member called $ref": {
			`{"properties":{"$ref":{"type":"string"}}}`, `{"$ref":1}`,
			[]string{"/v/$ref: should be of type string"},
		},
		"a pattern": {
			`{"properties":{"a":{"pattern":"^[a-z]+$"}}}`, `{"a":"1"}`,
			[]string{"/v/a: pattern: "},
		},
		"the choice meant": {choice, `{"k":"b","s":"long one"}`, []string{
			"/v/s: maxLength",
			"/v: fits none of the 2 choices of oneOf: 1: /n is missing; 2: /s maxLength",
		}},
		"the other choice": {choice, `{"k":"a","n":"x"}`, []string{
			"/v/n: should be of type integer",
			"/v: fits none of the 2 choices of oneOf: 1: /n should be of type integer, is of type string; 2: /k " +
				"should be \"b\"",
		}},
		"choices with titles": {`{"anyOf":[{"title":"Cat","required":["meow"]},{"type":"string"},{"title":"Dog","required":["bark"]}]}`, `{}`, []string{"/v/meow: is missing", "/v: fits none of the 3 choices of anyOf: 1 (Cat): /meow is missing; 2: should be of type string, is of type object; 3 (Dog): /bark is missing"}},
		"two choices fit": {
			`{"oneOf":[{"title":"Cat"},{"type":"string"},{"required":["a"]}]}`, `{"a":1}`,
			[]string{"/v: fits more than one choice of oneOf: 1 (Cat), 3"},
		},
		"an enum with null": {
			`{"properties":{"a":{"enum":["x",null,1.5,{"b":null}]}}}`, `{"a":"y"}`,
			[]string{"/v/a: should be one of \"x\", null, 1.5, {\"b\":null}"},
		},
		"a const of null": {`{"properties":{"a":{"const":null}}}`, `{"a":"y"}`, []string{"/v/a: should be null"}},
		"if, else": {
			`{"if":{"required":["a"]},"else":{"properties":{"b":{"enum":[null]}}}}`, `{"b":1}`,
			[]string{"/v/b: should be one of null"},
		},
		"if, then": {
			`{"if":{"required":["a"]},"then":{"required":["b"]}}`, `{"a":1}`,
			[]string{"/v/b: is missing"},
		},
		"all of them": {
			`{"allOf":[{"required":["a"]},{"required":["b"]}]}`, `{}`,
			[]string{"/v/a: is missing", "/v/b: is missing"},
		},
		"no JSON": {`{}`, `{"a":1,"a":2}`, []string{"/v: "}},
		"more than can be read": {`{"additionalProperties":false}`, "{" + strings.Repeat(`"x":1,`, 1) +
			manyMembers(99) + "}", slices.Repeat([]string{"is not known"}, 20)},
		"a list of many": {
			`{"items":{"type":"string"}}`, "[" + strings.Repeat("1,", 99) + "1]",
			slices.Repeat([]string{"should be"}, 20),
		},
		"an identified one": {`{"$id":"https://example.org/s","$schema":"https://json-schema.org/draft/2020-12/schema","required":["a"]}`, `{}`, []string{"/v/a"}},
		"an older one": {
			`{"$schema":"http://json-schema.org/draft-07/schema#","items":[{"type":"string"}]}`,
			`[1]`,
			[]string{"/v: should be of type string"},
		},
		"nothing fits": {`false`, `1`, []string{"/v: not"}},
	} {
		s, err := schema.Compile(jsontext.Value(c.schema), 500)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := s.Check([]byte(c.value), "/v")
		ok := len(got) == len(c.want)
		for i := 0; ok && i < len(got); i++ {
			ok = strings.Contains(got[i].Path+": "+got[i].Message, c.want[i])
		}
		assert.That(t, ok, "%s: %v, want %q", name, got, c.want)
	}
}

// TestDialects: a schema of an older dialect is applied by the rules of that dialect.
func TestDialects(t *testing.T) {
	draft := func(name, schema string) string {
		return `{"$schema":"http` + name + `",` + schema[1:]
	}
	const draft4, missing = "://json-schema.org/draft-04/schema", "/v/a: is missing"
	const draft7, draft2019 = "://json-schema.org/draft-07/schema", "s://json-schema.org/draft/2019-09/schema"
	const draft2020, openAPI = "s://json-schema.org/draft/2020-12/schema#", "s://spec.openapis.org/oas/3.1/dialect/base"
	tuple := `{"items":[{"type":"string"}],"additionalItems":{"type":"number"}}`
	defined := `{"definitions":{"n":{"type":"number"}},"items":{"$ref":"#/definitions/n","minimum":7}}`
	for name, c := range map[string]struct {
		schema, value, want string // "PATH: part of the message"; "" = it fits
	}{
		"draft-07, no fragment": {draft(draft7, tuple), `[1]`, "/v: should be of type string"},
		"draft-06": {
			draft("://json-schema.org/draft-06/schema#", `{"exclusiveMinimum":3}`), `3`, "/v: exclusiveMinimum",
		},
		"draft-04, exclusive": {
			draft(draft4, `{"id":"x:y","minimum":3,"exclusiveMinimum":true}`), `3`, "/v: exclusiveMinimum",
		},
		"draft-04, inclusive":  {draft(draft4+"#", `{"maximum":3,"exclusiveMaximum":false}`), `4`, "/v: maximum"},
		"draft-04, reference":  {draft(draft4, defined), `[1]`, ""},
		"2019-09":              {draft(draft2019, tuple), `["x","y"]`, "/v/1: should be"},
		"2020-12, a fragment":  {draft(draft2020, `{"required":["a"]}`), `{}`, missing},
		"OpenAPI 3.1":          {draft(openAPI, `{"required":["a"]}`), `{}`, missing},
		"multiples of a float": {`{"items":{"multipleOf":0.01}}`, `[19.99]`, ""},
		"multiples":            {`{"items":{"multipleOf":0.5}}`, `[19.25]`, "/v/0: multipleOf"},
	} {
		s := must.Get(schema.Compile(jsontext.Value(c.schema), 500))(t)
		got := ""
		for _, wrong := range s.Check([]byte(c.value), "/v") {
			got += wrong.Path + ": " + wrong.Message
		}
		ok := strings.Contains(got, c.want) && (got == "") == (c.want == "")
		assert.That(t, ok, "%s: %q, want %q", name, got, c.want)
	}
}

func manyMembers(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"m%d":1`, i))
	}
	return strings.Join(all, ",")
}

func TestMatchingIsBounded(t *testing.T) {
	s := must.Get(schema.Compile(map[string]any{"pattern": "(a?){50}b"}, 10))(t)
	long := []byte(`"` + strings.Repeat("a", s.MaxBytes()) + `"`)
	got := s.Check(long, "/v")
	assert.That(t, len(got) == 1 && strings.Contains(got[0].Message, "too many to check against"), "%d bytes: %.200v",
		len(long), got)
}

func TestDefaults(t *testing.T) {
	for text, fits := range map[string]bool{
		`{"properties":{"a":{"type":"string","default":"x"}}}`: true,
		`{"properties":{"a":{"type":"string","default":3}}}`:   false,
	} {
		s, err := schema.Compile(jsontext.Value(text), 10)
		if err != nil || (s.CheckDefaults() == nil) != fits {
			t.Errorf("%s: %v %v", text, err, s.CheckDefaults())
		}
	}
}

func TestObject(t *testing.T) {
	par := func(name, typ string, enum ...string) protocol.ToolParameter {
		typ, required := strings.CutSuffix(typ, "!")
		return protocol.ToolParameter{Name: name, Type: typ, Required: required, Enum: enum}
	}
	nested := par("where", "object!")
	nested.Description = `Where, "quoted".`
	nested.Properties = map[string]protocol.ToolParameter{"b": par("", "integer!"), "a": par("", "string", "x", "y")}
	described := par("text", "string!")
	described.Description = "Any text."
	for _, c := range []struct {
		members []protocol.ToolParameter
		want    string
	}{
		{nil, `{"type":"object","properties":{},"additionalProperties":false}`},
		{
			[]protocol.ToolParameter{described, par("n", "integer")},
			`{"type":"object","properties":{"text":{"type":"string","description":"Any text."},"n":{"type":"integer"}},"required":["text"],"additionalProperties":false}`,
		},
		{
			[]protocol.ToolParameter{nested},
			`{"type":"object","properties":{"where":{"type":"object","properties":{"a":{"type":"string","enum":["x","y"]},"b":{"type":"integer"}},` +
				`"required":["b"],"additionalProperties":false,"description":"Where, \"quoted\"."}},"required":["where"],"additionalProperties":false}`,
		},
		{
			[]protocol.ToolParameter{
				par("free", "object"), par("list", "array"), par("what", "any"),
				par("odd", "string|null"),
			},
			`{"type":"object","properties":{"free":{"type":"object"},"list":{"type":"array","items":{}},"what":{},"odd":{}},"additionalProperties":false}`,
		},
		{
			[]protocol.ToolParameter{
				par("n", "integer", "1", "2"), par("b", "boolean", "true"), par("s", "string", "1"),
				par("x", "any", "1", "one"), par("never", "number", "one"),
			},
			`{"type":"object","properties":{"n":{"type":"integer","enum":[1,2]},"b":{"type":"boolean","enum":[true]},"s":{"type":"string","enum":["1"]},` +
				`"x":{"enum":["1",1,"one"]},"never":{"type":"number","enum":["one"]}},"additionalProperties":false}`,
		},
	} {
		got := schema.Object(c.members, true)
		assert.Equal(t, string(got), c.want, "got  %s", got)
		_, err := schema.Compile(got, 100)
		assert.That(t, err == nil, "%s: %v", got, err)
		assert.Equal(t, string(schema.Object(c.members, false)), strings.ReplaceAll(c.want,
			`,"additionalProperties":false`, ""), "open")
	}
}

func TestParameters(t *testing.T) {
	var parsed any
	text := `{"type":"object","required":["z","b"],"properties":{
		"a":{"type":["string","null"],"description":"an a"},"b":{"type":"integer"},"c":{"enum":["x","y"],"type":"string"},"d":{"anyOf":[{"type":"string"},{"type":["number","null"]}]},
		"e":{"type":"object","properties":{"f":{"type":"boolean"}},"required":["f"]},"g":true,"h":{"type":["string","number"],"title":"H"},"i":{"enum":[1,"x"]},"z":{"type":"array","items":{}}}}`
	must.OK(t, json.Unmarshal([]byte(text), &parsed))
	want := `[{"name":"b","type":"integer","description":"","required":true,"enum":null,"properties":null},` +
		`{"name":"z","type":"array","description":"","required":true,"enum":null,"properties":null},` +
		`{"name":"a","type":"string","description":"an a","required":false,"enum":null,"properties":null},` +
		`{"name":"c","type":"string","description":"","required":false,"enum":["x","y"],"properties":null},` +
		`{"name":"d","type":"any","description":"","required":false,"enum":null,"properties":null},` +
		`{"name":"e","type":"object","description":"","required":false,"enum":null,"properties":{"f":{"name":"f","type":"boolean","description":"","required":true,"enum":null,"properties":null}}},` +
		`{"name":"g","type":"any","description":"","required":false,"enum":null,"properties":null},` +
		`{"name":"h","type":"any","description":"H","required":false,"enum":null,"properties":null},` +
		`{"name":"i","type":"any","description":"","required":false,"enum":null,"properties":null}]`
	raw, err := json.Marshal(schema.Parameters(parsed), json.Deterministic(true))
	assert.That(t, err == nil && string(raw) == want, "parameters:\n%s\nwant\n%s\n%v", raw, want, err)
	none := schema.Parameters(nil)
	assert.That(t, none != nil && len(none) == 0, "of no schema: %v", none)
	d := parsed.(map[string]any)["properties"].(map[string]any)["d"]
	assert.Slice(t, schema.Types(d), []string{"string", "number", "null"}, "types")
}

func TestSuggest(t *testing.T) {
	names := []string{"echo", "read_file", "write_file", "list_dir"}
	for _, c := range []struct{ name, want string }{
		{"ehco", `did you mean "echo"?`},
		{"READ-FILE", `did you mean "read_file"?`},
		{"write_fil", `did you mean "write_file"?`},
		{"rite_file", `did you mean "write_file" or "read_file"?`},
		{"eco\x00", "the tools: echo, read_file, " +
			"write_file, list_dir"},
		{strings.Repeat("İ", 1<<20), "the tools: echo, read_file, write_file, list_dir"},
		{"", "the tools: echo, read_file, write_file, list_dir"},
	} {
		assert.Equal(t, schema.Suggest(c.name, "tools", names), c.want, "%.20q", c.name)
	}
	assert.Equal(t, schema.Suggest("x", "tools", nil), "there are no tools", "no names")
	var many []string
	for i := range 30 {
		many = append(many, fmt.Sprintf("tool_%02d", i))
	}
	assert.Equal(t, schema.Suggest("unlike", "tools", many), "some of the tools: "+strings.Join(many[:10], ", "),
		"of many")
	assert.Equal(t, schema.DidYouMean("tool_071", many), `did you mean "tool_01" or "tool_07" or "tool_00"?`,
		"nearest of many")
}

// TestNames: each tool gets a different name that the APIs of models accept, and a name that they accept already is
// kept.
func TestNames(t *testing.T) {
	long := strings.Repeat("x", 100)
	tools := []string{"a.b", "a/b", "a_b", "日本", "", long, long + "y", "read_file"}
	names, seen := schema.NewNames(tools), map[string]bool{}
	for _, tool := range tools {
		name := names.There(tool)
		assert.That(t, len(name) <= schema.LongestName && name != "" && name == schema.FittingName(name) &&
			!seen[name] && names.Here(name) == tool, "%q is %q", tool, name)
		seen[name] = true
	}
	assert.Equal(t, names.There("a_b"), "a_b", "one that fits")
	assert.Equal(t, names.There("no.tool"), "no_tool", "one that there is not")
	assert.Equal(t, names.Here("no_tool"), "no_tool", "one that stands for nothing")
}

// TestFit: a schema for a model's API uses only keywords that such APIs know, and never allows less than the
// original.
func TestFit(t *testing.T) {
	for in, want := range map[string]string{
		`{"$schema":"x","$id":"y","type":"object","properties":{"b":{"type":"string","x-a":1},"a":true},"required":["b"],"additionalProperties":false}`:
		/**/ `{"type":"object","properties":{"b":{"type":"string"},"a":{}},"required":["b"],"additionalProperties":false}`,
		`{"anyOf":[{"required":["a"]}],"allOf":[],"enum":[1],"required":[]}`: `{"type":"object","properties":{}}`,
		`true`:             `{"type":"object","properties":{}}`,
		`{"type":"array"}`: `{"type":"object","properties":{}}`,
		`{"properties":{"a":{"type":"array"},"b":{"type":["array","null"],"items":[{"type":"string"}]}}}`:           `{"type":"object","properties":{"a":{"type":"array","items":{}},"b":{"type":["array","null"],"items":{}}}}`,
		`{"properties":{"a":{"oneOf":[{"minimum":1},{"not":{}}]},"b":{"oneOf":[{}],"anyOf":[{"type":"null"}]}}}`:    `{"type":"object","properties":{"a":{"anyOf":[{"minimum":1},{}]},"b":{"anyOf":[{"type":"null"}]}}}`,
		`{"properties":{"a":{"$ref":"#/$defs/d"},"b":{"$ref":"#"}},"$defs":{"d":{"exclusiveMinimum":true}}}`:        `{"type":"object","properties":{"a":{"$ref":"#/$defs/d"},"b":{}},"$defs":{"d":{}}}`,
		`{"properties":{},"patternProperties":{"^a":{}},"additionalProperties":false}`:                              `{"type":"object","properties":{}}`,
		`{"properties":{"a":{"type":"object","additionalProperties":{"type":"string","default":"x","pattern":5}}}}`: `{"type":"object","properties":{"a":{"type":"object","additionalProperties":{"type":"string","default":"x"}}}}`,
	} {
		got := schema.Fit(jsontext.Value(in))
		assert.Equal(t, string(got), want, "of %s", in)
		assert.Equal(t, string(schema.Fit(got)), want, "once more, of %s", in)
	}
	deep := strings.Repeat(`{"properties":{"a":`, 5000) + `{}` + strings.Repeat(`}}`, 5000)
	assert.That(t, len(schema.Fit(jsontext.Value(deep))) < 1000, "a deep one has no bound")
}

func TestStrict(t *testing.T) {
	for text, want := range map[string]bool{
		`{"type":"object","properties":{},"additionalProperties":false}`:                                                                             true,
		`{"type":"object","properties":{"a":{"type":"array","items":{"type":"string","enum":["x"]}}},"required":["a"],"additionalProperties":false}`: true,
		`{"type":"object","properties":{"a":{"type":"array","items":{}}},"required":["a"],"additionalProperties":false}`:                             false,
		`{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}`:                                                        false,
		`{"type":"object","properties":{}}`: false,
		`{"type":"object","properties":{"a":{"type":"string","minLength":1}},"required":["a"],"additionalProperties":false}`:   false,
		`{"type":"object","properties":{"a":{"type":"object","properties":{}}},"required":["a"],"additionalProperties":false}`: false,
		`{"type":"object","properties":{"a":{"type":"string"}},"required":["a","b"],"additionalProperties":false}`:             false,
		`1`: false,
	} {
		assert.Equal(t, schema.Strict(jsontext.Value(text)), want, "%s", text)
	}
}
