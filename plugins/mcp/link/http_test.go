package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/guard/redact"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// site is an MCP server on 127.0.0.1.
type site struct {
	*httptest.Server
	mu   sync.Mutex
	seen []*http.Request
	wrap atomic.Pointer[func(w http.ResponseWriter, r *http.Request, next http.Handler)]
}

// newSite serves one of the SDK's handlers at /mcp.
func newSite(t testing.TB, transport Transport) *site {
	t.Helper()
	stop := make(chan struct{})
	one := newServer(stop, t.TempDir())
	get := func(*http.Request) *mcp.Server { return one }
	var handler http.Handler = mcp.NewStreamableHTTPHandler(get, nil)
	if transport == SSE {
		handler = mcp.NewSSEHandler(get, nil)
	}
	s := &site{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.seen = append(s.seen, r.Clone(context.WithoutCancel(r.Context())))
		s.mu.Unlock()
		if f := s.wrap.Load(); f != nil {
			(*f)(w, r, handler)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		close(stop)
		s.CloseClientConnections()
		s.Server.Close()
		for session := range one.Sessions() {
			_ = session.Close() // its client may be gone
		}
	})
	return s
}

// through passes all requests to f.
func (s *site) through(f func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	s.wrap.Store(&f)
}

// requests returns the requests so far.
func (s *site) requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// methods returns the methods of the requests so far.
func (s *site) methods() (all []string) {
	for _, r := range s.requests() {
		all = append(all, r.Method)
	}
	return all
}

func TestHTTP(t *testing.T) {
	for _, transport := range []Transport{HTTP, SSE, ""} {
		t.Run(string(transport), func(t *testing.T) {
			at := newSite(t, transport)
			s := newStage(t, Config{
				URL: at.URL + "/mcp?key=query-secret", Transport: transport,
				Headers: map[string]string{"Authorization": "Bearer to-ken", "X-Team": "blue"},
			}, nil)
			for i := range 5 {
				assert.Equal(t, s.must("echo", echoArgs{strconv.Itoa(i)}), strconv.Itoa(i), "echo")
			}
			_, err := s.tool(t.Context(), "fail", echoArgs{"to-ken"})
			wantError(t, err, protocol.CodeMCPProtocolError, "it broke: "+redact.Text)
			s.ping()
			st := s.State()
			assert.That(t, st.Server.Name == "test" && st.PID == 0 && st.Transport != Stdio, "%+v", st)
			must.OK(t, s.Close(t.Context()))
			for _, r := range at.requests() {
				assert.That(t, r.Header.Get("Authorization") == "Bearer to-ken" && r.Header.Get("X-Team") == "blue",
					"%s without the headers: %v", r.Method, r.Header)
			}
			all := at.methods()
			assert.That(t, transport == SSE || slices.Contains(all, http.MethodDelete), "the session was not ended: %v",
				all)
		})
	}
}

// TestFallsBackToSSE: a URL without a transport is tried with SSE if the server does not speak the
// newer transport.
func TestFallsBackToSSE(t *testing.T) {
	at := newSite(t, SSE)
	s := newStage(t, Config{URL: at.URL + "/mcp"}, nil)
	if got := s.must("echo", echoArgs{"x"}); got != "x" || s.State().Transport != SSE {
		t.Errorf("%q by %s", got, s.State().Transport)
	}
}

func TestHTTPRefused(t *testing.T) {
	at := newSite(t, HTTP)
	at.through(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		http.Error(w, "your key query-secret is wrong", http.StatusUnauthorized)
	})
	s := newStage(t, Config{URL: at.URL + "/mcp?key=query-secret"}, nil)
	_, err := s.Session(t.Context())
	own := wantError(t, err, protocol.CodeMCPServerUnavailable, "HTTP status 401", "headers of the config")
	assert.That(t, !strings.Contains(fmt.Sprint(own.Message, own.Detail, s.log), "query-secret"),
		"a secret is shown: %v %v %s", own, own.Detail, s.log)
}

