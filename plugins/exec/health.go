package exec

import (
	"context"
	"fmt"
	"sync"
	"time"

	"a2e/protocol"
)

// times are the plugin's waits, apart from those of the config.
type times struct {
	firstDelay time.Duration // before the start after one failure; twice as long after each further one
	maxDelay   time.Duration
	open       time.Duration // between starts once there were too many failures
	soon       time.Duration // a child that ends sooner, and has served little, is a failure
	ping       time.Duration // how often the child is asked whether it lives
	pong       time.Duration // for its answer
	ask        time.Duration // for the agent's answer to the child
	farewell   time.Duration // for the end of a child that was told to end
}

func usualTimes() times {
	return times{
		firstDelay: 250 * time.Millisecond, maxDelay: 30 * time.Second, open: time.Minute, soon: 10 * time.Second,
		ping: 15 * time.Second, pong: 10 * time.Second, ask: 5 * time.Minute, farewell: time.Second,
	}
}

// servedEnough is how many answers make up for a child that ended soon.
const servedEnough = 20

// downtime says why there is no child.
type downtime struct {
	why      error
	failures int       // in a row
	until    time.Time // when the next one is started
	open     bool      // there were too many failures
}

// refuse is the answer to a request while there is no child.
func (d *downtime) refuse(plugin string, now time.Time) *protocol.Error {
	if d == nil {
		return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: its child has not started yet; send it again in a moment", plugin)
	}
	wait := max(d.until.Sub(now), 0)
	text := "it is started again in " + wait.Round(time.Millisecond).String()
	if wait == 0 {
		text = "it is being started again"
	}
	if d.open {
		text = fmt.Sprintf("after %d failures in a row %s", d.failures, text)
	}
	return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q is down: %w; %s", plugin, d.why, text).With("retry_after", wait.Seconds())
}

// supervise keeps a child running until the plugin is closed.
//
//	start ─ handshake ─ up ─ ends ─┐
//	  ▲         └─ fails ──────────┼─► wait, longer after each failure
//	  └────────────────────────────┘
func (p *Plugin) supervise() {
	for failures := 0; ; {
		c, err := p.begin()
		failures++
		if err == nil {
			asked := c.ping() // before all requests: else one that hangs at its first looks like one that knows no pings
			p.set(c, nil)
			p.watch(c, asked)
			if err = c.end; c.wasGood() {
				failures = 0
			}
		}
		p.mu.Lock()
		closed := p.closed
		p.mu.Unlock()
		if closed || p.ctx.Err() != nil {
			p.set(nil, &downtime{why: errClosed})
			return
		}
		d := p.downFor(err, failures)
		p.set(nil, d)
		p.log.Warn().Err(err).Int("failures", failures).Time("next_start", d.until).Msg("the plugin has no child")
		select {
		case <-time.After(d.until.Sub(p.env.Now())):
		case <-p.ctx.Done():
			return
		}
		p.mu.Lock()
		p.starting = make(chan struct{})
		p.mu.Unlock()
	}
}

// set says which child there is, or why there is none, to those that wait for it.
func (p *Plugin) set(c *child, d *downtime) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.child, p.down = c, d
	if c != nil {
		p.offer = c.offer.Load()
	}
	if p.starting != nil {
		close(p.starting)
		p.starting = nil
	}
	if !p.settled {
		p.settled = true
		close(p.ready)
	}
}

// begin starts a child and shakes hands with it.
func (p *Plugin) begin() (*child, error) {
	c, err := p.launch()
	if err != nil {
		return nil, err
	}
	if c.greet(p.ctx, p.name) != nil {
		c.kill(errClosed) // unless it was for another reason
		<-c.done
		return nil, c.end
	}
	p.names.reset()
	p.said.forget()
	p.mute.heard("")
	if o := c.offer.Load(); len(p.opts.Capabilities) > 0 && len(o.caps) < len(p.opts.Capabilities) {
		p.log.Warn().Str("configured", joined(p.opts.Capabilities)).Str("served", joined(o.caps)).Msg("the plugin's child does not serve all capabilities of the config")
	}
	return c, nil
}

