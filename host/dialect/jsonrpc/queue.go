package jsonrpc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

type sendParams struct {
	named
	Text    string       `json:"text"`
	Images  []imageParam `json:"images"`
	Enqueue bool         `json:"enqueue"`
}

func sessionSend(f *Front, _ context.Context, c *call, s *session, req *sendParams) (any, error) {
	m, err := f.pending(c, req.Text)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	busy := s.turn != nil && !s.turn.over && s.turn.stopped == nil // one that was interrupted ends by itself
	f.mu.Unlock()
	if busy && !req.Enqueue {
		return nil, jsonrpc.Params("enqueue", "a message of this session is being worked on; send with enqueue true, or session.steer, or session.interrupt first").With("code", "session_busy")
	}
	if m.images, err = f.images(s.ID, req.Images); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.submitLocked(s, m)
}

// pending makes a message of a text.
func (f *Front) pending(c *call, text string) (*pending, error) {
	switch {
	case strings.TrimSpace(text) == "":
		return nil, jsonrpc.Params("text", "must not be empty")
	case len(text) > f.opts.MaxText:
		return nil, jsonrpc.Params("text", fmt.Sprintf("has %d bytes; at most %d are taken", len(text), f.opts.MaxText))
	}
	if _, err := f.pool(); err != nil {
		return nil, err
	}
	return &pending{id: uuid.NewString(), text: text, at: stamp(f.opts.Now()), ready: c.gone}, nil
}

// submitLocked has a message worked on, now or after the others. One that was to steer the
// worker comes before those that were not.
func (f *Front) submitLocked(s *session, m *pending) (any, error) {
	told := map[string]any{"session_id": s.ID, "message_id": m.id, "status": "started", "turn_id": nil, "position": 0}
	switch {
	case f.cut:
		return nil, errEnding()
	case s.turn == nil:
		told["turn_id"] = f.startLocked(s, m).id
		return told, nil
	case len(s.queue) >= f.opts.MaxWaiting, f.heldLocked()+len(m.text) > f.opts.MaxQueueBytes:
		return nil, protocol.Errorf(protocol.CodeOverloaded, "too many messages wait already, %d of them in this session", len(s.queue))
	}
	at := 0
	for at < len(s.queue) && (!m.steers || s.queue[at].steers) {
		at++
	}
	s.queue = slices.Insert(s.queue, at, m)
	told["status"], told["position"] = "queued", at+1
	return told, nil
}

// heldLocked counts the bytes of the messages that wait.
func (f *Front) heldLocked() (bytes int) {
	for _, s := range f.sessions {
		for _, m := range s.queue {
			bytes += len(m.text) + callOverhead
			for _, i := range m.images {
				bytes += len(i.Path)
			}
		}
	}
	return bytes
}

type steerParams struct {
	named
	Text string `json:"text"`
}

func sessionSteer(f *Front, ctx context.Context, c *call, s *session, req *steerParams) (any, error) {
	m, err := f.pending(c, req.Text)
	if err != nil {
		return nil, err
	}
	m.steers = true
	f.mu.Lock()
	t := s.turn
	f.mu.Unlock()
	if t != nil && f.steer(ctx, s, t, m) {
		return map[string]any{"session_id": s.ID, "message_id": m.id, "status": "steered", "turn_id": t.id, "position": 0}, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case c.dropped:
		return nil, errDropped()
	}
	c.dropped = true // from now on it is one of the queue
	return f.submitLocked(s, m)
}

// errDropped is the answer to a text that its sender took back before a worker had it.
func errDropped() *protocol.Error {
	return protocol.Errorf(protocol.CodeCancelled, "the queue was cleared before a worker took it")
}

// steer returns a message to the worker at work; false = it did not take it.
func (f *Front) steer(ctx context.Context, s *session, t *turn, m *pending) bool {
	t.taking.Lock()
	defer t.taking.Unlock() // once it is in the history
	taken := t.take(ctx, m.text, f.opts.SteerWait)
	if taken {
		f.note(s, message{ID: m.id, Role: roleUser, Text: m.text, Steered: true})
	}
	return taken
}

// take returns a text to the worker at work; false = it did not take it, or did not look for
// one within the wait.
func (t *turn) take(ctx context.Context, text string, wait time.Duration) bool {
	taken := make(chan bool, 1)
	select {
	case t.steer <- host.Steering{Text: text, Taken: taken}:
	case <-t.done:
		return false
	case <-ctx.Done():
		return false
	case <-time.After(wait): // nobody listens
		return false
	}
	select {
	case ok := <-taken:
		return ok
	case <-t.done:
	case <-ctx.Done():
	}
	select {
	case ok := <-taken:
		return ok
	default:
		return false
	}
}

type interruptParams struct {
	named
	ClearQueue bool `json:"clear_queue"`
}

func sessionInterrupt(f *Front, _ context.Context, c *call, s *session, req *interruptParams) (any, error) {
	commands, cleared := f.stopCalls(s.ID, running, errInterrupted()), 0
	if req.ClearQueue {
		cleared = f.stopCalls(s.ID, steering, errDropped())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if req.ClearQueue {
		cleared += len(s.queue)
		s.queue = nil
	}
	told := map[string]any{"session_id": s.ID, "interrupted": s.turn != nil && !s.turn.over, "commands": commands, "cleared": cleared}
	if s.turn != nil && !s.turn.over {
		s.turn.stopped = c.gone
		s.turn.stop(errInterrupted())
	}
	return told, nil
}

func queueList(f *Front, _ context.Context, _ *call, s *session, _ *named) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]map[string]any, 0, len(s.queue))
	for i, m := range s.queue {
		list = append(list, map[string]any{"message_id": m.id, "position": i + 1, "text": m.text, "images": len(m.images), "created_at": m.at})
	}
	return map[string]any{"session_id": s.ID, "queue": list}, nil
}

// clearParams is what session.queue.clear takes out; no message = all.
type clearParams struct {
	named
	MessageID string `json:"message_id"`
}

func queueClear(f *Front, _ context.Context, _ *call, s *session, req *clearParams) (any, error) {
	cleared := 0
	if req.MessageID == "" {
		cleared = f.stopCalls(s.ID, steering, errDropped())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(s.queue)
	s.queue = slices.DeleteFunc(s.queue, func(m *pending) bool { return req.MessageID == "" || m.id == req.MessageID })
	if req.MessageID != "" && len(s.queue) == before {
		return nil, jsonrpc.Params("message_id", "no message "+quoted(req.MessageID)+" waits in this session")
	}
	return map[string]any{"session_id": s.ID, "cleared": cleared + before - len(s.queue)}, nil
}

// gate lets things pass until it is closed.
type gate struct {
	mu     sync.Mutex
	closed bool // guarded by mu
}

func (g *gate) pass(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		do()
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}
