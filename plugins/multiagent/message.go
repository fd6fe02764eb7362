package multiagent

import (
	"context"
	"time"

	"a2e/host"
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
func (p *Plugin) message(ctx context.Context, r *protocol.SubagentMessageRequest, _ host.Emitter) (*protocol.SubagentMessageResponse, error) {
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
		return nil, wrong("/message/content", "has %d bytes; it may have %d: put long texts into a file and name it", len(r.Message.Content), maxMailBytes)
	}
	text := "from " + from + ", " + r.Message.Type + ": " + contentText(protocol.Value(r.Message.Content))
	how, delivered := "worker", p.steer(ctx, to, text)
	if !delivered {
		how, delivered = p.post(to, text)
	}
	p.tellMessage(to, map[string]any{"from": r.FromSubagentID, "type": r.Message.Type, "delivered": delivered, "to": how})
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
