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

// Bounds of a mailbox.
const (
	maxMail      = 64
	maxMailBytes = 64 << 10
	maxTypeBytes = 256
)

// A worker may take steerWait to look at a text, and then verdictWait to say whether it takes
// it, before it counts as one that does so later, as a model does with its next request.
const (
	steerWait   = 5 * time.Second
	verdictWait = time.Second
)

// mail is a message that waits for the child's next task.
type mail struct{ text string }

// message serves SUBAGENT_MESSAGE_REQ: a worker at work that takes texts gets it at once,
// else it stands in the brief of the child's next task. It is not delivered to a child that
// is terminated, or whose mailbox is full; the event `message` says why.
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

// contentText returns a text as it is, and anything else as JSON.
func contentText(v protocol.Value) string {
	if text, ok := v.Str(); ok {
		return text
	}
	if len(v) == 0 {
		return "null"
	}
	return string(v)
}

// steer returns a text to the worker that does the child's task; false = none takes it.
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
	case j.steer <- host.Steering{Text: "Message " + text, Taken: answer}:
	case <-j.done:
		return false
	case <-ctx.Done():
		return false
	}
	verdict := func(enough <-chan struct{}) (taken, known bool) {
		select {
		case taken := <-answer:
			return taken, true
		case <-j.done: // perhaps because of the text
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
	go func() { // if it never takes it, the next task has it
		defer p.goes.Done()
		if taken, _ := verdict(nil); !taken {
			p.post(c, text)
		}
	}()
	return true
}

// post puts a text into the mailbox of a child, and says where it is, or why it is not.
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

// tellMessage tells of a message to a child.
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
