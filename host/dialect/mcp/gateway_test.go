package mcp_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"a2e/host"
	front "a2e/host/dialect/mcp"
	"a2e/protocol"
)

// twins is a plugin with two MCP servers that have the same.
type twins struct{}

func (twins) Info() host.PluginInfo {
	return host.PluginInfo{Name: "twins", Capability: protocol.CapMCP}
}
func (twins) Close(context.Context) error { return nil }

func (twins) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeMCPResourceListReq, func(_ context.Context, req *protocol.MCPResourceListRequest, _ host.Emitter) (*protocol.MCPResourceListResponse, error) {
			id, next := "a", "second page"
			if req.Cursor != "" {
				id, next = "b", ""
			}
			row := func(key, uri string) map[string]any {
				return map[string]any{"server_id": id, "name": "n", "uri": "", key: uri}
			}
			return &protocol.MCPResourceListResponse{NextCursor: next, Resources: []map[string]any{
				row("uri", "x://1"), row("uri", "x://1"), row("uri", "file:///note"), row("uri_template", "x://{id}"),
			}}, nil
		}),
		host.Handle(protocol.TypeMCPResourceReadReq, func(_ context.Context, req *protocol.MCPResourceReadRequest, _ host.Emitter) (*protocol.MCPResourceReadResponse, error) {
			return &protocol.MCPResourceReadResponse{Contents: []map[string]any{
				{"uri": req.URI, "type": "text", "text": "of " + req.ServerID}, {"uri": "x://part", "type": "blob", "blob": "AAE="},
			}}, nil
		}),
		host.Handle(protocol.TypeMCPPromptListReq, func(context.Context, *protocol.MCPPromptListRequest, host.Emitter) (*protocol.MCPPromptListResponse, error) {
			return &protocol.MCPPromptListResponse{Prompts: []map[string]any{{"server_id": "a", "name": "p"}, {"server_id": "b", "name": "p"}}}, nil
		}),
		host.Handle(protocol.TypeMCPPromptGetReq, func(_ context.Context, req *protocol.MCPPromptGetRequest, _ host.Emitter) (*protocol.MCPPromptGetResponse, error) {
			return &protocol.MCPPromptGetResponse{Messages: []map[string]any{{"role": "user", "content": map[string]any{"type": "text", "text": req.ServerID + "/" + req.Name}}}}, nil
		}),
	}
}

// TestTwins: what two servers have under one name has two names in front.
func TestTwins(t *testing.T) {
	p := serve(t, front.Options{}, host.Options{Plugins: []host.Plugin{twins{}}, Only: true}).open()
	for i, c := range []struct{ method, params, want string }{
		{"resources/list", `{}`, `[{"name":"n","uri":"mcp://a/file:///note"},{"name":"n","uri":"mcp://b/file:///note"},{"name":"n","uri":"mcp://b/x://1"},{"name":"n","uri":"x://1"}]`},
		{"resources/templates/list", `{}`, `{"name":"n","uriTemplate":"mcp://b/x://{id}"}`},
		{"resources/templates/list", `{}`, `{"name":"n","uriTemplate":"x://{id}"}`},
		{"resources/read", `{"uri":"mcp://b/file:///note"}`, `[{"uri":"mcp://b/file:///note","mimeType":"","text":"of b"},{"uri":"x://part","mimeType":"","blob":"AAE="}]`},
		{"resources/read", `{"uri":"x://1"}`, `"text":"of "`},
		{"prompts/list", `{}`, `[{"name":"a__p"},{"name":"b__p"}]`},
		{"prompts/get", `{"name":"b__p"}`, `{"text":"b/p","type":"text"}`},
		{"prompts/get", `{"name":"p"}`, "unknown prompt"},
		{"resources/list", `{"cursor":"dG9vbHM6eA"}`, "-32602"}, // of the list of tools
		{"tools/list", `{"cursor":"eA"}`, "-32602"},
		{"prompts/list", `{"cursor":"eA=="}`, "-32602"},
		{"resources/templates/list", `{"cursor":"eA"}`, "-32602"},
	} {
		got := p.call(fmt.Sprint(i), c.method, c.params)
		if !strings.Contains(got.text, c.want) {
			t.Errorf("%s %s: %s\nshould have %s", c.method, c.params, got, c.want)
		}
	}
}
