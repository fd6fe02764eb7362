package jsonrpc

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// lane says where a method runs.
type lane int

const (
	inline  lane = iota // where requests begin, in order: it is quick, where the store is
	free                // the same, but it needs nothing, and overtakes one that takes long
	asking              // it asks plugins; at most maxAsking at once
	running             // it runs a tool; at most Options.MaxParallel at once
	lanes
)

const maxAsking = 8 // lists that are made at once

// loop begins the requests in order. What is not free waits behind one that the store, say,
// keeps waiting.
func (f *Front) loop() {
	var ahead <-chan struct{} // closed when that one is answered; nil = there is none
	for {
		c, over := f.next(ahead != nil)
		switch {
		case over:
			return
		case c != nil:
			ahead = cmp.Or(f.begin(c), ahead)
		default:
			select {
			case <-f.wake: // Drain tells it too
			case <-ahead:
				ahead = nil
			}
		}
	}
}

// next takes the request that begins next, where others wait one that may overtake them;
// over = none comes any more.
func (f *Front) next(others bool) (c *call, over bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut {
		return nil, true
	}
	if c = f.shiftLocked(&f.incoming, others); c != nil {
		return c, false
	}
	return nil, f.draining && !others
}

// shiftLocked takes the first request that shall begin out of a list, or the first that may
// overtake the others; nil = there is none. Those that shall not begin any more go.
func (f *Front) shiftLocked(list *[]*call, overtaking bool) *call {
	for at := 0; at < len(*list); {
		c := (*list)[at]
		idle := c.dropped || c.answered.Load()
		// It may be the handshake that others wait for, which only a ping does without.
		if !idle && overtaking && (f.methods[c.method].at != free || !f.admitted && c.method != jsonrpc.Ping) {
			at++
			continue
		}
		if at == 0 {
			dialect.Shift(list)
		} else {
			*list = slices.Delete(*list, at, at+1)
		}
		if !idle {
			c.waits = false
			return c
		}
		f.closeLocked(c)
	}
	return nil
}

// begin serves a request, or has it served. The channel is of one that takes long and that
// others wait behind; it is closed when it is done.
func (f *Front) begin(c *call) (ahead <-chan struct{}) {
	m, known := f.methods[c.method]
	f.mu.Lock()
	admitted := f.admitted
	f.mu.Unlock()
	switch {
	case !admitted && c.method != jsonrpc.Handshake && c.method != jsonrpc.Ping:
		f.answer(c, nil, jsonrpc.Errorf(jsonrpc.CodeUnauthorized, "unauthorized: send rpc.handshake with the host's auth_token first"))
	case !known:
		f.answer(c, nil, jsonrpc.NotFound(c.method))
	case !m.takes.fits(c.shape):
		f.answer(c, nil, jsonrpc.NotObject(c.method))
	case m.at == free:
		f.serve(f.working, m, c)
	case m.at == inline:
		return f.serveInline(m, c)
	default:
		f.beginSlow(m, c)
	}
	return nil
}

// overtaken is how long a request holds up the free ones behind it.
const overtaken = 20 * time.Millisecond

// serveInline serves a request that others wait behind, which must not be for long.
func (f *Front) serveInline(m method, c *call) (ahead <-chan struct{}) {
	served := make(chan struct{})
	f.work.Go(func() {
		defer close(served)
		ctx, cancel := context.WithTimeoutCause(f.working, f.opts.StoreWait, errSlow(f.opts.StoreWait))
		defer cancel()
		f.serve(ctx, m, c)
	})
	select {
	case <-served:
		return nil
	case <-time.After(overtaken):
		return served
	}
}

// limiter is the requests of one lane, which wait for a place in order. It is guarded by Front.mu.
type limiter struct {
	active  int
	waiting []*call
}

// width says how many may run at once.
func (f *Front) width(at lane) int {
	if at == asking {
		return maxAsking
	}
	return f.opts.MaxParallel
}

// beginSlow has a request served beside those that follow it, when there is a place. From
// now on it can be stopped.
func (f *Front) beginSlow(m method, c *call) {
	id := c.params.Text("session_id")
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.dropped || c.answered.Load() { // it was taken back, or the host ends
		return
	}
	c.session = id
	t := &f.limiters[m.at]
	if t.active == f.width(m.at) {
		c.waits = true
		t.waiting = append(t.waiting, c)
		return
	}
	t.active++
	f.beginLocked(m.at, c)
}

// beginLocked serves a request that has its place.
func (f *Front) beginLocked(at lane, c *call) {
	ctx, stop := context.WithCancelCause(f.working)
	c.waits, c.stop = false, stop
	f.work.Go(func() {
		defer f.arrive(at) // also when a tool ends this goroutine
		defer stop(nil)
		f.serve(ctx, f.methods[c.method], c)
	})
}

// arrive returns a place to the next request.
func (f *Front) arrive(at lane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &f.limiters[at]
	if c := f.shiftLocked(&t.waiting, false); c != nil {
		f.beginLocked(at, c)
		return
	}
	t.active--
}

// cancel serves $/cancelRequest. Requests that did not begin are answered, those that run
// are stopped, which they answer. One that is answered, unknown or quick is none of its.
func (f *Front) cancel(c *call) {
	id, _ := c.params.Get("id")
	var idle []*call
	f.mu.Lock()
	for _, c := range f.byID[jsonrpc.Key(jsontext.Value(id))] {
		switch at := f.methods[c.method].at; {
		case c.stop != nil:
			c.stop(errTakenBack())
		case c.waits || at != inline && at != free: // its place comes any moment
			c.dropped = true
			idle = append(idle, c)
		}
	}
	f.mu.Unlock()
	for _, c := range idle {
		f.answer(c, nil, errTakenBack())
	}
	f.answer(c, nil, nil)
}

func errTakenBack() *protocol.Error {
	return protocol.Errorf(protocol.CodeCancelled, "cancelled by %s", jsonrpc.CancelMethod)
}

// stopCommands stops the commands of a session. What waits is answered.
func (f *Front) stopCommands(session string) (stopped int) {
	var waiting []*call
	f.mu.Lock()
	for c := range f.open {
		switch {
		case c.session != session || c.dropped || c.method != jsonrpc.CommandExecute:
			continue
		case c.waits:
			c.dropped = true // it must not begin before it is answered
			waiting = append(waiting, c)
		case c.stop != nil:
			c.stop(errInterrupted())
		default:
			continue // it did not begin
		}
		stopped++
	}
	f.mu.Unlock()
	for _, c := range waiting {
		f.answer(c, nil, errInterrupted())
	}
	return stopped
}
