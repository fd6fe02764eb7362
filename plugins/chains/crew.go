package chains

import "sync"

// pool is the goroutines that the nodes and items of one request share, beyond that of
// the request itself. Nobody waits for one: work goes on without, and whoever asked is
// served when one is free.
type pool struct {
	all sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	free    int        // goroutines that may still be started
	waiting []*crew    // that asked while none was free, each once at most
}

// ask sends a goroutine to help a crew, now or later.
func (p *pool) ask(c *crew) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 {
		p.waiting = append(p.waiting, c)
		return
	}
	p.free--
	p.all.Go(func() { p.serve(c) })
}

// serve is one goroutine: it helps crews until none waits.
func (p *pool) serve(c *crew) {
	helped := false
	defer func() {
		if helped {
			return
		}
		if next := p.next(); next != nil { // a plugin ended the goroutine; another one goes on in its place
			p.all.Go(func() { p.serve(next) })
		}
	}()
	for c != nil {
		c.help()
		c = p.next()
	}
	helped = true
}

// next gives the crew that has waited longest; nil = the goroutine is free.
func (p *pool) next() *crew {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		p.free++
		return nil
	}
	c := p.waiting[0]
	p.waiting = p.waiting[1:]
	return c
}

// crew works off tasks, with as many goroutines as there are tasks, its own bound and the
// pool's allow.
//
//	run ─ work ─┬─ next ─ more? ask the pool ─ do ─┐
//	            └──────────────◄──────────────────-┘  … until next has none
type crew struct {
	pool *pool
	most int                // goroutines at once
	next func() (int, bool) // gives a task; mu is held
	more func() bool        // is there another one? mu is held
	do   func(task int)     // mu is not held

	mu     sync.Mutex // guards the fields below, and what next and more look at
	active int
	asked  bool // the pool has been asked, and has sent nobody yet
	closed bool
	done   chan struct{} // closed when nobody works any more
}

// run works off all tasks, those that come up meanwhile too.
func (c *crew) run() {
	c.done = make(chan struct{})
	c.active = 1
	c.work()
	<-c.done
}

// help joins in, if there still is something to do.
func (c *crew) help() {
	c.mu.Lock()
	c.asked = false
	closed := c.closed
	if !closed {
		c.active++
	}
	c.mu.Unlock()
	if !closed {
		c.work()
	}
}

func (c *crew) work() {
	c.mu.Lock()
	held := true
	defer func() {
		if !held { // do ended the goroutine
			c.mu.Lock()
		}
		if c.active--; c.active == 0 {
			c.closed = true
			close(c.done)
		}
		c.mu.Unlock()
	}()
	for {
		task, ok := c.next()
		if !ok {
			return
		}
		if !c.asked && c.active < c.most && c.more() {
			c.asked = true
			c.pool.ask(c)
		}
		c.mu.Unlock()
		held = false
		c.do(task)
		c.mu.Lock()
		held = true
	}
}
