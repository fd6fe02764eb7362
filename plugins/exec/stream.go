package exec

import (
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

const (
	maxStreams = 256     // answered requests that messages may still come for
	maxWaiting = 8 << 20 // bytes of such messages that wait for the agent to read

	// of messages that a child writes before the answer that they should follow
	maxEarly      = 100
	maxEarlyBytes = 1 << 20
)

// streams are the messages after answers, and those of no request. Each stream waits for
// itself alone; while too much waits in all, the child's output is not read.
type streams struct {
	start func(func())

	mu      sync.Mutex // guards the fields below, and the streams
	room    sync.Cond  // on mu
	byID    map[uint64]*stream
	order   []uint64 // of byID, the oldest first; ones that are closed may be among them
	pushed  *stream
	waiting int // bytes
	closed  bool
}

// stream is what comes for one request.
type stream struct {
	sess    *host.Session
	send    func(protocol.Type, any) error
	close   func()
	queue   []after
	sending bool // a goroutine sends
	over    bool // it ends with the queue
	closed  bool
}

// after is a message after an answer.
type after struct {
	typ  protocol.Type
	body jsontext.Value
	last bool // nothing follows it in its stream
}

func newAfter(t protocol.Type, obj protocol.Object) after {
	return after{t, bodyOf(obj), isLast(t, obj)}
}

func (s *streams) init(start func(func())) {
	s.start, s.byID = start, make(map[uint64]*stream)
	s.room.L = &s.mu
	s.pushed = &stream{close: func() {}}
}

// open begins the stream of a request that was answered. When there are too many the
// oldest ends. early is what came before the answer.
func (s *streams) open(id uint64, feed *host.Stream, early []after) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		feed.Close()
		return
	}
	for len(s.byID) >= maxStreams {
		s.endLocked(s.byID[s.order[0]])
		delete(s.byID, s.order[0])
		s.order = s.order[1:]
	}
	s.byID[id] = &stream{sess: feed.Session(), send: feed.Send, close: feed.Close}
	s.order = append(s.order, id)
	for _, m := range early { // without waiting: nothing of this stream goes out until its request is answered
		s.putLocked(s.byID[id], m)
	}
}

// add puts a message into the stream of its request; false means that there is none.
func (s *streams) add(id uint64, t protocol.Type, obj protocol.Object) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := s.byID[id]
	if to == nil || to.closed || to.over {
		return false
	}
	s.addLocked(to, newAfter(t, obj))
	return true
}

// push sends a message that belongs to no request.
func (s *streams) push(p *Plugin, t protocol.Type, obj protocol.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.pushed.send = p.services.Push
	s.addLocked(s.pushed, newAfter(t, obj))
}

func (s *streams) addLocked(to *stream, m after) {
	for s.waiting > maxWaiting && !s.closed && !to.closed {
		s.room.Wait()
	}
	if !s.closed && !to.closed {
		s.putLocked(to, m)
	}
}

func (s *streams) putLocked(to *stream, m after) {
	s.waiting += len(m.body)
	to.queue = append(to.queue, m)
	to.over = to.over || m.last && to != s.pushed
	if !to.sending {
		to.sending = true
		s.start(func() { s.run(to) })
	}
}

// run sends what waits in a stream.
func (s *streams) run(of *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(of.queue) > 0 {
		m := of.queue[0]
		of.queue = of.queue[1:]
		s.mu.Unlock()
		var err error
		if m.typ != protocol.TypeEnvStatePush || of.sess == nil || of.sess.Pushes {
			err = of.send(m.typ, m.body)
		}
		s.mu.Lock()
		s.waiting -= len(m.body)
		s.room.Broadcast()
		if err != nil && of != s.pushed { // without a session now, there may be one again
			s.endLocked(of)
		}
	}
	if of.sending = false; of.over {
		s.endLocked(of)
	}
}

// endLocked ends a stream: what waits in it is dropped.
func (s *streams) endLocked(of *stream) {
	if of.closed {
		return
	}
	for _, m := range of.queue {
		s.waiting -= len(m.body)
	}
	of.closed, of.queue = true, nil
	s.room.Broadcast()
	of.close()
}

// leave ends the streams of a session.
func (s *streams) leave(sess *host.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.order = slices.DeleteFunc(s.order, func(id uint64) bool {
		of := s.byID[id]
		if !of.closed && of.sess != sess {
			return false
		}
		s.endLocked(of)
		delete(s.byID, id)
		return true
	})
}

// close takes no further message. What waits still goes out: it comes from a child that
// has ended, and its last words count.
func (s *streams) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.room.Broadcast()
	for _, of := range s.byID {
		if of.over = true; !of.sending {
			s.endLocked(of)
		}
	}
}

// follows reports whether messages of a standard type come after an answer.
func follows(t protocol.Type) bool {
	switch t {
	case protocol.TypeProcReadEvent, protocol.TypeEnvStatePush, protocol.TypeMCPServerPush, protocol.TypeSubagentEvent:
		return true
	}
	return false
}

// isLast reports whether nothing follows a message in its stream.
func isLast(t protocol.Type, obj protocol.Object) bool {
	switch t {
	case protocol.TypeProcReadEvent:
		if name := obj.Text("stream_type"); name == string(protocol.StreamKilled) {
			return true
		}
		val, _ := obj.Get("data")
		data, err := protocol.ParseObject(val)
		_, ended := data.Get("code")
		return err == nil && ended
	case protocol.TypeEnvStatePush:
		val, _ := obj.Get("terminal")
		return val.Kind() == 't'
	}
	return false
}
