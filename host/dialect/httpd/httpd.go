// Package httpd serves clients that cannot start a child process. Each client has a session of
// its own: a whole host whose input and output are HTTP requests in place of a pipe.
//
//	POST /session ──────────────────────────────► session: a host of its own
//	POST /send    ─ guard ─ feed (bounded) ─────► its input
//	GET  /stream  ◄─ events, kept for a while ◄── its output
//	POST /call    ─ guard ─ one request ────────► a session of its own, its answer ─► the same response
//	     /mcp     ─ guard ─ streamable HTTP of the MCP SDK ─ a session that speaks MCP alone
//	POST /jsonrpc ─ guard ─ A2A: tasks of a fleet ─ one host for all, see package a2a
//	GET  /health
//
//	httpd.go    Options, routes, access checks (tokens, Host, Origin), the end of all sessions
//	session.go  one session, its time limit, the feed
//	call.go     a request and its answer in one
//	stream.go   the output as numbered server-sent events, which a client can ask for again
//	mcp.go      MCP's streamable HTTP
//	message.go  the messages of a POST to /mcp, and what is wrong with them
package httpd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host/guard/auth"
	"a2e/protocol"
	"a2e/protocol/a2a"
)

// Header is the HTTP header with the id of a client's session.
const Header = "X-Session-Id"

// Protocol is what the host of a session speaks.
type Protocol int

// The protocols.
const (
	A2E  Protocol = iota // A2E and the other protocols of the pipe
	MCP                  // only MCP
	Call                 // only A2E: a handshake and one request
)

// Options say how sessions are served. A zero field means its default, which its comment names.
type Options struct {
	// Serve runs the host of a session on its input and output, until the input ends or the host ends itself. When ctx
	// ends, the host must end quickly. nil = there are no sessions.
	Serve func(ctx context.Context, speaks Protocol, in io.Reader, out io.Writer) error

	// Agent is an A2A endpoint, served at its own paths. Its card needs no token. nil = there is none.
	Agent http.Handler

	Tokens      auth.Tokens   // each request must bring one as its bearer token; none = open
	Loopback    bool          // only this machine can connect: other names in the header Host are refused
	Origins     []string      // of web pages that may connect, such as https://app.example.org
	MaxSessions int           // at once; default 1,000
	Idle        time.Duration // a session without a stream and without messages ends after this; default 10 minutes
	MaxLine     int           // bytes of one message; default 16 MiB
	Kept        int           // bytes of events that are kept for a client that connects again; default 8 MiB
	Beat        time.Duration // between the comments that show that a stream is alive; default 15 s
	Metrics     http.Handler  // at /metrics; nil = there is none
	Log         zerolog.Logger
}

func (o *Options) setDefaults() {
	o.MaxSessions = cmp.Or(o.MaxSessions, 1000)
	o.Idle = cmp.Or(o.Idle, 10*time.Minute)
	o.MaxLine = cmp.Or(o.MaxLine, 16<<20)
	o.Kept = cmp.Or(o.Kept, 8<<20)
	o.Beat = cmp.Or(o.Beat, 15*time.Second)
}

// Server is an http.Handler that has the sessions.
type Server struct {
	opts   Options
	routes http.Handler
	goes   sync.WaitGroup  // one goroutine for each session, and some of calls
	hasty  context.Context // of all hosts; its end makes them end quickly
	cut    context.CancelFunc

	mu       sync.Mutex
	sessions map[string]*session // guarded by mu
	closed   bool                // no session may begin any more; guarded by mu
}

// New makes a server without a session.
func New(opts Options) *Server {
	opts.setDefaults()
	s := &Server{opts: opts, sessions: make(map[string]*session)}
	s.hasty, s.cut = context.WithCancel(context.Background())
	routes := http.NewServeMux()
	if opts.Serve != nil {
		s.serveSessions(routes)
	}
	if opts.Metrics != nil {
		routes.Handle("GET /metrics", opts.Metrics)
	}
	all := http.NewServeMux()
	all.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"status": "ok"})
	})
	if opts.Agent != nil {
		routes.Handle("POST "+a2a.PathRPC, opts.Agent)
		all.Handle("GET "+a2a.PathCard, s.reach(opts.Agent))
	}
	all.Handle("/", s.guard(routes))
	s.routes = all
	return s
}

