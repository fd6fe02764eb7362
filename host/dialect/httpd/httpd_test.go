package httpd_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host/dialect/httpd"
	"a2e/host/guard/auth"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// echo is a host that sends back every line it gets.
func echo(_ context.Context, _ httpd.Protocol, in io.Reader, out io.Writer) error {
	if _, err := io.Copy(out, in); !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	return nil
}

// do serves one request and returns the response.
func do(s *httpd.Server, ctx context.Context, method, path, session, body string) *httptest.ResponseRecorder {
	got := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, method, "http://127.0.0.1"+path, strings.NewReader(body))
	if session != "" {
		r.Header.Set(httpd.Header, session)
	}
	s.ServeHTTP(got, r)
	return got
}

// TestIdle: a session lives while it is used or has a stream, and then ends. A stream gets a comment at regular times.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := httpd.New(httpd.Options{Serve: echo, Idle: time.Minute, Beat: 10 * time.Second, Loopback: true})
		id := strings.Split(do(s, t.Context(), "POST", "/session", "", "").Body.String(), `"`)[3]
		send := func() int { return do(s, t.Context(), "POST", "/send", id, `{"a":1}`).Code }
		for range 3 {
			time.Sleep(50 * time.Second)
			assert.Equal(t, send(), http.StatusOK, "a session that is used")
		}
		ctx, hangUp := context.WithCancel(t.Context())
		heard := make(chan string)
		go func() { heard <- do(s, ctx, "GET", "/stream", id, "").Body.String() }()
		time.Sleep(5*time.Minute - time.Second)
		hangUp()
		text := <-heard
		assert.Equal(t, strings.Count(text, "data: {\"a\":1}\n"), 3, "events")
		assert.Equal(t, strings.Count(text, ":\n\n"), 30, "comments: one at the beginning, and each 10 s")
		assert.Equal(t, send(), http.StatusOK, "a session with a stream until now")
		time.Sleep(61 * time.Second)
		assert.Equal(t, send(), http.StatusNotFound, "a session that nobody uses")
		s.Close(t.Context())
	})
}

// TestTakeOver: a second stream ends the first and continues after it. A HEAD request does neither.
func TestTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := httpd.New(httpd.Options{Serve: echo, Loopback: true, Kept: 100})
		id := strings.Split(do(s, t.Context(), "POST", "/session", "", "").Body.String(), `"`)[3]
		streams := make(chan string, 2)
		listen := func() {
			go func() { streams <- do(s, t.Context(), "GET", "/stream", id, "").Body.String() }()
			synctest.Wait()
		}
		listen()
		for range 50 {
			do(s, t.Context(), "POST", "/send", id, `{"n":1}`)
			synctest.Wait()
		}
		assert.Equal(t, do(s, t.Context(), "HEAD", "/stream", id, "").Code, http.StatusMethodNotAllowed,
			"HEAD takes no events")
		listen()
		assert.Equal(t, strings.Count(<-streams, "data:"), 50, "events of the first stream")
		do(s, t.Context(), "POST", "/send", id, `{"n":2}`)
		synctest.Wait()
		r := httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1/stream", nil)
		r.Header.Set(httpd.Header, id)
		r.Header.Set("Last-Event-ID", "3")
		gone := httptest.NewRecorder()
		s.ServeHTTP(gone, r)
		assert.That(t, gone.Code == http.StatusGone && strings.Contains(gone.Body.String(), "no longer kept"),
			"an old event: %d %s", gone.Code, gone.Body)
		do(s, t.Context(), "DELETE", "/session", id, "")
		assert.That(t, strings.HasSuffix(<-streams, "id: 51\ndata: {\"n\":2}\n\n"), "the second stream")
		s.Close(t.Context())
	})
}

