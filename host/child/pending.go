package child

import "sync"

// Pending is the requests that a process has not answered, by the ids that it knows them by.
// Each is taken out once: by its answer, by who gives it up, or by the end of the process.
// The zero value is empty; it is safe for concurrent use.
type Pending[ID comparable, Req any] struct {
	mu       sync.Mutex // guards the fields below
	open     map[ID]*numbered[Req]
	ended    bool
	sent     uint64 // requests so far
	answered uint64 // the last of them that was answered, by its number
	mark     uint64 // one with this number or a later one was read after all that has no answer
}

// numbered is a request with its number.
type numbered[Req any] struct {
	req    Req
	number uint64
}

// Add puts a request in, right before it is sent. alone says that the process has read
// everything that was sent before; ok is false once it has ended.
func (p *Pending[ID, Req]) Add(id ID, req Req) (alone, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false, false
	}
	if p.open == nil {
		p.open = make(map[ID]*numbered[Req])
	}
	alone = len(p.open) == 0 && p.answered >= p.mark
	p.sent++
	p.open[id] = &numbered[Req]{req, p.sent}
	return alone, true
}

// Told notes that something was sent that has no answer.
func (p *Pending[ID, Req]) Told() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mark = p.sent + 1
}

// Get returns a request that waits.
func (p *Pending[ID, Req]) Get(id ID) (req Req, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.open[id]; n != nil {
		return n.req, true
	}
	return req, false
}

// Take takes out the request that an answer is for.
func (p *Pending[ID, Req]) Take(id ID) (req Req, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.open[id]
	if n == nil {
		return req, false
	}
	delete(p.open, id)
	p.answered = max(p.answered, n.number)
	return n.req, true
}

// Drop takes out a request that is given up; what was sent of it may not have been read.
// False means that it was out.
func (p *Pending[ID, Req]) Drop(id ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.open[id]
	if n == nil {
		return false
	}
	delete(p.open, id)
	p.mark = max(p.mark, n.number+1)
	return true
}

// Len is how many there are.
func (p *Pending[ID, Req]) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}

// Idle reports whether there is none.
func (p *Pending[ID, Req]) Idle() bool { return p.Len() == 0 }

// Requests returns those there are, in no order.
func (p *Pending[ID, Req]) Requests() []Req {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requestsLocked()
}

func (p *Pending[ID, Req]) requestsLocked() []Req {
	all := make([]Req, 0, len(p.open))
	for _, n := range p.open {
		all = append(all, n.req)
	}
	return all
}

// End takes out all requests, and takes none any more: the process has ended.
func (p *Pending[ID, Req]) End() []Req {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.requestsLocked()
	p.open, p.ended = nil, true
	return all
}