// TestHeadersStay: the headers of the config are sent only to the host of the config, not to the target
// of a redirect.
func TestHeadersStay(t *testing.T) {
	other := newSite(t, HTTP)
	at := newSite(t, HTTP)
	at.through(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
	})
	s := newStage(t, Config{URL: at.URL + "/mcp", Headers: map[string]string{"X-Key": "k1234"}}, nil)
	s.must("echo", echoArgs{"x"})
	must.That(t, len(other.methods()) != 0, "nothing was redirected")
	for _, r := range other.requests() {
		assert.Equal(t, r.Header.Get("X-Key"), "", "%s with %v", r.Method, r.Header)
	}
	for _, r := range at.requests() {
		assert.Equal(t, r.Header.Get("X-Key"), "k1234", "%s with %v", r.Method, r.Header)
	}
}

// TestEndpointElsewhere: if an SSE server names another host for the messages, this host does not get
// the headers.
func TestEndpointElsewhere(t *testing.T) {
	var headers atomic.Value
	posted := make(chan struct{}, 100)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		headers.Store(r.Header.Clone())
		posted <- struct{}{}
	}))
	defer other.Close()
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "event: endpoint\ndata: %s/post\n\n", other.URL)
		w.(http.Flusher).Flush()
		select {
		case <-posted:
		case <-r.Context().Done():
		}
	}))
	defer at.Close()
	s := newStage(t, Config{URL: at.URL, Transport: SSE, Headers: map[string]string{"X-Key": "k1234"}}, nil)
	_, err := s.Session(t.Context())
	wantError(t, err, protocol.CodeMCPServerUnavailable)
	got, ok := headers.Load().(http.Header)
	assert.That(t, ok && got.Get("X-Key") == "", "headers %v", got)
}

// TestHTTPBadAnswer: an answer that is not a message, or too long, fails only its own request.
func TestHTTPBadAnswer(t *testing.T) {
	long := `{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("x", maxLine) + `"}`
	for name, body := range map[string]string{
		"is not a message": "<html>", "longer than 16 MiB": long,
		"instead of an answer": `{"jsonrpc":"2.0","id":1,"method":"ping"}`,
	} {
		t.Run(name, func(t *testing.T) {
			at := newSite(t, HTTP)
			s := newStage(t, Config{URL: at.URL}, nil)
			s.must("echo", echoArgs{"x"})
			at.through(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				text, err := io.ReadAll(r.Body)
				if err == nil && bytes.Contains(text, []byte(`"bad"`)) {
					w.Header().Set("Content-Type", "application/json")
					_, _ = io.WriteString(w, body)
					return
				}
				r.Body = io.NopCloser(bytes.NewReader(text))
				next.ServeHTTP(w, r)
			})
			_, err := s.tool(t.Context(), "bad", echoArgs{})
			wantError(t, err, protocol.CodeMCPProtocolError, name)
			if s.must("echo", echoArgs{"y"}); s.State().Restarts != 0 || s.State().Junk != 1 {
				t.Errorf("%+v", s.State())
			}
		})
	}
}

// TestHTTPGone: the first request notices that a server is gone, not only the next ping.
func TestHTTPGone(t *testing.T) {
	for _, transport := range []Transport{HTTP, SSE} {
		t.Run(string(transport), func(t *testing.T) {
			at := newSite(t, transport)
			if transport == HTTP { // without the stream, whose end would show the loss
				at.through(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					if r.Method == http.MethodGet {
						w.WriteHeader(http.StatusMethodNotAllowed)
						return
					}
					next.ServeHTTP(w, r)
				})
			}
			s := newStage(t, Config{URL: at.URL, Transport: transport, PingEvery: time.Hour}, nil)
			s.must("echo", echoArgs{"x"})
			done := make(chan error, 1)
			go func() {
				_, err := s.tool(t.Context(), "sleep", echoArgs{})
				done <- err
			}()
			hosttest.Eventually(t, "the call", func() bool {
				c, err := s.connected(t.Context())
				return err == nil && c.running.Load() == 1
			})
			at.Listener.Close()
			at.CloseClientConnections()
			if _, err := s.tool(t.Context(), "echo", echoArgs{"x"}); err == nil {
				t.Fatal("a server that is gone answers")
			}
			hosttest.Eventually(t, "the loss", func() bool { return s.State().Status != Connected })
			var lost *protocol.Error // the call was under way, or not sent yet
			if err := <-done; !errors.As(err, &lost) || lost.Code != protocol.CodeMCPTransportError &&
				lost.Code != protocol.CodeMCPServerUnavailable {
				t.Errorf("the call under way: %v", err)
			}
			_, err := s.tool(t.Context(), "echo", echoArgs{"x"})
			wantError(t, err, protocol.CodeMCPServerUnavailable)
		})
	}
}

