package spill

import (
	"bytes"
	"context"
	"os"
	"sync"
)

// Capture keeps the output of one program: the beginning and the end of each stream, and, if that is too little,
// everything in a file, in the order in which it came. The host's memory does not grow with the output.
type Capture struct {
	keeper *Keeper
	ctx    context.Context
	what   string
	room   int

	mu      sync.Mutex
	streams []*Stream    // guarded by mu, as all below
	total   int          // bytes of all streams
	early   bytes.Buffer // the whole output, until it is certain that something is cut
	spilled bool
	done    bool
	file    *File // nil = none yet, or none any more
}

// NewCapture makes the capture of the output of what (such as a tool) in the session of ctx. The texts of all streams
// together take at most room bytes of JSON. The text of one stream leaves at least half of room to the other.
func NewCapture(ctx context.Context, k *Keeper, what string, room int) *Capture {
	return &Capture{keeper: k, ctx: ctx, what: what, room: room}
}

// Stream is one stream of a program, of two at most.
type Stream struct {
	of   *Capture
	ends Ends
	room int // bytes of JSON for its text; set by Finish
}

// Stream returns a further stream.
func (c *Capture) Stream() *Stream {
	s := &Stream{of: c, ends: Ends{Room: c.room}}
	c.streams = append(c.streams, s)
	return s
}

// Write implements io.Writer. It takes all of p, even if the file fails.
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

// spillLocked writes the output so far into a file.
func (c *Capture) spillLocked() {
	c.spilled = true
	if f, err := c.keeper.Create(c.ctx, c.what); err == nil {
		c.file = f
		c.putLocked(c.early.Bytes())
	}
	c.early = bytes.Buffer{}
}

// putLocked writes to the file. If the disk is full, output is lost, but the call does not fail.
func (c *Capture) putLocked(p []byte) {
	if _, err := c.file.Write(p); err != nil {
		_ = c.file.Close()
		c.file = nil
	}
}

// Finish ends the capture. It is called once, after the last Write. cut reports whether a text leaves something
// out; file then has the whole output, or is nil if that was not kept.
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

// Drop discards a capture that nobody wants, with its file. After Finish it does nothing.
func (c *Capture) Drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return
	}
	if c.file != nil {
		_ = c.file.Close()
		_ = os.Remove(c.file.Path()) // if this fails, prune removes the file later
	}
	c.early, c.done, c.file = bytes.Buffer{}, true, nil
}

// Text returns the output of the stream, or its beginning and its end with a line between them. It is for the time
// after Finish.
func (s *Stream) Text() string {
	all := ""
	if s.of.file != nil {
		all = s.of.file.URI()
	}
	return s.ends.Text(s.room, all)
}

// Note returns a line for a person that says that something was cut, and where the whole output is; file may be nil.
func Note(file *File) string {
	if file == nil {
		return "the output was cut, and the rest could not be kept"
	}
	return "the output was cut; read_file " + file.URI() + " has all of it"
}
