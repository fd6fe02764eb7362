package env

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

// maxBeside is how many episodes of a batch take steps in parallel.
const maxBeside = 64

// What happens to an episode that has ended, with the names of Gymnasium's vector environments.
const (
	resetDisabled = "disabled"  // a step in it is refused
	resetNextStep = "next_step" // its next action is ignored: another episode begins in its place
	resetSameStep = "same_step" // another episode begins at once, in the answer to its last step
)

// batchStep takes one step in each of several episodes, in parallel; the results are in the order of the
// request. A wrong request is refused before the first step, with one exception: an episode that is in the
// batch more than once takes its steps in order, and if it ends before the last of them, the answer is an
// error although the other steps were taken.
func (p *Plugin) batchStep(ctx context.Context, req *protocol.EnvBatchStepRequest, _ host.Emitter) (*batchResponse,
	error,
) {
	if len(req.EpisodeIDs) != len(req.Actions) {
		return nil, protocol.Wrong("/actions", "has %s for %s; send one action for each",
			protocol.Count(len(req.Actions), "entry"), protocol.Count(len(req.EpisodeIDs), "episode_id"))
	}
	switch req.Autoreset {
	case "", resetDisabled, resetNextStep, resetSameStep:
	default:
		return nil, protocol.Wrong("/autoreset", "should be disabled, next_step or same_step")
	}
	moves := make([]move, len(req.Actions))
	if err := p.findAll(ctx, moves, req); err != nil {
		return nil, err
	}
	others := slices.ContainsFunc(moves, func(m move) bool { return m.plugin != p })
	if p.quick && !others {
		takeInTurn(ctx, moves, req.Autoreset)
	} else {
		takeBeside(ctx, moves, req.Autoreset)
	}
	if !others {
		p.note(ctx, moves)
	} else {
		noteAll(ctx, moves)
	}
	if err := failure(moves); err != nil {
		return nil, err
	}
	return &batchResponse{moves}, nil
}

// noteAll records the steps of several plugins, each in the order of the request.
func noteAll(ctx context.Context, moves []move) {
	byPlugin := make(map[*Plugin][]move)
	for i := range moves {
		byPlugin[moves[i].plugin] = append(byPlugin[moves[i].plugin], moves[i])
	}
	for p, own := range byPlugin {
		p.note(ctx, own)
	}
}

// findAll finds the episodes and reads the actions of a batch.
func (p *Plugin) findAll(ctx context.Context, moves []move, req *protocol.EnvBatchStepRequest) (err error) {
	p.mu.Lock()
	for i, id := range req.EpisodeIDs {
		moves[i].episode, moves[i].plugin = p.episodes[id], p
	}
	p.mu.Unlock()
	resets := req.Autoreset == resetNextStep || req.Autoreset == resetSameStep
	once := make(map[*episode]bool)
	for i := range moves {
		m := &moves[i]
		if m.episode == nil {
			if err = p.findAny(ctx, m, req.EpisodeIDs[i], i); err != nil {
				return err
			}
		}
	}
	for i := range moves {
		m := &moves[i]
		if resets && once[m.episode] {
			return protocol.Wrong("/episode_ids/"+strconv.Itoa(i),
				"appears twice in the batch; with autoreset each episode takes one step")
		} else if resets {
			once[m.episode] = true
		}
		m.episode.mu.Lock()
		err = m.episode.openLocked()
		m.resets = err != nil && req.Autoreset == resetNextStep && !m.episode.closed
		m.episode.mu.Unlock()
		if m.resets {
			continue
		}
		if err != nil {
			return noneTaken(err)
		}
		if m.action, err = m.plugin.actions.read(ctx, req.Actions[i], i); err != nil {
			return err
		}
	}
	return nil
}

