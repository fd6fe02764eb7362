package worker

import (
	"context"
	"os"
	"sync"

	"a2e/host/lineio"
)

// launch starts a child. It is called with starts held.
func (r *runner) launch() (*child, error) {
	p := r.pool
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	c := &child{
		runner: r, log: p.env.Log.With().Str("worker", r.Name).Logger(), started: p.env.Now(),
		input: lineio.NewOutbox(ours), greeted: make(chan struct{}), done: make(chan struct{}), jobs: make(map[string]*job),
		noise: lineio.Noise{Burst: 1}, words: lineio.Tail{Size: maxWords},
	}
	c.out = &lineio.Splitter{Max: maxFleetLine, Line: c.receive, Long: c.tooLong}
	c.errs = newWords(c.hear)
	ctx, stop := context.WithCancelCause(p.ctx)
	c.kill = stop
	if !p.adopt(r, c) {
		err = errClosed
	} else if c.proc, err = r.start(ctx, streams{in: theirs, out: c.out, err: c.errs, silent: c.silent}, nil, p.env.Agent); err != nil {
		p.disown(r)
	}
	if err != nil {
		c.over(err)
		ours.Close()
		stop(err)
		return nil, err
	}
	go func() {
		defer p.goes.Done()
		var feed sync.WaitGroup
		feed.Go(func() { c.input.Run(c.done, c.kill, p.pace.end) })
		c.wait()
		feed.Wait()
	}()
	return c, nil
}

// adopt makes c the child of a worker before it starts, so that its first words are heard;
// false = the pool is closed. goes counts it.
func (p *Pool) adopt(r *runner, c *child) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.goes.Add(1)
	r.child, r.health.announced = c, nil
	return true
}

// disown takes back adopt for a child that did not start.
func (p *Pool) disown(r *runner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.child = nil
	p.goes.Done()
}

// over ends a child that did not start.
func (c *child) over(err error) {
	c.mu.Lock()
	c.jobs = nil
	c.mu.Unlock()
	c.end = err
	close(c.done)
}

// running gives the child that runs, and starts one if none does.
func (r *runner) running(ctx context.Context) (*child, error) {
	r.starts.Lock()
	defer r.starts.Unlock()
	p := r.pool
	p.mu.Lock()
	c, closed := r.child, p.closed
	p.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case closed:
		return nil, errClosed
	case c != nil:
		return c, nil
	}
	return r.launch()
}
