package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"a2e/host"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/schema"
	"a2e/protocol"
)

// shown returns a tool with the properties that the list looks at.
func shown(name, description string, kind Kind, deferred bool, tags ...string) Tool {
	t := gives(name, Outcome{})
	t.Kind, t.Def.Description, t.Def.Tags, t.Def.DeferLoading = kind, description, tags, deferred
	return t
}

func listPlugin(t *testing.T) *Plugin {
	return withTools(t, Options{},
		shown("zip", "Pack files.", KindCommand, false, "Files", "archive"),
		shown("read_file", "Read a file.", KindBuiltin, false, "files"),
		shown("deploy", "Deploy files to the server.", KindCommand, true, "ops"),
		shown("http_get", "Fetch a page.", KindBuiltin, false, "web"),
		shown("unpack", "Unpack an archive.", KindCommand, true, "files", "archive"),
	)
}

func listNames(t *testing.T, p *Plugin, req *protocol.ToolListRequest) []string {
	t.Helper()
	resp := must.Get(p.list(t.Context(), req, silent{}))(t)
	body := must.Get(protocol.AppendJSON(nil, resp))(t)
	fitsSchema(t, protocol.TypeToolListResp, body)
	names := []string{}
	for _, def := range resp.Tools {
		names = append(names, def.Name)
	}
	return names
}

func TestList(t *testing.T) {
	p := listPlugin(t)
	for _, tc := range []struct {
		req  protocol.ToolListRequest
		want []string
	}{
		{protocol.ToolListRequest{}, []string{"http_get", "read_file", "zip"}},
		{protocol.ToolListRequest{Query: " \t"}, []string{"http_get", "read_file", "zip"}},
		{protocol.ToolListRequest{IncludeDeferred: true}, []string{"deploy", "http_get", "read_file", "unpack", "zip"}},
		{protocol.ToolListRequest{FilterTags: []string{"FILES"}}, []string{"read_file", "zip"}},
		{protocol.ToolListRequest{FilterTags: []string{"files", "Archive"}}, []string{"zip"}},
		{protocol.ToolListRequest{FilterTags: []string{"files", "web"}}, []string{}},
		{protocol.ToolListRequest{FilterTags: []string{"file"}}, []string{}},
		{protocol.ToolListRequest{FilterTags: []string{"archive"}, IncludeDeferred: true}, []string{"unpack", "zip"}},
		{protocol.ToolListRequest{FilterKind: "builtin"}, []string{"http_get", "read_file"}},
		{protocol.ToolListRequest{FilterKind: "command"}, []string{"zip"}},
		{protocol.ToolListRequest{FilterKind: "command", IncludeDeferred: true}, []string{"deploy", "unpack", "zip"}},
		{protocol.ToolListRequest{FilterKind: "mcp"}, []string{}},
	} {
		diff := cmp.Diff(tc.want, listNames(t, p, &tc.req))
		assert.That(t, diff == "", "%+v: %s", tc.req, diff)
	}
	_, err := called(t, p, "deploy", `{}`)
	assert.That(t, err == nil, "a deferred tool can be called without being listed: %v", err)
}

func TestMergeLists(t *testing.T) {
	def := func(name, from string) protocol.ToolDefinition {
		return protocol.ToolDefinition{Name: name, Description: from}
	}
	list := func(defs ...protocol.ToolDefinition) *protocol.ToolListResponse {
		return &protocol.ToolListResponse{Tools: defs}
	}
	got := list(def("b", "high"), def("d", "high"))
	protocol.MergeTools(got, list(def("a", "low"), def("b", "low"), def("e", "low")))
	protocol.MergeTools(got, list(def("a", "lowest"), def("c", "lowest")))
	assert.Diff(t, list(def("a", "low"), def("b", "high"), def("c", "lowest"), def("d", "high"), def("e", "low")), got)
	none := list()
	protocol.MergeTools(none, list())
	assert.That(t, none.Tools != nil && len(none.Tools) == 0, "got %v", none.Tools)
}

// compiled compiles a JSON Schema.
func compiled(t testing.TB, schema jsontext.Value) *jsonschema.Schema {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	must.That(t, err == nil, "%s: %v", schema, err)
	c := jsonschema.NewCompiler()
	if err := c.AddResource("tool.json", value); err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	s, err := c.Compile("tool.json")
	must.That(t, err == nil, "%s: %v", schema, err)
	return s
}

