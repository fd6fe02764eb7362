package link

import (
	"a2e/host/hosttest"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// newStream serves MCP without the SDK: a call of a tool is answered by the events that
// around gives, with the answer between them.
func newStream(t testing.TB, around func() (before, after []string)) string {
	t.Helper()
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var m struct {
			ID     jsontext.Value `json:"id"`
			Method string         `json:"method"`
		}
		switch err := json.Unmarshal(body, &m); {
		case r.Method == http.MethodGet:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case err != nil || m.ID == nil || m.Method == "":
			w.WriteHeader(http.StatusAccepted)
		case m.Method == "initialize":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}`, m.ID)
		default:
			w.Header().Set("Content-Type", "text/event-stream")
			before, after := around()
			answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"done"}]}}`, m.ID)
			for _, line := range append(append(before, answer), after...) {
				fmt.Fprintf(w, "data: %s\n\n", line)
			}
		}
	}))
	t.Cleanup(at.Close)
	return at.URL
}

func times(n int, line string) []string {
	return strings.Split(strings.TrimSuffix(strings.Repeat(line+"\n", n), "\n"), "\n")
}

// The SDK throws away what comes behind an answer on its stream. It does not count as sent
// ahead, or the server would soon not be read any more.
func TestWhatComesBehindAnAnswer(t *testing.T) {
	note := `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`
	url := newStream(t, func() (before, after []string) {
		return times(windowNotes, note), append(times((maxMarks+1)*windowNotes, note), times(maxAsked, `{"jsonrpc":"2.0","id":"late","method":"ping"}`)...)
	})
	s := newStage(t, Config{URL: url, Transport: HTTP, CallTimeout: hosttest.Patience}, nil)
	for range 4 {
		if got := s.must("x", nil); got != "done" {
			t.Fatal(got)
		}
	}
}

// The SDK answers only the first of two requests with one id; the others do not count as
// waiting for an answer.
func TestRequestsWithOneID(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	ask := func(id string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"elicitation/create","params":{"message":"?"}}`, id)
	}
	url := newStream(t, func() (before, after []string) {
		before = append(times(2*maxAsked, ask(`7`)), times(2*maxAsked, ask(`"7"`))...)
		return append(before, times(2*maxAsked, ask(`"`+markPrefix+`1"`))...), nil
	})
	s := newStage(t, Config{URL: url, Transport: HTTP, CallTimeout: hosttest.Patience}, func(e *Env) {
		e.Client = func(string) *mcp.ClientOptions {
			return &mcp.ClientOptions{ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				select {
				case <-hold:
				case <-ctx.Done():
				}
				return &mcp.ElicitResult{Action: "decline"}, nil
			}}
		}
	})
	if got := s.must("x", nil); got != "done" {
		t.Fatal(got)
	}
	if got := s.State().Junk; got != 6*maxAsked-2 {
		t.Errorf("%d were left out", got)
	}
}

func TestGateBoundsTheSizeOfRequests(t *testing.T) {
	stop := make(chan struct{})
	g := newGate(stop)
	for i := range 2 { // one alone may have any size
		if _, err := g.admit(i, maxAskedBytes*2); err != nil {
			t.Fatal(err)
		}
		g.answer(i)
	}
	if _, err := g.admit("a", maxAskedBytes/2); err != nil {
		t.Fatal(err)
	}
	passed := make(chan error)
	go func() {
		_, err := g.admit("b", maxAskedBytes/2+1)
		passed <- err
	}()
	hosttest.Eventually(t, "the second one waits", func() bool { return g.silence() == 0 })
	g.answer("c") // of none
	g.answer("a")
	if err := <-passed; err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := g.admit("d", maxAskedBytes)
		passed <- err
	}()
	close(stop)
	if err := <-passed; !errors.Is(err, errBroken) {
		t.Error(err)
	}
	if g.size != maxAskedBytes/2+1 || len(g.asked) != 1 || g.silence() > time.Minute {
		t.Errorf("%d bytes of %d requests", g.size, len(g.asked))
	}
}

// A stream that is resumed may be that of any request; the SDK is done with it at the first
// answer.
func TestResumedStreamEndsWithItsAnswer(t *testing.T) {
	answer, note := `data: {"jsonrpc":"2.0","id":5,"result":{}}`+"\n\n", `data: {"jsonrpc":"2.0","method":"notifications/message"}`+"\n\n"
	for name, own := range map[string]any{"resumed": nil, "called": int64(5)} {
		l := &Link{cfg: Config{}.withDefaults(), env: Env{Now: time.Now}}
		e := newEvents(newConn(l, HTTP), io.NopCloser(strings.NewReader(note+answer+strings.Repeat(note, 4*windowNotes))), func() {})
		e.call, e.resumed = own, own == nil
		if got, err := io.ReadAll(e); string(got) != note+answer || err != nil {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}
