package multiagent

import (
	"context"
	"slices"
	"sync"
	"time"

	"a2e/host"
	"a2e/host/agent"
	"a2e/plugins/multiagent/merge"
	"a2e/protocol"
)

// Bounds of a mailbox.
const (
	maxMail      = 64
	maxMailBytes = 64 << 10
	maxTypeBytes = 256
)

// A worker may take steerWait to receive a text, and then verdictWait to accept or refuse it. After
// that, the message counts as not refused yet, as a model may accept it with its next request.
const (
	steerWait   = 5 * time.Second
	verdictWait = time.Second
)

// mail is a message that waits for the child's next task.
type mail struct{ text string }

// message serves SUBAGENT_MESSAGE_REQ. If the child's task is under way and its worker accepts texts, the
// worker gets the message at once; otherwise the brief of the child's next task has it. A child that
// is terminated or whose mailbox is full does not get it; the event `message` says why.
func (p *Plugin) message(ctx context.Context, r *protocol.SubagentMessageRequest,
	_ host.Emitter,
) (*protocol.SubagentMessageResponse, error) {
	to, err := p.find(ctx, r.ToSubagentID)
	if err != nil {
		return nil, err
	}
	from := "the agent that started you"
	if own := host.SessionFrom(ctx).AgentID; r.FromSubagentID != "" && r.FromSubagentID != own {
		c, err := p.find(ctx, r.FromSubagentID)
		if err != nil {
			return nil, err
		}
		from = c.config.Name + " (" + c.id() + ")"
	}
	switch {
	case len(r.Message.Type) > maxTypeBytes:
		return nil, wrong("/message/type", "has %d bytes; it may have %d", len(r.Message.Type), maxTypeBytes)
	case len(r.Message.Content) > maxMailBytes:
		return nil, wrong("/message/content", "has %d bytes; it may have %d: put long texts into a file and name it",
			len(r.Message.Content), maxMailBytes)
	}
	text := "from " + from + ", " + r.Message.Type + ": " + contentText(protocol.Value(r.Message.Content))
	how, delivered := "worker", p.steer(ctx, to, text)
	if !delivered {
		how, delivered = p.post(to, text)
	}
	p.tellMessage(to, map[string]any{
		"from": r.FromSubagentID, "type": r.Message.Type, "delivered": delivered,
		"to": how,
	})
	return &protocol.SubagentMessageResponse{Delivered: delivered}, nil
}

// contentText returns a string as text, and other values as JSON.
func contentText(v protocol.Value) string {
	if text, ok := v.Str(); ok {
		return text
	}
	if len(v) == 0 {
		return "null"
	}
	return string(v)
}

// steer sends a text to the worker that does the child's task, and reports whether a worker accepts it. If
// the worker has not decided in time, steer returns false, and posts the text only if it is
// not accepted later.
func (p *Plugin) steer(ctx context.Context, c *subagent, text string) bool {
	p.mu.Lock()
	j := c.job
	ready := j != nil && j.worker != "" && j.stopped == ""
	p.mu.Unlock()
	if !ready {
		return false
	}
	host.HandOff(ctx)
	ctx, done := context.WithTimeout(ctx, steerWait)
	defer done()
	answer := make(chan bool, 1)
	select {
	case j.steer <- agent.Steering{Text: "Message " + text, Taken: answer}:
	case <-j.done:
		return false
	case <-ctx.Done():
		return false
	}
	verdict := func(enough <-chan struct{}) (taken, known bool) {
		select {
		case taken := <-answer:
			return taken, true
		case <-j.done: // the worker may have ended because of the text
		case <-enough:
			return false, false
		}
		select {
		case taken := <-answer:
			return taken, true
		default:
			return false, true
		}
	}
	soon, over := context.WithTimeout(ctx, verdictWait)
	defer over()
	taken, known := verdict(soon.Done())
	if known || !p.begin() {
		return taken
	}
	go func() { // if the worker never accepts the text, the next task gets it
		defer p.goes.Done()
		if taken, _ := verdict(nil); !taken {
			p.post(c, text)
		}
	}()
	return true
}

// post puts a text into the mailbox of a child. how says where the text is, or why it was not delivered.
func (p *Plugin) post(c *subagent, text string) (how string, delivered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case c.status == protocol.SubagentTerminated:
		return "nobody: the child agent is terminated", false
	case len(c.mailbox) >= maxMail:
		return "nobody: the mailbox is full; the child's next task empties it", false
	}
	c.mailbox = append(c.mailbox, mail{text})
	return "mailbox", true
}

// tellMessage sends the event for a message to a child.
func (p *Plugin) tellMessage(c *subagent, content map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	events := c.home
	if c.job != nil {
		events = c.job.events
	}
	events.tell(eventMessage, content, false)
}

// The values of SubagentEvent.Event.
const (
	eventSpawned    = "spawned"
	eventStarted    = "started" // a worker has the task
	eventOutput     = "output"  // a line that the worker printed
	eventMessage    = "message"
	eventCompleted  = "completed"
	eventFailed     = "failed"
	eventCancelled  = "cancelled"
	eventTerminated = "terminated"
)

// Limits of events.
const (
	maxShown     = 4 << 10 // bytes of a line or a text
	maxQueued    = 256     // events of one request that are not yet sent
	maxPerSecond = 200     // lines of one task
)

// eventQueue sends the events of one child in order. Senders never wait for the agent: events that it
// does not read in time are dropped, output lines first.
type eventQueue struct {
	p  *Plugin
	id string // of the child

	mu      sync.Mutex // guards the fields below, and the streams
	queue   []queued
	sending bool
	cut     bool // set by drop: nothing is sent any more
}

// stream sends the events with the req_id of one request: the spawn of a child, or the
// delegate while its task is under way.
type stream struct {
	queue *eventQueue
	feed  *host.Stream

	// Guarded by eventQueue.mu.
	closed  bool  // the stream takes no more events
	dropped int   // lines dropped since the last event
	second  int64 // of the last line, in Unix time
	lines   int   // lines in that second
}

// queued is an event in the queue.
type queued struct {
	to    *stream
	event *protocol.SubagentEvent // nil = none, the stream only ends
	last  bool                    // the stream ends after it
}

// open makes a stream for the request that ctx belongs to.
func (q *eventQueue) open(ctx context.Context) *stream {
	return &stream{queue: q, feed: host.OpenStream(ctx)}
}

// tell queues an event. last says that it is the last event of its stream.
func (s *stream) tell(event string, content map[string]any, last bool) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	if !s.closed {
		s.closed = last
		s.addLocked(event, content)
	}
}

// addLocked queues an event with the number of lines dropped before it.
func (s *stream) addLocked(event string, content map[string]any) {
	q := s.queue
	if len(q.queue) >= maxQueued { // drops the oldest line, or else the oldest event
		at := max(0, slices.IndexFunc(q.queue, func(e queued) bool {
			return e.event != nil &&
				e.event.Event == eventOutput
		}))
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

// end ends the stream without a further event.
func (s *stream) end() {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.queue.addLocked(queued{to: s, last: true})
	}
}

// line queues one line of a worker, or drops it if there are too many.
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

// drop empties the queue and stops sending, as the session is over.
func (q *eventQueue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cut, q.queue = true, nil
}

// addLocked queues an entry, and starts a sender if none runs and the plugin is not closed.
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

// next removes and returns the next entry; ok = false means that the sender must end.
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

// send sends an event. It ends the stream after the last event, or if the event cannot be sent.
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
