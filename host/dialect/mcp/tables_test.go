package mcp_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host"
	front "a2e/host/dialect/mcp"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// toolBox is a plugin that can tell when its tools change, and counts how often they are listed.
type toolBox struct {
	*tools.Set
	lists atomic.Int64
	waits chan struct{} // a list waits until it is closed; nil = no wait
}

// newToolBox returns a toolBox with n tools.
func newToolBox(t *testing.T, n int) *toolBox {
	s := &toolBox{Set: tools.NewSet(tools.SetOptions{Name: "toolBox"})}
	s.fill(t, n, "first")
	return s
}

func (s *toolBox) fill(t *testing.T, n int, about string) {
	all := make([]tools.Tool, n)
	for i := range all {
		all[i] = tools.Tool{
			Def: protocol.ToolDefinition{Name: fmt.Sprintf("t%04d", i), Description: "<" + about + ">\u2028"},
			Call: func(context.Context, protocol.Object, host.Emitter) (*tools.Outcome, error) {
				return new(tools.Outcome), nil
			},
		}
	}
	must.OK(t, s.Replace(all))
}

func (s *toolBox) Info() host.PluginInfo {
	return host.PluginInfo{Name: "toolBox", Capability: protocol.CapTools}
}

func (s *toolBox) Routes() []host.Route {
	routes := s.Set.Routes()
	for i, r := range routes {
		if r.Type == protocol.TypeToolListReq {
			routes[i] = r.Wrap(func(_ context.Context, _ protocol.Object, next func() (any, error)) (any, error) {
				s.lists.Add(1)
				if s.waits != nil {
					<-s.waits
				}
				return next()
			})
		}
	}
	return routes
}

// TestToolTables: tools that do not change are listed by the plugin only once, and a change is visible at once. Lists
// that the host answers itself and lists of the go-sdk have the same bytes.
func TestToolTables(t *testing.T) {
	shared := new(front.Tables)
	for range 2 {
		s := newToolBox(t, 3)
		p := serve(t, front.Options{Tables: shared}, host.Options{Plugins: []host.Plugin{s}, Only: true}).open()
		plain := p.call("1", "tools/list", "").Result
		for i, params := range []string{
			`{}`, `{"_meta":{"progressToken":1}}`, `{"more":[]}`, `{"cursor":null}`,
			`{"cursor":""}`,
		} {
			assert.Equal(t, string(p.call(fmt.Sprint(i+2), "tools/list", params).Result), string(plain),
				"tools/list %s", params)
		}
		assert.Equal(t, s.lists.Load(), int64(1), "how often the plugin has listed")
		assert.That(t, strings.Contains(string(plain), "<first>"), "not the first: %s", plain)
		s.fill(t, 1, "second")
		again := p.call("10", "tools/list", "").Result
		assert.That(t, strings.Contains(string(again), "<second>") && !strings.Contains(string(again), "t0001"),
			"not the second: %s", again)
	}
}

// TestToolTableBesideOthers: a plugin that cannot tell when its tools change is asked each time.
func TestToolTableBesideOthers(t *testing.T) {
	s, l := newToolBox(t, 3), newLab()
	p := serve(t, front.Options{}, host.Options{Plugins: []host.Plugin{s, l}, Only: true}).open()
	check(t, p.call("1", "tools/list", ""), 0, `"t0002"`, `"echo"`)
	l.mu.Lock()
	l.tools["late"] = give("1")
	l.mu.Unlock()
	check(t, p.call("2", "tools/list", ""), 0, `"t0002"`, `"late"`)
}

// TestToolPages: the pages of a long list have each tool once, in order.
func TestToolPages(t *testing.T) {
	const n = 1201
	p := serve(t, front.Options{}, host.Options{Plugins: []host.Plugin{newToolBox(t, n)}, Only: true}).open()
	seen, params := 0, "{}"
	for page := 0; params != ""; page++ {
		l := p.call(fmt.Sprint(page), "tools/list", params)
		var got struct {
			Tools []struct {
				Name string `json:"name"`
			} `json:"tools"`
			Next string `json:"nextCursor"`
		}
		must.OK(t, json.Unmarshal(l.Result, &got))
		for _, tool := range got.Tools {
			assert.Equal(t, tool.Name, fmt.Sprintf("t%04d", seen), "a tool")
			seen++
		}
		if params = ""; got.Next != "" {
			params = fmt.Sprintf(`{"cursor":%q}`, got.Next)
		}
	}
	assert.Equal(t, seen, n, "tools")
}

// TestManyLists: list requests that come at the same time, while the plugin is slow and afterwards, are each answered
// once.
func TestManyLists(t *testing.T) {
	const n = 100
	s, gate := newToolBox(t, 3), make(chan struct{})
	s.waits = gate
	p := serve(t, front.Options{}, host.Options{Plugins: []host.Plugin{s}, Only: true}).open()
	for i := range n {
		p.send(request(fmt.Sprint(i), "tools/list", ""))
	}
	close(gate)
	for i := range n {
		p.send(request(fmt.Sprint(n+i), "tools/list", "{}"))
	}
	for i := range 2 * n {
		check(t, p.answer(fmt.Sprint(i)), 0, `"t0002"`)
	}
	for i := range 2 * n {
		assert.Equal(t, len(p.answers(fmt.Sprint(i))), 1, "answers to %d", i)
	}
}
