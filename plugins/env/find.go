package env

import (
	"context"
	"fmt"
	"time"

	"a2e/host"
	"a2e/protocol"
)

const (
	// reapEvery is the shortest pause between two looks for idle episodes.
	reapEvery = 10 * time.Millisecond
	// closeIdle is how long closing an idle episode may take.
	closeIdle = 10 * time.Second
)

func unknownEpisode(id string) *protocol.Error {
	return protocol.Errorf(protocol.CodeUnknownEpisode, "unknown episode %.64q; env/reset/req starts one and gives "+
		"its episode_id", id)
}

func (p *Plugin) idleEpisode(id string) *protocol.Error {
	return protocol.Errorf(protocol.CodeUnknownEpisode, "the episode %.64q was closed, as it was idle for longer "+
		"than idle_timeout (%s); start another with env/reset/req",
		id, p.opts.idle())
}

// find returns an open episode; one saved by an earlier host is restored.
func (p *Plugin) find(ctx context.Context, id string) (*episode, error) {
	p.mu.Lock()
	e := p.episodes[id]
	idle, gone := p.past[id]
	p.mu.Unlock()
	switch {
	case e != nil:
		e.used.Store(p.micros())
		return e, nil
	case idle:
		return nil, p.idleEpisode(id)
	case gone || p.restorer == nil || p.Store == nil:
		return nil, host.NotOwner(unknownEpisode(id))
	}
	host.HandOff(ctx)
	return p.takeUp(ctx, id)
}

// takeUp finds an episode in the store and restores it. Only one is restored at a time.
func (p *Plugin) takeUp(ctx context.Context, id string) (*episode, error) {
	select {
	case p.restores <- struct{}{}:
		defer func() { <-p.restores }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	e := p.episodes[id]
	p.mu.Unlock()
	if e != nil { // another request was faster
		return e, nil
	}
	row, err := p.keep.find(ctx, id)
	if err != nil {
		p.Log.Error().Err(err).Str("plugin", p.name).Msg("the saved episodes cannot be read")
		return nil, host.NotOwner(protocol.Errorf(protocol.CodeUnknownEpisode, "unknown episode %.64q; those of "+
			"earlier hosts cannot be read: %w", id, err))
	}
	switch {
	case row == nil:
		p.remember(id, false)
		return nil, host.NotOwner(unknownEpisode(id))
	case p.Now().Sub(time.UnixMicro(int64(row.Used))) > p.opts.idle():
		p.remember(id, true)
		p.keep.forget(id)
		return nil, p.idleEpisode(id)
	}
	return p.restore(ctx, row)
}

// restore continues the episode of a row.
func (p *Plugin) restore(ctx context.Context, row *savedEpisode) (*episode, error) {
	if err := p.takeSlot(); err != nil {
		return nil, err
	}
	defer p.freeSlot()
	e := &episode{
		id: row.ID, seed: row.Seed, options: row.Options, created: int64(row.Created),
		done: row.Done, truncated: row.Truncated, failure: row.Failure, reward: row.Reward,
	}
	e.steps.Store(row.Steps)
	e.kept.Store(true)
	e.pushes = p.newPushes(e) // without a feed: its request belonged to another session
	e.mu.Lock()
	defer e.mu.Unlock()
	_, err := p.beginLocked(ctx, e, fmt.Sprintf("the episode %s was saved by an earlier host and cannot go on", e.id),
		func(r Reset) (World, error) { return p.restorer.Restore(ctx, r, row.World) })
	if err != nil {
		return nil, err
	}
	return e, nil
}

// remember is rememberLocked that takes the lock.
func (p *Plugin) remember(id string, idle bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rememberLocked(id, idle)
}

// rememberLocked notes that there is no such episode, or no longer. The notes are dropped before they grow
// too many.
func (p *Plugin) rememberLocked(id string, idle bool) {
	if len(id) > 64 {
		return // not an id of this host, and too long to keep
	}
	if len(p.past) >= 2*p.opts.MaxEpisodes {
		clear(p.past)
	}
	p.past[id] = idle
}

// reap closes idle episodes, and sleeps until the next one may be idle.
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

// reapNow closes idle episodes, and returns the time until the next one may be idle.
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
		late = append(late, e)
	}
	p.mu.Unlock()
	for _, e := range late {
		p.endIdle(e)
	}
	return next
}

// endIdle ends an episode, unless it is in use again.
func (p *Plugin) endIdle(e *episode) {
	if !e.mu.TryLock() { // a step runs
		return
	}
	defer e.mu.Unlock()
	if p.Now().Sub(time.UnixMicro(e.used.Load())) < p.opts.idle() {
		return
	}
	if p.takeOut(e, true) {
		ctx, stop := context.WithTimeout(p.life, closeIdle)
		defer stop()
		p.endForGoodLocked(ctx, e)
	}
}