// TestSchemaAgreesWithTheCheck: the schema of a tool accepts exactly the arguments that its calls accept.
func TestSchemaAgreesWithTheCheck(t *testing.T) {
	nested := par("where", "object")
	nested.Properties = map[string]protocol.ToolParameter{"b": par("", "integer!"), "a": par("", "string", "x", "y")}
	declared := []protocol.ToolParameter{
		par("text", "string!"), par("n", "integer", "1", "2"), par("f", "number"), par("flag", "boolean"),
		par("list", "array"), par("free", "object"),
		par("what", "any"), par("pick", "any", "1", "one", "null"), nested,
	}
	ps := must.Get(newParams(declared))(t)
	ready := compiled(t, schema.Object(declared, true))
	values := []string{
		`null`, `true`, `"x"`, `"z"`, `""`, `1`, `2.0`, `3`, `1.5`, `"1"`, `"one"`, `[]`, `[1,"a"]`,
		`{}`, `{"b":1}`, `{"b":1,"a":"x"}`, `{"b":1,"a":"z"}`, `{"a":"x"}`, `{"b":1,"c":2}`,
	}
	accepted := 0
	for _, p := range append(declared, par("unknown", "any")) {
		for _, v := range values {
			args := fmt.Sprintf(`{"text":"t",%q:%s}`, p.Name, v)
			if p.Name == "text" {
				args = fmt.Sprintf(`{"text":%s}`, v)
			}
			_, refused := ps.check(parsed(t, args))
			value := must.Get(jsonschema.UnmarshalJSON(strings.NewReader(args)))(t)
			broken := ready.Validate(value)
			assert.That(t, (broken == nil) == (refused == nil), "%s: the schema says %v, the check %v", args, broken,
				refused)
			if refused == nil {
				accepted++
			}
		}
	}
	_, err := ps.check(parsed(t, `{}`))
	assert.That(t, err != nil && ready.Validate(map[string]any{}) != nil, "a required argument may be missing")
	assert.That(t, accepted >= 40 && accepted <= len(values)*len(declared)/2, "%d were accepted", accepted)
}

func TestDescribeBuiltinTools(t *testing.T) {
	commands := []CommandTool{{
		Name: "say", Command: []string{"echo", "{what}"},
		Parameters: []CommandParameter{{Name: "what", Required: true}},
	}, {Name: "call", Command: []string{"echo"}, Network: true}}
	for _, network := range []bool{false, true} {
		p := must.Get(New("mytools", Options{Commands: commands, NetworkDisabled: !network, Deny: []string{"glob"}},
			host.Env{Workspace: t.TempDir()}))(t)
		defer p.Close(context.Background())
		run := "destructive"
		if network {
			run = "destructive open"
		}
		want := map[string]string{
			"echo": "reads idempotent", "read_file": "reads idempotent", "list_dir": "reads idempotent",
			"grep":       "reads idempotent",
			"write_file": "destructive idempotent", "edit_file": "destructive", "http_get": "reads idempotent open",
			"run_command": run, "say": run, "call": "destructive open",
		}
		var describer host.ToolDescriber = p
		for _, def := range p.Tools() {
			d, ok := describer.DescribeTool(def.Name)
			if got := traits(d); !ok || got != want[def.Name] {
				t.Errorf("%s is %q, should be %q", def.Name, got, want[def.Name])
			}
			delete(want, def.Name)
			ready := compiled(t, d.InputSchema)
			for _, in := range def.InputParameters {
				assert.That(t, ready.Properties[in.Name] != nil && slices.Contains(ready.Required,
					in.Name) == in.Required, "%s: %s is not in %s as it is declared", def.Name, in.Name, d.InputSchema)
			}
		}
		assert.That(t, len(want) <= 0, "not described: %v", want)
		for _, name := range []string{"glob", "nothing", ""} {
			if d, ok := describer.DescribeTool(name); ok || d.InputSchema != nil {
				t.Errorf("%q is described: %+v", name, d)
			}
		}
	}
}

// traits returns the annotations of a tool as words.
func traits(d host.ToolDetail) string {
	var words []string
	for word, on := range map[string]bool{
		"reads": d.ReadOnly, "destructive": d.Destructive, "idempotent": d.Idempotent,
		"open": d.OpenWorld,
	} {
		if on {
			words = append(words, word)
		}
	}
	order := []string{"reads", "destructive", "idempotent", "open"}
	slices.SortFunc(words, func(a, b string) int { return slices.Index(order, a) - slices.Index(order, b) })
	return strings.Join(words, " ")
}

// par declares a parameter; a "!" at the end of the type makes it required.
func par(name, typ string, enum ...string) protocol.ToolParameter {
	plain := strings.TrimSuffix(typ, "!")
	return protocol.ToolParameter{Name: name, Type: plain, Required: plain != typ, Enum: enum}
}

func withProperties(p protocol.ToolParameter, members ...protocol.ToolParameter) protocol.ToolParameter {
	p.Properties = make(map[string]protocol.ToolParameter)
	for _, m := range members {
		p.Properties[m.Name] = m
	}
	return p
}

