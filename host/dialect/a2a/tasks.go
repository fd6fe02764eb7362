package a2a

import (
	"sync"

	"a2e/protocol"
)

// Bounds of what is known of tasks that have ended. The oldest go first.
const (
	maxEnded      = 1000
	maxEndedBytes = 64 << 20
	// maxOpen bounds the tasks that have not ended; the host bounds what waits for its workers, too.
	maxOpen = 10_000
)

// tasks are those that are known.
type tasks struct {
	mu       sync.Mutex // guards the fields below
	all      map[string]*task
	messages map[string]string // task ids by messageId
	order    []*task           // all, the oldest first
	ended    int               // of all
	bytes    int               // of those
	closed   bool
}

func newTasks() tasks {
	return tasks{all: make(map[string]*task), messages: make(map[string]string)}
}

// close has no further task begin.
func (s *tasks) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// add takes in a task that begins.
func (s *tasks) add(t *task) *rpcError {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, again := s.messages[t.asked.ID]; {
	case s.closed:
		return &rpcError{Code: codeServer, Message: errEnding.Error()}
	case again:
		return &rpcError{Code: codeTaskNotFound, Message: "a message with this messageId was dispatched before; " +
			"send a new " +
			"one with an id of its own", Data: map[string]any{"taskId": s.messages[t.asked.ID]}}
	case len(s.all)-s.ended >= maxOpen:
		return &rpcError{Code: codeServer, Message: protocol.Count(maxOpen, "task") +
			" are under way; send this again later"}
	}
	s.all[t.id], s.messages[t.asked.ID] = t, t.id
	s.order = append(s.order, t)
	return nil
}

// over counts a task that has ended, and forgets the oldest beyond the bounds.
func (s *tasks) over(t *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended++
	s.bytes += t.size
	t.counted = true
	if s.ended <= maxEnded && s.bytes <= maxEndedBytes {
		return
	}
	kept := s.order[:0]
	for _, one := range s.order {
		if one.counted && (s.ended > maxEnded || s.bytes > maxEndedBytes) && one != t {
			s.ended--
			s.bytes -= one.size
			delete(s.all, one.id)
			delete(s.messages, one.asked.ID)
			continue
		}
		kept = append(kept, one)
	}
	clear(s.order[len(kept):])
	s.order = kept
}

// find returns a task that may be shown to owner; nil = there is none.
func (s *tasks) find(id, owner string) *task {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.all[id]; t != nil && t.owner == owner {
		return t
	}
	return nil
}

// of returns the tasks of an owner that fit, the newest first.
func (s *tasks) of(owner string, fits func(*task) bool) (all []*task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.order) - 1; i >= 0; i-- {
		if t := s.order[i]; t.owner == owner && fits(t) {
			all = append(all, t)
		}
	}
	return all
}
