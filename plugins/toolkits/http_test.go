package toolkits

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"a2e/host/config"
	"a2e/protocol"
)

// newAPI starts a web server that tells what it got.
func newAPI(t testing.TB) (base string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"method":%q,"uri":%q,"body":%q,"type":%q,"auth":%q}`, r.Method, r.RequestURI, body, r.Header.Get("Content-Type"), r.Header.Get("Authorization"))
	})
	mux.HandleFunc("/v1/gone", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such thing", http.StatusNotFound) })
	mux.HandleFunc("/v1/inside", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/v1/x", http.StatusFound) })
	mux.HandleFunc("/v1/away", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/admin", http.StatusFound) })
	mux.HandleFunc("/admin", func(http.ResponseWriter, *http.Request) { t.Error("the toolkit left the API") })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func TestHTTP(t *testing.T) {
	const token = "tok-1234567"
	p := open(t, t.TempDir(), Options{HTTP: &HTTPOptions{
		BaseURL: newAPI(t) + "/v1", Headers: map[string]config.Secret{"authorization": config.NewSecret("Bearer " + token)},
	}})
	for _, c := range []struct{ tool, args, want string }{
		{"api_get", `{"path":"users/7","query":{"q":"a b&c","n":3,"tag":["x","y"]}}`, `{"method":"GET","uri":"/v1/users/7?n=3&q=a+b%26c&tag=x&tag=y","body":"","type":"","auth":"[redacted]"}`},
		{"api_get", `{"path":"/"}`, `{"method":"GET","uri":"/v1/","body":"","type":"","auth":"[redacted]"}`},
		{"api_post", `{"path":"users","body":{"name":"Ann"}}`, `{"method":"POST","uri":"/v1/users","body":"{\"name\":\"Ann\"}","type":"application/json","auth":"[redacted]"}`},
		{"api_put", `{"path":"note","body":"text"}`, `{"method":"PUT","uri":"/v1/note","body":"text","type":"text/plain; charset=utf-8","auth":"[redacted]"}`},
		{"api_delete", `{"path":"users/7"}`, `{"method":"DELETE","uri":"/v1/users/7","body":"","type":"","auth":"[redacted]"}`},
		{"api_get", `{"path":"inside"}`, `{"method":"GET","uri":"/v1/x","body":"","type":"","auth":"[redacted]"}`},
	} {
		m := call(t, p, c.tool, c.args)
		if got := m.Get("/data/data/content"); got != c.want || m.Get("/data/success") != "true" || m.Get("/data/data/status") != "200" {
			t.Errorf("%s %s:\ngot  %s\nwant %s\n%s", c.tool, c.args, got, c.want, m.Line)
		}
		if strings.Contains(string(m.Line), token) {
			t.Errorf("%s %s shows the token: %s", c.tool, c.args, m.Line)
		}
	}
	if m := call(t, p, "api_get", `{"path":"gone"}`); m.Get("/data/success") != "false" || m.Get("/data/error") != "HTTP 404" || !strings.Contains(m.Get("/data/data/content"), "no such thing") {
		t.Errorf("404: %s", m.Line)
	}
	if m := call(t, p, "api_get", `{"path":"away"}`); m.Get("/data/data/status") != "302" {
		t.Errorf("a redirect out of the API: %s", m.Line)
	}
	for _, c := range []struct{ args, code string }{
		{`{"path":"../admin"}`, "tool_denied"}, {`{"path":"%2e%2e/admin"}`, "tool_denied"}, {`{"path":"x/../../admin"}`, "tool_denied"},
		{`{"path":"http://example.com/"}`, "schema_violation"}, {`{"path":"//example.com/"}`, "schema_violation"}, {`{"path":"x?y=1"}`, "schema_violation"},
		{`{"path":"..\\admin"}`, "schema_violation"}, {`{"path":"x","query":{"a":{}}}`, "schema_violation"}, {`{"path":"x","headers":{}}`, "schema_violation"}, {`{}`, "schema_violation"},
	} {
		if m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"api_get","arguments":`+c.args+`}`); string(m.Code) != c.code {
			t.Errorf("%s: %s, should be %s", c.args, m.Line, c.code)
		}
	}
}

// TestHTTPSecretsOfAgent: headers that the agent sends are as secret, and go with its session.
func TestHTTPSecretsOfAgent(t *testing.T) {
	base := newAPI(t)
	p := open(t, t.TempDir(), Options{AllowPrivate: true})
	m := configure(p, "http", `{"base_url":"`+base+`/v1/","headers":{"Authorization":"s3cret-value"}}`)
	list := p.Call(protocol.TypeToolkitListReq, `{"filter_kind":"http"}`)
	got := call(t, p, "api_get", `{"path":"x"}`)
	for _, m := range []string{string(m.Line), string(list.Line), string(got.Line)} {
		if strings.Contains(m, "s3cret") {
			t.Errorf("the secret stands in %s", m)
		}
	}
	if list.Get("/toolkits/0/configured") != "true" {
		t.Errorf("list: %s", list.Line)
	}
	p.Handshake(protocol.CapToolkits, protocol.CapTools)
	if m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"api_get","arguments":{"path":"x"}}`); m.Code != protocol.CodeUnknownTool {
		t.Errorf("the next session uses the secret: %s", m.Line)
	}
}

// TestHTTPAcceptIsNoSecret: the type that a configured Accept asks for stays readable in answers.
func TestHTTPAcceptIsNoSecret(t *testing.T) {
	p := open(t, t.TempDir(), Options{HTTP: &HTTPOptions{
		BaseURL: newAPI(t) + "/v1", Headers: map[string]config.Secret{"accept": config.NewSecret("application/json")},
	}})
	if m := call(t, p, "api_get", `{"path":"x"}`); m.Get("/data/data/content_type") != "application/json" {
		t.Errorf("%s", m.Line)
	}
	if m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"api_get","arguments":{"path":"..%5cadmin"}}`); m.Code != protocol.CodeSchemaViolation {
		t.Errorf("an encoded backslash: %s", m.Line)
	}
}
