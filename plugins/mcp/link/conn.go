package link

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/child"
)

// CloseGrace is how long a server may take to end by itself after its input has ended. After termAfter it
// gets SIGTERM: some servers do not notice the end of their input.
const (
	CloseGrace = 2 * time.Second
	termAfter  = CloseGrace / 4
)

// legacy is the newest version of MCP that begins with `initialize`. It is tried first: later versions drop
// features that are used here, and a server that does not know their `server/discover` may never answer it.
const legacy = "2025-11-25"

// carrier carries a connection: a process, or HTTP.
type carrier interface {
	mcp.Transport
	// finish asks the server to end and waits until it has, or until ctx ends.
	// session is nil if there was no handshake.
	finish(ctx context.Context, session *mcp.ClientSession)
	// release frees the carrier's resources after conn.life has ended, and waits for that. Reads of the
	// session fail from then on.
	release()
	// why adds what the carrier knows about the cause to an error that ended the connection.
	why(err error) error
	pid() int // 0 = none
}

// conn is one connection.
type conn struct {
	link      *Link
	transport Transport
	carrier   carrier
	session   *mcp.ClientSession
	up        atomic.Bool // session is set; for goroutines that start before that
	since     time.Time
	gate      *gate
	again     chan *mcp.InitializeResult // has room for one: the server's introduction in a new session

	calls context.Context // of the requests under way; ends first
	cut   context.CancelCauseFunc
	life  context.Context // of the process and of HTTP requests; ends last
	kill  context.CancelCauseFunc

	hello   atomic.Value  // the id of the request that the server answers by its introduction, an int64
	running atomic.Int64  // Calls under way
	doubt   chan struct{} // has room for one: a ping should check the connection
	done    chan struct{} // closed when the session has ended
	goes    sync.WaitGroup
	junk    child.Limiter
	odd     atomic.Pointer[string] // the begin of the first text that was no message; nil = none

	ended chan struct{} // closed when fault is set
	once  sync.Once
	fault error // why it ended; set before ended is closed
}

func newConn(l *Link, transport Transport) *conn {
	c := &conn{
		link: l, transport: transport, doubt: make(chan struct{}, 1), done: make(chan struct{}),
		ended: make(chan struct{}),
		again: make(chan *mcp.InitializeResult, 1),
	}
	c.calls, c.cut = context.WithCancelCause(context.Background())
	c.life, c.kill = context.WithCancelCause(context.Background())
	c.gate = newGate(c.life.Done())
	c.junk.Burst, c.junk.PerSecond = 1, 1
	return c
}

// newCarrier makes the carrier of a connection. It may start a process.
func newCarrier(c *conn) (carrier, error) {
	if err := c.link.cfg.Validate(); err != nil {
		return nil, err
	}
	if c.transport == Stdio {
		return startProcess(c)
	}
	return newWeb(c)
}

// wireSetup is the transport and the MCP version that a server is tried with.
type wireSetup struct {
	transport Transport
	version   string // of MCP; "" = the newest one
}

// dial makes a connection. If the server speaks another version or transport than l.setup, dial tries that
// and keeps it for later if it works.
func (l *Link) dial() (*conn, error) {
	c, err := l.handshake(l.setup)
	if err == nil || l.ctx.Err() != nil {
		return c, err
	}
	other, ok := l.otherSetup(err)
	if !ok {
		return nil, err
	}
	c, failed := l.handshake(other)
	if failed != nil {
		return nil, err
	}
	l.setup = other
	return c, nil
}

// otherSetup returns the setup to try after an error; false = there is no other one.
func (l *Link) otherSetup(err error) (wireSetup, bool) {
	var answer *jsonrpc.Error
	other := l.setup
	switch {
	case errors.As(err, new(*refusal)) && l.cfg.Transport == "":
		if other = (wireSetup{SSE, legacy}); l.setup.transport == SSE {
			other.transport = HTTP
		}
	case errors.As(err, &answer) && (answer.Code == jsonrpc.CodeMethodNotFound ||
		answer.Code == mcp.CodeUnsupportedProtocolVersion):
		if other.version = legacy; l.setup.version == legacy {
			other.version = ""
		}
	}
	return other, other != l.setup
}

// handshake makes one connection. If it fails, it frees everything.
func (l *Link) handshake(by wireSetup) (*conn, error) {
	c := newConn(l, by.transport)
	opening, stop := context.WithCancelCause(c.life) // of the handshake; the server may still end by itself after it
	watching := context.AfterFunc(l.ctx, func() { stop(context.Cause(l.ctx)) })
	abort := context.AfterFunc(l.hard, func() { c.kill(context.Cause(l.hard)) }) // hard ends when Close gives up
	var err error
	if c.carrier, err = l.carry(c); !abort() && err == nil {
		err = context.Cause(c.life)
	}
	if err != nil && c.carrier == nil {
		watching()
		stop(err)
		c.cut(err)
		c.kill(err)
		return nil, err
	}
	client := c.client()
	done := make(chan struct{})
	c.goes.Go(func() { c.expire(done, stop) })
	c.session, err = client.Connect(opening, c.carrier, &mcp.ClientSessionOptions{ProtocolVersion: by.version})
	c.up.Store(err == nil)
	close(done)
	if open := watching(); err == nil && (!open || opening.Err() != nil) {
		err = context.Cause(opening)
	}
	if err != nil {
		if cause := context.Cause(opening); cause != nil {
			err = cause
		} else {
			err = c.carrier.why(err)
		}
		c.end(err)
		return nil, err
	}
	c.since = l.env.Now()
	c.goes.Go(func() {
		err := c.session.Wait()
		if err == nil {
			err = broken("the server ended it")
		}
		c.fail(c.carrier.why(err))
		close(c.done)
	})
	return c, nil
}

