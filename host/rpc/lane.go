package rpc

import "context"

// lane says where a method runs.
type lane int

const (
	inline   lane = iota // where requests begin, in order: it is quick
	asking               // it asks plugins; at most maxAsking at once
	running              // it runs a tool; at most Options.MaxParallel at once
	steering             // it waits for a worker; one after the other in each session
)

// maxAsking is how many lists are made at once.
const maxAsking = 8

// road is where requests run beside others, and wait for a place in order.
type road struct {
	lane    lane
	session string // of the steering lane
}

// traffic is the requests on one road. It is guarded by Front.mu.
type traffic struct {
	active  int
	waiting []*call
}

// width says how many may run at once.
func (f *Front) width(at lane) int {
	switch at {
	case asking:
		return maxAsking
	case running:
		return f.opts.MaxParallel
	}
	return 1
}

// beginSlow has a request served beside those that follow it, when there is a place. From
// now on it can be stopped.
func (f *Front) beginSlow(m method, c *call) {
	val, _ := c.params.Get("session_id")
	id, _ := val.Str()
	r := road{lane: m.at}
	if m.at == steering {
		r.session = id
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.answered.Load() { // the host ends
		return
	}
	c.session = id
	t := f.roads[r]
	if t == nil {
		t = new(traffic)
		f.roads[r] = t
	}
	if t.active == f.width(m.at) {
		c.waits = true
		t.waiting = append(t.waiting, c)
		return
	}
	t.active++
	f.driveLocked(r, c)
}

// driveLocked serves a request that has its place.
func (f *Front) driveLocked(r road, c *call) {
	ctx, stop := context.WithCancelCause(f.working)
	c.waits, c.stop = false, stop
	f.work.Go(func() {
		defer f.arrive(r) // also when a tool ends this goroutine
		defer stop(nil)
		f.serve(ctx, f.methods[c.method], c)
	})
}

// arrive gives a place to the next request.
func (f *Front) arrive(r road) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.roads[r]
	for len(t.waiting) > 0 {
		c := t.waiting[0]
		t.waiting[0] = nil // the memory of the list lives on
		t.waiting = t.waiting[1:]
		if !c.dropped && !c.answered.Load() {
			f.driveLocked(r, c)
			return
		}
	}
	if t.active--; t.active == 0 {
		delete(f.roads, r)
	}
}

// stopCommands stops the commands of a session; those that wait are answered.
func (f *Front) stopCommands(session string, why error) (stopped int) {
	var waiting []*call
	f.mu.Lock()
	for c := range f.open {
		switch {
		case c.session != session || c.dropped || f.methods[c.method].at != running:
			continue
		case c.waits:
			c.dropped = true // it must not begin before it is answered
			waiting = append(waiting, c)
		case c.stop != nil:
			c.stop(why)
		default:
			continue // it did not begin
		}
		stopped++
	}
	f.mu.Unlock()
	for _, c := range waiting {
		f.answer(c, nil, why)
	}
	return stopped
}
