package mcp_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	front "a2e/host/dialect/mcp"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// withMeta adds to params the members that each request of the modern version has.
func withMeta(params, offers string) string {
	meta := `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"tester","version":"1"},` +
		`"io.modelcontextprotocol/clientCapabilities":` + offers + `}`
	if rest := strings.TrimPrefix(params, "{"); rest != "}" {
		return meta + "," + rest
	}
	return meta + "}"
}

// TestModern: a client that sends no initialize is served by the modern version, and gets errors for methods that
// this version does not have.
func TestModern(t *testing.T) {
	p := serve(t, front.Options{}, host.Options{Plugins: onlyMCP(newLab()).Plugins}) // A2E is on the pipe too
	for i, c := range []struct {
		method, params string
		code           int
		want           string
	}{
		{"tools/call", `{"name":"echo","arguments":{"x":1}}`, 0, `"resultType":"complete"`},
		{"tools/list", `{}`, 0, `"ttlMs":0,"cacheScope":"private"`},
		{"server/discover", `{}`, 0, `"supportedVersions":["2026-07-28",`},
		{"resources/read", `{"uri":"file:///none"}`, -32602, `"uri":"file:///none"`},
		{"ping", `{}`, -32601, "ping"},
		{"logging/setLevel", `{"level":"info"}`, -32601, "logging/setLevel"},
		{"tools/call", `{"name":"echo","requestState":"forged"}`, -32602, "requestState"},
		{"tools/call", `{"name":"echo","requestState":7}`, -32602, "requestState"},
	} {
		check(t, p.call(fmt.Sprint(i), c.method, withMeta(c.params, `{}`)), c.code, c.want)
	}
	check(t, p.call(`"new"`, "tools/list", strings.Replace(withMeta(`{}`, `{}`), "2026-07-28", "2099-01-01", 1)),
		mcp.CodeUnsupportedProtocolVersion)
}

// TestRounds: a question of a plugin to a modern client is the answer to the client's request, which the client sends
// again with its answer. A client is asked only for what it offers in the request.
func TestRounds(t *testing.T) {
	p := serve(t, front.Options{}, onlyMCP(newLab()))
	ask := fmt.Sprintf(`{"name":"ask","arguments":{"type":%q,"body":{}}`, protocol.TypeMCPRootListReq)
	check(t, p.call(`0`, "tools/call", withMeta(ask+`}`, `{}`)), anyCode, "offers no roots")
	asked := p.call(`1`, "tools/call", withMeta(ask+`}`, `{"roots":{}}`))
	var id, state string
	if _, rest, ok := strings.Cut(asked.text, `"inputRequests":{"`); ok {
		id, _, _ = strings.Cut(rest, `"`)
		_, rest, _ = strings.Cut(rest, `"requestState":"`)
		state, _, _ = strings.Cut(rest, `"`)
	}
	must.That(t, strings.Contains(asked.text, `"resultType":"input_required"`) &&
		strings.Contains(asked.text, `{"method":"roots/list","params":{}}`) && state != "", "the question: %s", asked)
	again := func(number, said string) line {
		return p.call(number, "tools/call", withMeta(ask+fmt.Sprintf(`,"requestState":%q,"inputResponses":{%s}}`, state,
			said), `{"roots":{}}`))
	}
	check(t, again(`2`, `"other":{"roots":[]}`), anyCode, id, "input_required")
	check(t, again(`3`, fmt.Sprintf(`%q:{"roots":[{"uri":"file:///mine"}]}`, id)), anyCode, "file:///mine",
		`"resultType":"complete"`)
	check(t, again(`4`, ""), -32602)
	// No second round follows; the host must end all the same.
	p.call(`5`, "tools/call", withMeta(ask+`}`, `{"roots":{}}`))
	p.end()
}

// TestListen: a modern client gets the notifications to which it listens, until it cancels. The end of its input ends
// the other subscriptions.
func TestListen(t *testing.T) {
	l := newLab()
	p := serve(t, front.Options{}, onlyMCP(l))
	p.call(`1`, "tools/list", withMeta(`{}`, `{}`))
	p.call(`2`, "prompts/list", withMeta(`{}`, `{}`))
	listen := withMeta(`{"notifications":{"toolsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["file:///x"]}}`, `{}`)
	p.send(request(`"a"`, "subscriptions/listen", listen), request(`"b"`, "subscriptions/listen", listen))
	for _, id := range []string{"a", "b"} {
		p.wait("the acknowledgement", func(l line) bool {
			return l.Method == "notifications/subscriptions/acknowledged" && strings.Contains(l.text,
				`"io.modelcontextprotocol/subscriptionId":"`+id+`"`) &&
				strings.Contains(l.text, `"resourcesListChanged":false`) && !strings.Contains(l.text, "file:///x")
		})
	}
	p.send(request("", "notifications/cancelled", `{"requestId":"a"}`))
	l.mu.Lock()
	l.tools["another"] = give("1")
	l.skills = append(l.skills, protocol.SkillDefinition{Name: "new"})
	l.mu.Unlock()
	p.wait("the news", func(l line) bool {
		return l.Method == "notifications/tools/list_changed" && strings.Contains(l.text,
			`"io.modelcontextprotocol/subscriptionId":"b"`)
	})
	p.end()
	for _, l := range p.said() {
		assert.That(t, l.Method != "notifications/prompts/list_changed", "nobody listens to that: %s", l)
	}
	if len(p.answers(`"a"`)) != 0 || len(p.answers(`"b"`)) != 1 {
		t.Errorf("what was cancelled gets no answer, the other one does: %s", p.said())
	}
}
