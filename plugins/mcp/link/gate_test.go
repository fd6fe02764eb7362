package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
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
		must.Equal(t, s.must("x", nil), "done")
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
	must.Equal(t, s.must("x", nil), "done")
	assert.Equal(t, s.State().Junk, 6*maxAsked-2, "… were left out")
}

func TestGateBoundsTheSizeOfRequests(t *testing.T) {
	stop := make(chan struct{})
	g := newGate(stop)
	for i := range 2 { // one alone may have any size
		must.Get(g.admit(i, maxAskedBytes*2))(t)
		g.answer(i)
	}
	must.Get(g.admit("a", maxAskedBytes/2))(t)
	passed := make(chan error)
	go func() {
		_, err := g.admit("b", maxAskedBytes/2+1)
		passed <- err
	}()
	hosttest.Eventually(t, "the second one waits", func() bool { return g.silence() == 0 })
	g.answer("c") // of none
	g.answer("a")
	must.OK(t, <-passed)
	go func() {
		_, err := g.admit("d", maxAskedBytes)
		passed <- err
	}()
	close(stop)
	assert.Is(t, <-passed, errBroken)
	assert.That(t, g.size == maxAskedBytes/2+1 && len(g.asked) == 1 && g.silence() <= time.Minute,
		"%d bytes of %d requests", g.size, len(g.asked))
}

// A stream that is resumed may be that of any request; the SDK is done with it at the first
// answer.
func TestResumedStreamEndsWithItsAnswer(t *testing.T) {
	answer, note := `data: {"jsonrpc":"2.0","id":5,"result":{}}`+"\n\n", `data: {"jsonrpc":"2.0","method":"notifications/message"}`+"\n\n"
	for name, own := range map[string]any{"resumed": nil, "called": int64(5)} {
		l := &Link{cfg: Config{}.withDefaults(), env: Env{Now: time.Now}}
		e := newEvents(newConn(l, HTTP), io.NopCloser(strings.NewReader(note+answer+strings.Repeat(note, 4*windowNotes))), func() {})
		e.call, e.resumed = own, own == nil
		got, err := io.ReadAll(e)
		assert.That(t, string(got) == note+answer && err == nil, "%s: %d bytes, %v", name, len(got), err)
	}
}

// A message of 16 MiB may not become one of gigabytes: `{},` is one thousand bytes of Go.
func TestMessagesOfTooManyParts(t *testing.T) {
	result := func(v string) []byte { return []byte(`{"jsonrpc":"2.0","id":1,"result":` + v + `}`) }
	for name, tc := range map[string]struct {
		text []byte
		ok   bool
	}{
		"objects":           {result("[" + strings.Repeat("{},", maxBranches) + "{}]"), false},
		"arrays":            {result("[" + strings.Repeat("[],", maxBranches) + "[]]"), false},
		"as many as may be": {result("[" + strings.Repeat("[],", maxBranches-3) + "1]"), true},
		"a text":            {result(`"` + strings.Repeat(`{[\"`, maxBranches) + `"`), true},
		"numbers":           {result("[" + strings.Repeat("1,", maxBranches) + "1]"), true},
	} {
		_, err := decode(tc.text)
		assert.Equal(t, (err == nil), tc.ok, "%s: %v", name, err)
	}
}

func TestEvents(t *testing.T) {
	call, note := `{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","method":"notifications/message"}`
	long := "data: " + strings.Repeat("x", maxLine/2) + "\n"
	for name, tc := range map[string]struct {
		transport Transport
		in, want  string
		junk      int64
	}{
		"message":         {HTTP, "event: message\nid: 7\nretry: 5\ndata: " + call + "\n\n", "event: message\nid: 7\nretry: 100\ndata: " + call + "\n\n", 0},
		"crlf":            {HTTP, "data:" + call + "\r\n\r\ndata: " + note + "\r\n\r\n", "data: " + call + "\n\ndata: " + note + "\n\n", 0},
		"two lines":       {HTTP, "data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":1,\"result\":{}}\n\n", "data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":1,\"result\":{}}\n\n", 0},
		"priming":         {HTTP, "id: 3\ndata:\n\n", "id: 3\n\n", 0},
		"junk keeps id":   {HTTP, "id: 3\ndata: no\n\n", "id: 3\n\n", 1},
		"junk":            {SSE, "id: 3\ndata: no\n\ndata: " + call + "\n\n", "data: " + call + "\n\n", 1},
		"endpoint":        {SSE, "event: endpoint\ndata: /post?x=1\n\n", "event: endpoint\ndata: /post?x=1\n\n", 0},
		"another name":    {HTTP, "event: endpoint\nid: 2\ndata: /post?x=1\n\n", "event: endpoint\nid: 2\n\n", 0},
		"odd lines":       {HTTP, ": hello\nnonsense\ndata: " + call + "\nfoo: bar\n\n", "data: " + call + "\n\n", 0},
		"too long":        {HTTP, "data: " + call + "\n\n" + long + long + long + "\n", "data: " + call + "\n\n", 0},
		"too long a line": {SSE, "data: " + strings.Repeat("x", 2*maxLine) + "\n\n", "", 0},
		"broken off":      {HTTP, "data: " + call + "\n", "", 0},
	} {
		l := &Link{cfg: Config{}.withDefaults(), env: Env{Now: time.Now}}
		c := newConn(l, tc.transport)
		released := 0
		e := newEvents(c, io.NopCloser(iotest.HalfReader(strings.NewReader(tc.in))), func() { released++ })
		got, err := io.ReadAll(iotest.OneByteReader(e))
		if (err != nil) != strings.HasPrefix(name, "too long") || string(got) != tc.want || l.junk.Load() != tc.junk {
			t.Errorf("%s: %.200q, %v, %d pieces of junk", name, got, err, l.junk.Load())
		}
		for range 2 {
			err := e.Close()
			assert.That(t, err == nil && released == 1, "%s: %v, released %d times", name, err, released)
		}
		c.kill(errClosed)
		if got, err := io.ReadAll(newEvents(c, io.NopCloser(iotest.ErrReader(errors.New("cut"))), func() {})); string(got) != lastEvent || err != nil {
			t.Errorf("%s: ends with %q, %v", name, got, err)
		}
	}
}

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
		must.OK(t, s.Call(t.Context(), func(ctx context.Context, cs *mcp.ClientSession) error {
			_, err := Raw(ctx, cs, "resources/read", jsontext.Value(`{"uri":"x://1"}`))
			return err
		}))
	}
	version := s.State().ProtocolVersion
	assert.That(t, version == "2026-07-28" && reads == 3, "%d were read, of a server that speaks %s", reads, version)
}
