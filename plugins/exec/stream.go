package exec

import (
	"maps"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

const (
	maxStreams = 256 // answered requests that may still get messages

	// bounds of the messages that a child writes before the answer that they must follow
	maxEarly      = 100
	maxEarlyBytes = 1 << 20
)

// streams has the streams for messages after answers, by the ids of the requests. While the agent
// does not read, the child's output is not read either.
type streams struct {
	mu   sync.Mutex // guards the field below
	byID map[uint64]*host.Stream
}

// after is a message after an answer.
type after struct {
	typ  protocol.Type
	body jsontext.Value
	last bool // it is the last one of its stream
}

func newAfter(t protocol.Type, obj protocol.Object) after {
	return after{t, bodyOf(obj), isLast(t, obj)}
}

// open begins the stream of a request that was answered. If there are too many, it closes the oldest.
func (s *streams) open(id uint64, feed *host.Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = make(map[uint64]*host.Stream)
	}
	s.byID[id] = feed
	if len(s.byID) > maxStreams {
		s.endLocked(slices.Min(slices.Collect(maps.Keys(s.byID))))
	}
}

// send sends a message in the stream of its request; false = the request has no stream. It waits while the agent
// does not read.
func (s *streams) send(id uint64, m after) bool {
	s.mu.Lock()
	to := s.byID[id]
	s.mu.Unlock()
	if to == nil {
		return false
	}
	var err error
	if sess := to.Session(); m.typ != protocol.TypeEnvStatePush || sess == nil || sess.Pushes {
		err = to.Send(m.typ, m.body)
	}
	if err != nil || m.last {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.endLocked(id)
	}
	return true
}

func (s *streams) endLocked(id uint64) {
	if of := s.byID[id]; of != nil {
		of.Close()
	}
	delete(s.byID, id)
}

// leave closes the streams of a session; nil = of all sessions.
func (s *streams) leave(sess *host.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, to := range s.byID {
		if sess == nil || to.Session() == sess {
			s.endLocked(id)
		}
	}
}

// follows reports whether messages of a standard type are sent after an answer.
func follows(t protocol.Type) bool {
	switch t {
	case protocol.TypeProcReadEvent, protocol.TypeEnvStatePush, protocol.TypeMCPServerPush, protocol.TypeSubagentEvent:
		return true
	}
	return false
}

// isLast reports whether a message is the last one of its stream.
func isLast(t protocol.Type, obj protocol.Object) bool {
	switch t {
	case protocol.TypeProcReadEvent:
		data, _ := obj.Child("data")
		_, ended := data.Get("code")
		return ended || obj.Text("stream_type") == string(protocol.StreamKilled)
	case protocol.TypeEnvStatePush:
		val, _ := obj.Get("terminal")
		return val.Kind() == 't'
	}
	return false
}
