package host

import (
	"cmp"
	"context"
	"slices"
)

// Slots bounds how many requests run at once; further ones wait in its queue. A host has one Slots for
// max_parallel, and those that its dialects make.
type Slots struct {
	host  *Host
	max   int
	taken int // guarded by Host.mu, as queue is
	queue queue
}

// NewSlots returns n slots for works of the host that ctx belongs to, beside those of max_parallel.
// Options.Limits bounds the works that wait for them.
func NewSlots(ctx context.Context, n int) *Slots {
	h, _ := ctx.Value(hostKey{}).(*Host)
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.addSlotsLocked(n)
}

func (h *Host) addSlotsLocked(n int) *Slots {
	p := &Slots{host: h, max: n, queue: queue{max: h.opts.Limits.Queue, maxBytes: h.opts.Limits.QueueBytes}}
	h.slots = append(h.slots, p)
	return p
}

// Taken returns how many slots are taken.
func (p *Slots) Taken() int {
	p.host.mu.Lock()
	defer p.host.mu.Unlock()
	return p.taken
}

// queue holds a bounded number of requests that wait for a slot: higher ranks first, equal ranks in order.
type queue struct {
	max, maxBytes int
	calls         []*call
	first         int
	bytes         int
}

func (q *queue) len() int    { return len(q.calls) - q.first }
func (q *queue) empty() bool { return q.len() == 0 }

func (q *queue) fits(c *call) bool {
	return q.len() < q.max && q.bytes+c.size() <= q.maxBytes
}

func (q *queue) push(c *call) {
	q.bytes += c.size()
	if q.empty() || q.calls[len(q.calls)-1].rank() >= c.rank() {
		q.calls = append(q.calls, c)
		return
	}
	at, _ := slices.BinarySearchFunc(q.calls[q.first:], c.rank(), func(other *call, rank int) int {
		return cmp.Or(rank-other.rank(), -1) // behind those of its rank
	})
	q.calls = slices.Insert(q.calls, q.first+at, c)
}

func (q *queue) pop() *call {
	c := q.calls[q.first]
	q.calls[q.first] = nil
	q.first++
	q.bytes -= c.size()
	if q.first > 64 && q.first*2 > len(q.calls) { // most of the slice is used up
		q.calls = append(q.calls[:0], q.calls[q.first:]...)
		q.first = 0
	}
	return c
}

// remove takes out the calls that match, and returns them.
func (q *queue) remove(match func(*call) bool) (out []*call) {
	kept := q.calls[:q.first]
	for _, c := range q.calls[q.first:] {
		if match(c) {
			q.bytes -= c.size()
			out = append(out, c)
		} else {
			kept = append(kept, c)
		}
	}
	clear(q.calls[len(kept):])
	q.calls = kept
	return out
}

// rank returns the priority of a call. The call with the highest rank begins first.
func (c *call) rank() int {
	if c.work != nil {
		return c.work.Priority
	}
	return 0
}

// size returns how many bytes a waiting call holds in memory.
func (c *call) size() int {
	if c.work != nil {
		return len(c.work.Object.Raw()) + c.work.Size + callOverhead
	}
	return len(c.line.Raw()) + callOverhead
}