func parsed(t testing.TB, raw string) protocol.Object {
	t.Helper()
	o, err := protocol.ParseObject([]byte(raw))
	must.That(t, err == nil, "%s: %v", raw, err)
	return o
}

// problems returns the problems of a schema_violation, or nil if err is nil.
func problems(t testing.TB, err error) []protocol.FieldError {
	t.Helper()
	if err == nil {
		return nil
	}
	var e *protocol.Error
	must.That(t, errors.As(err, &e) && e.Code == protocol.CodeSchemaViolation, "want a schema_violation, got %v", err)
	return e.Detail["errors"].([]protocol.FieldError)
}

func sampleParams(t testing.TB) params {
	t.Helper()
	ps := must.Get(newParams([]protocol.ToolParameter{
		par("path", "string!"), par("limit", "integer"), par("ratio", "number"), par("deep", "boolean"),
		par("env", "object"), par("command", "array"), par("what", "any"), par("mode", "string", "fast", "slow", `a"b`),
		par("level", "integer", "1", "2"), par("größe/~", "string"),
		withProperties(par("where", "object"), par("host", "string!"), par("port", "integer"),
			withProperties(par("auth", "object"), par("user", "string!"))),
	}))(t)
	return ps
}

func TestArgumentsThatFit(t *testing.T) {
	ps := sampleParams(t)
	for _, raw := range []string{
		`{"path":"x"}`, `{"path":""}`, `{"path":"\u0000é\ud83d\ude00"}`, `{"p\u0061th":"x"}`,
		`{"path":"x","limit":0}`, `{"path":"x","limit":-7}`, `{"path":"x","limit":123456789012345678901234567890}`,
		`{"path":"x","ratio":1.5e-7}`, `{"path":"x","ratio":3}`, `{"path":"x","deep":true}`,
		`{"path":"x","deep":false}`,
		`{"path":"x","env":{}}`, `{"path":"x","env":{"a":[1]}}`, `{"path":"x","command":[]}`,
		`{"path":"x","command":["a",1]}`,
		`{"path":"x","what":null}`, `{"path":"x","what":[{}]}`, `{"path":"x","mode":"fast"}`,
		`{"path":"x","mode":"f\u0061st"}`,
		`{"path":"x","mode":"a\"b"}`, `{"path":"x","level":2}`, `{"path":"x","level":2.0}`,
		`{"path":"x","größe/~":"x"}`,
		`{"path":"x","where":{"host":"h"}}`, `{"path":"x","where":{"host":"h","port":1,"auth":{"user":"u"}}}`,
	} {
		_, err := ps.check(parsed(t, raw))
		assert.That(t, err == nil, "%s: %v", raw, err)
	}
	_, err := params(nil).check(protocol.Object{})
	assert.That(t, err == nil, "no parameters, no arguments: %v", err)
}

func TestArgumentsThatDoNotFit(t *testing.T) {
	ps := sampleParams(t)
	for _, tc := range []struct{ raw, path, message string }{
		{`{}`, "/arguments/path", "required, but missing; it is of type string"},
		{`{"path":null}`, "/arguments/path", "must be of type string, is null"},
		{`{"path":1}`, "/arguments/path", "must be of type string, is a number"},
		{`{"path":["x"]}`, "/arguments/path", "must be of type string, is an array"},
		{`{"path":"x","limit":"3"}`, "/arguments/limit", "must be of type integer, is a string"},
		{`{"path":"x","limit":1.5}`, "/arguments/limit", "is a number with a fraction"},
		{`{"path":"x","limit":1e-1}`, "/arguments/limit", "is a number with a fraction"},
		{`{"path":"x","limit":1e999999999}`, "/arguments/limit", "out of range"},
		{`{"path":"x","limit":1e99999999999999999999}`, "/arguments/limit", "out of range"},
		{`{"path":"x","limit":true}`, "/arguments/limit", "is a boolean"},
		{`{"path":"x","ratio":"1.5"}`, "/arguments/ratio", "is a string"},
		{`{"path":"x","deep":"true"}`, "/arguments/deep", "must be of type boolean, is a string"},
		{`{"path":"x","deep":1}`, "/arguments/deep", "is a number"},
		{`{"path":"x","env":[]}`, "/arguments/env", "must be of type object, is an array"},
		{`{"path":"x","command":"ls"}`, "/arguments/command", "must be of type array, is a string"},
		{`{"path":"x","mode":"fas"}`, "/arguments/mode", `must be one of "fast", "slow", "a\"b"`},
		{`{"path":"x","mode":"FAST"}`, "/arguments/mode", "must be one of"},
		{`{"path":"x","mode":"a\\\"b"}`, "/arguments/mode", "must be one of"},
		{`{"path":"x","level":3}`, "/arguments/level", `must be one of "1", "2"`},
		{`{"path":"x","limt":3}`, "/arguments/limt", `unknown argument; did you mean "limit"?`},
		{`{"path":"x","Path":"y"}`, "/arguments/Path", `unknown argument; did you mean "path"?`},
		{`{"path":"x","path\u0000":"y"}`, "/arguments/path\x00", `did you mean "path"?`},
		{`{"path":"x","a/b~c":1}`, "/arguments/a~1b~0c", "unknown argument"},
		{`{"path":"x","größe/~":1}`, "/arguments/größe~1~0", "must be of type string"},
		{`{"path":"x","where":{}}`, "/arguments/where/host", "required, but missing"},
		{`{"path":"x","where":{"host":"h","prt":1}}`, "/arguments/where/prt", `did you mean "port"?`},
		{
			`{"path":"x","where":{"host":"h","auth":{"user":7}}}`, "/arguments/where/auth/user",
			"must be of type string, is a number",
		},
	} {
		_, err := ps.check(parsed(t, tc.raw))
		got := problems(t, err)
		assert.That(t, len(got) == 1 && got[0].Path == tc.path && strings.Contains(got[0].Message, tc.message),
			"%s: got %q, want one problem at %s saying %q", tc.raw, got, tc.path, tc.message)
	}
	_, err := params(nil).check(parsed(t, `{"x":1}`))
	assert.Equal(t, len(problems(t, err)), 1, "a tool without parameters takes an argument")
}

