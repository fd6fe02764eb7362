package tools

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"a2e/host"
	"a2e/host/hosttest/must"
	"a2e/host/schema"
	"a2e/protocol"
)

// shown is a tool with what the list looks at.
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
	resp := must.Get(p.set.list(t.Context(), req, silent{}))(t)
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
		if diff := cmp.Diff(tc.want, listNames(t, p, &tc.req)); diff != "" {
			t.Errorf("%+v: %s", tc.req, diff)
		}
	}
	if _, err := called(t, p, "deploy", `{}`); err != nil {
		t.Errorf("a deferred tool can be called without being listed: %v", err)
	}
}

func TestMergeLists(t *testing.T) {
	def := func(name, from string) protocol.ToolDefinition {
		return protocol.ToolDefinition{Name: name, Description: from}
	}
	list := func(defs ...protocol.ToolDefinition) *protocol.ToolListResponse {
		return &protocol.ToolListResponse{Tools: defs}
	}
	t.Run("by name", func(t *testing.T) {
		got := list(def("b", "high"), def("d", "high"))
		protocol.MergeTools(got, list(def("a", "low"), def("b", "low"), def("e", "low")))
		protocol.MergeTools(got, list(def("a", "lowest"), def("c", "lowest")))
		want := []protocol.ToolDefinition{def("a", "low"), def("b", "high"), def("c", "lowest"), def("d", "high"), def("e", "low")}
		if diff := cmp.Diff(want, got.Tools); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("nothing", func(t *testing.T) {
		got := list()
		protocol.MergeTools(got, list())
		if got.Tools == nil || len(got.Tools) != 0 {
			t.Errorf("got %v", got.Tools)
		}
	})
}

// compiled makes a JSON Schema ready for use.
func compiled(t testing.TB, schema jsontext.Value) *jsonschema.Schema {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("tool.json", value); err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	s, err := c.Compile("tool.json")
	if err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	return s
}

// What a tool's schema allows is what its calls take.
func TestSchemaAgreesWithTheCheck(t *testing.T) {
	nested := par("where", "object")
	nested.Properties = map[string]protocol.ToolParameter{"b": par("", "integer!"), "a": par("", "string", "x", "y")}
	declared := []protocol.ToolParameter{
		par("text", "string!"), par("n", "integer", "1", "2"), par("f", "number"), par("flag", "boolean"), par("list", "array"), par("free", "object"),
		par("what", "any"), par("pick", "any", "1", "one", "null"), nested,
	}
	ps := must.Get(newParams(declared))(t)
	ready := compiled(t, schema.Object(declared, true))
	values := []string{`null`, `true`, `"x"`, `"z"`, `""`, `1`, `2.0`, `3`, `1.5`, `"1"`, `"one"`, `[]`, `[1,"a"]`, `{}`, `{"b":1}`, `{"b":1,"a":"x"}`, `{"b":1,"a":"z"}`, `{"a":"x"}`, `{"b":1,"c":2}`}
	accepted := 0
	for _, p := range append(declared, par("unknown", "any")) {
		for _, v := range values {
			args := fmt.Sprintf(`{"text":"t",%q:%s}`, p.Name, v)
			if p.Name == "text" {
				args = fmt.Sprintf(`{"text":%s}`, v)
			}
			_, refused := ps.check(parsed(t, args))
			value := must.Get(jsonschema.UnmarshalJSON(strings.NewReader(args)))(t)
			if broken := ready.Validate(value); (broken == nil) != (refused == nil) {
				t.Errorf("%s: the schema says %v, the check %v", args, broken, refused)
			}
			if refused == nil {
				accepted++
			}
		}
	}
	if _, err := ps.check(parsed(t, `{}`)); err == nil || ready.Validate(map[string]any{}) == nil {
		t.Error("a required argument may be missing")
	}
	if accepted < 40 || accepted > len(values)*len(declared)/2 {
		t.Errorf("%d were accepted", accepted)
	}
}

func TestDescribeBuiltinTools(t *testing.T) {
	commands := []CommandTool{{Name: "say", Command: []string{"echo", "{what}"}, Parameters: []CommandParameter{{Name: "what", Required: true}}}, {Name: "call", Command: []string{"echo"}, Network: true}}
	for _, network := range []bool{false, true} {
		p := must.Get(New("mytools", Options{Commands: commands, NetworkDisabled: !network, Deny: []string{"glob"}}, host.Env{Workspace: t.TempDir()}))(t)
		defer p.Close(context.Background())
		run := "destructive"
		if network {
			run = "destructive open"
		}
		want := map[string]string{
			"echo": "reads idempotent", "read_file": "reads idempotent", "list_dir": "reads idempotent", "grep": "reads idempotent",
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
				if ready.Properties[in.Name] == nil || slices.Contains(ready.Required, in.Name) != in.Required {
					t.Errorf("%s: %s is not in %s as it is declared", def.Name, in.Name, d.InputSchema)
				}
			}
		}
		if len(want) > 0 {
			t.Errorf("not described: %v", want)
		}
		for _, name := range []string{"glob", "nothing", ""} {
			if d, ok := describer.DescribeTool(name); ok || d.InputSchema != nil {
				t.Errorf("%q is described: %+v", name, d)
			}
		}
	}
}

// traits returns the annotations of a tool in words.
func traits(d host.ToolDetail) string {
	var words []string
	for word, on := range map[string]bool{"reads": d.ReadOnly, "destructive": d.Destructive, "idempotent": d.Idempotent, "open": d.OpenWorld} {
		if on {
			words = append(words, word)
		}
	}
	order := []string{"reads", "destructive", "idempotent", "open"}
	slices.SortFunc(words, func(a, b string) int { return slices.Index(order, a) - slices.Index(order, b) })
	return strings.Join(words, " ")
}
