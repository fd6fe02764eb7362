// Package client speaks to an a2e host: it starts one as a child process, or
// attaches to two streams, and then calls it.
//
//	Call ─ encode ─ one write ──────────────► host
//	  ▲ answer, events                          │
//	  └─ Pending ◄─┐                            │
//	handler ◄──────┴─ reader (one goroutine) ◄──┘
//
// The reader never waits for a caller or a handler. Events of a call wait in
// memory for its OnEvent, and pushes for their handler. So nothing is lost, but a
// caller that asks for a stream must read it.
package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"a2e/protocol"
)

// ErrClosed is the error of every call after the host has closed its output. A more
// specific error wraps it.
var ErrClosed = errors.New("client: the host has closed its output")

// Options are the options of a Client. The zero value selects the defaults.
type Options struct {
	// MaxLine is the longest line that the client reads, in bytes; a longer line
	// ends the client. 0 means 64 MiB.
	MaxLine int
	// OnLine is called with every received line, without its newline, before the line
	// is parsed. It must return soon and must not keep the bytes.
	OnLine func(line []byte)
	// CancelWait is how long a call whose context ended waits for the answer to its
	// cancel. 0 means 1 s.
	CancelWait time.Duration
	// ExitWait is how long Close waits between closing stdin and SIGTERM. 0
	// means 3 s.
	ExitWait time.Duration
	// TermWait is how long Close waits between SIGTERM and SIGKILL. 0 means 2 s.
	TermWait time.Duration
}

func (o Options) withDefaults() Options {
	if o.MaxLine == 0 {
		o.MaxLine = 64 << 20
	}
	for _, wait := range []struct {
		d    *time.Duration
		init time.Duration
	}{{&o.CancelWait, time.Second}, {&o.ExitWait, 3 * time.Second}, {&o.TermWait, 2 * time.Second}} {
		if *wait.d == 0 {
			*wait.d = wait.init
		}
	}
	return o
}

// Client is one connection to a host. Its methods are safe for concurrent use.
type Client struct {
	opts   Options
	in     io.Reader
	child  *exec.Cmd     // nil when attached
	exited chan struct{} // closed when the child has ended; nil when attached
	exit   error         // result of the child's Wait; valid after exited

	ctx    context.Context // of the handlers: ends with the reader
	cancel context.CancelFunc
	ended  chan struct{}  // closed when the reader has ended
	tasks  sync.WaitGroup // handlers and late cancels

	writing sync.Mutex // one writer at a time
	out     io.WriteCloser

	mu      sync.Mutex // guards the fields below
	lastID  uint64
	pending map[string]*Pending
	routes  map[protocol.Type]*route
	failure error // why the reader ended; nil while it runs
}

// Attach makes a Client that reads a host's output from r and writes its input to w.
// Close closes w. It also closes r if r is an io.Closer and the host does not end it.
func Attach(r io.Reader, w io.WriteCloser, opts Options) *Client {
	c := newClient(r, w, opts)
	go c.read()
	return c
}

func newClient(r io.Reader, w io.WriteCloser, opts Options) *Client {
	c := &Client{
		opts: opts.withDefaults(), in: r, out: w, ended: make(chan struct{}),
		pending: map[string]*Pending{}, routes: map[protocol.Type]*route{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// read is the reader: it reads lines until the host closes its output or breaks the
// protocol.
func (c *Client) read() {
	lines := bufio.NewScanner(c.in)
	lines.Buffer(make([]byte, 0, min(64<<10, c.opts.MaxLine)), c.opts.MaxLine)
	var err error
	for err == nil && lines.Scan() {
		if c.opts.OnLine != nil {
			c.opts.OnLine(lines.Bytes())
		}
		var m Message
		if m, err = parse(bytes.Clone(lines.Bytes())); err == nil {
			c.deliver(m)
		}
	}
	if err == nil {
		err = lines.Err()
	}
	c.fail(err)
	if err != nil { // a host whose writes block would not end
		_, _ = io.Copy(io.Discard, c.in)
	}
	close(c.ended)
}

// fail ends every call and prevents new ones. err is nil at the end of the output.
func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.failure != nil: // Close has given up before
	case errors.Is(err, bufio.ErrTooLong):
		c.failure = fmt.Errorf("%w: it wrote a line longer than %d bytes", ErrClosed, c.opts.MaxLine)
	case err != nil:
		c.failure = fmt.Errorf("%w: %w", ErrClosed, err)
	default:
		c.failure = ErrClosed
	}
	for id, p := range c.pending {
		delete(c.pending, id)
		p.err = c.failure
		close(p.done)
	}
	c.cancel()
}

// deliver passes a message to its handler or call, and drops it if it has neither.
func (c *Client) deliver(m Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	info, known := protocol.Lookup(m.Type)
	r, p := c.routes[protocol.Canonical(m.Type)], c.pending[m.ReqID]
	event := known && info.Direction == protocol.HostEvent
	switch {
	case known && info.Direction == protocol.HostRequest:
		c.startLocked(func() { c.answer(info.Response, r, m) })
	case m.Type == protocol.TypeMCPElicitReq: // an extension of this host that the table does not have
		c.startLocked(func() { c.answer(protocol.TypeMCPElicitResp, r, m) })
	case r != nil && (event || p == nil):
		c.pushLocked(r, m)
	case p == nil:
	case event:
		p.eventLocked(m)
	default:
		delete(c.pending, m.ReqID)
		p.answer = m
		close(p.done)
	}
}

// startLocked runs fn in a goroutine that Close waits for. It reports whether it
// started fn: after the end of the reader it does not.
func (c *Client) startLocked(fn func()) bool {
	if c.failure != nil {
		return false
	}
	c.tasks.Go(fn)
	return true
}

// Send sends one message of any type, does not wait for an answer, and returns the
// message's id. body is a struct of package protocol, a map, or nil. Send blocks while
// the host does not read, until Close.
func (c *Client) Send(t protocol.Type, body any) (id string, err error) {
	return c.send(t, body, nil, nil)
}

// send writes a message. Only answers have a reqID, and only calls have a p.
func (c *Client) send(t protocol.Type, body any, reqID protocol.Value, p *Pending) (id string, err error) {
	if name := protocol.AppendString(nil, t); len(name) != len(t)+2 {
		return "", fmt.Errorf("client: the type %q needs escapes; send it with WriteLine", t)
	}
	if body == nil {
		body = struct{}{}
	}
	if id, err = c.register(p); err != nil {
		return "", err
	}
	line := protocol.AppendHeader(nil, t, []byte(id), time.Now(), reqID)
	if line, err = protocol.AppendBody(line, body); err != nil {
		c.forget(p)
		return "", fmt.Errorf("client: encode %s: %w", t, err)
	}
	if err = c.WriteLine(line); err != nil {
		c.forget(p)
		return "", err
	}
	return id, nil
}

// WriteLine writes any bytes as one line, also those that Send cannot send, such as
// an invalid line.
func (c *Client) WriteLine(raw []byte) error {
	line := append(bytes.Clone(raw), '\n')
	c.writing.Lock()
	defer c.writing.Unlock()
	if _, err := c.out.Write(line); err != nil {
		return fmt.Errorf("client: write: %w", err)
	}
	return nil
}

// register returns the next id, and adds p, if it is not nil, to the pending calls.
func (c *Client) register(p *Pending) (id string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure != nil {
		return "", c.failure
	}
	c.lastID++
	id = strconv.FormatUint(c.lastID, 10)
	if p != nil {
		p.id = id
		c.pending[id] = p
	}
	return id, nil
}

func (c *Client) forget(p *Pending) {
	if p == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, p.id)
}