// serveSessions adds the routes for sessions.
func (s *Server) serveSessions(routes *http.ServeMux) {
	routes.HandleFunc("POST /session", s.open)
	routes.HandleFunc("DELETE /session", s.of(func(w http.ResponseWriter, _ *http.Request, c *session) {
		c.end()
		w.WriteHeader(http.StatusNoContent)
	}))
	routes.HandleFunc("POST /call", s.call)
	routes.HandleFunc("POST /send", s.of(s.send))
	routes.HandleFunc("GET /stream", s.of(s.stream))
	routes.HandleFunc("/mcp", s.mcp)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	r.Body = inTime(w, r.Body)
	p := paced{w, http.NewResponseController(w)}
	defer p.extend() // for what the server writes after this returns
	// A trailing slash is removed here, because a redirect would lose the body of a POST.
	if path := strings.TrimRight(r.URL.Path, "/"); path != r.URL.Path && path != "" {
		r = r.Clone(r.Context())
		r.URL.Path, r.URL.RawPath = path, ""
	}
	s.routes.ServeHTTP(p, r)
}

// Close ends the input of all sessions and returns when their hosts have ended. When ctx ends, the hosts must end
// quickly.
func (s *Server) Close(ctx context.Context) {
	s.mu.Lock()
	s.closed = true
	for _, c := range s.sessions {
		c.end()
	}
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		s.goes.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		s.cut() // this also ends hosts of sessions that are no longer in s.sessions
		<-ended
	}
	s.cut()
}

func (s *Server) open(w http.ResponseWriter, _ *http.Request) {
	c, err := s.begin(A2E)
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	answer(w, http.StatusOK, map[string]any{"session_id": c.id})
}

var errClosed = errors.New("the host ends; connect to another one, or later")

// begin starts a session.
func (s *Server) begin(speaks Protocol) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if len(s.sessions) >= s.opts.MaxSessions {
		return nil, fmt.Errorf("%s open, which is all that http.max_sessions allows; end one, or try again later",
			protocol.Count(len(s.sessions), "session"))
	}
	c := newSession(s, speaks)
	s.sessions[c.id] = c
	s.goes.Go(c.serve)
	return c, nil
}

// forget removes a session from the list.
func (s *Server) forget(c *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, c.id)
}

func (s *Server) find(id string, speaks Protocol) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.sessions[id]; c != nil && c.speaks == speaks {
		return c
	}
	return nil
}

// of makes the handler for requests of the session that a request's header names.
func (s *Server) of(f func(http.ResponseWriter, *http.Request, *session)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(Header)
		if id == "" {
			refuse(w, http.StatusBadRequest, errors.New("the header "+Header+" is missing; POST /session gives a "+
				"session its id"))
			return
		}
		c := s.find(id, A2E)
		if c == nil {
			refuse(w, http.StatusNotFound, errors.New("there is no such session, or it has ended; POST /session "+
				"starts one"))
			return
		}
		f(w, r, c)
	}
}

// send takes one message. It checks only that the body is JSON; the host reports other faults on the stream.
func (s *Server) send(w http.ResponseWriter, r *http.Request, c *session) {
	body, err := s.body(w, r)
	if err != nil {
		status, why := bodyFault(err)
		refuse(w, status, why)
		return
	}
	switch err := c.put(r.Context(), body); {
	case errors.Is(err, errEnded):
		refuse(w, http.StatusNotFound, err)
	case err != nil:
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, err)
	default:
		answer(w, http.StatusOK, map[string]any{"ok": true})
	}
}

// bodyTimeout bounds the time in which the body of a request must arrive.
const bodyTimeout = time.Minute

// inTime sets the time limit for the body of a request.
func inTime(w http.ResponseWriter, body io.ReadCloser) io.ReadCloser {
	if body == http.NoBody {
		return body
	}
	t := timely{body, http.NewResponseController(w)}
	_ = t.to.SetReadDeadline(time.Now().Add(bodyTimeout)) // the writers of tests may not support it
	return t
}

