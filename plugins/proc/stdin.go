package proc

import (
	"io"
	"sync"
)

// maxInput is how much input may wait for a process that does not read it.
const maxInput = 16 << 20

// veof is the character that ends the input of a terminal.
const veof = "\x04"

// stdin is the input of one process: a queue, and the goroutine that empties it.
type stdin struct {
	w   io.WriteCloser
	tty bool // its end is a character

	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // on mu
	queue   []string
	size    int  // bytes in queue
	eof     bool // the agent said so
	refused bool // the process has closed its side
	ended   bool // the process is over
}

func newStdin(w io.WriteCloser, tty bool) *stdin {
	s := &stdin{w: w, tty: tty}
	s.changed.L = &s.mu
	return s
}

// push adds input, and says in words why it does not; "" means that it did.
func (s *stdin) push(data string, eof bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return "the process has just ended"
	case s.eof:
		return "stdin is closed: an earlier write had eof"
	case s.refused:
		return "the process has closed its stdin"
	case s.size > 0 && s.size+len(data) > maxInput:
		return "stdin is full: 16 MiB wait to be read by the process; write again when it has read some"
	}
	if eof && s.tty {
		data += veof
	}
	if data != "" {
		s.queue = append(s.queue, data)
		s.size += len(data)
	}
	s.eof = eof && !s.tty // a terminal stays open
	s.changed.Signal()
	return ""
}

// feed writes what comes until the end of the input, or of the process.
func (s *stdin) feed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.ended {
		switch {
		case len(s.queue) > 0:
			s.writeLocked()
		case s.eof:
			s.refuseLocked()
			return
		default:
			s.changed.Wait()
		}
	}
}

// writeLocked writes the first of the queue, without the lock meanwhile.
func (s *stdin) writeLocked() {
	data := s.queue[0]
	s.mu.Unlock()
	_, err := io.WriteString(s.w, data)
	s.mu.Lock()
	if len(s.queue) > 0 { // close may have emptied it
		s.queue[0] = ""
		s.queue = s.queue[1:]
		s.size -= len(data)
	}
	if err != nil {
		s.refuseLocked()
	}
}

// refuseLocked closes the host's side of a pipe and takes nothing more. A
// terminal belongs to its own owner.
func (s *stdin) refuseLocked() {
	s.refused = true
	s.queue, s.size = nil, 0
	if !s.tty {
		s.w.Close()
	}
}

// close ends feed, which may wait for a process that is over.
func (s *stdin) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.refuseLocked()
	s.changed.Signal()
}