// pipes is a listener for connections within the process.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestSlowBody: a request whose body does not end is given up, but a stream that follows a complete body is not.
func TestSlowBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := httpd.New(httpd.Options{Serve: echo, Loopback: true})
		id := strings.Split(do(s, t.Context(), "POST", "/session", "", "").Body.String(), `"`)[3]
		listener := make(pipes)
		server := &http.Server{Handler: s}
		go server.Serve(listener)
		ask := func(request string) net.Conn {
			ours, theirs := net.Pipe()
			listener <- theirs
			must.Get(ours.Write([]byte(strings.Replace(request, "ID", id, 1))))(t)
			return ours
		}
		slow := ask("POST /send HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Session-Id: " +
			"ID\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
		began := time.Now()
		text := must.Get(io.ReadAll(slow))(t)
		assert.That(t, strings.HasPrefix(string(text), "HTTP/1.1 408") && time.Since(began) == time.Minute,
			"after %v: %s", time.Since(began), text)
		stream := bufio.NewReader(ask("GET /stream HTTP/1.1\r\nHost: localhost\r\nConnection: " +
			"close\r\nX-Session-Id: ID\r\n\r\n"))
		for beats := 0; beats < 20; { // five minutes
			line := must.Get(stream.ReadString('\n'))(t)
			if line == ":\n" {
				beats++
			}
		}
		listening := make(chan string)
		go func() { rest, _ := io.ReadAll(stream); listening <- string(rest) }()
		s.Close(t.Context())
		assert.Contains(t, <-listening, "0\r\n\r\n")
		close(listener)
		must.OK(t, server.Close())
	})
}

// TestCORS: the browser of a page with an allowed origin may send requests, the browser of another page may not.
func TestCORS(t *testing.T) {
	t.Parallel()
	s := httpd.New(httpd.Options{
		Serve: echo, Loopback: true, Origins: []string{"https://a.example"},
		Tokens: auth.Tokens{auth.New("secret", "")},
	})
	for origin, status := range map[string]int{
		"https://a.example": http.StatusNoContent,
		"https://b.example": http.StatusForbidden,
	} {
		r := httptest.NewRequestWithContext(t.Context(), "OPTIONS", "http://127.0.0.1/send", nil)
		r.Header.Set("Origin", origin)
		r.Header.Set("Access-Control-Request-Method", "POST")
		got := httptest.NewRecorder()
		s.ServeHTTP(got, r)
		h := got.Header()
		assert.Equal(t, got.Code, status, "%s", origin)
		assert.Equal(t, h.Get("Access-Control-Allow-Origin") == origin &&
			strings.Contains(h.Get("Access-Control-Allow-Headers"), httpd.Header), status == http.StatusNoContent,
			"%s: %v", origin, h)
	}
}

