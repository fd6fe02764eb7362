package env

import (
	"context"
	"time"
)

// reapEvery bounds how often the episodes are looked at.
const reapEvery = 10 * time.Millisecond

// closeIdle is how long the end of an idle episode may take.
const closeIdle = 10 * time.Second

// watchIdle sees to it that idle episodes are closed, from the first episode on.
func (p *Plugin) watchIdle() {
	p.reaping.Do(func() { p.tend(p.reap) })
}

// reap closes the episodes whose time is up, and sleeps until the next one may be.
func (p *Plugin) reap() {
	for next := p.opts.idle(); ; {
		clock := time.NewTimer(max(next, reapEvery))
		select {
		case <-clock.C:
			next = p.reapNow()
		case <-p.life.Done():
			clock.Stop()
			return
		}
	}
}

// reapNow closes what is idle, and gives the time until something else may be.
func (p *Plugin) reapNow() time.Duration {
	idle := p.opts.idle()
	next := idle
	now := p.Now()
	p.mu.Lock()
	var late []*episode
	for _, e := range p.episodes {
		left := idle - now.Sub(time.UnixMicro(e.used.Load()))
		if left > 0 {
			next = min(next, left)
			continue
		}
		if !e.mu.TryLock() { // a step runs: it is not idle
			continue
		}
		e.mu.Unlock()
		late = append(late, e)
	}
	p.mu.Unlock()
	for _, e := range late {
		p.endIdle(e)
	}
	return next
}

func (p *Plugin) endIdle(e *episode) {
	p.markReaped(e.id)
	if !p.takeOut(e) {
		return
	}
	ctx, stop := context.WithTimeout(p.life, closeIdle)
	defer stop()
	if err := p.endForGood(ctx, e); err != nil {
		p.Log.Warn().Err(err).Str("plugin", p.name).Str("episode", e.id).Msg("the idle episode did not close cleanly")
	}
}

func (p *Plugin) markReaped(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteLocked(p.reaped, id)
}
