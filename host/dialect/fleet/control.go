package fleet

import (
	"fmt"
	"time"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

const (
	maxTexts   = 16               // that wait for a worker to take them, of one task
	textWithin = 10 * time.Second // a worker takes a text or does not
)

// control does what a message about a task says. Only what cannot be done is answered.
func (f *Front) control(c *fleet.Control) {
	why := ""
	f.mu.Lock()
	t := f.tasks[c.TaskID]
	f.mu.Unlock()
	switch {
	case c.ProtocolVersion != fleet.Version:
		why = fmt.Sprintf("protocol_version %.32q is not spoken here; it must be %q", c.ProtocolVersion, fleet.Version)
	case t == nil:
		why = "no such task is under way here"
	case c.Type == fleet.TypeCancel:
		f.end(t, errCancelled)
	case c.Text == "":
		why = "text is empty"
	default:
		why = f.steer(t, c.Text)
	}
	if why != "" {
		f.cannot(c.Type, c.TaskID, why)
	}
}

// cannot tells that something cannot be done with a task.
func (f *Front) cannot(t protocol.Type, id, why string) {
	f.Broken(protocol.Errorf(protocol.CodeInvalidMessage, "%s of the task %.64q: %s", t, id, why))
}

// steer gives a text to the worker of a task; one that has not started gets it with its
// brief. It says why it cannot.
func (f *Front) steer(t *task, text string) (refused string) {
	s := make(chan bool, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case t.answered:
		return "it has ended"
	case t.steer == nil && f.bytes+len(text) > f.opts.MaxQueueBytes:
		return "overloaded: too much waits here"
	case t.steer == nil:
		t.Brief += "\n\n" + text
		t.size += len(text)
		f.bytes += len(text)
		return ""
	}
	select {
	case t.steer <- host.Steering{Text: text, Taken: s}:
		f.goes.Go(func() { f.followText(t, s) })
		return ""
	default:
		return fmt.Sprintf("%d texts wait for its worker already", maxTexts)
	}
}

// followText tells when the worker of a task does not take a text.
func (f *Front) followText(t *task, taken <-chan bool) {
	clock := time.NewTimer(textWithin)
	defer clock.Stop()
	select {
	case ok := <-taken:
		if ok {
			return
		}
	case <-t.over:
		return
	case <-clock.C:
	}
	f.cannot(fleet.TypeSteer, t.Task.TaskID, "its worker does not take the text")
}
