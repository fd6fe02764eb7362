// Package inspect serves the local page of `a2e inspect`, which shows the traffic of a host's pipe,
// live or from a record.
//
//	inspect.go  the server: who may ask, the files of the page, the API; entries to
//	            one page, however slow it is
//	live.go     a host that runs for the page, and the entries kept of it; a record, whole or while
//	            it grows
//
// All addresses begin with /TOKEN/, a random word that only the user who started the program knows.
// The page is for this machine only: the server listens on the loopback address, and refuses
// requests that name another host (such as a name that points here) or come from another page.
package inspect

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"errors"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/cli/record"
	"a2e/host/config/yamltree"
)

// files are those of the page.
//
//go:embed page
var files embed.FS

// maxStreams is how many streams may be open at the same time.
const maxStreams = 32

// Mode says what a page shows.
type Mode string

// The modes.
const (
	ModeLive   Mode = "live"   // a host that runs for the page
	ModeRecord Mode = "record" // a record that is complete
	ModeFollow Mode = "follow" // a record that another host writes
)

// Info is the first thing that the page asks for.
type Info struct {
	Mode      Mode   `json:"mode"`
	Version   string `json:"version"`   // of the host; "" = not known yet
	Workspace string `json:"workspace"` // of the host; "" = not known yet
	File      string `json:"file"`      // path of the record; "" = no record
	CanSend   bool   `json:"can_send"`
}

// Source is what a page shows.
type Source interface {
	Info() Info
	// stream sends the entries after the number after. It returns when there will be no more
	// entries, ctx has ended, or the page is closed.
	stream(ctx context.Context, after int64, to *stream) error
}

// Chains gives access to the saved chains of the workspace.
type Chains interface {
	Saved() []string // names
	// ReadSaved returns a chain's file and text. The error is the rest of a sentence that begins with the name.
	ReadSaved(name string) (path string, text []byte, err error)
}

// Options of Serve.
type Options struct {
	Source  Source
	Port    int          // 0 = any free port
	MaxLine int          // longest line in bytes that the page may send
	Chains  Chains       // chains that the page can run; nil = none
	Ready   func(string) // is called with the address
	Seen    func()       // called once, when the page is first requested; may be nil
}

// Serve serves the page until ctx ends.
func Serve(ctx context.Context, opts Options) error {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(opts.Port)))
	if err != nil {
		return err
	}
	s := &server{opts: opts, token: strings.ToLower(rand.Text()), ctx: ctx, streams: make(chan struct{}, maxStreams)}
	s.live, _ = opts.Source.(*Live)
	srv := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	defer context.AfterFunc(ctx, func() { srv.Close() })()
	opts.Ready("http://" + listener.Addr().String() + "/" + s.token + "/")
	if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

type server struct {
	opts    Options
	token   string
	ctx     context.Context
	live    *Live         // nil = the page can only look
	streams chan struct{} // has an element for each open stream
	seen    sync.Once
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "+
		"form-action 'none'; frame-ancestors 'none'")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	token, rest, below := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case !loopback(r.Host):
		fail(w, http.StatusForbidden, "this page is for this machine alone: open it as 127.0.0.1 or localhost")
	case !below || subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1:
		fail(w, http.StatusNotFound, "there is nothing here; the address that a2e inspect printed is the whole one")
	case strings.HasPrefix(rest, "api/"):
		s.api(w, r, strings.TrimPrefix(rest, "api/"))
	default:
		if s.opts.Seen != nil {
			s.seen.Do(s.opts.Seen)
		}
		serveFile(w, r, rest)
	}
}

// loopback reports whether the host that a browser asks for is this machine. Another name that
// points here is not accepted.
func loopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

// foreign reports whether the request comes from another page.
func foreign(r *http.Request) bool {
	origin, site := r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Site")
	return origin != "" && origin != "http://"+r.Host || site != "" && site != "same-origin" && site != "none"
}

// serveFile serves a file of the page.
func serveFile(w http.ResponseWriter, r *http.Request, name string) {
	if name == "" {
		name = "index.html"
	}
	text, err := fs.ReadFile(files, path.Join("page", name))
	switch {
	case err != nil || !fs.ValidPath(name):
		fail(w, http.StatusNotFound, "the page has no such file")
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		fail(w, http.StatusMethodNotAllowed, "should be GET")
		return
	}
	w.Header().Set("Content-Type", typeOf(name))
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // the page may be closed
}

// typeOf returns the content type of a file by its name. The type table of the machine is not used,
// as it may be wrong.
func typeOf(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".json":
		return "application/json"
	}
	return "text/plain; charset=utf-8"
}

// api answers a request of the page.
func (s *server) api(w http.ResponseWriter, r *http.Request, name string) {
	all := map[string]struct {
		method string
		live   bool // it needs a running host
		do     http.HandlerFunc
	}{
		"info": {"GET", false, func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusOK, s.opts.Source.Info())
		}},
		"stream": {"GET", false, s.stream},
		"chains": {"GET", true, s.chains},
		"json":   {"POST", true, s.json},
		"send":   {"POST", true, s.send},
		"start":  {"POST", true, func(w http.ResponseWriter, _ *http.Request) { s.done(w, s.live.Start()) }},
		"stop": {"POST", true, func(w http.ResponseWriter, _ *http.Request) {
			s.live.Stop()
			s.done(w, nil)
		}},
	}
	request, known := all[name]
	switch {
	case foreign(r):
		fail(w, http.StatusForbidden, "only the page itself may ask this")
	case !known:
		names := strings.Join(slices.Sorted(maps.Keys(all)), ", ")
		fail(w, http.StatusNotFound, "there is no such request; there are: "+names)
	case r.Method != request.method:
		w.Header().Set("Allow", request.method)
		fail(w, http.StatusMethodNotAllowed, "should be "+request.method)
	case request.live && s.live == nil:
		fail(w, http.StatusConflict, "this page looks at a record; a2e inspect without a file runs a host")
	default:
		request.do(w, r)
	}
}

