package multiagent

import (
	"context"
	"slices"
	"sync"
	"time"

	"a2e/host"
	"a2e/plugins/multiagent/merge"
	"a2e/protocol"
)

// The values of SubagentEvent.Event.
const (
	eventSpawned    = "spawned"
	eventStarted    = "started" // a worker took the task up
	eventOutput     = "output"  // a line that the worker prints
	eventMessage    = "message"
	eventCompleted  = "completed"
	eventFailed     = "failed"
	eventCancelled  = "cancelled"
	eventTerminated = "terminated"
)

// Bounds of what is told.
const (
	maxShown     = 4 << 10 // bytes of a line or a text
	maxQueued    = 256     // events of one request that are not yet sent
	maxPerSecond = 200     // lines of one task
)

// eventQueue sends the events of one child in order. It never holds up who has some: what the
// agent does not read in time is dropped, lines before anything else.
type eventQueue struct {
	p  *Plugin
	id string // of the child

	mu      sync.Mutex // guards the fields below, and the streams
	queue   []queued
	sending bool
	cut     bool // nothing is sent any more
}

// stream is the events with the req_id of one request: that of a child's spawn, or of the
// delegate while that task is under way.
type stream struct {
	queue *eventQueue
	feed  *host.Stream

	// Guarded by eventQueue.mu.
	closed  bool  // no event comes any more
	dropped int   // lines since the last event
	second  int64 // of the last line
	lines   int   // in that second
}

// queued is an event on its way.
type queued struct {
	to    *stream
	event *protocol.SubagentEvent // nil = none, to only ends
	last  bool                    // to ends behind it
}

// open makes the stream of the request that ctx belongs to.
func (q *eventQueue) open(ctx context.Context) *stream {
	return &stream{queue: q, feed: host.OpenStream(ctx)}
}

// tell puts an event in line. last says that no other one of its stream follows.
func (s *stream) tell(event string, content map[string]any, last bool) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	if !s.closed {
		s.closed = last
		s.addLocked(event, content)
	}
}

// addLocked puts an event in line, with how many lines were left out before it.
func (s *stream) addLocked(event string, content map[string]any) {
	q := s.queue
	if len(q.queue) >= maxQueued { // the oldest line gives way, else the oldest event
		at := max(0, slices.IndexFunc(q.queue, func(e queued) bool { return e.event != nil && e.event.Event == eventOutput }))
		if old := q.queue[at]; old.last {
			old.to.feed.Close()
		} else if old.event.Event == eventOutput {
			old.to.dropped++
		}
		q.queue = slices.Delete(q.queue, at, at+1)
	}
	if s.dropped > 0 {
		content["dropped_lines"] = s.dropped
		s.dropped = 0
	}
	q.addLocked(queued{s, &protocol.SubagentEvent{SubagentID: q.id, Event: event, Content: content}, s.closed})
}

// end is tell without an event, where nothing is left to say.
func (s *stream) end() {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.queue.addLocked(queued{to: s, last: true})
	}
}

// line tells one line of a worker, unless there are too many.
func (s *stream) line(now time.Time, stream, text string) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	if s.closed {
		return
	}
	if second := now.Unix(); second != s.second {
		s.second, s.lines = second, 0
	}
	if s.lines++; s.lines > maxPerSecond || len(s.queue.queue) >= maxQueued/2 {
		s.dropped++
		return
	}
	s.addLocked(eventOutput, map[string]any{"stream": stream, "text": merge.Shorten(text, maxShown)})
}

// drop has nothing sent any more: the session is over.
func (q *eventQueue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cut, q.queue = true, nil
}

// addLocked puts something in line, and has it sent unless the plugin ends.
func (q *eventQueue) addLocked(e queued) {
	if q.cut {
		return
	}
	q.queue = append(q.queue, e)
	if q.sending || !q.p.begin() {
		return
	}
	q.sending = true
	go func() {
		defer q.p.goes.Done()
		for e, ok := q.next(); ok; e, ok = q.next() {
			q.send(e)
		}
	}()
}

// next takes the next event; where there is none the sender is to end.
func (q *eventQueue) next() (e queued, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		q.sending = false
		return e, false
	}
	e, q.queue = q.queue[0], q.queue[1:]
	return e, true
}

// send sends an event, and ends its stream behind the last one, or where nobody takes it.
func (q *eventQueue) send(e queued) {
	if e.event != nil && e.to.feed.Send(protocol.TypeSubagentEvent, e.event) != nil {
		q.mu.Lock()
		e.to.closed = true
		q.queue = slices.DeleteFunc(q.queue, func(other queued) bool { return other.to == e.to })
		q.mu.Unlock()
		e.last = true
	}
	if e.last {
		e.to.feed.Close()
	}
}
