package a2a

import (
	"sync"

	"a2e/protocol"
)

// Limits of the tasks that are kept after their end. The oldest are dropped first.
const (
	maxEnded      = 1000
	maxEndedBytes = 64 << 20
	// maxOpen is how many tasks may be under way. The host also limits the tasks that wait for its workers.
	maxOpen = 10_000
)

// tasks has all known tasks.
type tasks struct {
	mu       sync.Mutex // guards the fields below
	all      map[string]*task
	messages map[string]string // messageId -> id of the task
	order    []*task           // the same as all, the oldest first
	ended    int               // number of tasks that have ended
	bytes    int               // size of the tasks that have ended
	closed   bool              // no task may begin any more
}

func newTasks() tasks {
	return tasks{all: make(map[string]*task), messages: make(map[string]string)}
}

// close makes add refuse further tasks.
func (s *tasks) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// add adds a task that begins.
func (s *tasks) add(t *task) *rpcError {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, again := s.messages[t.asked.ID]; {
	case s.closed:
		return &rpcError{Code: codeServer, Message: errEnding.Error()}
	case again:
		return &rpcError{Code: codeTaskNotFound, Message: "a message with this messageId was dispatched before; " +
			"send a new one with an id of its own", Data: map[string]any{"taskId": s.messages[t.asked.ID]}}
	case len(s.all)-s.ended >= maxOpen:
		return &rpcError{Code: codeServer, Message: protocol.Count(maxOpen, "task") +
			" are under way; send this again later"}
	}
	s.all[t.id], s.messages[t.asked.ID] = t, t.id
	s.order = append(s.order, t)
	return nil
}

// over counts a task as ended, and drops the oldest ended tasks beyond the limits.
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

// find returns the task with an id, or nil if there is none or it does not belong to owner.
func (s *tasks) find(id, owner string) *task {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.all[id]; t != nil && t.owner == owner {
		return t
	}
	return nil
}

// of returns the tasks of an owner for which fits is true, the newest first.
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
