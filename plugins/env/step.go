package env

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"a2e/host"
	"a2e/protocol"
)

// move is one step: what it does, and its result.
type move struct {
	episode *episode
	action  Action
	before  []byte // the state that the agent saw before
	seen    observation
	took    time.Duration
	taken   bool // it counts as a step, even if err is set
	err     error

	plugin *Plugin      // of a batch: the plugin of the episode
	resets bool         // the episode has ended: another one begins in its place
	shown  *observation // shown in place of seen if another episode has begun

	made   experience // the experience as it is saved
	record []byte     // the episode after the step, for the journal; nil = it is not journalled
}

// step takes one action.
func (p *Plugin) step(ctx context.Context, req *protocol.EnvStepRequest, _ host.Emitter) (*observed, error) {
	e, err := p.find(ctx, req.EpisodeID)
	if err != nil {
		return nil, err
	}
	moves := []move{{episode: e}}
	if moves[0].action, err = p.actions.read(ctx, req.Action, -1); err != nil {
		return nil, err
	}
	p.detach(ctx)
	p.take(ctx, &moves[0], p.Now())
	p.note(ctx, moves)
	if moves[0].err != nil {
		return nil, moves[0].err
	}
	return &observed{moves[0].seen}, nil
}

// take takes the step of m, which began at the time began, and returns the time of its end.
func (p *Plugin) take(ctx context.Context, m *move, began time.Time) time.Time {
	e := m.episode
	e.mu.Lock()
	defer e.mu.Unlock()
	if m.err = e.openLocked(); m.err != nil {
		return began
	}
	returned := false
	defer func() {
		if !returned { // it panicked: the state of the world is unknown
			e.failLocked("the environment panicked")
		}
	}()
	out, err := e.world.Step(ctx, m.action)
	returned = true
	if err == nil && (math.IsNaN(out.Reward) || math.IsInf(out.Reward, 0)) {
		err = errors.New("the environment gave a reward that is not a number")
	}
	if err != nil {
		m.err = e.failedLocked(err)
	} else {
		p.endStepLocked(ctx, m, &out)
	}
	end := p.Now()
	m.seen.at, m.took = end.UnixMicro(), end.Sub(began)
	e.used.Store(m.seen.at)
	if e.saver != nil && m.taken {
		m.record = p.keep.recordLocked(e)
		e.dirty.Store(true)
	}
	return end
}

// endStepLocked counts a step that the world has taken, and reads the new state.
func (p *Plugin) endStepLocked(ctx context.Context, m *move, out *Outcome) {
	e := m.episode
	steps := e.steps.Add(1)
	m.taken = true
	e.done, e.truncated = out.Done, out.Truncated
	e.reward = out.Reward
	if limit := int64(p.opts.MaxSteps); limit > 0 && steps >= limit && !e.done {
		e.truncated = true
	}
	m.before = e.state
	if err := e.lookLocked(ctx, false); err != nil {
		m.err = e.failedLocked(err)
	}
	m.seen = e.seenLocked(0)
	m.seen.meta = out.Info
}

// failedLocked returns the answer to a failed step. An error that is not a *protocol.Error ends the
// episode.
func (e *episode) failedLocked(err error) error {
	var refusal *protocol.Error
	if errors.As(err, &refusal) {
		return err
	}
	e.failLocked(err.Error())
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err // the host makes the answer
	}
	return protocol.Errorf(protocol.CodeRuntimeError, "the episode was ended by an error: %w", err)
}

func (e *episode) failLocked(why string) {
	e.done, e.failure = true, why
	if e.saver != nil {
		e.dirty.Store(true)
	}
}

// note records steps in the order of their request: as experiences, and as calls of the environment. A
// refused step is not a call of the environment.
func (p *Plugin) note(ctx context.Context, moves []move) {
	if slices.ContainsFunc(moves, func(m move) bool { return m.taken }) {
		full := p.recent.add(moves)
		p.keep.note(ctx, moves, nil, "")
		if full && !p.keep.failing.Load() { // after a failed save they would be dropped in the end
			host.HandOff(ctx)
			p.keep.save(p.life, false)
		}
	}
	for i := range moves {
		m := &moves[i]
		if !m.taken && (m.err == nil || m.took == 0) {
			continue
		}
		r := host.CallOutcome{Kind: host.KindEnv, Component: p.env.Name(), Success: m.err == nil, Duration: m.took}
		if m.taken {
			r.Reward = &m.seen.reward
		}
		p.services.CountCall(ctx, r)
	}
}
