package link

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// forget makes the site forget the session old: refuse answers its requests. forget returns the number
// of sessions that begin after that, and a function for the bodies of the refused requests.
func (s *site) forget(old string, refuse func(w http.ResponseWriter)) (begun *atomic.Int64, refused func() []string) {
	var mu sync.Mutex
	var all []string
	begun = new(atomic.Int64)
	s.through(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		text, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(text))
		if bytes.Contains(text, []byte(`"initialize"`)) {
			begun.Add(1)
		}
		if r.Header.Get("Mcp-Session-Id") == old {
			mu.Lock()
			all = append(all, string(text))
			mu.Unlock()
			refuse(w)
			return
		}
		next.ServeHTTP(w, r)
	})
	return begun, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// TestSessionLost: a server that was started anew does not know the session, and has accepted none of
// its requests. So the host begins one new session for all, and sends all refused requests once more.
func TestSessionLost(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		body   string
	}{
		"plain":    {http.StatusNotFound, "no"},
		"json":     {http.StatusNotFound, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}`},
		"own id":   {http.StatusNotFound, `{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600}}`},
		"in words": {http.StatusBadRequest, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"No session ID"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			at := newSite(t, HTTP)
			var changes atomic.Int64
			s := newStage(t, Config{URL: at.URL}, func(e *Env) { e.Changed = func(*Link) { changes.Add(1) } })
			s.must("echo", echoArgs{"x"})
			session := must.Get(s.Session(t.Context()))(t)
			before := changes.Load()
			begun, refused := at.forget(session.ID(), func(w http.ResponseWriter) {
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.body)
			})
			var all sync.WaitGroup
			for i := range 10 {
				all.Go(func() {
					got, err := s.tool(t.Context(), "echo", echoArgs{strconv.Itoa(i)})
					assert.That(t, got == strconv.Itoa(i) && err == nil, "%q, %v", got, err)
				})
			}
			all.Wait()
			assert.OK(t, session.NotifyProgress(t.Context(), &mcp.ProgressNotificationParams{ProgressToken: "x"}))
			assert.That(t, begun.Load() == 1 && len(refused()) > 0, "%d sessions, refused: %q", begun.Load(), refused())
			hosttest.Eventually(t, "the news of it", func() bool { return changes.Load() > before })
			st := s.State()
			assert.That(t, st.Restarts == 1 && st.Status == Connected && st.Server.Name == "test", "%+v", st)
			must.OK(t, s.Close(t.Context()))
			var ended []string
			for _, r := range at.requests() {
				if r.Method == http.MethodDelete {
					ended = append(ended, r.Header.Get("Mcp-Session-Id"))
				}
			}
			assert.That(t, len(ended) == 1 && ended[0] != "" && ended[0] != session.ID(), "ended were %q", ended)
		})
	}
}

// TestSessionLostByNotification: a notification finds out as well that the session is lost, and begins
// a new one.
func TestSessionLostByNotification(t *testing.T) {
	at := newSite(t, HTTP)
	s := newStage(t, Config{URL: at.URL}, nil)
	s.must("echo", echoArgs{"x"})
	session := must.Get(s.Session(t.Context()))(t)
	begun, refused := at.forget(session.ID(), func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) })
	must.OK(t, session.NotifyProgress(t.Context(), &mcp.ProgressNotificationParams{ProgressToken: "seen"}))
	assert.Equal(t, begun.Load(), 1)
	assert.Contains(t, fmt.Sprint(refused()), "seen")
	s.must("echo", echoArgs{"x"})
}

// TestSessionLostAlways: a request to a server that forgets each session at once is sent twice, and no
// more.
func TestSessionLostAlways(t *testing.T) {
	for name, tc := range map[string]struct {
		hello bool // the server still begins sessions
		want  string
	}{
		"each session": {true, "HTTP status 404 Not Found, also in a new session"},
		"all":          {false, "HTTP status 404 Not Found: the session is lost, and there is no new one"},
	} {
		t.Run(name, func(t *testing.T) {
			var calls, hellos atomic.Int64
			var lost atomic.Bool
			url := newPlain(t, func(w http.ResponseWriter, r *http.Request, m posted) bool {
				switch {
				case m.Method == "tools/call":
					calls.Add(1)
				case m.Method == "initialize":
					w.Header().Set("Mcp-Session-Id", fmt.Sprint("s", hellos.Add(1)))
				}
				if lost.Load() && m.Method != "notifications/initialized" && (m.Method != "initialize" || !tc.hello) {
					w.Header().Del("Mcp-Session-Id")
					w.WriteHeader(http.StatusNotFound)
					return true
				}
				return false
			})
			s := newStage(t, Config{URL: url, Transport: HTTP}, nil)
			s.must("x", nil)
			lost.Store(true)
			_, err := s.tool(t.Context(), "x", nil)
			own := wantError(t, err, protocol.CodeMCPTransportError, "refused the request", tc.want)
			assert.That(t, !strings.Contains(own.Message, "served"), "%s", own.Message)
			sent := int64(2)
			if tc.hello {
				sent++
			}
			assert.Equal(t, calls.Load(), sent)
		})
	}
}

// TestRefusedRequest: a request that a server refuses does not harm other requests.
func TestRefusedRequest(t *testing.T) {
	const refused, failed = protocol.CodeMCPTransportError, protocol.CodeMCPProtocolError
	const unknown = protocol.CodeMCPCapabilityMissing
	wrong := func(code int) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":"no"}}`, code)
	}
	for name, tc := range map[string]struct {
		status            int
		media, body, want string
		code              protocol.ErrorCode
	}{
		"too large":   {http.StatusRequestEntityTooLarge, "text/plain", "no", "HTTP status 413", refused},
		"JSON-RPC":    {http.StatusBadRequest, "application/json", wrong(-32050), "error -32050: no", failed},
		"unknown":     {http.StatusNotFound, "application/json", wrong(-32601), "error -32601", unknown},
		"unavailable": {http.StatusServiceUnavailable, "text/plain", "later", "HTTP status 503", refused},
		"a page":      {http.StatusOK, "text/html", "<html>log in", `"text/html" that is not a message`, failed},
		"nothing":     {http.StatusAccepted, "", "", "not a message", failed},
	} {
		t.Run(name, func(t *testing.T) {
			hold := make(chan struct{})
			release := sync.OnceFunc(func() { close(hold) })
			defer release()
			url := newPlain(t, func(w http.ResponseWriter, r *http.Request, m posted) bool {
				switch {
				case m.Method == "initialize":
					w.Header().Set("Mcp-Session-Id", "s")
				case strings.Contains(m.text, "long"):
					<-hold
				case strings.Contains(m.text, "odd"):
					w.Header().Set("Content-Type", tc.media)
					w.WriteHeader(tc.status)
					_, _ = io.WriteString(w, tc.body)
					return true
				case m.Method == "notifications/progress":
					w.WriteHeader(http.StatusForbidden)
					return true
				}
				return false
			})
			s := newStage(t, Config{URL: url, Transport: HTTP}, nil)
			session := must.Get(s.Session(t.Context()))(t)
			long := make(chan error, 1)
			go func() {
				_, err := s.tool(t.Context(), "long", nil)
				long <- err
			}()
			_, err := s.tool(t.Context(), "odd", nil)
			wantError(t, err, tc.code, tc.want)
			note := &mcp.ProgressNotificationParams{ProgressToken: "x"}
			assert.Fails(t, session.NotifyProgress(t.Context(), note), "403")
			release()
			assert.OK(t, <-long)
			assert.Equal(t, s.State().Restarts, 0)
		})
	}
}

