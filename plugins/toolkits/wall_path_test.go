package toolkits

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"a2e/protocol"
)

// TestWallHTTPPaths guards against paths that leave the API at a server, or at a proxy before
// it, which decodes more than once, cuts parameters off a step or maps characters.
func TestWallHTTPPaths(t *testing.T) {
	var mu sync.Mutex
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.RequestURI)
		if to := r.URL.Query().Get("to"); to != "" {
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusFound)
		}
	}))
	defer server.Close()
	p := open(t, t.TempDir(), Options{HTTP: &HTTPOptions{BaseURL: server.URL + "/v1"}})
	for _, path := range []string{
		"../admin", "a/../../admin", "..;/admin", "..;a=b/admin", "a/..;/..;/admin", ".;/x", ";/../admin", "x;y/..;z/..;/admin",
		"%2e%2e/admin", "%2E%2E/admin", ".%2e/admin", "%2e./admin", "..%2fadmin", "..%2Fadmin", "%2e%2e%2fadmin", "a%2f..%2f..%2fadmin",
		"..%3b/admin", "..%3Ba=b/admin", "%2e%2e%3b%2fadmin", "%252e%252e/admin", "%252e%252e%252fadmin", "..%252fadmin", "..%253b/admin", "%25252e%25252e/admin",
		"%2525252525252e%2e/admin", `..\admin`, "..%5cadmin", "..%5Cadmin", "..%255cadmin", `a\..\..\admin`, "//evil.example/admin", "///evil.example", "http://evil.example/", "https:admin",
		"./admin", "a/./b", "%2e/admin", "..\t/admin", "..%09/admin", "..%0a/admin", "..%0d%0a/admin", "..%00/admin", "..%20/admin", "%20../admin", ".. /admin",
		"a%0d%0aHost:x", "\u2025/admin", "\uff0e\uff0e/admin", "%ef%bc%8e%ef%bc%8e/admin", "\u2024\u2024/admin", "..\uff0fadmin", "..%ef%bc%8fadmin", "..\u2215admin", "..\u2044admin",
		"\u3002\u3002/admin", "..\uff3cadmin", "..%c0%afadmin", "%c0%ae%c0%ae/admin", "%e0%80%ae%e0%80%ae/admin", "%u002e%u002e/admin", "..%/admin", "..?x=/admin", "..#/admin", ".../admin",
	} {
		t.Run(fmt.Sprintf("%q", path), func(t *testing.T) {
			raw, err := json.Marshal(map[string]string{"path": path})
			if err != nil {
				t.Fatal(err)
			}
			for _, tool := range []string{"api_get", "api_delete"} {
				m := p.Call(protocol.TypeToolCallReq, fmt.Sprintf(`{"tool_name":%q,"arguments":%s}`, tool, raw))
				if m.Code != protocol.CodeToolDenied && m.Code != protocol.CodeSchemaViolation {
					t.Errorf("%s is not refused: %s", tool, m.Line)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if len(got) > 0 {
				t.Errorf("the server got %q", got)
			}
			got = nil
		})
	}
	for _, to := range []string{"/v1/..;/admin", "/v1/%2e%2e/admin", "/v1/%252e%252e/admin", "/v1/..%2fadmin", "/v1/x/..;/..;/admin", "/v1/%ef%bc%8e%ef%bc%8e/admin"} {
		t.Run("redirect "+to, func(t *testing.T) {
			call(t, p, "api_get", fmt.Sprintf(`{"path":"r","query":{"to":%q}}`, to))
			mu.Lock()
			defer mu.Unlock()
			if len(got) != 1 || strings.Contains(got[0], "admin?") {
				t.Errorf("the server got %q", got)
			}
			got = nil
		})
	}
	// What only looks odd is sent.
	for path, want := range map[string]string{
		"a..b/c.": "/v1/a..b/c.", "v1.2;x=1/y": "/v1/v1.2;x=1/y", "100%25": "/v1/100%25", "a b": "/v1/a%20b", ".hidden/..x": "/v1/.hidden/..x", "\u00fc/\u4f8b": "/v1/%C3%BC/%E4%BE%8B", "a;b": "/v1/a;b",
	} {
		raw, err := json.Marshal(map[string]string{"path": path})
		if err != nil {
			t.Fatal(err)
		}
		m := call(t, p, "api_get", string(raw))
		mu.Lock()
		if len(got) != 1 || got[0] != want || m.Get("/data/success") != "true" {
			t.Errorf("%s: the server got %q: %s", path, got, m.Line)
		}
		got = nil
		mu.Unlock()
	}
}
