// Package httpd serves clients that cannot spawn a child process: each of them has a session of
// its own, which is a whole host whose input and output are HTTP requests in place of a pipe.
//
//	POST /session ──────────────────────────────► session: a host of its own
//	POST /send    ─ guard ─ feed (bounded) ─────► its input
//	GET  /stream  ◄─ events, kept for a while ◄── its output
//	POST /call    ─ guard ─ one request ────────► a session of its own, its answer ─► the same response
//	     /mcp     ─ guard ─ streamable HTTP of the MCP SDK ─ a session that speaks MCP alone
//	POST /jsonrpc ─ guard ─ A2A: tasks of a fleet ─ one host for all, see package a2a
//	GET  /health
//
//	httpd.go    Options, routes, who is let in (tokens, Host, Origin), the end of all sessions
//	session.go  one session, its time limit, the feed
//	call.go     a request and its answer in one
//	stream.go   the output as numbered events, server-sent, that a client can ask for again
//	mcp.go      MCP's streamable HTTP
//	message.go  the messages of a POST to it, and what is wrong with them
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

// Header names a client's session.
const Header = "X-Session-Id"

// Protocol is what the host of a session speaks.
type Protocol int

// The protocols.
const (
	A2E  Protocol = iota // and whatever else is on the pipe
	MCP                  // alone
	Call                 // A2E alone: a handshake and one request
)

// Options say how sessions are served. The zero value of a field is its default.
type Options struct {
	// Serve runs the host of a session on its input and output until the input ends or it
	// ends itself. ctx ends when the session is to end in haste. nil = there are no sessions.
	Serve func(ctx context.Context, speaks Protocol, in io.Reader, out io.Writer) error

	// Agent is an endpoint of A2A, at its own paths; its card is public. nil = there is none.
	Agent http.Handler

	Tokens      auth.Tokens   // of which each request must bring one as its bearer; none = open
	Loopback    bool          // only this machine can connect: names of other machines are refused
	Origins     []string      // of web pages that may connect, such as https://app.example.org
	MaxSessions int           // at once; 1,000
	Idle        time.Duration // after which a session without a stream that nothing is sent to ends; 10 minutes
	MaxLine     int           // bytes of one message; 16 MiB
	Kept        int           // bytes of events that are kept for a client that connects anew; 8 MiB
	Beat        time.Duration // between the comments that show that a stream lives; 15 s
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

// Server has the sessions. It is an http.Handler.
type Server struct {
	opts   Options
	routes http.Handler
	goes   sync.WaitGroup  // one for each session
	hasty  context.Context // of all hosts
	cut    context.CancelFunc

	mu       sync.Mutex
	sessions map[string]*session // guarded by mu
	closed   bool                // no session begins any more; guarded by mu
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

// serveSessions adds the routes of sessions.
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
	defer p.extend() // of what is written when this returns
	// A redirect would lose a POST.
	if path := strings.TrimRight(r.URL.Path, "/"); path != r.URL.Path && path != "" {
		r = r.Clone(r.Context())
		r.URL.Path, r.URL.RawPath = path, ""
	}
	s.routes.ServeHTTP(p, r)
}

// Close ends all sessions as the end of their input does, and in haste once ctx has ended.
// It returns when their hosts have ended.
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
		s.cut() // those that are forgotten, but not over, too
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

// forget takes a session out of those that there are.
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

// of serves a request of a session that its header names.
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

// send takes one message. What is wrong with it beyond its being JSON the host says on the stream.
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

// bodyTimeout bounds the wait for the rest of a request.
const bodyTimeout = time.Minute

// inTime has a body come in time, or not at all.
func inTime(w http.ResponseWriter, body io.ReadCloser) io.ReadCloser {
	if body == http.NoBody {
		return body
	}
	t := timely{body, http.NewResponseController(w)}
	_ = t.to.SetReadDeadline(time.Now().Add(bodyTimeout)) // a test's writer may have none
	return t
}

type timely struct {
	io.ReadCloser
	to *http.ResponseController
}

// Read implements io.Reader. Once all is there the answer may take as long as it wants.
func (t timely) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err == io.EOF {
		_ = t.to.SetReadDeadline(time.Time{})
	}
	return n, err
}

// bodyFault returns the status of a request whose body is not what it should be, and what to say of that.
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

// body reads the one message of a request, as a line.
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
	_ = json.NewEncoder(w).Encode(body) // who does not read the answer has gone
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

// guard lets in who has a token, if there are any, and comes from where it may.
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

// reach refuses web pages of others: a page may have the browser of this machine connect to it under a name of its
// own.
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
		case preflight: // has no token
			w.WriteHeader(http.StatusNoContent)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// share tells the browser of a page of an origin that may connect that the page may read the
// answers. It reports whether that is all that the browser asks.
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

// mayConnect reports whether a request comes from no web page, from one of this server itself
// or from one of the origins that may.
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
