// Package link keeps the connection to one MCP server: it connects, watches the connection, connects again
// after a loss, and reports at once when there is no connection.
//
//	link.go      the link: connects, waits, again       config.go    one server's config
//	conn.go      one connection, from dial to end       call.go      one request, and its errors
//	raw.go       requests and results as JSON           gate.go      how much a server may send ahead
//	message.go   what a server sends, decoded           envelope.go  ids in what cannot be decoded
//	hello.go     how a server introduces itself
//	stdio.go     a process as the carrier               http.go      HTTP as the carrier
//	session.go   sessions of HTTP that are lost         events.go    streams of HTTP that end (sse.go: events)
//
// The path of a message, with what stands guard on it:
//
//	stdout ─ lines (length) ────┐
//	                            ├─ read (junk, batches, ids) ─ gate (how many at once) ─ go-sdk session ─ Call
//	HTTP ─ answers or events ───┘
//
// One goroutine per link owns all changes:
//
//	connecting ──► connected ──► reconnecting ──► failed ──► … ──► closed
//	                   ▲  a loss      │ a try every 0.5 s to 30 s     every 1 to 10 min
//	                   └──────────────┴──────────────────────────────
package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/guard/redact"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// Status is what a Link is doing.
type Status string

// The values of Status.
const (
	Connecting   Status = "connecting"   // the first try is under way
	Connected    Status = "connected"    // requests are served
	Reconnecting Status = "reconnecting" // the connection was lost or not made; it is tried again soon
	Failed       Status = "failed"       // several tries failed in a row; the next one is in minutes
	Closed       Status = "closed"       // Close was called
)

// Env is what a Link needs from its host.
type Env struct {
	// Launcher starts stdio servers.
	Launcher func() (*sandbox.Launcher, error)
	// Workspace is the absolute folder that relative paths of a Config belong to.
	Workspace string
	// Homes is the folder of the homes that are kept; "" = none is kept.
	Homes string
	Log   zerolog.Logger
	// Secrets are the secrets of the host; nil = it has none.
	Secrets *redact.Set
	// Client, if not nil, returns the handlers for what a server sends; it is called for each new
	// connection. The context of the handlers is that of no request; they must end with it. Handlers of
	// notifications are called one after the other and hold back what the server sends next: they must not
	// wait for an answer of the same server. KeepAlive is not used. Client may wait while a process starts:
	// ConnectTimeout begins after it.
	Client func() *mcp.ClientOptions
	// Handle, if not nil, answers requests of the server and handles its notifications, in place of the
	// handlers of Client, for: sampling, elicitation, roots, progress, log messages, updates of resources.
	// params are valid JSON as the server wrote them, or nil if there are none; the result of a request is
	// JSON.
	Handle func(ctx context.Context, method string, params jsontext.Value) (jsontext.Value, error)
	// Setup, if not nil, completes each client before it connects: its roots, its
	// middleware.
	Setup func(client *mcp.Client)
	// Changed, if not nil, is called after each change of State.Status, and when a server that stays
	// Connected has a new session, which knows nothing of the old one. It is never called concurrently for
	// one Link. Slow work and Close must run on another goroutine.
	Changed func(l *Link)
	// Now is the clock; nil = time.Now.
	Now func() time.Time

	firstRetry time.Duration // before a lost stream of HTTP is opened again; 0 = firstRetry
}

// State is the state of a Link at one moment.
type State struct {
	Status    Status
	Since     time.Time     // since when it has this Status
	LastError string        // why the last try or connection ended; "" = none has ended
	Failures  int           // tries and short connections that failed in a row
	RetryAt   time.Time     // the time of the next try; zero if that is not known
	Latency   time.Duration // of the last ping; 0 = none was answered yet
	PID       int           // of a stdio server that runs; 0 = none
	Restarts  int           // connections and sessions made after the first one
	Junk      int64         // texts that were not messages, over all connections
	Transport Transport     // the one in use

	// Installing = the program that is being started installs the server first. Progress is the last line
	// of its stderr, or "" once the server is connected.
	Installing bool
	Progress   string

	// How the server last introduced itself; nil and "" before that.
	Server          *mcp.Implementation
	Instructions    string
	ProtocolVersion string
	Capabilities    *mcp.ServerCapabilities
}

