package spill

import (
	"bytes"
	"context"
	"os"
	"sync"
)

// Capture keeps the output of one program: of each of its streams the beginning and the end, and
// all of it in a file, in the order in which it came, once that is too little. No amount of output
// grows the host.
type Capture struct {
	keeper *Keeper
	ctx    context.Context
	what   string
	room   int

	mu      sync.Mutex
	streams []*Stream    // guarded by mu, as all below
	total   int          // bytes of all streams
	early   bytes.Buffer // all output until it is certain that something is cut
	spilled bool
	done    bool
	file    *File // nil = none yet, or none any more
}

// NewCapture makes the capture of the output of what, such as a tool, in the session of ctx. The
// texts of all streams take at most room bytes of JSON; one stream leaves another at least half.
func NewCapture(ctx context.Context, k *Keeper, what string, room int) *Capture {
	return &Capture{keeper: k, ctx: ctx, what: what, room: room}
}

// Stream is one stream of a program, of two at most.
type Stream struct {
	of   *Capture
	ends Ends
	room int // that its text has in the end
}

// Stream returns a further stream.
func (c *Capture) Stream() *Stream {
	s := &Stream{of: c, ends: Ends{Room: c.room}}
	c.streams = append(c.streams, s)
	return s
}

// Write implements io.Writer. It takes all, whatever becomes of the file.
func (s *Stream) Write(p []byte) (int, error) {
	c := s.of
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = s.ends.Write(p)
	c.total += len(p)
	if !c.spilled {
		c.early.Write(p)
		if c.total > c.room {
			c.spillLocked()
		}
	} else if c.file != nil {
		c.putLocked(p)
	}
	return len(p), nil
}

// spillLocked puts what came so far into a file.
func (c *Capture) spillLocked() {
	c.spilled = true
	if f, err := c.keeper.Create(c.ctx, c.what); err == nil {
		c.file = f
		c.putLocked(c.early.Bytes())
	}
	c.early = bytes.Buffer{}
}

// putLocked writes to the file. A full disk loses output, not the call.
func (c *Capture) putLocked(p []byte) {
	if _, err := c.file.Write(p); err != nil {
		_ = c.file.Close()
		c.file = nil
	}
}

// Finish ends the capture, once, after the last Write: cut reports whether a text leaves something
// out, and file, which may be nil, has all of the output then.
func (c *Capture) Finish() (file *File, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	used := 0
	for _, s := range c.streams {
		used += s.ends.size()
	}
	for _, s := range c.streams {
		if s.room = c.room; used > c.room {
			s.room = max(c.room/2, c.room-(used-s.ends.size()))
		}
		cut = cut || s.ends.size() > s.room
	}
	if cut && !c.spilled {
		c.spillLocked()
	}
	c.early, c.done = bytes.Buffer{}, true
	if c.file != nil && c.file.Close() != nil {
		c.file = nil
	}
	return c.file, cut
}

// Drop is for a capture that nobody wants; after Finish it does nothing.
func (c *Capture) Drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return
	}
	if c.file != nil {
		_ = c.file.Close()
		_ = os.Remove(c.file.Path()) // or when it is the oldest
	}
	c.early, c.done, c.file = bytes.Buffer{}, true, nil
}

// Text returns, after Finish, what the stream brought, or its beginning and its end with a line
// between them.
func (s *Stream) Text() string {
	all := ""
	if s.of.file != nil {
		all = s.of.file.URI()
	}
	return s.ends.Text(s.room, all)
}

// Note says in a line for a person that something was cut, and where all of it is; file may be nil.
func Note(file *File) string {
	if file == nil {
		return "the output was cut, and the rest could not be kept"
	}
	return "the output was cut; read_file " + file.URI() + " has all of it"
}
