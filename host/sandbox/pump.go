package sandbox

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// copyBytes is how much a stream moves at once.
const copyBytes = 32 << 10

const (
	soonWithin = 2 * time.Millisecond // how long soon waits for an answer
	lingering  = 5 * time.Millisecond // how long run leaves the stream to the next soon
)

// pump moves one stream of a tree to its writer. A request that waits for an answer reads by itself,
// if it can, as a switch to run costs more than many a child takes to answer:
//
//	run:  read ── pass ─┬─ somebody waits, or nobody did ─► read
//	                    └─ linger ◄──► soon: read ── pass
type pump struct {
	r      *os.File
	w      io.Writer
	halt   *os.File    // stop tells a pump with idle by it
	silent func()      // nil = nobody asks
	idle   func() bool // nobody waits for an answer; nil = run alone reads
	done   chan struct{}
	wake   chan struct{} // takes one; ends lingering
	wanted atomic.Bool   // soon was called since run last looked

	reading sync.Mutex // held by who reads; guards the fields below
	buf     []byte
	err     error // of the writer; also safe to read once done is closed
}

// openPump makes a pump, and the end of its pipe that the child writes to.
func openPump(w io.Writer, silent func(), idle func() bool) (*pump, *os.File, error) {
	p := &pump{w: w, silent: silent, done: make(chan struct{}), wake: make(chan struct{}, 1), buf: make([]byte, copyBytes)}
	if idle != nil {
		pw, err := p.direct(idle)
		return p, pw, err
	}
	r, pw, err := os.Pipe()
	p.r = r
	return p, pw, err
}

// close closes the host's side.
func (p *pump) close() {
	p.r.Close()
	if p.halt != nil {
		p.halt.Close()
	}
}

// run copies to the end of the stream or to stop, which each platform has. When the writer fails it
// closes the pipe, so that the child is told instead of blocked.
func (p *pump) run() {
	defer close(p.done)
	defer p.close()
	p.reading.Lock()
	defer p.reading.Unlock()
	for p.err == nil {
		n, err := p.next()
		if n > 0 && !p.pass(p.buf[:n]) {
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.rest(p.buf)
			return
		}
		if err != nil {
			if err == io.EOF && p.silent != nil {
				p.silent()
			}
			return
		}
		p.linger()
	}
}

// linger leaves the stream to soon, as long as that is called again and again.
func (p *pump) linger() {
	for p.wanted.Swap(false) {
		select {
		case <-p.wake: // it was for what is read by now
		default:
		}
		if !p.idle() {
			return
		}
		p.reading.Unlock()
		timer := time.NewTimer(lingering)
		select {
		case <-p.wake:
		case <-timer.C:
		}
		timer.Stop()
		p.reading.Lock()
	}
}

// soon reads in the place of run, for a moment and until enough says so.
func (p *pump) soon(enough func() bool) {
	p.wanted.Store(true)
	if !p.reading.TryLock() {
		p.read()
		return
	}
	for until := time.Now().Add(soonWithin); p.err == nil && !enough(); {
		if left := time.Until(until); left <= 0 || !p.ready(left) {
			break
		}
		n, err := p.r.Read(p.buf)
		if err != nil || !p.pass(p.buf[:n]) {
			break // run finds the same
		}
	}
	p.reading.Unlock()
	if !enough() || !p.idle() {
		p.read()
	}
}

// read makes run read at once.
func (p *pump) read() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pump) pass(data []byte) bool {
	_, p.err = p.w.Write(data)
	return p.err == nil
}
