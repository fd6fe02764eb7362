package httpd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// session is a host and its connection to a client.
type session struct {
	server *Server
	id     string
	speaks Protocol
	in     feed
	out    *events        // the output, for A2E
	output *io.PipeReader // the output, for Call
	answer *io.PipeWriter // writes to output
	idle   *time.Timer

	streamable *mcp.StreamableServerTransport // this field and those up to faults are used for MCP only
	conn       mcp.Connection                 // to the client, through streamable
	part       []byte                         // the beginning of a line for the client
	greeted    atomic.Bool                    // initialize was answered with a result
	faults     sync.Map                       // the go-sdk's id of a faulty request -> *rpc.Error; see post

	hasty context.Context // of the host; its end makes the host end quickly
	cut   context.CancelFunc

	mu      sync.Mutex
	streams int  // open now; guarded by mu
	over    bool // the session is not in the list any more; guarded by mu
}

func newSession(s *Server, speaks Protocol) *session {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	c := &session{server: s, id: hex.EncodeToString(id[:]), speaks: speaks}
	c.hasty, c.cut = context.WithCancel(s.hasty)
	c.in.room.L, c.in.max = &c.in.mu, s.opts.MaxLine
	c.idle = time.AfterFunc(s.opts.Idle, c.expire)
	switch speaks {
	case MCP:
		c.connectMCP()
	case Call:
		c.output, c.answer = io.Pipe()
	default:
		c.out = newEvents(s.opts.Kept)
	}
	return c
}

// serve runs the host. After that the last output can be read until the session expires.
func (c *session) serve() {
	defer c.cut()
	out := io.Writer(c.out)
	switch c.speaks {
	case MCP:
		out = toClient{c}
	case Call:
		out = c.answer
	}
	c.guarded(func() error { return c.server.opts.Serve(c.hasty, c.speaks, &c.in, out) })
	c.in.close()
	switch c.speaks {
	case MCP:
		_ = c.conn.Close() // never fails
	case Call:
		_ = c.answer.Close() // never fails
	}
	if c.out == nil || c.out.close() {
		c.gone()
	}
}

// guarded runs a part of the session's work. It logs an error. A panic ends only this session.
func (c *session) guarded(work func() error) {
	defer func() {
		if v := recover(); v != nil {
			c.server.opts.Log.Error().Str("session_id", c.id).Str("panic", fmt.Sprint(v)).Bytes("stack",
				debug.Stack()).Msg("a session over HTTP panicked; it ends")
			c.end()
		}
	}()
	if err := work(); err != nil {
		c.server.opts.Log.Error().Err(err).Str("session_id", c.id).Msg("a session over HTTP ended with an error")
	}
}

// gone removes a session whose host has ended and whose output was read, or which has expired.
func (c *session) gone() {
	c.mu.Lock()
	c.over = true
	c.idle.Stop()
	c.mu.Unlock()
	c.server.forget(c)
}

// end ends the input. The host answers what it has taken in, and then ends.
func (c *session) end() { c.in.close() }

// expire ends a session that nobody uses.
func (c *session) expire() {
	c.server.opts.Log.Info().Str("session_id", c.id).Msg("a session over HTTP that nobody uses ends")
	c.end()
	if c.out != nil {
		c.out.giveUp()
	}
	c.gone()
}

// used starts the idle time again, because the client has sent something.
func (c *session) used() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams == 0 && !c.over {
		c.idle.Reset(c.server.opts.Idle)
	}
}

// listen counts a stream until stop is called. A session with an open stream does not expire.
func (c *session) listen() (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams++
	c.idle.Stop()
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.streams--; c.streams == 0 && !c.over {
			c.idle.Reset(c.server.opts.Idle)
		}
	}
}

// put adds a line to the input. It waits for room until ctx ends, but no longer than putTimeout.
func (c *session) put(ctx context.Context, line []byte) error {
	c.used()
	return c.in.put(ctx, line)
}

var errEnded = errors.New("the session has ended; POST /session starts another one")

// putTimeout bounds the wait for room in the input of a session.
const putTimeout = 2 * time.Second

// feed is the input of a session. It is bounded and keeps the order of the lines.
type feed struct {
	mu      sync.Mutex
	room    sync.Cond // signals room, or something to read
	max     int       // put waits while so many bytes are waiting
	waiting []byte    // guarded by mu
	closed  bool      // guarded by mu
}

func (f *feed) put(ctx context.Context, line []byte) error {
	ctx, cancel := context.WithTimeout(ctx, putTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, f.wake)()
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.waiting) >= f.max && !f.closed && ctx.Err() == nil {
		f.room.Wait()
	}
	switch {
	case f.closed:
		return errEnded
	case ctx.Err() != nil:
		return errors.New("the session takes nothing in at the moment, as its answers are not read; read the " +
			"stream, and send this again")
	}
	f.waiting = append(f.waiting, line...)
	f.room.Broadcast()
	return nil
}

func (f *feed) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.room.Broadcast()
}

// Read implements io.Reader.
func (f *feed) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.waiting) == 0 && !f.closed {
		f.room.Wait()
	}
	if len(f.waiting) == 0 {
		return 0, io.EOF
	}
	n := copy(p, f.waiting)
	if f.waiting = f.waiting[n:]; len(f.waiting) == 0 {
		f.waiting = nil
	}
	f.room.Broadcast()
	return n, nil
}

func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.room.Broadcast()
}