// TestRefusedBySSE: the same holds for SSE, where the answer comes on another stream.
func TestRefusedBySSE(t *testing.T) {
	for name, body := range map[string]string{
		"plain": "no", "JSON-RPC": `{"jsonrpc":"2.0","id":null,"error":{"code":-32050,"message":"no"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			at := newSite(t, SSE)
			at.through(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				text, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(text))
				if bytes.Contains(text, []byte("odd")) {
					w.WriteHeader(http.StatusRequestEntityTooLarge)
					_, _ = io.WriteString(w, body)
					return
				}
				next.ServeHTTP(w, r)
			})
			s := newStage(t, Config{URL: at.URL, Transport: SSE, CallTimeout: hosttest.Patience}, nil)
			_, err := s.tool(t.Context(), "echo", echoArgs{"odd"})
			wantError(t, err, protocol.CodeMCPTransportError, "refused the request", "HTTP status 413")
			s.must("echo", echoArgs{"x"})
			assert.Equal(t, s.State().Restarts, 0)
		})
	}
}

// listener opens a stage, and returns the number of list changes that the server has announced so far.
func listener(t testing.TB, url string) (*stage, *atomic.Int64) {
	var heard atomic.Int64
	return newStage(t, Config{URL: url, Transport: HTTP}, func(e *Env) {
		e.firstRetry = 50 * time.Microsecond
		e.Client = func() *mcp.ClientOptions {
			changed := func(context.Context, *mcp.ToolListChangedRequest) { heard.Add(1) }
			return &mcp.ClientOptions{ToolListChangedHandler: changed}
		}
	}), &heard
}

const listChanged = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`

// TestNotificationsAreOptional: the stream of notifications is optional. If it is lost, however often,
// nothing else fails, and the host opens it again after the last event.
func TestNotificationsAreOptional(t *testing.T) {
	const often = 12 // the SDK gives the connection up after 5
	for name, lose := range map[string]func(w http.ResponseWriter){
		"ends":    func(w http.ResponseWriter) { streams(w) },
		"breaks":  func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"refused": func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) },
		"forbids": func(w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden) },
	} {
		t.Run(name, func(t *testing.T) {
			gets, enough := make(chan string), make(chan struct{})
			opened := int64(0)
			url := newPlain(t, func(w http.ResponseWriter, r *http.Request, m posted) bool {
				switch {
				case m.Method == "tools/call":
					select {
					case <-enough:
					case <-r.Context().Done():
					}
					return false
				case r.Method != http.MethodGet:
					return false
				}
				switch n := atomic.AddInt64(&opened, 1); {
				case n == 1 || n == often:
					w.Header().Set("Content-Type", "text/event-stream")
					fmt.Fprintf(w, "id: e%d\n", n)
					streams(w, listChanged)
					if n == 1 {
						return true
					}
					close(enough)
				case n == often+1:
					gets <- r.Header.Get("Last-Event-ID")
					streams(w, listChanged)
					<-r.Context().Done()
				case n < often:
					lose(w)
					return true
				}
				return true
			})
			s, heard := listener(t, url)
			s.must("long", nil)
			assert.Equal(t, <-gets, fmt.Sprint("e", often), "it goes on behind")
			hosttest.Eventually(t, "the notifications", func() bool { return heard.Load() == 3 })
			st := s.State()
			assert.That(t, st.Restarts == 0 && st.Status == Connected && st.LastError == "", "%+v", st)
		})
	}
}