// Link is the connection to one MCP server. It is safe for concurrent use.
type Link struct {
	cfg     Config
	env     Env
	log     zerolog.Logger
	secrets *redact.Set                    // the secrets that no log and no error shows
	carry   func(c *conn) (carrier, error) // makes the carrier of a connection

	ctx  context.Context // ends with Close
	stop context.CancelCauseFunc
	hard context.Context // ends when Close does not wait any longer
	cut  context.CancelFunc
	over chan struct{} // closed when the link's goroutine has ended

	junk  atomic.Int64
	words atomic.Value // the last line of stderr of the process that was last started, a string
	setup wireSetup    // to try next; used by the link's goroutine only

	mu      sync.Mutex // guards the fields below
	state   State
	conn    *conn         // nil = none
	changed chan struct{} // closed at the next change of the fields above
}

// Open makes a Link and connects it in the background. With an invalid Config the Link fails.
func Open(cfg Config, env Env) *Link { return open(cfg, env, newCarrier) }

func open(cfg Config, env Env, carry func(c *conn) (carrier, error)) *Link {
	if env.Now == nil {
		env.Now = time.Now
	}
	l := &Link{
		cfg: cfg.withDefaults(), env: env, log: env.Log.With().Str("mcp_server", cfg.ID).Logger(),
		secrets: redact.New(env.Secrets), carry: carry,
		over: make(chan struct{}), changed: make(chan struct{}),
	}
	cfg.AddSecrets(l.secrets)
	l.state = State{Status: Connecting, Since: env.Now(), Transport: cfg.Kind()}
	l.setup = wireSetup{cfg.Kind(), legacy}
	l.ctx, l.stop = context.WithCancelCause(context.Background())
	l.hard, l.cut = context.WithCancel(context.Background())
	go l.run()
	return l
}

// Config returns the config with its defaults set. Its maps and slices are the link's own.
func (l *Link) Config() Config { return l.cfg }

// Session returns the session of the connection. It waits for the first connection; later it fails at once
// if there is none. The error is a *protocol.Error mcp_server_unavailable, or the cause of ctx.
//
// A session is valid until its connection ends; then its requests fail. Get the session again for each
// request, or use Call.
func (l *Link) Session(ctx context.Context) (*mcp.ClientSession, error) {
	c, err := l.connected(ctx)
	if err != nil {
		return nil, err
	}
	return c.session, nil
}

