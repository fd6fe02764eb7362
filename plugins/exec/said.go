package exec

import (
	"bytes"
	"errors"
	"sync"
	"time"

	"a2e/protocol"
)

const (
	maxSaid      = 16      // lists that are kept
	maxSaidBytes = 1 << 20 // of one, with its request

	muteFirst = 15 * time.Second // until a list that did not come is asked for again; twice as long each time
	muteMost  = 5 * time.Minute
)

// said keeps what the child last listed, for the time in which it is too slow to list it
// again: the lists of other plugins wait for it.
type said struct {
	mu    sync.Mutex // guards the fields below
	lists []list     // the oldest first
}

// list is the answer to one request.
type list struct {
	typ       protocol.Type
	req, resp []byte
}

// listing tells whether a request is for a list that seldom changes.
func listing(t protocol.Type) bool {
	return t == protocol.TypeToolListReq || t == protocol.TypeSkillDiscoverReq || t == protocol.TypeToolkitListReq
}

// last gives the last answer to a request; nil = there is none.
func (s *said) last(q *request) []byte {
	if !listing(q.typ) {
		return nil
	}
	req := bodyOf(q.obj)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lists {
		if l.typ == q.typ && bytes.Equal(l.req, req) {
			return l.resp
		}
	}
	return nil
}

// keep notes an answer.
func (s *said) keep(q *request, resp []byte) {
	if !listing(q.typ) {
		return
	}
	req := bodyOf(q.obj)
	if len(req)+len(resp) > maxSaidBytes {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, l := range s.lists {
		if l.typ == q.typ && bytes.Equal(l.req, req) {
			s.lists[i].resp = resp
			return
		}
	}
	if len(s.lists) >= maxSaid {
		s.lists = s.lists[1:]
	}
	s.lists = append(s.lists, list{q.typ, req, resp})
}

// forget drops all, as a new child may have others.
func (s *said) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists = nil
}

// mute remembers which lists the child did not give in time, so that those of other plugins
// wait for it once and not each time.
type mute struct {
	mu    sync.Mutex
	lists map[protocol.Type]silence // by the type of the answer; guarded by mu
}

// silence is how often a list did not come, in a row.
type silence struct {
	times int
	until time.Time // when it is asked for again
	err   *protocol.Error
}

// refuse is the error of a list that is not asked for now.
func (m *mute) refuse(q *request, now time.Time) *protocol.Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.lists[q.want]; q.list && now.Before(s.until) {
		return s.err
	}
	return nil
}

// note counts a list that did not come in time.
func (m *mute) note(q *request, err error, now time.Time) {
	var own *protocol.Error
	if !q.list || !errors.As(err, &own) || own.Code != protocol.CodeTimeout {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lists == nil {
		m.lists = make(map[protocol.Type]silence)
	}
	times := m.lists[q.want].times + 1
	wait := min(muteFirst<<min(times-1, 10), muteMost)
	m.lists[q.want] = silence{times, now.Add(wait), own}
}

// heard asks for a list again, as one has come, however late; "" = for all.
func (m *mute) heard(answer protocol.Type) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if answer == "" {
		clear(m.lists)
	}
	delete(m.lists, answer)
}
