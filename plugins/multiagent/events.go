package multiagent

import (
	"context"
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

// eventQueue sends the events of a child with the req_id of one request: that of its spawn, or
// of the delegate while that task is under way. It never holds up who has events: what the
// agent does not read in time is dropped, lines before anything else.
type eventQueue struct {
	p     *Plugin
	id    string // of the child
	feed  *host.Feed
	after <-chan struct{} // closed when events may be sent; nil = they may
	begun chan struct{}   // closed when the first event was sent, or cannot be
	ended chan struct{}   // closed when the last one was, or none can be any more

	mu      sync.Mutex      // guards the fields below
	until   <-chan struct{} // closed when eventTerminated may be sent; nil = it may
	queue   []*protocol.SubagentEvent
	sending bool
	closed  bool  // no event comes any more
	dropped int   // lines since the last event
	second  int64 // of the last line
	lines   int   // in that second
}

// newEvents makes the eventQueue of a child for the request that ctx belongs to.
func (p *Plugin) newEvents(ctx context.Context, c *subagent, after <-chan struct{}) *eventQueue {
	return &eventQueue{p: p, id: c.id(), feed: host.OpenFeed(ctx), after: after, begun: make(chan struct{}), ended: make(chan struct{})}
}

// taskEventsLocked makes the eventQueue of a child's next task. Its events come behind that of the
// spawn and those of the task before.
func (p *Plugin) taskEventsLocked(ctx context.Context, c *subagent) *eventQueue {
	after := c.home.begun
	if c.events != nil {
		after = c.events.ended
	}
	c.events = p.newEvents(ctx, c, after)
	return c.events
}

// terminated is the last event of a child without a task: it comes behind those of its tasks.
func (w *eventQueue) terminated(tasks *eventQueue) {
	if tasks != nil {
		w.mu.Lock()
		w.until = tasks.ended
		w.mu.Unlock()
	}
	w.tell(eventTerminated, map[string]any{}, true)
}

// tell puts an event in line. last says that no other one follows.
func (w *eventQueue) tell(event string, content map[string]any, last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	if len(w.queue) >= maxQueued {
		w.makeRoomLocked()
	}
	w.closed = last
	w.addLocked(event, content)
}

// addLocked puts an event in line, and what was left out before it.
func (w *eventQueue) addLocked(event string, content map[string]any) {
	if w.dropped > 0 {
		content["dropped_lines"] = w.dropped
		w.dropped = 0
	}
	w.queue = append(w.queue, &protocol.SubagentEvent{SubagentID: w.id, Event: event, Content: content})
	w.sendLocked()
}

// end is tell without an event, where nothing is left to say.
func (w *eventQueue) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		w.sendLocked()
	}
}

// makeRoomLocked drops the oldest line, else the oldest event.
func (w *eventQueue) makeRoomLocked() {
	at := 0
	for i, e := range w.queue {
		if e.Event == eventOutput {
			at = i
			w.dropped++
			break
		}
	}
	w.queue = append(w.queue[:at], w.queue[at+1:]...)
}

// line tells one line of a worker, unless there are too many.
func (w *eventQueue) line(now time.Time, stream, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	if second := now.Unix(); second != w.second {
		w.second, w.lines = second, 0
	}
	if w.lines++; w.lines > maxPerSecond || len(w.queue) >= maxQueued/2 {
		w.dropped++
		return
	}
	w.addLocked(eventOutput, map[string]any{"stream": stream, "text": merge.Shorten(text, maxShown)})
}

// cut has nothing told any more: the session is over.
func (w *eventQueue) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed, w.queue = true, nil
	w.noMoreLocked()
}

// noMoreLocked lets those go on that wait for the last event.
func (w *eventQueue) noMoreLocked() {
	if !isClosed(w.ended) {
		close(w.ended)
	}
}

// sendLocked has the queue sent, and the feed closed behind the last event.
func (w *eventQueue) sendLocked() {
	switch {
	case w.sending:
		return
	case !w.p.begin(): // the plugin ends
		w.noMoreLocked()
		return
	}
	w.sending = true
	go func() {
		defer w.p.goes.Done()
		if w.after != nil {
			<-w.after
		}
		for w.send() {
		}
	}()
}

// send sends the next event, and ends the feed behind the last one. False ends the sender.
func (w *eventQueue) send() bool {
	e, until, over := w.next()
	if until != nil {
		<-until
	}
	if e != nil && w.feed.Send(protocol.TypeSubagentEvent, e) != nil {
		w.cut()
	}
	if over {
		w.feed.Close()
		w.mu.Lock()
		w.noMoreLocked()
		w.mu.Unlock()
	}
	if !isClosed(w.begun) { // there is one sender at a time
		close(w.begun)
	}
	return e != nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// next takes the next event, and what it waits for, if anything; where there is none the
// sender is to end, and over tells whether the eventQueue is.
func (w *eventQueue) next() (e *protocol.SubagentEvent, until <-chan struct{}, over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		w.sending = false
		return nil, nil, w.closed
	}
	e = w.queue[0]
	w.queue = w.queue[1:]
	if e.Event == eventTerminated {
		until = w.until
	}
	return e, until, false
}
