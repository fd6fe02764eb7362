package env

import (
	"context"
	"sync"

	"github.com/google/uuid"

	"a2e/host"
	"a2e/protocol"
)

// episode is one run of an environment.
type episode struct {
	id string

	mu     sync.Mutex // guards the fields below, and is held for one step
	world  World
	steps  int
	done   bool
	reward *float64 // of the last step
}

// observationLocked is what the agent sees of the episode.
func (e *episode) observationLocked() protocol.EnvObservation {
	return protocol.EnvObservation{
		EpisodeID: e.id, StepNum: e.steps, State: e.world.State(), Done: e.done, Reward: e.reward, CreatedAt: now(),
	}
}

// find gives an open episode.
func (p *Plugin) find(id string) (*episode, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.episodes[id]
	if e == nil {
		return nil, host.NotMine(protocol.Errorf(protocol.CodeUnknownEpisode, "unknown episode %.64q; env/reset/req begins one and gives its episode_id", id))
	}
	return e, nil
}

func (p *Plugin) reset(_ context.Context, req *protocol.EnvResetRequest, _ host.Emitter) (*protocol.EnvResetResponse, error) {
	if err := p.owns(req.EnvName); err != nil {
		return nil, err
	}
	var seed int64
	if req.Seed != nil {
		seed = *req.Seed
	}
	e := &episode{id: uuid.NewString(), world: p.env.Reset(seed)}
	obs := e.observationLocked() // nobody else has it yet
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.episodes) >= p.maxEpisodes {
		return nil, protocol.Errorf(protocol.CodeResetDenied, "%d episodes are open, which is all that max_episodes allows; close some with env/close/req", len(p.episodes))
	}
	p.episodes[e.id] = e
	return &protocol.EnvResetResponse{Obs: obs}, nil
}

func (p *Plugin) step(_ context.Context, req *protocol.EnvStepRequest, _ host.Emitter) (*protocol.EnvStepResponse, error) {
	e, err := p.find(req.EpisodeID)
	if err != nil {
		return nil, err
	}
	action, err := p.actionType(req.Action)
	if err != nil {
		return nil, err
	}
	obs, err := p.act(e, action)
	if err != nil {
		return nil, err
	}
	return &protocol.EnvStepResponse{Obs: obs}, nil
}

// act takes one step and records it.
func (p *Plugin) act(e *episode, action string) (protocol.EnvObservation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done {
		return protocol.EnvObservation{}, protocol.Errorf(protocol.CodeEpisodeDone, "the episode %s has ended after %d steps; begin another with env/reset/req", e.id, e.steps)
	}
	before := e.world.State()
	reward, done := e.world.Step(action)
	e.steps++
	e.done, e.reward = done, &reward
	obs := e.observationLocked()
	p.mu.Lock()
	p.record.add(experience{
		episode: e.id, step: e.steps, action: action, before: before, after: obs.State, reward: reward, done: done, at: obs.CreatedAt,
	})
	p.mu.Unlock()
	return obs, nil
}

func (p *Plugin) observe(_ context.Context, req *protocol.EnvObserveRequest, _ host.Emitter) (*protocol.EnvObserveResponse, error) {
	e, err := p.find(req.EpisodeID)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return &protocol.EnvObserveResponse{Obs: e.observationLocked()}, nil
}

func (p *Plugin) close(_ context.Context, req *protocol.EnvCloseRequest, _ host.Emitter) (*protocol.EnvCloseResponse, error) {
	if _, err := p.find(req.EpisodeID); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, open := p.episodes[req.EpisodeID]
	delete(p.episodes, req.EpisodeID)
	return &protocol.EnvCloseResponse{Closed: open}, nil
}

// render draws the episode as text, the one mode there is: whatever mode is
// asked for, the answer names its own.
func (p *Plugin) render(_ context.Context, req *protocol.EnvRenderRequest, _ host.Emitter) (*protocol.EnvRenderResponse, error) {
	e, err := p.find(req.EpisodeID)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	text := e.world.Text()
	e.mu.Unlock()
	out := protocol.AppendString([]byte(`{"mode":"text","text":`), text)
	return &protocol.EnvRenderResponse{Render: append(out, '}')}, nil
}

func (p *Plugin) plan(_ context.Context, req *protocol.EnvPlanRequest, _ host.Emitter) (*protocol.EnvPlanResponse, error) {
	if req.EpisodeID == nil || *req.EpisodeID == "" {
		return nil, protocol.Violation(protocol.FieldError{Path: "/episode_id", Message: "is required: a plan is made for an episode"})
	}
	e, err := p.find(*req.EpisodeID)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	resp := &protocol.EnvPlanResponse{}
	for _, action := range e.world.Suggest() {
		resp.SuggestedActions = append(resp.SuggestedActions, map[string]any{"type": action})
	}
	return resp, nil
}
