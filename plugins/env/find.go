package env

import (
	"context"
	"fmt"
	"time"

	"a2e/host"
	"a2e/protocol"
)

func unknownEpisode(id string) *protocol.Error {
	return protocol.Errorf(protocol.CodeUnknownEpisode, "unknown episode %.64q; env/reset/req begins one and gives its episode_id", id)
}

func (p *Plugin) idleEpisode(id string) *protocol.Error {
	return protocol.Errorf(protocol.CodeUnknownEpisode, "the episode %.64q was closed, as it was idle for longer than idle_timeout (%s); begin another with env/reset/req",
		id, p.opts.idle())
}

// find gives an open episode; one of an earlier host is taken up again.
func (p *Plugin) find(ctx context.Context, id string) (*episode, error) {
	p.mu.Lock()
	e, idle, absent := p.episodes[id], p.reaped[id], p.absent[id]
	p.mu.Unlock()
	switch _, restores := p.env.(Restorer); {
	case e != nil:
		e.used.Store(p.micros())
		return e, nil
	case idle:
		return nil, p.idleEpisode(id)
	case absent || !restores || p.Store == nil:
		return nil, host.NotMine(unknownEpisode(id))
	}
	host.Detach(ctx)
	return p.takeUp(ctx, id)
}

// takeUp looks for an episode in the store. One is restored at a time.
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
		return nil, host.NotMine(protocol.Errorf(protocol.CodeUnknownEpisode, "unknown episode %.64q; those of earlier hosts cannot be read: %w", id, err))
	}
	switch {
	case row == nil:
		p.mu.Lock()
		p.noteLocked(p.absent, id)
		p.mu.Unlock()
		return nil, host.NotMine(unknownEpisode(id))
	case p.Now().Sub(time.UnixMicro(row.used)) > p.opts.idle():
		p.markReaped(id)
		p.keep.forget(id)
		return nil, p.idleEpisode(id)
	}
	return p.restore(ctx, row)
}

// restore makes the episode of a row go on.
func (p *Plugin) restore(ctx context.Context, row *savedEpisode) (*episode, error) {
	if err := p.takePlace(); err != nil {
		return nil, err
	}
	defer p.leavePlace()
	options, err := protocol.ParseObject([]byte(row.options))
	if err != nil {
		return nil, fmt.Errorf("the saved options of episode %s: %w", row.id, err)
	}
	e := row.episode()
	e.pushes = p.newPushes(e) // without a feed: its request was of another session
	world, err := p.env.(Restorer).Restore(ctx, Reset{EpisodeID: e.id, Seed: &e.seed, Options: options, Push: e.pushes.add}, row.saved)
	if err != nil {
		return nil, explained(fmt.Sprintf("the episode %s was saved by an earlier host and cannot go on", e.id), err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.setWorld(world)
	if err := e.lookLocked(ctx, false); err != nil {
		_ = e.leaveLocked(context.WithoutCancel(ctx)) // the first error says more
		return nil, explained("the state of the restored episode cannot be seen", err)
	}
	if err := p.putIn(ctx, e, p.micros()); err != nil {
		return nil, err
	}
	return e, nil
}

// noteLocked adds an id to a set that is emptied before it grows out of bounds.
func (p *Plugin) noteLocked(set map[string]bool, id string) {
	if len(id) > 64 {
		return // none of ours, and too long to keep
	}
	if len(set) >= 2*p.opts.MaxEpisodes {
		clear(set)
	}
	set[id] = true
}
