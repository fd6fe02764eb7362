package env

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"a2e/host"
	"a2e/protocol"
)

// maxBeside is how many episodes of a batch take their steps at once.
const maxBeside = 64

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
	again, err := p.findAll(ctx, moves, req)
	if err != nil {
		return nil, err
	}
	if p.quick {
		p.takeInTurn(ctx, moves)
	} else {
		p.takeBeside(ctx, moves, again)
	}
	p.noteAll(ctx, moves)
	if err := failure(moves); err != nil {
		return nil, err
	}
	return &batchResponse{moves}, nil
}

// findAll finds the episodes and actions of a batch. again tells whether an episode may
// stand in it more than once.
func (p *Plugin) findAll(ctx context.Context, moves []move, req *protocol.EnvBatchStepRequest) (again bool, err error) {
	p.mu.Lock()
	p.batches++
	for i, id := range req.EpisodeIDs {
		if e := p.episodes[id]; e != nil {
			moves[i].episode = e
			again = again || e.batch == p.batches
			e.batch = p.batches
		}
	}
	p.mu.Unlock()
	for i := range moves {
		m := &moves[i]
		if m.episode == nil {
			again = true // perhaps
			if m.episode, err = p.find(ctx, req.EpisodeIDs[i]); err != nil {
				return again, err
			}
		}
		if m.action, err = p.actions.readOf(ctx, req.Actions, i); err != nil {
			return again, err
		}
		m.episode.mu.Lock()
		err = m.episode.openLocked()
		m.episode.mu.Unlock()
		if err != nil {
			return again, noneTaken(err)
		}
	}
	return again, nil
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
func (p *Plugin) takeBeside(ctx context.Context, moves []move, again bool) {
	host.Detach(ctx)
	turns := make([][]*move, 0, len(moves))
	place := make(map[*episode]int)
	for i := range moves {
		m := &moves[i]
		if at, ok := place[m.episode]; again && ok {
			turns[at] = append(turns[at], m)
			continue
		}
		place[m.episode] = len(turns)
		turns = append(turns, []*move{m})
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

// noteAll records the steps in the order of the request.
func (p *Plugin) noteAll(ctx context.Context, moves []move) {
	p.recent.addAll(moves)
	all := make([]*move, len(moves))
	for i := range moves {
		all[i] = &moves[i]
	}
	p.keep.steps(ctx, all...)
	for i := range moves {
		p.count(ctx, &moves[i])
	}
}

// failure gives the first error of a batch, which tells what became of the rest.
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