// TestFailedInitialize: a session ends if its initialize fails, because the client cannot use it.
func TestFailedInitialize(t *testing.T) {
	t.Parallel()
	refuses := func(_ context.Context, _ httpd.Protocol, in io.Reader, out io.Writer) error {
		for lines := bufio.NewScanner(in); lines.Scan(); {
			if _, err := io.WriteString(out, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}`+"\n"); err != nil {
				return err
			}
		}
		return nil
	}
	s := httpd.New(httpd.Options{Serve: refuses, Loopback: true, MaxSessions: 1})
	for _, params := range []string{"", `,"params":{}`} { // the SDK refuses the initialize without params
		r := httptest.NewRequestWithContext(t.Context(), "POST", "http://127.0.0.1/mcp",
			strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize"`+params+`}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		got := httptest.NewRecorder()
		s.ServeHTTP(got, r)
		assert.That(t, got.Code != http.StatusServiceUnavailable, "%s: %d %s", params, got.Code, got.Body)
		id := ""
		hosttest.Eventually(t, "the session to end", func() bool {
			var opened struct {
				ID string `json:"session_id"`
			}
			_ = json.Unmarshal(do(s, t.Context(), "POST", "/session", "", "").Body.Bytes(), &opened)
			id = opened.ID
			return id != ""
		})
		do(s, t.Context(), "DELETE", "/session", id, "")
		hosttest.Eventually(t, "its end", func() bool {
			return do(s, t.Context(), "GET", "/stream", id,
				"").Code == http.StatusNotFound
		})
	}
	s.Close(t.Context())
}

// TestKeptEvents: a client that knows no event can listen even if the first events are no longer kept. After that it
// gets the events after the last one that it knows, once.
func TestKeptEvents(t *testing.T) {
	t.Parallel()
	told := 0
	talks := func(_ context.Context, _ httpd.Protocol, in io.Reader, out io.Writer) error {
		for lines := bufio.NewScanner(in); lines.Scan(); {
			text, more := `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}`+"\n", 50
			if !strings.Contains(lines.Text(), "initialize\"") {
				text, more = "", 3
			}
			for range more {
				told++
				text += fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"%04d"}}`+"\n", told)
			}
			if _, err := io.WriteString(out, text); err != nil {
				return err
			}
		}
		return nil
	}
	s := httpd.New(httpd.Options{Serve: talks, Loopback: true, Kept: 1000})
	web := httptest.NewServer(s)
	defer web.Close()
	defer web.CloseClientConnections() // otherwise open streams would delay the Close of web
	var id, last string
	ask := func(method, body string) *http.Response {
		r := must.Get(http.NewRequestWithContext(t.Context(), method, web.URL+"/mcp", strings.NewReader(body)))(t)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		r.Header.Set("Mcp-Session-Id", id)
		if method == "GET" && last != "" {
			r.Header.Set("Last-Event-Id", last)
		}
		return must.Get(http.DefaultClient.Do(r))(t)
	}
	begun := ask("POST", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`)
	must.Get(io.Copy(io.Discard, begun.Body))(t)
	begun.Body.Close()
	id = begun.Header.Get("Mcp-Session-Id")
	for knows := 50; knows <= 56; knows += 3 {
		var listens *http.Response
		hosttest.Eventually(t, "the end of the stream before", func() bool {
			listens = ask("GET", "")
			return listens.StatusCode != http.StatusConflict
		})
		must.Equal(t, listens.StatusCode, 200)
		var heard []string
		for lines := bufio.NewScanner(listens.Body); lines.Scan(); {
			if text, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				last = text
			}
			if _, text, ok := strings.Cut(lines.Text(), `"data":"`); ok {
				heard = append(heard, text[:4])
				if heard[len(heard)-1] == fmt.Sprintf("%04d", knows) {
					break
				}
			}
		}
		listens.Body.Close()
		if knows > 50 {
			assert.Equal(t, strings.Join(heard, " "), fmt.Sprintf("%04d %04d %04d", knows-2, knows-1, knows))
		}
		ask("POST", `{"jsonrpc":"2.0","method":"notifications/initialized"}`).Body.Close()
	}
	s.Close(t.Context())
}

// TestPanics: a host that panics ends only its own session, whichever protocol it speaks.
func TestPanics(t *testing.T) {
	t.Parallel()
	s := httpd.New(httpd.Options{Loopback: true, Serve: func(_ context.Context, speaks httpd.Protocol, in io.Reader,
		out io.Writer,
	) error {
		if line, err := bufio.NewReader(in).ReadString('\n'); err == nil && !strings.Contains(line, "ping") {
			panic("at " + line)
		}
		return nil
	}})
	ids := make([]string, 2)
	for i := range ids {
		ids[i] = strings.Split(do(s, t.Context(), "POST", "/session", "", "").Body.String(), `"`)[3]
	}
	assert.Equal(t, do(s, t.Context(), "POST", "/send", ids[0], `{"a":1}`).Code, http.StatusOK, "the last message")
	hosttest.Eventually(t, "its session to end", func() bool {
		return do(s, t.Context(), "POST", "/send", ids[0],
			`{"a":1}`).Code == http.StatusNotFound
	})
	assert.Equal(t, do(s, t.Context(), "POST", "/send", ids[1], `{"ping":1}`).Code, http.StatusOK, "another session")
	s.Close(t.Context())
}

// TestSlowReaders: a connection whose client does not read is closed, whatever is written to it, and so is one whose
// request never ends.
func TestSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := httpd.New(httpd.Options{Serve: echo, Loopback: true})
		listener := make(pipes)
		server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
		go server.Serve(listener)
		const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
		for request, limit := range map[string]time.Duration{
			"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, " +
				"text/event-stream\r\nContent-Length: " + strconv.Itoa(len(hello)) + "\r\n\r\n" + hello: time.Minute,
			"POST /session HTTP/1.1\r\nHost: localhost\r\n\r\n": time.Minute,
			"POST /session HTTP/1.1\r\nHost: localhost\r\n":     10 * time.Second, // the head does not end
		} {
			ours, theirs := net.Pipe()
			listener <- theirs
			must.Get(ours.Write([]byte(request)))(t)
			time.Sleep(limit + time.Second)
			_, err := io.ReadAll(ours)
			assert.OK(t, err) // the server has closed the connection
		}
		s.Close(t.Context())
		close(listener)
		must.OK(t, server.Close())
	})
}

