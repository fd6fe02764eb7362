package env

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"a2e/host"
	"a2e/protocol"
)

// batchStep takes one step in each of several episodes, in parallel; the results
// come in the order of the request. What is wrong with the request is found before
// the first step is taken, with one exception: an episode that stands in the batch
// more than once takes its steps in that order, and when it ends before its last
// one the answer is `episode_done`, though the other steps were taken.
func (p *Plugin) batchStep(ctx context.Context, req *protocol.EnvBatchStepRequest, _ host.Emitter) (*protocol.EnvBatchStepResponse, error) {
	if len(req.EpisodeIDs) != len(req.Actions) {
		return nil, protocol.Violation(protocol.FieldError{
			Path: "/actions", Message: fmt.Sprintf("has %d entries for %d episode_ids; send one action for each", len(req.Actions), len(req.EpisodeIDs)),
		})
	}
	turns := make(map[*episode][]int)
	actions := make([]string, len(req.Actions))
	for i, id := range req.EpisodeIDs {
		e, err := p.find(id)
		if err != nil {
			return nil, err
		}
		if actions[i], err = p.actionType(req.Actions[i]); err != nil {
			return nil, err
		}
		turns[e] = append(turns[e], i)
	}
	for e := range turns {
		e.mu.Lock()
		done := e.done
		e.mu.Unlock()
		if done {
			return nil, protocol.Errorf(protocol.CodeEpisodeDone, "the episode %s has ended; no step of the batch was taken", e.id)
		}
	}
	results := make([]protocol.EnvBatchResult, len(actions))
	failed := make([]error, len(actions))
	var all sync.WaitGroup
	for e, places := range turns {
		all.Add(1)
		host.Go(ctx, func() {
			defer all.Done()
			for _, i := range places {
				results[i].Type = protocol.TypeEnvStepResp
				results[i].Obs, failed[i] = p.act(e, actions[i])
			}
		})
	}
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	return &protocol.EnvBatchStepResponse{Results: results}, nil
}
