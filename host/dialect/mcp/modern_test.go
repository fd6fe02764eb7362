package mcp_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	front "a2e/host/dialect/mcp"
	"a2e/protocol"
)

// withMeta adds to params what each request of the modern version says.
func withMeta(params, offers string) string {
	meta := `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"tester","version":"1"},` +
		`"io.modelcontextprotocol/clientCapabilities":` + offers + `}`
	if rest := strings.TrimPrefix(params, "{"); rest != "}" {
		return meta + "," + rest
	}
	return meta + "}"
}

// TestModern: a client that says no initialize is served, and learns what is not of its version.
func TestModern(t *testing.T) {
	p := serve(t, front.Options{}, host.Options{Plugins: onlyMCP(newLab()).Plugins}) // A2E is on the pipe as well
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
		if got := p.call(fmt.Sprint(i), c.method, withMeta(c.params, `{}`)); got.code() != c.code || !strings.Contains(got.text, c.want) {
			t.Errorf("%s %s: %s", c.method, c.params, got)
		}
	}
	if got := p.call(`"new"`, "tools/list", strings.Replace(withMeta(`{}`, `{}`), "2026-07-28", "2099-01-01", 1)); got.code() != mcp.CodeUnsupportedProtocolVersion {
		t.Errorf("a version of the future: %s", got)
	}
}

// TestRounds: what plugins ask a modern client is an answer to its request, which it sends
// again; only what it offers with the request is asked.
func TestRounds(t *testing.T) {
	p := serve(t, front.Options{}, onlyMCP(newLab()))
	ask := fmt.Sprintf(`{"name":"ask","arguments":{"type":%q,"body":{}}`, protocol.TypeMCPRootListReq)
	if got := p.call(`0`, "tools/call", withMeta(ask+`}`, `{}`)); !strings.Contains(got.text, "offers no roots") {
		t.Errorf("not offered: %s", got)
	}
	asked := p.call(`1`, "tools/call", withMeta(ask+`}`, `{"roots":{}}`))
	var id, state string
	if _, rest, ok := strings.Cut(asked.text, `"inputRequests":{"`); ok {
		id, _, _ = strings.Cut(rest, `"`)
		_, rest, _ = strings.Cut(rest, `"requestState":"`)
		state, _, _ = strings.Cut(rest, `"`)
	}
	if !strings.Contains(asked.text, `"resultType":"input_required"`) || !strings.Contains(asked.text, `{"method":"roots/list","params":{}}`) || state == "" {
		t.Fatalf("the question: %s", asked)
	}
	again := func(number, said string) line {
		return p.call(number, "tools/call", withMeta(ask+fmt.Sprintf(`,"requestState":%q,"inputResponses":{%s}}`, state, said), `{"roots":{}}`))
	}
	if got := again(`2`, `"other":{"roots":[]}`); !strings.Contains(got.text, id) || !strings.Contains(got.text, "input_required") {
		t.Errorf("without the answer it is asked again: %s", got)
	}
	if got := again(`3`, fmt.Sprintf(`%q:{"roots":[{"uri":"file:///mine"}]}`, id)); !strings.Contains(got.text, "file:///mine") || !strings.Contains(got.text, `"resultType":"complete"`) {
		t.Errorf("with the answer: %s", got)
	}
	if got := again(`4`, ""); got.code() != -32602 {
		t.Errorf("a state that is over: %s", got)
	}
	p.call(`5`, "tools/call", withMeta(ask+`}`, `{"roots":{}}`)) // nobody goes on with it: the host ends all the same
	p.end()
}

// TestListen: a modern client hears of what it listens to, until it cancels; the end of its
// input ends the rest.
func TestListen(t *testing.T) {
	l := newLab()
	p := serve(t, front.Options{}, onlyMCP(l))
	p.call(`1`, "tools/list", withMeta(`{}`, `{}`))
	p.call(`2`, "prompts/list", withMeta(`{}`, `{}`))
	listen := withMeta(`{"notifications":{"toolsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["file:///x"]}}`, `{}`)
	p.send(request(`"a"`, "subscriptions/listen", listen), request(`"b"`, "subscriptions/listen", listen))
	for _, id := range []string{"a", "b"} {
		p.wait("the acknowledgement", func(l line) bool {
			return l.Method == "notifications/subscriptions/acknowledged" && strings.Contains(l.text, `"io.modelcontextprotocol/subscriptionId":"`+id+`"`) &&
				strings.Contains(l.text, `"resourcesListChanged":false`) && !strings.Contains(l.text, "file:///x")
		})
	}
	p.send(request("", "notifications/cancelled", `{"requestId":"a"}`))
	l.mu.Lock()
	l.tools["another"] = give("1")
	l.skills = append(l.skills, protocol.SkillDefinition{Name: "new"})
	l.mu.Unlock()
	p.wait("the news", func(l line) bool {
		return l.Method == "notifications/tools/list_changed" && strings.Contains(l.text, `"io.modelcontextprotocol/subscriptionId":"b"`)
	})
	p.end()
	for _, l := range p.said() {
		if l.Method == "notifications/prompts/list_changed" {
			t.Errorf("nobody listens to that: %s", l)
		}
	}
	if len(p.answers(`"a"`)) != 0 || len(p.answers(`"b"`)) != 1 {
		t.Errorf("what was cancelled gets no answer, the other one does: %s", p.said())
	}
}
