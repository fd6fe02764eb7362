package middleware_test

import (
	"context"
	"sync/atomic"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// keeper is a set of tools that counts the requests for its list.
type keeper struct {
	*tools.Set
	asked atomic.Int64
}

func (k *keeper) Info() host.PluginInfo {
	return host.PluginInfo{Name: "keeper", Capability: protocol.CapTools}
}

func (k *keeper) Routes() []host.Route {
	return []host.Route{host.Handle(protocol.TypeToolListReq, func(ctx context.Context, req *protocol.ToolListRequest,
		_ host.Emitter,
	) (*protocol.ToolListResponse, error) {
		k.asked.Add(1)
		resp := &protocol.ToolListResponse{Tools: []protocol.ToolDefinition{}}
		for _, name := range []string{"one", "two", "late"} {
			if _, there := k.DescribeTool(name); there && (name != "late" || req.IncludeDeferred) {
				resp.Tools = append(resp.Tools, protocol.ToolDefinition{Name: name})
			}
		}
		return resp, nil
	})}
}

// TestListsAreKeptUntilToolsChange: the list of tools is kept for each combination of filters until a tool is added
// or removed. A query is always answered anew.
func TestListsAreKeptUntilToolsChange(t *testing.T) {
	k := &keeper{Set: tools.NewSet(tools.SetOptions{Name: "keeper"})}
	replace := func(names ...string) {
		var all []tools.Tool
		for _, name := range names {
			all = append(all, tools.Tool{
				Def: protocol.ToolDefinition{Name: name},
				Call: func(context.Context, protocol.Object,
					host.Emitter,
				) (*tools.Outcome, error) {
					return &tools.Outcome{}, nil
				},
			})
		}
		must.OK(t, k.Replace(all))
	}
	h := hosttest.New(t, host.Options{Plugins: []host.Plugin{k}})
	h.Handshake()
	check := func(fields, want string, asked int64) {
		t.Helper()
		m := h.Call(protocol.TypeToolListReq, fields)
		got := m.Get("/tools/0/name") + " " + m.Get("/tools/1/name") + " " + m.Get("/tools/2/name")
		assert.Equal(t, got, want, "the tools for %s", fields)
		assert.Equal(t, k.asked.Load(), asked, "requests after %s", fields)
	}
	replace("one", "two", "late")
	check(`{}`, "one two ", 1)
	check(`{}`, "one two ", 1)
	check(`{"include_deferred":true}`, "one two late", 2)
	check(`{"include_deferred":true,"query":""}`, "one two late", 2)
	check(`{}`, "one two ", 2)
	check(`{"query":"two"}`, "two  ", 3)
	check(`{"query":"two"}`, "two  ", 4)
	replace("two", "late")
	check(`{}`, "two  ", 5)
	check(`{"include_deferred":true}`, "two late ", 6)
	h.Refused(protocol.TypeToolListReq, `{"filter_tags":7}`, protocol.CodeSchemaViolation, "/filter_tags")
	check(`{}`, "two  ", 6)
}