// TestNoNotifications: a server without a stream of notifications is asked for it once in each session.
func TestNoNotifications(t *testing.T) {
	for _, status := range []int{http.StatusMethodNotAllowed, http.StatusNotFound, http.StatusOK} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			var gets, hellos atomic.Int64
			var lost atomic.Bool
			url := newPlain(t, func(w http.ResponseWriter, r *http.Request, m posted) bool {
				switch {
				case m.Method == "initialize":
					w.Header().Set("Mcp-Session-Id", fmt.Sprint("s", hellos.Add(1)))
				case r.Method == http.MethodGet && hellos.Load() == 2:
					gets.Add(1)
					streams(w, listChanged)
					<-r.Context().Done()
					return true
				case r.Method == http.MethodGet:
					gets.Add(1)
					w.WriteHeader(status)
					return true
				case lost.Load() && r.Header.Get("Mcp-Session-Id") == "s1":
					w.WriteHeader(http.StatusNotFound)
					return true
				}
				return false
			})
			s, heard := listener(t, url)
			for range 3 {
				s.must("x", nil)
			}
			must.Equal(t, gets.Load(), 1)
			lost.Store(true)
			s.must("x", nil)
			hosttest.Eventually(t, "notifications of the new session", func() bool { return heard.Load() == 1 })
			assert.Equal(t, gets.Load(), 2)
		})
	}
}

