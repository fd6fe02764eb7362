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
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// posted is a message that a client sent.
type posted struct {
	ID     jsontext.Value `json:"id"`
	Method string         `json:"method"`
	Params jsontext.Value `json:"params"`
	text   string
}

// newPlain serves MCP over HTTP without the SDK. answer writes the answer to a request; if it returns
// false, newPlain answers, but has no stream of notifications.
func newPlain(t testing.TB, answer func(w http.ResponseWriter, r *http.Request, m posted) bool) string {
	t.Helper()
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m := posted{text: string(body)}
		_ = json.Unmarshal(body, &m, lenient())
		switch {
		case answer(w, r, m):
		case r.Method == http.MethodGet:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case m.ID == nil || m.Method == "":
			w.WriteHeader(http.StatusAccepted)
		case m.Method == "initialize":
			m.answer(w, `"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}`)
		default:
			m.answer(w, done)
		}
	}))
	t.Cleanup(at.Close)
	return at.URL
}

// done is the result of a tool.
const done = `"result":{"content":[{"type":"text","text":"done"}]}`

// answer writes a JSON-RPC response; result is its member result or error.
func (m posted) answer(w http.ResponseWriter, result string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, m.ID, result)
}

// newStream serves MCP and answers a call of a tool by a stream of events: those before the answer, the
// answer, and those after it.
func newStream(t testing.TB, around func() (before, after []string)) string {
	t.Helper()
	return newPlain(t, func(w http.ResponseWriter, _ *http.Request, m posted) bool {
		if m.Method != "tools/call" {
			return false
		}
		before, after := around()
		streams(w, append(append(before, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, done)), after...)...)
		return true
	})
}

// streams writes a stream of events.
func streams(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, data := range events {
		fmt.Fprintf(w, "data: %s\n\n", strings.ReplaceAll(data, "\n", "\ndata: "))
	}
	_ = http.NewResponseController(w).Flush()
}

func times(n int, line string) []string {
	return strings.Split(strings.TrimSuffix(strings.Repeat(line+"\n", n), "\n"), "\n")
}

// TestWhatComesBehindAnAnswer: the SDK drops the messages behind an answer on its stream. They must not
// count as sent ahead, or the host would soon stop reading from the server.
func TestWhatComesBehindAnAnswer(t *testing.T) {
	note := `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`
	url := newStream(t, func() (before, after []string) {
		return times(windowNotes, note), append(times((maxMarks+1)*windowNotes, note),
			times(maxAsked, `{"jsonrpc":"2.0","id":"late","method":"ping"}`)...)
	})
	s := newStage(t, Config{URL: url, Transport: HTTP, CallTimeout: hosttest.Patience}, nil)
	for range 4 {
		must.Equal(t, s.must("x", nil), "done")
	}
}

// TestRequestsWithOneID: the SDK answers only the first of several requests with one id. The others
// must not count as waiting for an answer.
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
		e.Client = func() *mcp.ClientOptions {
			return &mcp.ClientOptions{ElicitationHandler: func(ctx context.Context,
				_ *mcp.ElicitRequest,
			) (*mcp.ElicitResult, error) {
				select {
				case <-hold:
				case <-ctx.Done():
				}
				return &mcp.ElicitResult{Action: "decline"}, nil
			}}
		}
	})
	must.Equal(t, s.must("x", nil), "done")
	assert.Equal(t, s.State().Junk, 6*maxAsked-3, "… were left out")
}