// findAny finds an episode of this plugin, or of another env plugin.
func (p *Plugin) findAny(ctx context.Context, m *move, id string, place int) error {
	e, err := p.find(ctx, id)
	for _, other := range p.services.Plugins() {
		if !host.IsNotOwner(err) {
			break
		}
		if o, ok := host.As[*Plugin](other); ok && o != p {
			m.plugin = o
			e, err = o.find(ctx, id)
		}
	}
	var refusal *protocol.Error
	if m.episode = e; errors.As(err, &refusal) && host.IsNotOwner(err) {
		return host.NotOwner(refusal.With("path", "/episode_ids/"+strconv.Itoa(place)))
	}
	return err
}

// noneTaken returns the refusal of a batch.
func noneTaken(err error) error {
	var refusal *protocol.Error
	if !errors.As(err, &refusal) {
		return err
	}
	e := *refusal
	e.Message += "; no step of the batch was taken"
	return &e
}

// takeInTurn takes steps one after the other. They last microseconds, so other goroutines would cost more.
func takeInTurn(ctx context.Context, moves []move, autoreset string) {
	var at time.Time // when the last step ended
	for i := range moves {
		if m := &moves[i]; at.IsZero() {
			at = m.take(ctx, m.plugin.Now(), autoreset)
		} else {
			at = m.take(ctx, at, autoreset)
		}
	}
}

// take takes one step of a batch, or begins the episode that replaces an ended one.
func (m *move) take(ctx context.Context, began time.Time, autoreset string) time.Time {
	if m.resets {
		m.succeed(ctx, nil)
		return time.Time{}
	}
	end := m.plugin.take(ctx, m, began)
	if m.err == nil && autoreset == resetSameStep && (m.seen.done || m.seen.truncated) {
		m.succeed(ctx, &m.seen)
		return time.Time{}
	}
	return end
}

// succeed begins an episode in place of one that has ended. It closes the old one first, as there may be
// no room for both. The new one has the same options, and a seed that follows from the old seed. last is
// the last observation of the old one, to be shown with it; nil = nothing is shown.
func (m *move) succeed(ctx context.Context, last *observation) {
	obs, err := m.replace(ctx)
	if err != nil && last != nil { // the step was taken, so its reward is still reported
		m.seen.meta = maps.Clone(m.seen.meta)
		if m.seen.meta == nil {
			m.seen.meta = make(map[string]any)
		}
		m.seen.meta["autoreset"], m.seen.meta["autoreset_error"] = false, err.Error()
		return
	} else if err != nil {
		m.err = err
		return
	}
	obs.meta["autoreset"], obs.meta["ended_episode_id"] = true, m.episode.id
	if last != nil {
		var final []byte
		if final, m.err = last.append(nil); m.err != nil {
			return
		}
		obs.meta["final_obs"] = jsontext.Value(final)
		obs.reward, obs.done, obs.truncated = last.reward, last.done, last.truncated
	}
	m.shown = &obs
}

// replace closes the episode and begins another, which takes its place.
func (m *move) replace(ctx context.Context) (obs observation, err error) {
	if ctx.Err() != nil {
		return obs, context.Cause(ctx)
	}
	p, old := m.plugin, m.episode
	p.mu.Lock()
	p.opening++
	p.mu.Unlock()
	defer p.freeSlot()
	m.record = nil
	if err := p.endForGood(ctx, old); err != nil && ctx.Err() != nil {
		return obs, err
	}
	next := chance(old.seed)
	return p.begin(ctx, int64(next.next()%maxSeed), old.options)
}

// takeBeside takes steps that may take long; those of different episodes run in parallel.
func takeBeside(ctx context.Context, moves []move, autoreset string) {
	if len(moves) == 1 {
		takeInTurn(ctx, moves, autoreset)
		return
	}
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
				m.take(ctx, m.plugin.Now(), autoreset)
			}
		})
	}
	all.Wait()
}

// failure returns the first error of a batch, with a list of all failed steps.
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
	e.Message = fmt.Sprintf("step %d of the batch: %s; took %d of %s, all but those in detail.failed", failed[0],
		e.Message, len(moves)-len(failed), protocol.Count(len(moves), "step"))
	return e.With("failed", failed)
}