// TestAnswerIsResumed: the stream of an answer is resumed if its events have ids. If that fails, only
// its call fails.
func TestAnswerIsResumed(t *testing.T) {
	for name, tc := range map[string]struct {
		before []int // statuses of the first attempts
		want   string
	}{
		"at once":       {nil, ""},
		"after a while": {[]int{503, 502, 0}, ""},
		"not at all":    {[]int{405}, "cannot be resumed: the server answered with HTTP status 405"},
		"gone":          {[]int{404}, "cannot be resumed: the server answered with HTTP status 404"},
		"never":         {make([]int, 20), "ended without"},
		"unavailable":   {slices.Repeat([]int{503}, 20), "cannot be resumed: the server answered with HTTP status 503"},
	} {
		t.Run(name, func(t *testing.T) {
			hold := make(chan struct{})
			release := sync.OnceFunc(func() { close(hold) })
			defer release()
			var id atomic.Value
			var tries atomic.Int64
			url := newPlain(t, func(w http.ResponseWriter, r *http.Request, m posted) bool {
				last := r.Header.Get("Last-Event-ID")
				switch {
				case m.Method == "initialize":
					w.Header().Set("Mcp-Session-Id", "s")
				case strings.Contains(m.text, "other"):
					<-hold
				case m.Method == "tools/call":
					id.Store(m)
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, "id: a1\ndata:\n\n")
					return true
				case last != "":
					if n := int(tries.Add(1)) - 1; n < len(tc.before) {
						if status := tc.before[n]; status != 0 {
							w.WriteHeader(status)
						} else {
							streams(w)
						}
						return true
					}
					assert.Equal(t, last, "a1")
					streams(w, listChanged, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, id.Load().(posted).ID, done))
					return true
				}
				return false
			})
			s, heard := listener(t, url)
			other := make(chan error, 1)
			go func() {
				_, err := s.tool(t.Context(), "other", nil)
				other <- err
			}()
			got, err := s.tool(t.Context(), "it", nil)
			if tc.want == "" {
				assert.That(t, got == "done" && err == nil, "%q, %v", got, err)
				hosttest.Eventually(t, "what came before", func() bool { return heard.Load() == 1 })
			} else {
				wantError(t, err, protocol.CodeMCPTransportError, "was lost", tc.want)
			}
			release()
			assert.OK(t, <-other)
			assert.Equal(t, s.State().Restarts, 0)
		})
	}
}

// TestNotificationsAreAskedForAgain: a server of the newest MCP sends its notifications as the answer
// to a request. When this stream ends, the host sends the request again.
func TestNotificationsAreAskedForAgain(t *testing.T) {
	const found = `"result":{"resultType":"complete","supportedVersions":["2026-07-28"],` +
		`"capabilities":{"tools":{"listChanged":true}}}`
	var listens atomic.Int64
	url := newPlain(t, func(w http.ResponseWriter, r *http.Request, m posted) bool {
		switch m.Method {
		case "initialize":
			m.answer(w, `"error":{"code":-32601,"message":"unknown method"}`)
		case "server/discover":
			m.answer(w, found)
		case "subscriptions/listen":
			streams(w, listChanged)
			if listens.Add(1) == 3 {
				<-r.Context().Done()
			}
		default:
			return false
		}
		return true
	})
	s, heard := listener(t, url)
	_ = must.Get(s.Session(t.Context()))(t)
	hosttest.Eventually(t, "all notifications", func() bool { return heard.Load() == 3 })
	assert.Equal(t, s.State().Restarts, 0)
}