func TestIntegersAreRespelled(t *testing.T) {
	ps := sampleParams(t)
	for raw, want := range map[string]string{
		`{"path":"1.0","limit":3.0}`:                                 `{"path":"1.0","limit":3}`,
		`{"path":"x","limit":1e2,"ratio":1e2}`:                       `{"path":"x","limit":100,"ratio":1e2}`,
		`{"path":"x","limit":-1.50E+1}`:                              `{"path":"x","limit":-15}`,
		`{"path":"x","limit":120e-1}`:                                `{"path":"x","limit":12}`,
		`{"path":"x","limit":0.000}`:                                 `{"path":"x","limit":0}`,
		`{"path":"x","limit":-0e999}`:                                `{"path":"x","limit":0}`,
		`{"p\u0061th":"\u0061", "where":{"host":"h","port":8.08e1}}`: "", // port is 80.8, which is not an integer
		`{"p\u0061th":"\u0061", "where":{"host":"h","port":8.08e3}}`: `{"path":"\u0061","where":{"host":"h","port":8080}}`,
		`{"path": "x", "limit": 3}`:                                  `{"path": "x", "limit": 3}`,
	} {
		got, err := ps.check(parsed(t, raw))
		if want == "" {
			if err == nil {
				t.Errorf("%s: accepted as %s", raw, got.Raw())
			}
			continue
		}
		if err != nil || string(got.Raw()) != want {
			t.Errorf("%s: got %s, %v; want %s", raw, got.Raw(), err, want)
		}
	}
}

func TestDeclarationsThatMakeNoSense(t *testing.T) {
	for _, tc := range []struct {
		declared []protocol.ToolParameter
		want     string
	}{
		{[]protocol.ToolParameter{par("a", "string"), par("b", "str")}, `"b": unknown type "str"`},
		{[]protocol.ToolParameter{par("", "string")}, "has no name"},
		{[]protocol.ToolParameter{par("a", "string"), par("a", "integer")}, "declared twice"},
		{
			[]protocol.ToolParameter{withProperties(par("a", "string"), par("b", "string"))},
			"only an object has properties",
		},
		{
			[]protocol.ToolParameter{withProperties(par("a", "object"), par("b", "text"))},
			`"a": parameter "b": unknown type`,
		},
	} {
		_, err := newParams(tc.declared)
		assert.That(t, err != nil && strings.Contains(err.Error(), tc.want), "%v: got %v, want %q", tc.declared, err,
			tc.want)
	}
}

// TestFloodOfUnknownArguments: an answer lists only the first of very many unknown arguments, and the host does no work
// for the others.
func TestFloodOfUnknownArguments(t *testing.T) {
	ps := params{{name: "text", typ: typeString}}
	c := checker{}
	for i := range maxProblems {
		c.unknown(ps, fmt.Sprint("txt", i), nil)
	}
	must.That(t, len(c.problems) == maxProblems && strings.Contains(c.problems[0].Message, "text"), "%+v", c.problems)
	assert.Equal(t, testing.AllocsPerRun(100, func() { c.unknown(ps, "text2", nil) }), 0,
		"… allocations for a problem that is not told")
}
