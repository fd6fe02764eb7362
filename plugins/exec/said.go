package exec

import (
	"bytes"
	"sync"

	"a2e/protocol"
)

const (
	maxSaid      = 16      // lists that are kept
	maxSaidBytes = 1 << 20 // of one, with its request
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
