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

// session is a host and what connects it to its client.
type session struct {
	server *Server
	id     string
	speaks Protocol
	in     feed
	out    *events        // of A2E
	output *io.PipeReader // of a call
	answer *io.PipeWriter // to output
	idle   *time.Timer

	streamable *mcp.StreamableServerTransport // and all up to faults: nil = it speaks A2E
	conn       mcp.Connection                 // to the client, on that
	part       []byte                         // of a line for the client that has no end yet
	greeted    atomic.Bool                    // MCP's initialize had its result
	faults     sync.Map                       // *rpc.Error of requests in batches, by the go-sdk's id; see post

	hasty context.Context // of the host
	cut   context.CancelFunc

	mu      sync.Mutex
	streams int  // open now; guarded by mu
	over    bool // it is forgotten, and its time limit with it; guarded by mu
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

// serve runs the host. What it wrote last can be read for as long as an idle session lives.
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
		_ = c.conn.Close() // it has no error
	case Call:
		_ = c.answer.Close() // nor has this
	}
	if c.out == nil || c.out.close() {
		c.gone()
	}
}

// guarded does a part of the session's work. An error is logged, and a panic ends this session and
// no other.
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

// gone forgets a session whose host has ended and whose output was read.
func (c *session) gone() {
	c.mu.Lock()
	c.over = true
	c.idle.Stop()
	c.mu.Unlock()
	c.server.forget(c)
}

// end ends the input: the host answers what it has taken in, and ends.
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

// used says that the client is there.
func (c *session) used() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams == 0 && !c.over {
		c.idle.Reset(c.server.opts.Idle)
	}
}

// listen counts a stream while it is open: a session with one is in use.
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

// put adds a line to the input. It waits for room as long as ctx and putTimeout let it.
func (c *session) put(ctx context.Context, line []byte) error {
	c.used()
	return c.in.put(ctx, line)
}

var errEnded = errors.New("the session has ended; POST /session starts another one")

// putTimeout bounds the wait of a message for room in the input of its session.
const putTimeout = 2 * time.Second

// feed is the input of a session: bounded, in the order of put.
type feed struct {
	mu      sync.Mutex
	room    sync.Cond // also: there is something to read
	max     int       // bytes waiting from which on put waits
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