type timely struct {
	io.ReadCloser
	to *http.ResponseController
}

// Read implements io.Reader. At the end of the body it removes the time limit, because the answer may take longer.
func (t timely) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err == io.EOF {
		_ = t.to.SetReadDeadline(time.Time{})
	}
	return n, err
}

// bodyFault returns the HTTP status and the error text for a request whose body could not be read.
func bodyFault(err error) (status int, why error) {
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return http.StatusRequestEntityTooLarge, fmt.Errorf("the message is longer than %d bytes", long.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return http.StatusRequestTimeout, fmt.Errorf("the body was not whole after %v", bodyTimeout)
	}
	return http.StatusBadRequest, err
}

// body reads the one message of a request and returns it as a line.
func (s *Server) body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(s.opts.MaxLine)))
	if err != nil {
		return nil, err
	}
	line := jsontext.Value(bytes.TrimPrefix(raw, bom))
	if err := line.Compact(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return nil, fmt.Errorf("the body must be one message, a JSON object: %w", err)
	}
	return append(line, '\n'), nil
}

// answer writes JSON.
func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // fails if the client has gone
}

func refuse(w http.ResponseWriter, status int, err error) {
	answer(w, status, map[string]any{"error": err.Error()})
}

// Loopback reports whether only this machine can connect to an address, host:port.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && local(host)
}

func local(host string) bool {
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
}

// guard refuses requests without a valid token, if there are tokens, and those that reach refuses.
func (s *Server) guard(next http.Handler) http.Handler {
	return s.reach(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, isBearer := bearer(r)
		if len(s.opts.Tokens) > 0 && !s.admits(token, isBearer) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="a2e"`)
			refuse(w, http.StatusUnauthorized, errors.New("a token is needed: Authorization: Bearer TOKEN, with "+
				"http.token of the config"))
			return
		}
		next.ServeHTTP(w, r)
	}))
}

// reach refuses requests of foreign web pages. With Loopback it also checks the header Host, because a page may make
// the browser of this machine connect under a name of its own.
func (s *Server) reach(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		preflight := s.share(w, r)
		switch {
		case s.opts.Loopback && !local(hostname(r.Host)):
			refuse(w, http.StatusForbidden, errors.New("the header Host does not name this machine; use 127.0.0.1 "+
				"or localhost"))
		case !s.mayConnect(r):
			refuse(w, http.StatusForbidden, errors.New("web pages of this origin may not connect; http.origins of "+
				"the config names those that may"))
		case preflight: // a preflight has no token
			w.WriteHeader(http.StatusNoContent)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// share allows the web pages of an allowed origin to read the answers. It reports whether the request is a preflight,
// which asks for nothing else.
func (s *Server) share(w http.ResponseWriter, r *http.Request) (preflight bool) {
	origin, h := r.Header.Get("Origin"), w.Header()
	if len(s.opts.Origins) > 0 {
		h.Add("Vary", "Origin")
	}
	if !slices.Contains(s.opts.Origins, origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", mcpSession)
	if preflight = r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != ""; preflight {
		h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
		h.Set("Access-Control-Allow-Headers", strings.Join([]string{
			"Authorization", "Content-Type", "Last-Event-ID",
			Header, mcpSession, mcpVersion,
		}, ", "))
	}
	return preflight
}

func (s *Server) admits(token string, isBearer bool) bool {
	_, ok := s.opts.Tokens.Admit(token, "")
	return isBearer && ok
}

func bearer(r *http.Request) (token string, ok bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), strings.EqualFold(scheme, "Bearer")
}

// mayConnect reports whether a request comes from no web page, from a page of this server itself, or from a page of one
// of Options.Origins.
func (s *Server) mayConnect(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		site := r.Header.Get("Sec-Fetch-Site") // browsers leave Origin out of some GETs
		return site == "" || site == "same-origin" || site == "none"
	}
	from, err := url.Parse(origin)
	return slices.Contains(s.opts.Origins, origin) || err == nil && from.Host != "" &&
		strings.EqualFold(from.Host, r.Host)
}

func hostname(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return hostport
}
