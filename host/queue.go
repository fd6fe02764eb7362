package host

// queue holds the requests that wait for a slot, in order, within bounds.
type queue struct {
	max, maxBytes int
	calls         []*call
	first         int
	bytes         int
}

func (q *queue) len() int    { return len(q.calls) - q.first }
func (q *queue) empty() bool { return q.len() == 0 }
func (q *queue) head() *call { return q.calls[q.first] }

func (q *queue) fits(c *call) bool {
	return q.len() < q.max && q.bytes+c.size() <= q.maxBytes
}

func (q *queue) push(c *call) {
	q.bytes += c.size()
	q.calls = append(q.calls, c)
}

func (q *queue) pop() *call {
	c := q.calls[q.first]
	q.calls[q.first] = nil
	q.first++
	q.bytes -= c.size()
	if q.first > 64 && q.first*2 > len(q.calls) { // most of it is used up
		q.calls = append(q.calls[:0], q.calls[q.first:]...)
		q.first = 0
	}
	return c
}

// remove takes the calls out that match.
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

// size is what a queued call holds in memory, in bytes.
func (c *call) size() int {
	if c.work != nil {
		return len(c.work.Object.Raw()) + c.work.Size + callOverhead
	}
	return len(c.line.Raw()) + callOverhead
}
