package host

import (
	"a2e/protocol"
)

// strands keep the immediate requests in order. They wait behind no others, but those about
// the same thing, such as one process, take effect in the order in which they came: one of
// them is under way, and the others wait for it here, as text, not as goroutines.
//
//	immediate ─┬─ nothing of its strand is under way: run here ──► answer ─► pass
//	           └─ else: parked ◄──────────── a worker runs it next ──────────┘
type strands struct {
	// guarded by Host.mu
	parked map[string][]*call // by thing; a strand that is under way has an entry
	calls  int                // parked
	bytes  int                // of those
}

// admitAheadLocked begins an immediate request, or parks it behind those before it.
func (h *Host) admitAheadLocked(c *call, t *turn) (started bool, err error) {
	c.thing = c.thingOf()
	waiting, busy := h.strands.parked[c.thing]
	if !busy {
		h.strands.parked[c.thing] = nil
		h.aside[c] = struct{}{}
		return true, nil
	}
	s := &h.strands
	if s.calls >= h.opts.Limits.Queue || s.bytes+c.size() > h.opts.Limits.QueueBytes {
		return false, protocol.Errorf(protocol.CodeOverloaded,
			"%d requests wait for an earlier %s or its like, which is all that limits.max_queue allows; send it again later", s.calls, c.dest.typ)
	}
	if err := c.keepLine(t); err != nil {
		return false, err
	}
	c.parked = true
	s.calls++
	s.bytes += c.size()
	s.parked[c.thing] = append(waiting, c)
	h.aside[c] = struct{}{}
	return false, nil
}

// thingOf names what an immediate request is about: the same for all of its capability
// unless the route has a field that says so.
func (c *call) thingOf() string {
	thing := c.dest.space + "\x00"
	if c.dest.names == "" {
		return thing
	}
	val, _ := c.line.Object().Get(c.dest.names)
	name, _ := val.Str()
	return thing + name
}

// passLocked ends an immediate request's turn, and gives the one that follows it.
func (h *Host) passLocked(c *call) (next []*call) {
	if c.thing == "" {
		return nil // it has passed already
	}
	thing := c.thing
	c.thing = ""
	if c.passed != nil {
		close(c.passed)
	}
	s := &h.strands
	waiting := s.parked[thing]
	if len(waiting) == 0 {
		delete(s.parked, thing)
		return nil
	}
	first := waiting[0]
	waiting[0] = nil // the memory of the list lives on
	s.parked[thing] = waiting[1:]
	s.calls--
	s.bytes -= first.size()
	first.parked, first.start = false, h.elapsed()
	return []*call{first}
}
