package host

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"

	"a2e/host/guard/redact"
	"a2e/host/observe/event"
)

const (
	chunkSize = 64 << 10 // small messages are collected in chunks of this size
	flushSize = 16 << 10 // pending bytes from which on a flush is worth a system call
	keepSpare = 2 << 20  // larger chunks are not kept for reuse
)

// ErrOutputClosed is the error of Serve when the reader of the answers has gone.
var ErrOutputClosed = errors.New("the output is closed")

// outputError distinguishes a reader that has gone (ErrOutputClosed) from an output that is broken, such as a file
// on a full disk.
func outputError(err error) error {
	for _, gone := range append(readerGone(), io.ErrClosedPipe, os.ErrClosed) {
		if errors.Is(err, gone) {
			return errors.Join(ErrOutputClosed, err)
		}
	}
	return fmt.Errorf("the output failed: %w", err)
}

// writer owns the output stream. Whole lines are appended to memory by anyone
// and written in order by one flusher at a time; no lock is held while writing,
// so a reader that stalls stops the flusher and nobody else until limit bytes
// are pending.
//
//	flush ──► what is pending now ──► more came meanwhile? ─► a goroutine for the rest
//	flushSoon ───────────────────────────────────────────────┘
type writer struct {
	dst     io.Writer
	secrets *redact.Set // no line shows these; nil = none
	events  *event.Stream
	spare   *sync.Pool  // of *[]byte: chunks for reuse
	failed  func(error) // called once, when a write fails
	goes    *sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	limit    int        // bytes pending from which on append waits
	room     sync.Cond
	chunks   [][]byte // pending, in order; the last one takes small messages
	size     int      // bytes pending, those in the flusher's hands included
	written  int      // bytes written in all; they show whether the peer still reads
	flushing bool     // somebody is writing, or a goroutine is about to
	err      error
}

func newWriter(dst io.Writer, o *Options, goes *sync.WaitGroup, failed func(error)) *writer {
	w := &writer{
		dst: dst, limit: o.Limits.OutputBuffer, secrets: o.Secrets, events: o.Events,
		spare: o.Buffers, goes: goes, failed: failed,
	}
	w.room.L = &w.mu
	return w
}

// append adds one whole line, newline included, once there is room for it. It returns a buffer for the next
// message: msg itself, or another one if a large msg was taken over without a copy.
func (w *writer) append(msg []byte) []byte {
	if w.put(msg) {
		return w.buffer()
	}
	return msg[:0]
}

// put is append for a message whose buffer is not used again. It reports whether it has taken over the buffer.
func (w *writer) put(msg []byte) (taken bool) {
	msg = w.secrets.Line(msg)
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.size >= w.limit && w.err == nil {
		w.room.Wait()
	}
	return w.err == nil && w.appendLocked(msg)
}

// appendLocked adds a message, and reports whether it has taken over its buffer.
func (w *writer) appendLocked(msg []byte) (taken bool) {
	w.size += len(msg)
	if w.events.Wants(event.Out) { // before it is written, so that the event precedes the peer's reaction
		w.events.Take(event.Event{Kind: event.Out, OutputBytes: len(msg), Message: msg[:len(msg)-1]})
	}
	if len(msg) > chunkSize/2 {
		w.chunks = append(w.chunks, msg)
		return true
	}
	if n := len(w.chunks); n == 0 || cap(w.chunks[n-1])-len(w.chunks[n-1]) < len(msg) {
		w.chunks = append(w.chunks, w.buffer())
	}
	last := len(w.chunks) - 1
	w.chunks[last] = append(w.chunks[last], msg...)
	return false
}

// buffer returns memory for a chunk or for one message of a stream.
func (w *writer) buffer() []byte {
	if c, ok := w.spare.Get().(*[]byte); ok {
		return *c
	}
	return make([]byte, 0, chunkSize)
}

// giveBack keeps a chunk for reuse.
func (w *writer) giveBack(c []byte) {
	if c = c[:0]; cap(c) > chunkSize/2 && cap(c) <= keepSpare {
		w.spare.Put(&c)
	}
}

// due reports whether enough is pending for a flush, and nobody is writing.
func (w *writer) due() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.size >= min(flushSize, w.limit) && !w.flushing
}

// flush writes what is pending, unless somebody is writing already, who then writes that too. It blocks as long as
// the peer does not read. What others add meanwhile is left to a goroutine. Once the host ends, everything is left
// to a goroutine, because the end must not wait for a peer that does not read.
func (w *writer) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.flushing || w.err != nil || len(w.chunks) == 0 {
		return
	}
	if w.limit == math.MaxInt {
		w.flushSoonLocked()
		return
	}
	w.flushing = true
	w.writePendingLocked()
	w.flushing = false
	w.flushSoonLocked()
}

// flushSoonLocked starts a goroutine that writes what is pending, if nobody is writing.
func (w *writer) flushSoonLocked() {
	if w.flushing || w.err != nil || len(w.chunks) == 0 {
		return
	}
	w.flushing = true
	w.goes.Go(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for len(w.chunks) > 0 && w.err == nil {
			w.writePendingLocked()
		}
		w.flushing = false
	})
}

// writePendingLocked writes the pending chunks, and releases the lock meanwhile. Only the flusher calls it.
func (w *writer) writePendingLocked() {
	batch := w.chunks
	w.chunks = nil
	w.mu.Unlock()
	for _, c := range batch {
		if !w.write(c) {
			break
		}
	}
	w.mu.Lock()
	if w.chunks == nil {
		clear(batch)
		w.chunks = batch[:0]
	}
}

// write writes one chunk and makes room for as many bytes; false = the output has failed or is closed.
func (w *writer) write(c []byte) bool {
	n, err := w.dst.Write(c)
	w.mu.Lock()
	if w.err != nil {
		w.mu.Unlock()
		return false
	}
	w.size -= len(c)
	w.written += n
	w.giveBack(c)
	if err != nil {
		err = outputError(err)
		w.err = err
		w.chunks, w.size = nil, 0
	}
	w.room.Broadcast()
	w.mu.Unlock()
	if err != nil {
		w.failed(err)
	}
	return err == nil
}

// waitRoom waits until the output has room again, or has failed.
func (w *writer) waitRoom() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.size >= w.limit && w.err == nil {
		w.room.Wait()
	}
}

// unbound lets append take everything from now on, and leaves the writing to a goroutine: nobody waits for the peer
// any more, except a stream for its credit.
func (w *writer) unbound() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limit = math.MaxInt
	w.flushSoonLocked()
	w.room.Broadcast()
}

// waitWritten lets a goroutine write all that is pending, and waits until this is done or the output has failed.
func (w *writer) waitWritten() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flushSoonLocked()
	for w.size > 0 && w.err == nil {
		w.room.Wait()
	}
}

// close drops what is pending: nothing is written any more.
func (w *writer) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = ErrOutputClosed
	}
	w.chunks, w.size = nil, 0
	w.room.Broadcast()
}

// progress returns the bytes written so far and those still pending.
func (w *writer) progress() (written, pending int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written, w.size
}
