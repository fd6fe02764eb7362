package env

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"a2e/host"
	"a2e/protocol"
)

// maxBeside is how many episodes of a batch take their steps at once.
const maxBeside = 64

// move is one step: what it does, and what came of it.
type move struct {
	episode *episode
	action  Action
	before  []byte // the state that the agent acted on
	seen    observation
	took    time.Duration
	taken   bool // it counts as a step, also where err is set
	err     error

	made   experience // as the store gets it
	record []byte     // where the episode stands after it, for the journal; nil = it is not in that
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

// take takes the step of m, which began at the time began, and gives the time at its end.
func (p *Plugin) take(ctx context.Context, m *move, began time.Time) time.Time {
	e := m.episode
	e.mu.Lock()
	defer e.mu.Unlock()
	if m.err = e.openLocked(); m.err != nil {
		return began
	}
	returned := false
	defer func() {
		if !returned { // it panicked: who knows what the world is like
			e.failLocked("the environment panicked")
		}
	}()
	out, err := e.world.Step(ctx, m.action)
	returned = true
	if err == nil && (math.IsNaN(out.Reward) || math.IsInf(out.Reward, 0)) {
		err = errors.New("the environment gave a reward that is no number")
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

// endStepLocked counts a step that the world has taken, and looks at what became of it.
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

// failedLocked returns the answer to a step that failed. The error of a world that is no
// answer by itself ends the episode.
func (e *episode) failedLocked(err error) error {
	var refusal *protocol.Error
	if errors.As(err, &refusal) {
		return err
	}
	e.failLocked(err.Error())
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err // the host knows what to say
	}
	return protocol.Errorf(protocol.CodeRuntimeError, "the episode was ended by an error: %w", err)
}

func (e *episode) failLocked(why string) {
	e.done, e.failure = true, why
	if e.saver != nil {
		e.dirty.Store(true)
	}
}

// note records steps, in the order of their request: as experiences, and as calls of the
// environment. A refusal is the agent's call, not the environment's.
func (p *Plugin) note(ctx context.Context, moves []move) {
	if slices.ContainsFunc(moves, func(m move) bool { return m.taken }) {
		p.recent.add(moves)
		p.keep.note(ctx, moves, nil, "")
	}
	for i := range moves {
		m := &moves[i]
		if !m.taken && (m.err == nil || m.took == 0) {
			continue
		}
		r := host.CallRecord{Kind: host.KindEnv, Component: p.env.Name(), Success: m.err == nil, Duration: m.took}
		if m.taken {
			r.Reward = &m.seen.reward
		}
		p.services.Record(ctx, r)
	}
}

// batchStep takes one step in each of several episodes, in parallel; the results
// come in the order of the request. What is wrong with the request is found before
// the first step is taken, with one exception: an episode that stands in the batch
// more than once takes its steps in that order, and when it ends before its last
// one the answer is an error, though the other steps were taken.
func (p *Plugin) batchStep(ctx context.Context, req *protocol.EnvBatchStepRequest, _ host.Emitter) (*batchResponse, error) {
	if len(req.EpisodeIDs) != len(req.Actions) {
		return nil, protocol.Violation(protocol.FieldError{
			Path: "/actions", Message: fmt.Sprintf("has %d entries for %d episode_ids; send one action for each", len(req.Actions), len(req.EpisodeIDs)),
		})
	}
	moves := make([]move, len(req.Actions))
	if err := p.findAll(ctx, moves, req); err != nil {
		return nil, err
	}
	if p.quick {
		p.takeInTurn(ctx, moves)
	} else {
		p.takeBeside(ctx, moves)
	}
	p.note(ctx, moves)
	if err := failure(moves); err != nil {
		return nil, err
	}
	return &batchResponse{moves}, nil
}

// findAll finds the episodes and actions of a batch.
func (p *Plugin) findAll(ctx context.Context, moves []move, req *protocol.EnvBatchStepRequest) (err error) {
	p.mu.Lock()
	for i, id := range req.EpisodeIDs {
		moves[i].episode = p.episodes[id]
	}
	p.mu.Unlock()
	for i := range moves {
		m := &moves[i]
		if m.episode == nil {
			if m.episode, err = p.find(ctx, req.EpisodeIDs[i]); err != nil {
				return err
			}
		}
		if m.action, err = p.actions.read(ctx, req.Actions[i], i); err != nil {
			return err
		}
		m.episode.mu.Lock()
		err = m.episode.openLocked()
		m.episode.mu.Unlock()
		if err != nil {
			return noneTaken(err)
		}
	}
	return nil
}

// noneTaken is the refusal of a batch.
func noneTaken(err error) error {
	var refusal *protocol.Error
	if !errors.As(err, &refusal) {
		return err
	}
	e := *refusal
	e.Message += "; no step of the batch was taken"
	return &e
}

// takeInTurn takes steps that last microseconds: to hand them to other goroutines would
// cost more than they do.
func (p *Plugin) takeInTurn(ctx context.Context, moves []move) {
	at := p.Now()
	for i := range moves {
		at = p.take(ctx, &moves[i], at)
	}
}

// takeBeside takes steps that may last, those of different episodes side by side.
func (p *Plugin) takeBeside(ctx context.Context, moves []move) {
	host.HandOff(ctx)
	turns := make(map[*episode][]*move)
	for i := range moves {
		m := &moves[i]
		turns[m.episode] = append(turns[m.episode], m)
	}
	var all sync.WaitGroup
	places := make(chan struct{}, maxBeside)
	for _, turn := range turns {
		places <- struct{}{}
		all.Add(1)
		host.Go(ctx, func() {
			defer func() { <-places; all.Done() }()
			for _, m := range turn {
				p.take(ctx, m, p.Now())
			}
		})
	}
	all.Wait()
}

// failure returns the first error of a batch, which says what became of the rest.
func failure(moves []move) error {
	var first error
	failed := []int{}
	for i := range moves {
		if moves[i].err != nil {
			failed = append(failed, i)
			if first == nil {
				first = moves[i].err
			}
		}
	}
	var refusal *protocol.Error
	if first == nil || !errors.As(first, &refusal) {
		return first
	}
	e := *refusal
	e.Detail = maps.Clone(e.Detail)
	e.Message = fmt.Sprintf("step %d of the batch: %s; %d of its %d steps were taken, all but those in detail.failed", failed[0], e.Message, len(moves)-len(failed), len(moves))
	return e.With("failed", failed)
}
