package exec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"a2e/host/child"
	"a2e/protocol"
)

// times are the plugin's waits, except those of the config.
type times struct {
	firstDelay time.Duration // before the start after the first failure; doubled after each further one
	maxDelay   time.Duration
	open       time.Duration // between starts after too many failures
	soon       time.Duration // a child that ends sooner, and has served little, counts as a failure
	ping       time.Duration // a child that is silent for this time gets a ping
	pong       time.Duration // wait for the answer to a ping
	ask        time.Duration // wait for the agent's answer to the child
	listing    time.Duration // for the first list of tools; then calls do not wait for it any more
	farewell   time.Duration // wait for the end of a child that was told to end
}

func usualTimes(o *Options) times {
	return times{
		listing:    o.StartTimeout,
		firstDelay: 250 * time.Millisecond, maxDelay: 30 * time.Second, open: time.Minute, soon: 10 * time.Second,
		ping: 15 * time.Second, pong: 10 * time.Second, ask: 5 * time.Minute, farewell: time.Second,
	}
}

// servedEnough is the number of answers after which an early end of the child is not a failure.
const servedEnough = 20

// refuse returns the error for a request while there is no child.
func (p *Plugin) refuse(down child.Backoff) *protocol.Error {
	wait := down.Wait(p.env.Now())
	return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q is down: %w; it is started again in %s", p.name,
		cmp.Or(down.Last, errStarts), wait.Round(time.Millisecond)).With("retry_after", wait.Seconds())
}

// errStarts is the reason why there is no child before the first start.
var errStarts = errors.New("its child has not started yet")

// supervise keeps a child running until the plugin is closed.
//
//	start ─ handshake ─ up ─ ends ─┐
//	  ▲         └─ fails ──────────┼─► wait, longer after each failure
//	  └────────────────────────────┘
func (p *Plugin) supervise() {
	for {
		c, err := p.begin()
		lived, good := time.Duration(0), false
		if err == nil {
			// before all requests: else a child that hangs at its first request looks like one without pings
			asked := c.ping()
			p.set(c, nil)
			p.watch(c, asked)
			err, lived, good = c.End(), c.End().Lived, c.remade.Load() || c.served.Load() >= servedEnough
		}
		p.mu.Lock()
		p.down.First, p.down.Most, p.down.Pause = p.times.firstDelay, p.times.maxDelay, p.times.open
		p.down.Enough, p.down.Limit = p.times.soon, p.opts.MaxRestarts
		p.down.Down(p.env.Now(), err, lived, good)
		down, closed := p.down, p.closed || p.ctx.Err() != nil
		p.mu.Unlock()
		if closed {
			p.set(nil, errClosed)
			return
		}
		if down.Wait(p.env.Now()) > 0 {
			p.set(nil, err)
		}
		p.log.Warn().Err(err).Int("failures", down.Failures).Time("next_start", down.Ready).Msg("the plugin has no " +
			"child")
		select {
		case <-time.After(down.Wait(p.env.Now())):
		case <-p.ctx.Done():
			p.set(nil, errClosed)
			return
		}
		p.restarting()
	}
}

// restarting notes that there is no child now, and that another one is being started.
func (p *Plugin) restarting() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child = nil; p.starting == nil {
		p.starting = make(chan struct{})
	}
}

// set stores the child, or why there is none, and wakes the requests that wait for it.
func (p *Plugin) set(c *peer, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child = c; c != nil {
		p.offer = c.offer.Load()
	} else {
		p.down.Last = why
	}
	if p.starting != nil {
		close(p.starting)
		p.starting = nil
	}
	p.settle()
}

// begin starts a child and makes the handshake with it.
func (p *Plugin) begin() (*peer, error) {
	c, err := p.launch()
	if err != nil {
		return nil, err
	}
	if c.greet(p.ctx, p.name) != nil {
		c.Kill(errClosed) // has no effect if the child was killed for another reason
		<-c.Done()
		return nil, c.End()
	}
	return c, nil
}

// watch waits for the end of a child. A child that has answered a ping must answer the next ones, too,
// unless a request keeps it busy. asked is the first ping.
func (p *Plugin) watch(c *peer, asked *pending) {
	var listing sync.WaitGroup
	defer listing.Wait()
	listing.Go(func() { p.learnTools(c) })
	tick := time.NewTicker(p.times.ping)
	defer tick.Stop()
	owed, answers := true, false
	for {
		select {
		case <-c.Done():
			return
		case <-tick.C:
		}
		c.sweep()
		select {
		case got := <-asked.reply:
			owed, answers = false, answers || got.err == nil
		default:
		}
		switch {
		case !answers: // it has not answered a ping yet
		case owed && c.hung(asked):
			c.Kill(fmt.Errorf("it says nothing, not even to a ping, for %s", c.silent().Round(time.Millisecond)))
		case !owed && c.silent() >= p.times.ping:
			asked, owed = c.ping(), true
		}
	}
}

// ping sends a ping to the child.
func (c *peer) ping() *pending {
	r := &pending{asks: protocol.TypePing, want: protocol.TypePong, reply: make(chan reply, 1)}
	if err := c.send(r, protocol.Object{}); err != nil {
		c.log.Debug().Err(err).Msg("the plugin's child was not asked whether it lives")
	}
	return r
}

// hung reports whether a child that owes a pong hangs. It may do one thing at a time and be busy with
// a request, but not for longer than the request may take.
func (c *peer) hung(asked *pending) bool {
	if c.busy.Load() {
		return false
	}
	limit := c.plugin.times.pong
	for _, r := range c.calls.Requests() { // the ping itself has no limit
		limit = max(limit, c.plugin.times.pong+r.limit)
	}
	return min(c.silent(), c.plugin.env.Now().Sub(asked.since)) > limit
}

// sweep frees the places of requests that were given up long ago: the child has lost
// them.
func (c *peer) sweep() {
	now := c.plugin.env.Now()
	for _, r := range c.calls.Requests() {
		if r.gone.Load() && now.Sub(r.since) > r.limit+c.plugin.times.open {
			c.forget(r)
		}
	}
}

// farewell tells the child to end and waits for that, at most for grace.
func (c *peer) farewell(ctx context.Context, grace time.Duration) {
	if end, ok := ctx.Deadline(); ok { // some of the time is left to kill its process tree
		grace = min(grace, time.Until(end)/2)
	}
	c.tell(protocol.TypeShutdown, nil, &protocol.Shutdown{Timeout: int(grace / time.Second)})
	c.Close()
	c.Await(ctx, grace)
}