// connected returns the connection; it waits and fails as Session does.
func (l *Link) connected(ctx context.Context) (*conn, error) {
	for waited := false; ; waited = true {
		l.mu.Lock()
		c, state, changed := l.conn, l.state, l.changed
		wait := state.Status == Connecting
		l.mu.Unlock()
		switch {
		case c != nil:
			return c, nil
		case !wait:
			return nil, l.unavailable(state)
		case !waited:
			host.HandOff(ctx)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// unavailable returns the error of a request without a connection.
func (l *Link) unavailable(s State) error {
	text := fmt.Sprintf("the MCP server %q is not connected", l.cfg.ID)
	if s.Status == Closed {
		text = fmt.Sprintf("the MCP server %q was closed", l.cfg.ID)
	}
	if s.LastError != "" {
		text += ": " + s.LastError
	}
	err := protocol.Errorf(protocol.CodeMCPServerUnavailable, "%s", text).With("server_id", l.cfg.ID).With("state",
		string(s.Status))
	if wait := s.RetryAt.Sub(l.env.Now()); !s.RetryAt.IsZero() && s.Status != Closed {
		wait = max(wait, 0).Round(10 * time.Millisecond)
		err.Message += fmt.Sprintf("; it is tried again in %s", wait)
		err.With("retry_after", wait.Seconds())
	}
	if s.LastError != "" {
		err.With("last_error", s.LastError)
	}
	return err
}

// State returns the state of the link.
func (l *Link) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state
	s.Junk = l.junk.Load()
	if s.Status != Connected {
		s.Progress, _ = l.words.Load().(string)
	}
	return s
}

// notifyLocked wakes those who wait for a change.
func (l *Link) notifyLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// errClosed is why a connection ends with its link.
var errClosed = errors.New("the host closes the connection")

// Close ends the connection and the server's process with all that it started: it closes the input of the
// process, and kills it after a short grace or when ctx ends. It returns when all of them have ended. The
// error is that of ctx, if a handler of Env.Client still runs a few seconds after ctx ended. Close may be
// called again.
func (l *Link) Close(ctx context.Context) error {
	l.stop(errClosed)
	select {
	case <-l.over:
		return nil
	case <-ctx.Done():
	}
	l.cut()
	last := time.NewTimer(5 * time.Second)
	defer last.Stop()
	select {
	case <-l.over:
		return nil
	case <-last.C:
		return fmt.Errorf("the MCP server %q did not end in time: %w", l.cfg.ID, context.Cause(ctx))
	}
}

// How a link without a connection tries again.
const (
	maxFailures = 5                // in a row: from then on it waits for minutes
	steadyAfter = 30 * time.Second // a connection that lived as long was no failure
	pingTimeout = 10 * time.Second // or Config.PingEvery, if that is less
)

func newPace() *child.Backoff {
	return &child.Backoff{
		First: 500 * time.Millisecond, Most: 30 * time.Second, Jitter: 0.1, Enough: steadyAfter,
		Limit: maxFailures, Pause: time.Minute, PauseMost: 10 * time.Minute,
	}
}

// run is the link's goroutine.
func (l *Link) run() {
	defer close(l.over)
	pace := newPace()
	for {
		c, err := l.dial()
		var lived time.Duration
		if err == nil {
			l.up(c)
			err = l.watch(c)
			lived = l.env.Now().Sub(c.since)
			l.down(c, err)
			c.end(err)
		}
		if l.ctx.Err() != nil {
			break
		}
		pace.Down(l.env.Now(), err, lived, false)
		status, wait := Reconnecting, pace.Wait(l.env.Now())
		if pace.Paused() {
			status = Failed
		}
		l.lost(status, err, pace.Failures, wait)
		if !Pause(l.ctx, wait) {
			break
		}
	}
	l.set(func(s *State) { s.Status, s.RetryAt, s.PID, s.Installing = Closed, time.Time{}, 0, false })
}

// Pause waits for d; false = ctx ended first.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// set changes the state, and calls Env.Changed if the Status is a new one.
func (l *Link) set(change func(s *State)) {
	l.mu.Lock()
	before := l.state.Status
	change(&l.state)
	told := l.state.Status != before
	if told {
		l.state.Since = l.env.Now()
	}
	l.notifyLocked()
	l.mu.Unlock()
	if told && l.env.Changed != nil {
		l.env.Changed(l)
	}
}

// up notes a new connection.
func (l *Link) up(c *conn) {
	hello := c.session.InitializeResult()
	if p, ok := c.carrier.(*process); ok {
		p.settled()
	}
	l.log.Debug().Str("transport", string(c.transport)).Int("pid", c.carrier.pid()).Msg("the MCP server is connected")
	l.set(func(s *State) {
		l.conn = c
		if s.Server != nil || s.ProtocolVersion != "" {
			s.Restarts++
		}
		s.Status, s.RetryAt, s.Latency, s.PID, s.Transport, s.Installing = Connected, time.Time{}, 0, c.carrier.pid(),
			c.transport, false
		s.introduced(hello)
	})
}

// introduced notes how the server introduced itself.
func (s *State) introduced(hello *mcp.InitializeResult) {
	s.Server, s.Instructions = hello.ServerInfo, hello.Instructions
	s.ProtocolVersion, s.Capabilities = hello.ProtocolVersion, hello.Capabilities
}

// renewed notes that the server has lost the session, and that there is a new one.
func (l *Link) renewed(hello *mcp.InitializeResult) {
	l.set(func(s *State) {
		s.Restarts++
		s.introduced(hello)
	})
	if l.env.Changed != nil {
		l.env.Changed(l)
	}
}

// down removes a connection from the link before it is ended, so that no request gets it.
func (l *Link) down(c *conn, why error) {
	l.mu.Lock()
	l.conn = nil
	l.state.LastError = l.text(why)
	closing := l.ctx.Err() != nil
	if !closing {
		l.state.Status, l.state.Since = Reconnecting, l.env.Now()
	} else {
		l.state.Status, l.state.LastError, l.state.Since = Closed, "", l.env.Now()
	}
	l.notifyLocked()
	l.mu.Unlock()
	if l.env.Changed != nil {
		l.env.Changed(l)
	}
}

// lost notes a failure and the time of the next try.
func (l *Link) lost(status Status, why error, failures int, wait time.Duration) {
	text := l.text(why)
	level := l.log.Warn()
	if failures > maxFailures {
		level = l.log.Debug() // it was logged often enough
	}
	level.Str("error", text).Int("failures", failures).Stringer("next_try",
		wait.Round(time.Millisecond)).Msg("the MCP server is not connected")
	l.set(func(s *State) {
		s.Status, s.LastError, s.Failures, s.RetryAt, s.PID, s.Installing = status, text, failures,
			l.env.Now().Add(wait), 0, false
	})
}

// watch pings the server, reports new sessions and waits until the connection is over or must be ended. It
// returns the reason.
func (l *Link) watch(c *conn) error {
	ticker := time.NewTicker(l.cfg.PingEvery)
	defer ticker.Stop()
	steady := time.NewTimer(steadyAfter)
	defer steady.Stop()
	var due <-chan time.Time // fires when a new session may be reported
	var hello *mcp.InitializeResult
	told := time.Now().Add(-steadyAfter)
	for {
		select {
		case hello = <-c.again: // reported at most once in steadyAfter
			due = time.After(steadyAfter - time.Since(told))
		case <-due:
			due, told = nil, time.Now()
			l.renewed(hello)
		case <-c.done:
			return c.reason()
		case <-l.ctx.Done():
			return context.Cause(l.ctx)
		case <-steady.C:
			l.set(func(s *State) { s.Failures = 0 })
		case <-c.doubt:
			if err := l.ping(c); err != nil {
				return err
			}
		case <-ticker.C:
			if err := l.ping(c); err != nil {
				return err
			}
		}
	}
}

// ping asks the server for a sign of life. The error says that there is none.
func (l *Link) ping(c *conn) error {
	limit := min(pingTimeout, l.cfg.PingEvery)
	ctx, cancel := context.WithTimeout(l.ctx, limit)
	defer cancel()
	start := time.Now()
	err := c.session.Ping(ctx, nil)
	took := time.Since(start)
	var answer *jsonrpc.Error
	switch {
	case err == nil, errors.As(err, &answer) && !isRejected(err) && answer.Code != codeLost,
		errors.As(err, new(*json.UnmarshalTypeError)): // any answer is a sign of life
		l.mu.Lock()
		l.state.Latency = took
		l.mu.Unlock()
		return nil
	case l.ctx.Err() != nil || c.isOver():
		return nil // watch handles this
	case ctx.Err() == nil:
		return fmt.Errorf("a ping failed: %w", err)
	case c.busy(l.cfg.CallTimeout + limit):
		return nil
	}
	return fmt.Errorf("it did not answer a ping within %s", limit)
}
