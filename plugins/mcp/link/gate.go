package link

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// The SDK queues what a server sends without a bound. So a server gets ahead by at most
// three windows of notifications, and by so many requests; then it is not read any more
// until some were handled.
const (
	windowNotes = 64
	windowBytes = 1 << 20
	maxMarks    = 2
	maxAsked    = 64 // requests of the server that wait for their answers
)

// markPrefix begins the ids of marks. A mark is a ping that seems to come from the
// server: as notifications are handled in order, its answer says that all before it were.
const markPrefix = "a2e-mark-"

// gate bounds what one server may send ahead of its handling.
type gate struct {
	stop <-chan struct{} // the end of the connection

	mu      sync.Mutex // guards the fields below
	notes   int        // notifications since the last mark
	bytes   int        // their size
	given   uint64     // marks
	handled uint64     // marks that were answered
	asked   int        // requests of the server without an answer
	blocked int        // how many wait in admit
	heard   time.Time  // when the last message came
	changed chan struct{}
}

func newGate(stop <-chan struct{}) *gate {
	return &gate{stop: stop, heard: time.Now(), changed: make(chan struct{})}
}

// hear notes that a message came.
func (g *gate) hear() {
	g.mu.Lock()
	g.heard = time.Now()
	g.mu.Unlock()
}

// silence tells for how long no message came; 0 if it is this side that does not read.
func (g *gate) silence() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.blocked > 0 {
		return 0
	}
	return time.Since(g.heard)
}

// admit waits until one more request or notification of the server may pass. False means
// that the connection ended. A mark that comes back must follow it.
func (g *gate) admit(call bool, size int) (mark *jsonrpc.Request, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for call && g.asked >= maxAsked || !call && g.given-g.handled >= maxMarks {
		changed := g.changed
		g.blocked++
		g.mu.Unlock()
		select {
		case <-changed:
			ok = true
		case <-g.stop:
			ok = false
		}
		g.mu.Lock()
		g.blocked--
		g.heard = time.Now()
		if !ok {
			return nil, false
		}
	}
	if call {
		g.asked++
		return nil, true
	}
	g.notes++
	g.bytes += size
	if g.notes < windowNotes && g.bytes < windowBytes {
		return nil, true
	}
	g.notes, g.bytes = 0, 0
	g.given++
	id, _ := jsonrpc.MakeID(markPrefix + strconv.FormatUint(g.given, 10)) // a text is always an id
	return &jsonrpc.Request{ID: id, Method: "ping"}, true
}

// answer notes that an answer goes to the server. True means that it is that of a mark,
// which the server must not see.
func (g *gate) answer(id any) (mark bool) {
	text, _ := id.(string)
	mark = strings.HasPrefix(text, markPrefix)
	g.mu.Lock()
	defer g.mu.Unlock()
	if mark {
		g.handled++
	} else {
		g.asked = max(g.asked-1, 0)
	}
	close(g.changed)
	g.changed = make(chan struct{})
	return mark
}
