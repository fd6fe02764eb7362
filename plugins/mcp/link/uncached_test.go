package link

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Of a server that knows only the newest version of MCP the SDK would keep all that was
// read, whatever the server says of how long it is good.
func TestWhatIsReadIsNotKept(t *testing.T) {
	var reads int
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var m struct {
			ID     jsontext.Value `json:"id"`
			Method string         `json:"method"`
		}
		if err := json.Unmarshal(body, &m); err != nil || m.ID == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		answer := `"error":{"code":-32601,"message":"unknown method"}`
		switch m.Method {
		case "server/discover":
			answer = `"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"resources":{}}}`
		case "resources/read":
			reads++
			answer = `"result":{"resultType":"complete","ttlMs":3600000,"contents":[{"uri":"x://1","text":"a"}]}`
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, m.ID, answer)
	}))
	t.Cleanup(at.Close)
	s := newStage(t, Config{URL: at.URL, Transport: HTTP}, nil)
	for range 3 {
		err := s.Call(t.Context(), func(ctx context.Context, cs *mcp.ClientSession) error {
			_, err := cs.ReadResource(ctx, &mcp.ReadResourceParams{URI: "x://1"})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if version := s.State().ProtocolVersion; version != "2026-07-28" || reads != 3 {
		t.Errorf("%d were read, of a server that speaks %s", reads, version)
	}
}