func TestGateBoundsTheSizeOfRequests(t *testing.T) {
	stop := make(chan struct{})
	g := newGate(stop)
	for i := range 2 { // a single request may have any size
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
	g.answer("c") // no request has this id
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

// TestStreamEndsWithItsAnswer: a stream ends after the answer, as the SDK reads no further.
func TestStreamEndsWithItsAnswer(t *testing.T) {
	answer, note := `data: {"jsonrpc":"2.0","id":5,"result":{}}`+"\n\n",
		`data: {"jsonrpc":"2.0","method":"notifications/message"}`+"\n\n"
	e := newTestEvents(t, HTTP, strings.NewReader(note+answer+strings.Repeat(note, 4*windowNotes)))
	e.own, _ = jsonrpc.MakeID(5.0)
	got, err := io.ReadAll(e)
	assert.That(t, string(got) == note+answer && err == nil, "%d bytes, %v", len(got), err)
}

// newTestEvents returns the events of a body, on a connection of their own.
func newTestEvents(t testing.TB, transport Transport, body io.Reader) *events {
	c := newConn(&Link{cfg: Config{}.withDefaults(), env: Env{Now: time.Now}}, transport)
	return newEvents(t.Context(), c, io.NopCloser(body), func() {})
}

// TestMessagesOfTooManyParts: a message with too many objects and arrays is refused, as a message of 16
// MiB could become gigabytes: `{},` takes one thousand bytes in Go.
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
		_, err := split(tc.text)
		assert.Equal(t, (err == nil), tc.ok, "%s: %v", name, err)
	}
}

func TestEvents(t *testing.T) {
	call, note := `{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","method":"notifications/message"}`
	long := "data: " + strings.Repeat("x", maxLine/2) + "\n"
	answered, noted := "data: "+call+"\n\n", "data: "+note+"\n\n"
	twoLines := strings.Replace(answered, ",", ",\ndata: ", 1)
	for name, tc := range map[string]struct {
		transport Transport
		in, want  string
		junk      int64
	}{
		"message":         {HTTP, "event: message\nid: 7\nretry: 5\ndata: " + call + "\n\n", answered, 0},
		"crlf":            {HTTP, "data:" + call + "\r\n\r\ndata: " + note + "\r\n\r\n", answered + noted, 0},
		"two lines":       {HTTP, twoLines, twoLines, 0},
		"BOM":             {HTTP, "\ufeff" + answered + "data: \ufeff" + note + "\n\n", answered + noted, 0},
		"batch":           {HTTP, "data: [" + call + ",\ndata: 1," + note + "]\n\n", answered + noted, 1},
		"priming":         {HTTP, "id: 3\ndata:\n\n", "", 0},
		"junk":            {HTTP, "id: 3\ndata: no\n\n", "", 1},
		"junk by SSE":     {SSE, "id: 3\ndata: no\n\n" + answered, answered, 1},
		"endpoint":        {SSE, "event: endpoint\ndata: /post?x=1\n\n", "event: endpoint\ndata: /post?x=1\n\n", 0},
		"another name":    {HTTP, "event: endpoint\nid: 2\ndata: /post?x=1\n\n", "", 0},
		"odd lines":       {HTTP, ": hello\nnonsense\ndata: " + call + "\nfoo: bar\n\n", answered, 0},
		"too long":        {HTTP, answered + long + long + long + "\n" + noted, answered + noted, 1},
		"too long a line": {SSE, "data: " + strings.Repeat("x", 2*maxLine) + "\n\n" + noted, noted, 1},
		"broken off":      {HTTP, "data: " + call + "\n", "", 0},
	} {
		e := newTestEvents(t, tc.transport, iotest.HalfReader(strings.NewReader(tc.in)))
		released := 0
		e.release = func() { released++ }
		got, err := io.ReadAll(iotest.OneByteReader(e))
		if junk := e.conn.link.junk.Load(); err != nil || string(got) != tc.want || junk != tc.junk {
			t.Errorf("%s: %.200q, %v, %d pieces of junk", name, got, err, junk)
		}
		for range 2 {
			err := e.Close()
			assert.That(t, err == nil && released == 1, "%s: %v, released %d times", name, err, released)
		}
		cut := newTestEvents(t, tc.transport, iotest.ErrReader(errors.New("cut")))
		cut.conn.kill(errClosed)
		if got, err := io.ReadAll(cut); string(got) != lastEvent || err != nil {
			t.Errorf("%s: ends with %q, %v", name, got, err)
		}
	}
}

// TestWhatIsReadIsNotKept: each read reaches the server. For a server that knows only the newest
// version of MCP, the SDK would keep the result for the time in its ttlMs.
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
