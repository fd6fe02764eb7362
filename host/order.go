package host

import (
	"strings"

	"a2e/protocol"
)

// order keeps the requests that have begun in order. Requests whose keys overlap take effect in the order in which
// they came: each one waits for the earlier ones that its protocol.Access says, and for no others. A request that
// waits is only memory, without a goroutine:
//
//	begin ─┬─ no earlier one is in its way: it runs ──► pass: those that waited for it run
//	       └─ else it is parked ◄──────────────────────┘
//
// A request that is stopped while it waits keeps its position until its turn, so that later requests still wait
// for earlier ones.
type order struct {
	// guarded by Host.mu
	holding  callList // requests that hold their claims
	passed   callList // requests under way that gave up their claims
	parked   int      // waiting requests that take no slot
	bytes    int      // size of these requests in memory
	blockers []*call  // buffer that blockersOf reuses
}

// stage is how far a call has come.
type stage uint8

const (
	queued  stage = iota // it has no slot yet
	parked               // it waits for others
	stopped              // it was answered while it waited, and keeps its position until its turn
	runs
	passed // it runs, and nobody waits for it any more
	ended
)

// claim is a protocol.Claim of one request. Its key contains the value of the field, if the claim has one.
type claim struct {
	key    string
	access protocol.Access
}

// waitsFor reports whether a request with this claim waits for an earlier one.
func (c claim) waitsFor(earlier claim) bool {
	return c.access.WaitsFor(earlier.access) && (strings.HasPrefix(c.key, earlier.key) ||
		strings.HasPrefix(earlier.key, c.key))
}

// blockersOf returns the requests that c has to wait for. The slice is valid until the next call of blockersOf. The
// handshake, whose key is empty, waits for all requests of A2E; later requests of A2E wait for it.
func (o *order) blockersOf(c *call) []*call {
	o.blockers = o.blockers[:0]
	if c.dest.barrier {
		for r := range o.underWay {
			if r.work == nil {
				o.blockers = append(o.blockers, r)
			}
		}
		return o.blockers
	}
	if o.holding.last == nil {
		return nil // the usual case: nothing else runs
	}
	for _, mine := range c.claimsLocked() {
		o.addBlockers(c, mine)
	}
	if len(c.claims) == 0 && c.work == nil { // without claims it waits only for a handshake
		o.addBlockers(c, claim{})
	}
	return o.blockers
}

// addBlockers appends to o.blockers the requests that one claim has to wait for, the latest first. It stops at an
// exclusive claim of the same or a wider key: that request has waited for all earlier ones that matter.
func (o *order) addBlockers(c *call, mine claim) {
	for r := o.holding.last; r != nil; r = r.older {
		switch {
		case r.dest.barrier && c.work == nil:
			o.blockers = append(o.blockers, r)
			return
		case r.dest.barrier, mine.key == "":
			continue
		}
		for _, theirs := range r.claimsLocked() {
			if !mine.waitsFor(theirs) {
				continue
			}
			o.blockers = append(o.blockers, r)
			waited := r.work == nil || c.work != nil // r also waited for a handshake, if c has to
			if waited && theirs.access == protocol.Exclusive && strings.HasPrefix(mine.key, theirs.key) {
				return
			}
		}
	}
}

// begin adds c at the end, behind the requests that blockersOf returned. It reports whether c may run at once.
func (o *order) begin(c *call, blockers []*call) (ready bool) {
	o.holding.add(c)
	for _, r := range blockers {
		r.waiters = append(r.waiters, c)
	}
	if c.blockers = len(blockers); c.blockers == 0 {
		c.stage = runs
		return true
	}
	c.stage = parked
	if c.dest.noSlot {
		o.parked++
		o.bytes += c.size()
	}
	return false
}

// pass takes the claims away from a call, which has ended (end) or still runs, and returns the calls that may run
// now. A handshake that waits for the call goes on only when the call has ended.
func (o *order) pass(c *call, end bool) (next []*call) {
	if c.stage == passed {
		o.passed.remove(c)
	} else {
		o.holding.remove(c)
	}
	if c.stage = ended; !end {
		c.stage = passed
		o.passed.add(c)
	}
	waiters := c.waiters
	c.waiters = nil
	for _, b := range waiters {
		if b.dest.barrier && !end {
			c.waiters = append(c.waiters, b)
			continue
		}
		if b.blockers--; b.blockers > 0 {
			continue
		}
		if b.stage == parked {
			o.unpark(b, runs)
			b.begins()
			next = append(next, b)
		} else { // it was stopped while it waited
			next = append(next, o.pass(b, true)...)
		}
	}
	return next
}

// unpark ends the wait of a request, which now runs or was stopped.
func (o *order) unpark(c *call, to stage) {
	c.stage = to
	if c.dest.noSlot {
		o.parked--
		o.bytes -= c.size()
	}
}

// underWay yields the requests that have begun and not ended.
func (o *order) underWay(yield func(*call) bool) {
	for _, first := range [...]*call{o.holding.last, o.passed.last} {
		for r := first; r != nil; {
			older := r.older // yield may remove r
			if !yield(r) {
				return
			}
			r = older
		}
	}
}

func (o *order) empty() bool { return o.holding.last == nil && o.passed.last == nil }

// claimsLocked returns the claims of a request. The first call reads them from the request.
func (c *call) claimsLocked() []claim {
	if !c.claimed {
		c.claimed = true
		for _, from := range c.dest.claimsOf(c.object()) {
			for _, one := range from.Of(c.object()) {
				key := one.Key
				if strings.HasPrefix(key, protocol.KeyWorkspace) { // some file systems take A and a as the same
					key = strings.ToLower(key)
				}
				c.claims = append(c.claims, claim{key, one.Access})
			}
		}
	}
	return c.claims
}

// claimsOf returns the claims of a request: those of each plugin that may serve it. For a call of a group it
// returns the claims of all tools of the group.
func (d *destination) claimsOf(obj protocol.Object) []protocol.Claim {
	if tools := d.groups.named(obj); len(tools) > 0 {
		claims := []protocol.Claim{{Key: protocol.KeyTools, Access: protocol.Follows}}
		for _, tool := range tools {
			if call, err := obj.With("tool_name", protocol.AppendString(nil, tool)); err == nil {
				claims = append(claims, d.claimsOfRoutes(call)...)
			}
		}
		return claims
	}
	return d.claimsOfRoutes(obj)
}

func (d *destination) claimsOfRoutes(obj protocol.Object) (claims []protocol.Claim) {
	if len(d.routes) == 0 {
		return d.order
	}
	byTable := false
	for _, route := range d.routes {
		switch {
		case route.claims != nil:
			claims = append(claims, route.claims(obj)...)
		case !byTable:
			claims, byTable = append(claims, d.order...), true
		}
	}
	return claims
}

// callList is a linked list of calls. A call is in one list at most.
type callList struct{ last *call }

func (l *callList) add(c *call) {
	if c.older = l.last; c.older != nil {
		c.older.newer = c
	}
	c.newer, l.last = nil, c
}

func (l *callList) remove(c *call) {
	if c.older != nil {
		c.older.newer = c.newer
	}
	if c.newer != nil {
		c.newer.older = c.older
	} else {
		l.last = c.older
	}
	c.older, c.newer = nil, nil
}