// TestUnknownMethod: an unknown method of MCP gets an error of JSON-RPC with the id of its request.
func TestUnknownMethod(t *testing.T) {
	t.Parallel()
	greets := func(_ context.Context, _ httpd.Protocol, in io.Reader, out io.Writer) error {
		lines := bufio.NewScanner(in)
		if lines.Scan() {
			if _, err := io.WriteString(out, `{"jsonrpc":"2.0","id":1,"result":{}}`+"\n"); err != nil {
				return err
			}
		}
		for lines.Scan() {
		}
		return lines.Err()
	}
	s := httpd.New(httpd.Options{Serve: greets, Loopback: true})
	post := func(session, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "http://127.0.0.1/mcp", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		r.Header.Set("Mcp-Session-Id", session)
		got := httptest.NewRecorder()
		s.ServeHTTP(got, r)
		return got
	}
	id := post("", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`).Header().Get("Mcp-Session-Id")
	for method, code := range map[string]int{
		"no/such": -32601, "notifications/initialized": -32601, "a tools": -32601,
		"tools/call": -32602,
	} {
		got := post(id, `{"jsonrpc":"2.0","id":"x","method":"`+method+`"}`)
		assert.That(t, got.Code == http.StatusOK && strings.Contains(got.Body.String(),
			fmt.Sprintf(`"code":%d`, code)) && strings.Contains(got.Body.String(), `"id":"x"`), "%s: %d %s", method,
			got.Code, got.Body)
	}
	assert.Equal(t, post("no session", `{"jsonrpc":"2.0","id":1,"method":"no/such"}`).Code, http.StatusNotFound)
	s.Close(t.Context())
}

// counter is a response that counts how often it is flushed.
type counter struct {
	*httptest.ResponseRecorder
	flushes atomic.Int64
}

func (c *counter) FlushError() error {
	c.flushes.Add(1)
	return nil
}

// TestEventsGoOutTogether: the answer to a short request is sent at its end, and the events of a long request are
// sent before its end.
func TestEventsGoOutTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := httpd.New(httpd.Options{Loopback: true, Serve: func(_ context.Context, _ httpd.Protocol, in io.Reader,
			out io.Writer,
		) error {
			for lines := bufio.NewScanner(in); lines.Scan(); {
				if strings.Contains(lines.Text(), `"slow"`) {
					time.Sleep(time.Minute)
				}
				var asked struct{ ID json.RawMessage }
				must.OK(t, json.Unmarshal(lines.Bytes(), &asked))
				_, _ = fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-03-26"}}`+"\n",
					asked.ID)
			}
			return nil
		}})
		id := ""
		post := func(body string) (answer *counter, done chan struct{}) {
			answer, done = &counter{ResponseRecorder: httptest.NewRecorder()}, make(chan struct{})
			r := httptest.NewRequestWithContext(t.Context(), "POST", "http://127.0.0.1/mcp", strings.NewReader(body))
			r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, " +
				"text/event-stream"}}
			if id != "" {
				r.Header.Set("Mcp-Session-Id", id)
			}
			go func() {
				defer close(done)
				s.ServeHTTP(answer, r)
			}()
			return answer, done
		}
		short, done := post(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`)
		<-done
		assert.That(t, short.flushes.Load() == 0 && strings.Contains(short.Body.String(), `"result"`),
			"%d flushes of %s",
			short.flushes.Load(), short.Body)
		id = short.Header().Get("Mcp-Session-Id")
		long, done := post(`[{"jsonrpc":"2.0","id":2,"method":"tools/list"},{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"slow"}}]`)
		time.Sleep(time.Second)
		assert.Equal(t, long.flushes.Load(), int64(1), "flushes while it runs")
		<-done
		assert.That(t, long.flushes.Load() == 1 && strings.Count(long.Body.String(), `"result"`) == 2,
			"%d flushes of %s",
			long.flushes.Load(), long.Body)
		s.Close(t.Context())
	})
}
