package host_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// box is a plugin whose tools behave as their names say. It records the calls that the host reports to it.
type box struct {
	defs  []protocol.ToolDefinition
	begun chan string   // gets the name of each tool that waits
	gate  chan struct{} // tools that wait do so until it is closed

	mu      sync.Mutex // guards the fields below
	records []host.CallOutcome
}

func newBox(defs ...protocol.ToolDefinition) *box {
	return &box{defs: defs, begun: make(chan string, 16), gate: make(chan struct{})}
}

func named(name, task string) protocol.ToolDefinition {
	return protocol.ToolDefinition{Name: name, Task: task, Version: "1.0.0"}
}

func (b *box) Info() host.PluginInfo {
	return host.PluginInfo{Name: "box", Capability: protocol.CapTools}
}

func (b *box) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeToolCallReq, b.call),
		host.List(protocol.TypeToolListReq, func(context.Context, *protocol.ToolListRequest,
			host.Emitter,
		) (*protocol.ToolListResponse, error) {
			return &protocol.ToolListResponse{Tools: slices.Clone(b.defs)}, nil
		}, protocol.MergeTools),
	}
}

func (b *box) Close(context.Context) error { return nil }

func (b *box) CountCall(r host.CallOutcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = append(b.records, r)
}

func (b *box) call(ctx context.Context, req *protocol.ToolCallRequest, _ host.Emitter) (*labAnswer, error) {
	name := req.ToolName
	switch {
	case strings.HasPrefix(name, "denied"):
		return nil, protocol.Errorf(protocol.CodeToolDenied, "%s is not allowed", name)
	case !slices.ContainsFunc(b.defs, func(d protocol.ToolDefinition) bool { return d.Name == name }):
		return nil, host.NotKnown(protocol.Errorf(protocol.CodeUnknownTool, "no tool %q", name), name, []string{})
	case strings.HasPrefix(name, "other"):
		return nil, protocol.Violation(protocol.FieldError{Path: "/arguments/x", Message: "is unknown"})
	case strings.HasPrefix(name, "broken"):
		return nil, protocol.Errorf(protocol.CodeMCPServerUnavailable, "%s is away", name)
	case strings.HasPrefix(name, "wait"):
		b.begun <- name
		select {
		case <-b.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	host.ServicesOf(ctx).CountCall(ctx, host.CallOutcome{
		Kind: host.KindTool, Component: name,
		Correlation: req.CorrelationID, Success: true,
	})
	return result(name, string(req.Arguments.Clone().Raw())), nil
}

// TestCallOfAGroup: a call of a group runs one tool of the group. Tools that refuse the call before they run are
// skipped, and the answer names the tool that ran.
func TestCallOfAGroup(t *testing.T) {
	for _, c := range []struct {
		name  string
		tools []string // tools of the group; those whose names begin with "no" do not exist
		says  string   // the tool that ran, or the code of the error
		known string   // the calls that were recorded
	}{
		{"one", []string{"a"}, "a", "a:true"},
		{
			"what is not there, is denied or takes other arguments",
			[]string{"none", "denied", "other", "a"},
			"a",
			"a:true",
		},
		{"nothing but refusals", []string{"none", "denied"}, "tool_denied", ""},
		{"nothing at all", []string{"none", "nobody"}, "unknown_tool", ""},
		{"other arguments only", []string{"none", "denied", "other"}, "schema_violation", ""},
		{"a failure that its plugin does not count", []string{"broken"}, "mcp_server_unavailable", "broken:false"},
	} {
		for round := range len(c.tools) { // the tools of a group are chosen in turn
			b := newBox(named("stranger", ""))
			for _, name := range c.tools {
				if !strings.HasPrefix(name, "no") {
					b.defs = append(b.defs, named(name, ""))
				}
			}
			h := hosttest.New(t, host.Options{Plugins: []host.Plugin{b}, Groups: host.Groups{"find": c.tools}})
			h.Handshake(protocol.CapTools)
			var m hosttest.Message
			for range round + 1 {
				b.records = nil
				m = h.Call(protocol.TypeToolCallReq,
					`{"tool_name":"find","arguments":{"text":"x"},"correlation_id":"c"}`)
			}
			got := m.Get("/data/tool_name")
			if m.Type == protocol.TypeError {
				if got = string(m.Code); m.Get("/detail/group") != "find" || !slices.Contains(c.tools,
					m.Get("/detail/tool")) {
					t.Errorf("%s: %s", c.name, m)
				}
			} else if m.Get("/group") != "find" || m.Get("/data/data/text") != "x" {
				t.Errorf("%s: %s", c.name, m)
			}
			known := ""
			for _, r := range b.records {
				known += fmt.Sprintf("%s:%t", r.Component, r.Success)
				assert.That(t, r.Correlation == "c", "%s: the call has the correlation %q", c.name, r.Correlation)
			}
			assert.That(t, got == c.says && known == c.known, "%s: %s, counted %q; should be %s, %q", c.name, got,
				known, c.says, c.known)
			h.Close()
		}
	}
}

// TestDeclaredGroups: tools that declare the same task form a group without a config, and new tools join it. A name
// that a tool has never means a group. Nested calls can call a group too.
func TestDeclaredGroups(t *testing.T) {
	b := newBox(named("a", "find"), named("b", "find"), named("c", "lone"), named("taken", "find"), named("d", "taken"),
		named("denied", ""), named("e", "denied-all"), named("f", "no\u202ename"))
	c := &caller{runs: map[string]func(context.Context, host.Emitter) error{}}
	h := hosttest.New(t, host.Options{Plugins: []host.Plugin{b, c}, Groups: host.Groups{"mine": {"b"}}})
	h.Handshake(protocol.CapTools, protocol.CapTest)
	seen := map[string]bool{}
	for range 4 {
		m := h.Call(protocol.TypeToolCallReq, tool("find", `{}`))
		seen[m.Get("/data/tool_name")+" "+m.Get("/group")] = true
	}
	assert.That(t, len(seen) == 2 && seen["a find"] && seen["taken find"], "find called %v: b is in a group of the "+
		"config", seen)
	for name, want := range map[string]string{
		"lone": "c lone", "mine": "b mine", "denied-all": "e denied-all",
		"taken": "taken ", "a": "a ",
	} {
		if m := h.Call(protocol.TypeToolCallReq, tool(name,
			`{}`)); m.Get("/data/tool_name")+" "+m.Get("/group") != want {
			t.Errorf("%s: %s", name, m)
		}
	}
	h.Refused(protocol.TypeToolCallReq, tool("nothing", `{}`), protocol.CodeUnknownTool)
	if m := h.Call(protocol.TypeToolCallReq, tool("fin", `{}`)); m.Code != protocol.CodeUnknownTool ||
		!strings.Contains(m.Get("/message"), `did you mean "find"?`) {
		t.Errorf("%s", m)
	}
	c.runs["nested"] = func(ctx context.Context, _ host.Emitter) error {
		var resp protocol.ToolCallResponse
		err := host.ServicesOf(ctx).Call(ctx, protocol.TypeToolCallReq, &protocol.ToolCallRequest{ToolName: "mine"},
			&resp, nil)
		if err == nil && (resp.Group != "mine" || resp.Data.ToolName != "b") {
			err = fmt.Errorf("nested: %+v", resp)
		}
		return err
	}
	if m := h.Call("test/run", `{"name":"nested"}`); m.Type != "test/run/resp" {
		t.Errorf("%s", m)
	}
	var resp protocol.ToolListResponse
	h.Call(protocol.TypeToolListReq, `{}`).Decode(t, &resp)
	for _, def := range resp.Tools {
		if want := map[string]string{
			"a": "find", "b": "mine", "c": "lone", "taken": "find", "d": "taken",
			"e": "denied-all", "f": "no\u202ename",
		}[def.Name]; def.Task != want {
			t.Errorf("%s is listed with the task %q, should be %q", def.Name, def.Task, want)
		}
	}
}

// TestCancelOfAGroup: a call of a group can be cancelled like a call of a tool, and a cancel is not recorded as a
// failure of the tool.
func TestCancelOfAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox(named("wait", ""))
		h := hosttest.Start(t, host.Options{Plugins: []host.Plugin{b}, Groups: host.Groups{"find": {"wait"}}})
		h.Handshake(protocol.CapTools)
		id := h.Go(protocol.TypeToolCallReq, tool("find", `{}`))
		<-b.begun
		h.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id))
		if m := h.Answer(id); m.Code != protocol.CodeCancelled {
			t.Errorf("%s", m)
		}
		if m := h.Call(protocol.TypeToolCallReq, `{"tool_name":"find","arguments":{},"timeout":1}`); m.Code != protocol.CodeTimeout {
			t.Errorf("%s", m)
		}
		h.Close()
		assert.That(t, len(b.records) == 1 && !b.records[0].Success,
			"counted %+v: should be the one that took too long", b.records)
	})
}

// TestCallWithoutToolName: the error for a call says whether the name of the tool is missing or is not a string.
func TestCallWithoutToolName(t *testing.T) {
	h := hosttest.New(t, host.Options{Plugins: []host.Plugin{newBox()}})
	h.Handshake()
	for name, want := range map[string]string{
		``:                   "/tool_name: is required: the name of a tool or of a group",
		`"tool_name":"",`:    "/tool_name: is required: the name of a tool or of a group",
		`"tool_name":7,`:     "/tool_name: is a JSON number; should be string",
		`"tool_name":["x"],`: "/tool_name: is a JSON array; should be string",
	} {
		m := h.Call(protocol.TypeToolCallReq, `{`+name+`"arguments":{}}`)
		assert.Equal(t, m.Code, protocol.CodeSchemaViolation, name)
		assert.Equal(t, m.Get("/message"), want, name)
	}
}