// TestHTTPCloseMidCall: Close ends calls that hang, also those on a session that the test got before.
func TestHTTPCloseMidCall(t *testing.T) {
	for _, transport := range []Transport{HTTP, SSE} {
		t.Run(string(transport), func(t *testing.T) {
			at := newSite(t, transport)
			s := newStage(t, Config{URL: at.URL, Transport: transport}, nil)
			session := must.Get(s.Session(t.Context()))(t)
			done := make(chan error, 2)
			before := len(at.methods())
			go func() {
				_, err := session.CallTool(context.Background(), &mcp.CallToolParams{
					Name:      "sleep",
					Arguments: echoArgs{},
				})
				done <- err
			}()
			go func() {
				_, err := s.tool(t.Context(), "sleep", echoArgs{})
				done <- err
			}()
			hosttest.Eventually(t, "both calls", func() bool { return len(at.methods()) >= before+2 })
			must.OK(t, s.Close(t.Context()))
			for range 2 {
				assert.Fails(t, <-done, "", "it was answered")
			}
		})
	}
}

// TestHTTPFlood: the host stops reading notifications of an HTTP server while it is behind, and loses
// none.
func TestHTTPFlood(t *testing.T) {
	for _, transport := range []Transport{HTTP, SSE} {
		t.Run(string(transport), func(t *testing.T) {
			const all = 600
			hold := make(chan struct{})
			var heard atomic.Int64
			at := newSite(t, transport)
			s := newStage(t, Config{URL: at.URL, Transport: transport}, func(e *Env) {
				e.Client = func() *mcp.ClientOptions {
					return &mcp.ClientOptions{ProgressNotificationHandler: func(context.Context,
						*mcp.ProgressNotificationClientRequest,
					) {
						<-hold
						heard.Add(1)
					}}
				}
			})
			done := make(chan error, 1)
			go func() {
				_, err := s.tool(t.Context(), "spam", echoArgs{strconv.Itoa(all)})
				done <- err
			}()
			c := must.Get(s.connected(t.Context()))(t)
			hosttest.Eventually(t, "a closed gate", func() bool {
				c.gate.mu.Lock()
				defer c.gate.mu.Unlock()
				return c.gate.blocked == 1
			})
			close(hold)
			must.OK(t, <-done)
			hosttest.Eventually(t, "all messages", func() bool { return heard.Load() == all })
		})
	}
}

func TestOwnHost(t *testing.T) {
	for _, tc := range []struct {
		origin, to string
		want       bool
	}{
		{"https://a.org/mcp", "https://a.org/other", true},
		{"https://a.org/mcp", "https://A.org:443/", true},
		{"http://a.org:80/mcp", "http://a.org/", true},
		{"http://a.org/mcp", "https://a.org/", true},
		{"https://a.org/mcp", "http://a.org/", false},
		{"https://a.org/mcp", "https://a.org:8443/", false},
		{"http://a.org:8080/mcp", "https://a.org/", false},
		{"https://a.org/mcp", "https://b.org/", false},
		{"https://a.org/mcp", "https://a.org.b.org/", false},
	} {
		w := &web{origin: mustURL(t, tc.origin)}
		assert.Equal(t, w.own(mustURL(t, tc.to)), tc.want, "from %s to %s", tc.origin, tc.to)
	}
}
