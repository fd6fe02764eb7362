package tools

import (
	"testing"

	"github.com/google/go-cmp/cmp"

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
	resp, err := p.set.list(t.Context(), req, silent{})
	if err != nil {
		t.Fatal(err)
	}
	body, err := protocol.AppendJSON(nil, resp)
	if err != nil {
		t.Fatal(err)
	}
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
		{protocol.ToolListRequest{Query: "read files"}, []string{"read_file", "zip"}},
		{protocol.ToolListRequest{Query: "files", IncludeDeferred: true}, []string{"read_file", "zip", "unpack", "deploy"}},
		{protocol.ToolListRequest{Query: "files", FilterKind: "command"}, []string{"zip"}},
		{protocol.ToolListRequest{Query: "deploy"}, []string{}},
		{protocol.ToolListRequest{Query: "deploy", IncludeDeferred: true}, []string{"deploy"}},
		{protocol.ToolListRequest{Query: "zebra"}, []string{}},
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
	list := func(scores []float64, defs ...protocol.ToolDefinition) *protocol.ToolListResponse {
		return &protocol.ToolListResponse{Tools: defs, Scores: scores}
	}
	t.Run("by name", func(t *testing.T) {
		got := list(nil, def("b", "high"), def("d", "high"))
		protocol.MergeTools(got, list(nil, def("a", "low"), def("b", "low"), def("e", "low")))
		protocol.MergeTools(got, list(nil, def("a", "lowest"), def("c", "lowest")))
		want := []protocol.ToolDefinition{def("a", "low"), def("b", "high"), def("c", "lowest"), def("d", "high"), def("e", "low")}
		if diff := cmp.Diff(want, got.Tools); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("by score", func(t *testing.T) {
		got := list([]float64{3, 1}, def("z", "high"), def("b", "high"))
		protocol.MergeTools(got, list([]float64{5, 2, 1}, def("b", "low"), def("y", "low"), def("a", "low")))
		want := []protocol.ToolDefinition{def("z", "high"), def("y", "low"), def("a", "low"), def("b", "high")}
		if diff := cmp.Diff(want, got.Tools); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("nothing", func(t *testing.T) {
		got := list(nil)
		protocol.MergeTools(got, list(nil))
		if got.Tools == nil || len(got.Tools) != 0 {
			t.Errorf("got %v", got.Tools)
		}
	})
}
