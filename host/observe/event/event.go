// Package event tells what happens in a host: each thing is one Event, made once and handed to all
// sinks that listen to its kind.
//
//	                          ┌─► log      a line of the host's log
//	host ─┐                   ├─► audit    a chain of lines (host/observe/audit)
//	      ├─► Stream ─ mask ──┼─► record   full messages (host/cli/record)
//	child ┘                   └─► metrics  counts (host/observe/metrics)
//
// Who starts children is host/sandbox; what is denied is seen where the host calls the plugins.
//
//	event.go  Event, Sink, Stream
//	log.go    the sink that writes lines of the log
//	spool.go  the memory and the goroutine of a sink that writes a file
package event

import (
	"cmp"
	"slices"
	"time"

	"a2e/host/guard/redact"
)

// Kind says what happened. Kinds are bits, so that a sink can name several.
type Kind uint

// The kinds.
const (
	Request    Kind = 1 << iota // a request was answered
	In                          // a line came
	Out                         // a line goes out
	ChildStart                  // a child process was started
	ChildEnd                    // it has ended
	Denied                      // a handler refused a request, or a part of one, with tool_denied

	kinds = iota // how many there are
)

// Event is one thing that happened. Fields that do not apply are empty.
type Event struct {
	Kind          Kind
	Time          time.Time     // zero = now
	Duration      time.Duration // of a request, or of a child's life
	Type          string        // of a message, or the method of another protocol
	Name          string        // of the tool, skill, environment, … that was asked for, or of a child
	ReqID         string        // any string that a client sent
	CorrelationID string
	SessionID     string
	Capability    string
	ErrorCode     string // "" = it succeeded
	InputBytes    int    // of a message that was cut: its length with the end of its line
	OutputBytes   int
	PID           int    // of a child
	Text          string // how a child ended, or why something was denied
	Message       []byte // of In and Out: the line without its end; valid during Take
}

// Outcome is what became of a request, in a word.
func (e *Event) Outcome() string { return cmp.Or(e.ErrorCode, "ok") }

// Sink takes events. Take must not block, and keeps no Message.
type Sink interface{ Take(Event) }

// Stream hands events to sinks. It does not change; a nil Stream has no sink.
type Stream struct {
	secrets *redact.Set // that no text shows; nil = there are none
	kinds   Kind        // that somebody listens to
	sinks   []listener
}

type listener struct {
	kinds Kind
	sink  Sink
}

// New makes a Stream without a sink, which masks secrets in all texts but Message: who keeps messages
// masks them, as that takes time.
func New(secrets *redact.Set) *Stream { return &Stream{secrets: secrets} }

// With returns a Stream whose events of these kinds sink gets as well.
func (s *Stream) With(sink Sink, kinds Kind) *Stream {
	return &Stream{s.secrets, s.kinds | kinds, append(slices.Clip(s.sinks), listener{kinds, sink})}
}

// Wants reports whether a sink listens to a kind: an Event that nobody wants need not be made.
func (s *Stream) Wants(k Kind) bool { return s != nil && s.kinds&k != 0 }

// Take hands an event to those who listen.
func (s *Stream) Take(e Event) {
	if !s.Wants(e.Kind) {
		return
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	if e.Message == nil {
		s.mask(&e.Type, &e.Name, &e.ReqID, &e.CorrelationID, &e.SessionID, &e.ErrorCode, &e.Text)
	}
	for _, to := range s.sinks {
		if to.kinds&e.Kind != 0 {
			to.sink.Take(e)
		}
	}
}

func (s *Stream) mask(texts ...*string) {
	for _, text := range texts {
		*text = s.secrets.Text(*text)
	}
}
