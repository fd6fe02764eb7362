// Package event reports what happens in a host. Each occurrence is one Event, which is made once and
// sent to all sinks that listen to its kind.
//
//	                          ┌─► log      a line of the host's log
//	host ─┐                   ├─► audit    a chain of lines (host/observe/audit)
//	      ├─► Stream ─ mask ──┼─► record   full messages (host/cli/record)
//	child ┘                   └─► metrics  counts (host/observe/metrics)
//
// host/sandbox starts children and makes their events; the host makes the event of a denial where it calls the plugins.
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

// Kind says what happened. Kinds are bits, so that several can be combined.
type Kind uint

// The kinds.
const (
	Request    Kind = 1 << iota // a request was answered
	In                          // a line was received
	Out                         // a line is sent
	ChildStart                  // a child process was started
	ChildEnd                    // a child process has ended
	Denied                      // a handler refused a request, or a part of one, with tool_denied

	kinds = iota // the number of kinds
)

// Event is one occurrence. Fields that do not apply are empty.
type Event struct {
	Kind          Kind
	Time          time.Time     // zero = now
	Duration      time.Duration // duration of a request, or lifetime of a child
	Type          string        // message type, or the method of another protocol
	Name          string        // the requested tool, skill, environment, …, or the program of a child
	ReqID         string        // any string that a client sent
	CorrelationID string
	SessionID     string
	Capability    string
	ErrorCode     string // "" = success
	InputBytes    int    // for a message that was truncated: the length of the whole line
	OutputBytes   int
	PID           int    // pid of a child
	Text          string // how a child ended, or why a request was denied
	Message       []byte // for In and Out: the line without its newline; valid only during Take
}

// Outcome returns the error code of a request, or "ok".
func (e *Event) Outcome() string { return cmp.Or(e.ErrorCode, "ok") }

// Sink receives events. Take must not block, and must not keep Message.
type Sink interface{ Take(Event) }

// Stream sends events to sinks. It does not change; a nil Stream has no sinks.
type Stream struct {
	secrets *redact.Set // are masked in all texts but Message; nil = none
	kinds   Kind        // all kinds for which there is a sink
	sinks   []listener
}

type listener struct {
	kinds Kind
	sink  Sink
}

// New makes a Stream without sinks. It masks the secrets in all texts except Message: a sink that
// keeps messages masks them itself, because that takes time.
func New(secrets *redact.Set) *Stream { return &Stream{secrets: secrets} }

// With returns a copy of the Stream that also sends events of these kinds to sink.
func (s *Stream) With(sink Sink, kinds Kind) *Stream {
	return &Stream{s.secrets, s.kinds | kinds, append(slices.Clip(s.sinks), listener{kinds, sink})}
}

// Wants reports whether a sink listens to a kind; otherwise the Event need not be made.
func (s *Stream) Wants(k Kind) bool { return s != nil && s.kinds&k != 0 }

// Take sends an event to the sinks that listen to its kind.
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
