package link

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// The SDK queues the messages of a server without a bound. So a server may be ahead by about three windows
// of notifications and by a number of requests; then it is not read until some are handled.
const (
	windowNotes   = 64
	windowBytes   = 1 << 20
	maxMarks      = 2
	maxAsked      = 64       // requests of the server that wait for their answers
	maxAskedBytes = 32 << 20 // and their size, unless it is one alone
)

// markPrefix begins the ids of marks. A mark is a ping that seems to come from the server: notifications
// are handled in order, so its answer says that all notifications before it were handled. No id of the
// server begins like this: a JSON string begins with a quotation mark.
const markPrefix = "a2e-mark-"

// gate bounds what one server may send ahead of its handling.
type gate struct {
	stop <-chan struct{} // the end of the connection

	mu      sync.Mutex  // guards the fields below
	notes   int         // notifications since the last mark
	bytes   int         // their size
	given   uint64      // marks
	handled uint64      // marks that were answered
	asked   map[any]int // requests of the server without an answer: their sizes, by id
	size    int         // of those together
	blocked int         // number of calls that wait in admit
	heard   time.Time   // when the last message came
	changed chan struct{}

	told, taken uint64 // progress notifications that came, and how many of them were handled
}

// errID is the error of a request that would get no answer: the SDK does not answer the second of two
// requests with the same id.
var errID = errors.New("a request with the id of another one that has no answer yet")

func newGate(stop <-chan struct{}) *gate {
	return &gate{stop: stop, heard: time.Now(), asked: make(map[any]int), changed: make(chan struct{})}
}

// hear notes that a message came.
func (g *gate) hear() {
	g.mu.Lock()
	g.heard = time.Now()
	g.mu.Unlock()
}

// tell notes that progress came.
func (g *gate) tell() {
	g.mu.Lock()
	g.told++
	g.mu.Unlock()
}

// take notes that progress was handled.
func (g *gate) take() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.taken = min(g.taken+1, g.told)
	close(g.changed)
	g.changed = make(chan struct{})
}

// awaitTaken waits until the progress that has come is handled, or ctx ends. Then the rest counts as
// handled: the SDK does not know it.
func (g *gate) awaitTaken(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for told := g.told; g.taken < told; {
		changed := g.changed
		g.mu.Unlock()
		select {
		case <-changed:
			g.mu.Lock()
		case <-ctx.Done():
			g.mu.Lock()
			g.taken = max(g.taken, told)
		}
	}
}

// silence returns how long no message has come, or 0 if this side does not read at the moment.
func (g *gate) silence() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.blocked > 0 {
		return 0
	}
	return time.Since(g.heard)
}

// admit waits until one more request or notification of the server may pass; id is nil for a notification.
// A mark that it returns must follow the message. The error is errID for a request that must be left out,
// or else says that the connection ended.
func (g *gate) admit(id any, size int) (mark *jsonrpc.Request, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.fullLocked(id != nil, size) {
		changed := g.changed
		g.blocked++
		g.mu.Unlock()
		select {
		case <-changed:
		case <-g.stop:
			err = broken("the connection is closed")
		}
		g.mu.Lock()
		g.blocked--
		g.heard = time.Now()
		if err != nil {
			return nil, err
		}
	}
	if id != nil {
		if _, taken := g.asked[id]; taken {
			return nil, errID
		}
		g.asked[id] = size
		g.size += size
		return nil, nil
	}
	g.notes++
	g.bytes += size
	if g.notes < windowNotes && g.bytes < windowBytes {
		return nil, nil
	}
	g.notes, g.bytes = 0, 0
	g.given++
	return &jsonrpc.Request{ID: textID(markPrefix + strconv.FormatUint(g.given, 10)), Method: "ping"}, nil
}

// admit waits until a message of the server may pass. It returns the message and, where there is
// one, the mark that must follow. It returns nothing for a message that is skipped, and after the
// end of the connection.
func (c *conn) admit(m message) []message {
	c.gate.hear()
	req, ok := m.Message.(*jsonrpc.Request)
	if !ok {
		return []message{m}
	}
	mark, err := c.gate.admit(req.ID.Raw(), m.size)
	switch {
	case errors.Is(err, errID):
		c.skip([]byte(req.Method), err)
		return nil
	case err != nil:
		return nil
	}
	if req.Method == methodProgress {
		c.gate.tell()
	}
	if c.link.wrap(req) {
		m.text = nil
	}
	if mark != nil {
		return []message{m, {Message: mark}}
	}
	return []message{m}
}

// fullLocked reports whether a request or notification has to wait.
func (g *gate) fullLocked(call bool, size int) bool {
	if call {
		return len(g.asked) >= maxAsked || len(g.asked) > 0 && g.size+size > maxAskedBytes
	}
	return g.given-g.handled >= maxMarks
}

// answer notes that an answer goes to the server. mark = it is the answer to a mark, which the server must
// not see.
func (g *gate) answer(id any) (mark bool) {
	mark = isMark(id)
	g.mu.Lock()
	defer g.mu.Unlock()
	if mark {
		g.handled++
	} else {
		g.size -= g.asked[id]
		delete(g.asked, id)
	}
	close(g.changed)
	g.changed = make(chan struct{})
	return mark
}

func isMark(id any) bool {
	text, _ := id.(string)
	return strings.HasPrefix(text, markPrefix)
}