// downFor tells how long to wait after a failure.
func (p *Plugin) downFor(err error, failures int) *downtime {
	d := &downtime{why: err, failures: failures, open: failures >= p.opts.MaxRestarts}
	delay := time.Duration(0)
	switch {
	case d.open:
		delay = p.times.open
	case failures > 0:
		delay = min(p.times.firstDelay<<min(failures-1, 16), p.times.maxDelay)
	}
	d.until = p.env.Now().Add(delay)
	return d
}

// wasGood tells whether a child that has ended is worth another at once.
func (c *child) wasGood() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.served >= servedEnough || c.plugin.env.Now().Sub(c.started) >= c.plugin.times.soon
}

// watch waits for the end of a child. One that answers a ping has to go on doing so,
// unless a request keeps it busy; asked is the first.
func (p *Plugin) watch(c *child, asked *pending) {
	var listing sync.WaitGroup
	defer listing.Wait()
	listing.Go(func() { p.learnLists(c) })
	tick := time.NewTicker(p.times.ping)
	defer tick.Stop()
	owed, answers := true, false
	for {
		select {
		case <-c.done:
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
		case !answers: // it knows no pings
		case owed && c.hung(asked):
			c.kill(fmt.Errorf("it says nothing, not even to a ping, for %s", c.silent().Round(time.Millisecond)))
		case !owed && c.silent() >= p.times.ping:
			asked, owed = c.ping(), true
		}
	}
}

// learnLists asks the child for its tools and skills.
func (p *Plugin) learnLists(c *child) {
	defer c.endListing()
	o := c.offer.Load()
	for _, list := range []struct {
		typ         protocol.Type
		body        string
		field, rows string
	}{
		{protocol.TypeToolListReq, `{"include_deferred":true}`, fieldTool, "tools"},
		{protocol.TypeSkillDiscoverReq, `{}`, fieldSkill, "skills"},
	} {
		if _, ok := o.types[list.typ]; !ok {
			continue
		}
		if body, err := c.own(c.ctx, list.typ, []byte(list.body), p.opts.Timeout); err == nil {
			p.names.replace(list.field, listedNames(body, list.rows))
			var tools protocol.ToolListResponse
			if list.field == fieldTool && decode(body, &tools) == nil {
				p.catalog.hear(tools.Tools, true)
			}
		}
		c.endListing() // nobody waits for the skills
	}
}

// ping asks the child whether it lives.
func (c *child) ping() *pending {
	r := &pending{want: protocol.TypePong, reply: make(chan reply, 1)}
	if err := c.send(r, protocol.TypePing, protocol.Object{}); err != nil {
		c.log.Debug().Err(err).Msg("the plugin's child was not asked whether it lives")
	}
	return r
}

// silent is how long the child has said nothing.
func (c *child) silent() time.Duration {
	return c.plugin.env.Now().Sub(c.started) - time.Duration(c.heard.Load())
}

// hung tells whether a child that owes a pong is past hope: it may be busy with a request
// and do one thing at a time, but not for longer than the request may take.
func (c *child) hung(asked *pending) bool {
	if c.busy.Load() {
		return false
	}
	limit := c.plugin.times.pong
	c.mu.Lock()
	for _, r := range c.pending { // the ping itself has none
		limit = max(limit, c.plugin.times.pong+r.limit)
	}
	c.mu.Unlock()
	return min(c.silent(), c.plugin.env.Now().Sub(asked.since)) > limit
}

// sweep gives back the places of requests that were given up long ago: the child has lost
// them.
func (c *child) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.plugin.env.Now()
	for _, r := range c.pending {
		if r.gone && now.Sub(r.since) > r.limit+c.plugin.times.open {
			c.forgetLocked(r)
		}
	}
}

// farewell tells the child to end and waits until it has, but not for long.
func (c *child) farewell(ctx context.Context, grace time.Duration) {
	if end, ok := ctx.Deadline(); ok { // its tree has to be ended in time
		grace = min(grace, time.Until(end)/2)
	}
	c.tell(protocol.TypeShutdown, nil, &protocol.Shutdown{Timeout: int(grace / time.Second)})
	c.input.Close()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
	case <-ctx.Done():
	}
}