// client makes the SDK's client for the connection.
func (c *conn) client() *mcp.Client {
	l := c.link
	var opts mcp.ClientOptions
	if l.env.Client != nil {
		if own := l.env.Client(); own != nil {
			opts = *own
		}
	}
	opts.KeepAlive = 0
	client := mcp.NewClient(&mcp.Implementation{Name: "a2e", Version: "dev"}, &opts)
	if l.env.Setup != nil {
		l.env.Setup(client)
	}
	_ = mcp.AddSendingCustomMethod[*rawParams, *rawResult](client, rawMethod) // rawMethod is not a method of MCP
	client.AddReceivingMiddleware(c.guard)
	return client
}

// fail notes why the connection ended and cancels its requests. Only the first reason counts.
func (c *conn) fail(why error) {
	c.once.Do(func() {
		c.fault = why
		close(c.ended)
		c.cut(why)
	})
}

// reason returns why the connection ended; it waits for that.
func (c *conn) reason() error {
	<-c.ended
	return c.fault
}

// wait returns why the connection ended, or nil if it did not end within limit.
func (c *conn) wait(limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-c.ended:
		return c.fault
	case <-timer.C:
		return nil
	}
}

// isOver reports whether the connection has ended.
func (c *conn) isOver() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// busy reports whether a server that does not answer a ping may still be at work: some servers handle one
// request at a time.
func (c *conn) busy(patience time.Duration) bool {
	silence := c.gate.silence()
	return silence == 0 || c.running.Load() > 0 && silence < patience
}

// ask makes watch send a ping.
func (c *conn) ask() {
	select {
	case c.doubt <- struct{}{}:
	default:
	}
}

// renewed notes that the server has a new session on this connection, which knows nothing of the old one.
func (c *conn) renewed(hello *mcp.InitializeResult) {
	for {
		select {
		case c.again <- hello:
			return
		case <-c.again: // an older one
		}
	}
}

// skip counts and logs a text of the server that is not a message.
func (c *conn) skip(what []byte, why error) {
	c.link.junk.Add(1)
	if c.odd.Load() == nil {
		odd := string(c.link.secrets.OwnHead(what, maxOdd))
		c.odd.CompareAndSwap(nil, &odd)
	}
	if hidden, ok := c.junk.Allow(c.link.env.Now()); ok {
		c.link.log.Warn().Bytes("text", c.link.secrets.OwnHead(what, 200)).Str("error", c.link.text(why)).
			Int("hidden", hidden).Msg("skipped what the MCP server sent: it is not a message")
	}
}

// sends notes the id of a message to the server that asks for its introduction.
func (c *conn) sends(msg jsonrpc.Message) {
	if req, ok := msg.(*jsonrpc.Request); ok && (req.Method == methodInitialize || req.Method == methodDiscover) {
		c.hello.Store(req.ID.Raw())
	}
}

// end ends the connection: the requests under way fail, the server is asked to end, and what still runs is
// killed.
func (c *conn) end(why error) {
	c.fail(why)
	ctx, cancel := context.WithTimeout(c.link.hard, CloseGrace)
	if c.life.Err() == nil {
		c.carrier.finish(ctx, c.session)
	}
	cancel()
	c.kill(why)
	c.carrier.release()
	if c.session != nil {
		_ = c.session.Close() // the connection is gone; it says so
	}
	c.goes.Wait()
}

// refusal is an HTTP status that refuses a request. In a handshake it may say that the server does not
// speak streamable HTTP.
type refusal struct{ status int }

// Error implements error.
func (r *refusal) Error() string {
	return fmt.Sprintf("the server answered with HTTP status %d %s", r.status, http.StatusText(r.status))
}

// guard wraps the handlers for what a server sends. They and the SDK's own handlers rely on params, which
// the SDK does not check; and a panic on a goroutine of the SDK would end the host.
func (c *conn) guard(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (_ mcp.Result, err error) {
		defer func() {
			if v := recover(); v != nil {
				c.link.panicked(method, v)
				err = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "it cannot be taken in"}
			}
		}()
		if method == methodProgress {
			defer c.gate.take()
		}
		if res, ok, err := c.link.handled(ctx, method, req); ok {
			return res, err
		}
		switch method {
		case "elicitation/create", "notifications/elicitation/complete", "notifications/resources/updated":
			if reflect.ValueOf(req.GetParams()).IsNil() {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "it has no params"}
			}
		}
		return next(ctx, method, req)
	}
}

// try runs f, which sends a request to the server, and turns a panic into an error: the SDK decodes the
// answer on this goroutine.
func (l *Link) try(ctx context.Context, session *mcp.ClientSession, f func(context.Context, *mcp.ClientSession) error,
) (err error) {
	defer func() {
		if v := recover(); v != nil {
			l.panicked("an answer", v)
			err = errors.New("it cannot be read")
		}
	}()
	return f(ctx, session)
}

// panicked logs a panic.
func (l *Link) panicked(of string, v any) {
	l.log.Error().Str("of", of).Str("panic", l.secrets.Text(fmt.Sprint(v))).Bytes("stack",
		debug.Stack()).Msg("what the MCP server sent could not be taken in")
}
