// Package trace tells a collector of OpenTelemetry what requests did, and how long: OTLP over
// HTTP, as protobuf, with W3C's trace context between processes.
//
//	trace.go   spans, and how one belongs to another
//	env.go     the standard variables OTEL_…
//	export.go  the queue and what empties it
//	otlp.go    the encoding
//
// Nothing here makes a request wait or fail: what does not fit into the queue, or is not taken, is
// dropped. A nil *Tracer makes nil spans, and those do nothing.
package trace

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// Kind is what a span is of.
type Kind byte

// The kinds, by their numbers in OTLP.
const (
	Internal Kind = 1
	Server   Kind = 2 // a request of somebody else
	Client   Kind = 3 // a request to somebody else
)

// Span is something that takes time: a request, or a part of one. Its methods but End may be
// called by any goroutine; it is ended once.
type Span struct {
	tracer        *Tracer
	trace         [16]byte
	id, parent    [8]byte
	sampled       bool
	name          string
	kind          Kind
	begin, end    time.Time
	attrs         []Attr
	failed        bool
	remotelyBegun bool // the parent is of another process
}

// Attr is a fact of a span: a text or an int.
type Attr struct {
	Key   string
	Value any
}

// Start begins the span of a request. parent is who asks, as W3C's traceparent; what is none is passed
// over, and the process that started this one counts in its place.
func (t *Tracer) Start(name string, kind Kind, parent string) *Span {
	if t == nil {
		return nil
	}
	s := &Span{tracer: t, name: name, kind: kind, begin: time.Now()}
	_, _ = rand.Read(s.id[:]) // never fails
	if !s.follow(parent) && !s.follow(t.parent) {
		_, _ = rand.Read(s.trace[:])
	}
	s.sampled = t.sample(s)
	return s
}

// follow makes the span part of a trace; false = the text is no traceparent.
func (s *Span) follow(parent string) bool {
	const length = len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
	if len(parent) < length || len(parent) > length && (parent[:2] == "00" || parent[length] != '-') {
		return false
	}
	raw, err := hex.DecodeString(parent[:2] + parent[3:35] + parent[36:52] + parent[53:length])
	if err != nil || raw[0] == 0xff || parent[2] != '-' || parent[35] != '-' || parent[52] != '-' {
		return false
	}
	trace, id := [16]byte(raw[1:17]), [8]byte(raw[17:25])
	if trace == [16]byte{} || id == [8]byte{} {
		return false
	}
	s.trace, s.parent, s.sampled, s.remotelyBegun = trace, id, raw[25]&1 != 0, true
	return true
}

// Child begins a span within this one.
func (s *Span) Child(name string, kind Kind) *Span {
	if s == nil {
		return nil
	}
	c := &Span{tracer: s.tracer, trace: s.trace, parent: s.id, sampled: s.sampled, name: name, kind: kind, begin: time.Now()}
	_, _ = rand.Read(c.id[:])
	return c
}

// End ends the span. code says what it failed with; "" = it did not. Empty attributes are left out.
func (s *Span) End(code string, attrs ...Attr) {
	if s == nil || !s.sampled {
		return
	}
	s.end = time.Now()
	if s.failed = code != ""; s.failed {
		attrs = append(attrs, Attr{"error.type", code})
	}
	for _, a := range attrs {
		if a.Value != "" {
			s.attrs = append(s.attrs, a)
		}
	}
	s.tracer.take(s)
}

// Parent returns the traceparent of what this span starts; "" = there is none.
func (s *Span) Parent() string {
	if s == nil {
		return ""
	}
	flags := "-00"
	if s.sampled {
		flags = "-01"
	}
	return "00-" + hex.EncodeToString(s.trace[:]) + "-" + hex.EncodeToString(s.id[:]) + flags
}

// Key finds the span in a context.
type Key struct{}

// With returns a context of what belongs to a span.
func With(ctx context.Context, s *Span) context.Context {
	if s == nil {
		return ctx
	}
	return context.WithValue(ctx, Key{}, s)
}

// From returns the span that a context belongs to; nil = none.
func From(ctx context.Context) *Span {
	s, _ := ctx.Value(Key{}).(*Span)
	return s
}

// below reports whether a trace is among that part of all.
func below(trace [16]byte, part float64) bool {
	return float64(binary.BigEndian.Uint64(trace[8:])>>1) < part*(1<<63)
}