// chains sends the list of saved chains, or the text of the chain in the parameter name.
func (s *server) chains(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("name")
	switch {
	case name == "" && s.opts.Chains == nil:
		answer(w, http.StatusOK, map[string][]string{"chains": {}})
	case name == "":
		answer(w, http.StatusOK, map[string][]string{"chains": append([]string{}, s.opts.Chains.Saved()...)})
	case s.opts.Chains == nil:
		fail(w, http.StatusNotFound, "there are no saved chains")
	default:
		_, text, err := s.opts.Chains.ReadSaved(name)
		if err != nil {
			fail(w, http.StatusNotFound, "the name "+err.Error())
			return
		}
		answer(w, http.StatusOK, map[string]string{"text": string(text)})
	}
}

// json converts YAML, which includes JSON, to JSON: {"value": …}. Invalid YAML is answered with
// status 200 and {"error": …}, as it is not an error of the page.
func (s *server) json(w http.ResponseWriter, r *http.Request) {
	text, ok := s.body(w, r)
	if !ok {
		return
	}
	raw, _, err := yamltree.ToJSON(text)
	if err != nil {
		fail(w, http.StatusOK, err.Error())
		return
	}
	answer(w, http.StatusOK, map[string]jsontext.Value{"value": raw})
}

// body reads the body of a request. If that fails, it sends an error to the page.
func (s *server) body(w http.ResponseWriter, r *http.Request) (text []byte, ok bool) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(s.opts.MaxLine)))
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		fail(w, http.StatusRequestEntityTooLarge, "the body is longer than "+strconv.Itoa(s.opts.MaxLine)+" bytes")
	} else if err != nil {
		fail(w, http.StatusBadRequest, "the body cannot be read: "+err.Error())
	}
	return text, err == nil
}

// stream sends entries as long as the page reads them.
func (s *server) stream(w http.ResponseWriter, r *http.Request) {
	after, err := int64(0), error(nil)
	if text := r.URL.Query().Get("after"); text != "" {
		after, err = strconv.ParseInt(text, 10, 64)
	}
	if err != nil || after < 0 {
		fail(w, http.StatusBadRequest, "after: should be the number of an entry")
		return
	}
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		fail(w, http.StatusServiceUnavailable, "too many streams are open; close some pages")
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	to := &stream{w: w, control: http.NewResponseController(w)}
	if err := s.opts.Source.stream(ctx, after, to); err != nil && ctx.Err() == nil {
		raw, _ := jsontext.AppendQuote(nil, err.Error()) // its error only means that there is U+FFFD
		_ = to.line(append(append([]byte(`{"error":`), raw...), '}'))
	}
	_ = to.flush() // the page may be closed
}

// send sends a line of the page to the host.
func (s *server) send(w http.ResponseWriter, r *http.Request) {
	line, ok := s.body(w, r)
	if !ok {
		return
	}
	text := strings.TrimRight(string(line), "\r\n")
	switch {
	case strings.Contains(text, "\n"):
		fail(w, http.StatusBadRequest, "the body should be one line: a message without line breaks between its parts")
	case !jsontext.Value(text).IsValid(jsontext.AllowDuplicateNames(true)):
		fail(w, http.StatusBadRequest, "the body is not JSON")
	default:
		s.done(w, s.live.Send(text))
	}
}

// done sends the result of an action.
func (s *server) done(w http.ResponseWriter, err error) {
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, record.ErrEnded):
		fail(w, http.StatusConflict, err.Error()+"; restart it")
	default:
		fail(w, http.StatusServiceUnavailable, err.Error())
	}
}

// fail sends an error.
func fail(w http.ResponseWriter, status int, why string) {
	answer(w, status, map[string]string{"error": why})
}

func answer(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.MarshalWrite(w, value) // the page may be closed
}

const (
	batchBytes = 64 << 10
	beatEvery  = 10 * time.Second
	// patience is how long a page may read nothing. It opens a new stream when it is active again.
	patience = 30 * time.Second
)

// stream sends lines to one page.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buf     []byte
}

// line adds a line, given without its end.
func (s *stream) line(line []byte) error {
	s.buf = append(append(s.buf, line...), '\n')
	if len(s.buf) < batchBytes {
		return nil
	}
	return s.write()
}

// write writes the lines that were added.
func (s *stream) write() error {
	if len(s.buf) == 0 {
		return nil
	}
	if err := s.control.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err := s.w.Write(s.buf)
	if s.buf = s.buf[:0]; cap(s.buf) > 4*batchBytes {
		s.buf = nil
	}
	return err
}

// flush makes all added lines visible to the page.
func (s *stream) flush() error {
	if err := s.write(); err != nil {
		return err
	}
	return s.control.Flush()
}

// beat sends a line that only shows that the stream is open.
func (s *stream) beat() error {
	_ = s.line([]byte(`{"beat":true}`)) // flush reports the error
	return s.flush()
}

// end tells the page that all n entries were sent.
func (s *stream) end(n int64) error {
	_ = s.line(append(strconv.AppendInt([]byte(`{"end":true,"entries":`), n, 10), '}')) // flush reports the error
	return s.flush()
}
