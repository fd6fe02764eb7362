package env

import (
	"context"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

// look finds an episode and calls f with its lock held.
func (p *Plugin) look(ctx context.Context, id string, f func(*episode) error) error {
	e, err := p.find(ctx, id)
	if err != nil {
		return err
	}
	p.detach(ctx)
	if !e.lock(ctx) {
		return context.Cause(ctx)
	}
	defer e.mu.Unlock()
	if e.closed {
		return unknownEpisode(id)
	}
	return f(e)
}

func (p *Plugin) observe(ctx context.Context, req *protocol.EnvObserveRequest, _ host.Emitter) (*observed, error) {
	resp := &observed{}
	err := p.look(ctx, req.EpisodeID, func(e *episode) error {
		if err := e.lookLocked(ctx, true); err != nil {
			return explained("the state of the episode cannot be seen", err)
		}
		resp.observation = e.seenLocked(p.micros())
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// render draws the episode. A mode that the world does not know is its first one; a world
// that draws nothing shows its state as text.
func (p *Plugin) render(ctx context.Context, req *protocol.EnvRenderRequest, _ host.Emitter) (*protocol.EnvRenderResponse, error) {
	resp := &protocol.EnvRenderResponse{}
	err := p.look(ctx, req.EpisodeID, func(e *episode) (err error) {
		r, ok := e.world.(Renderer)
		if !ok {
			if err = e.lookLocked(ctx, true); err == nil {
				resp.Render = textPicture(string(e.state))
			}
			return explained("the state of the episode cannot be seen", err)
		}
		modes := r.Modes()
		mode := modes[0]
		if req.Mode != nil && slices.Contains(modes, *req.Mode) {
			mode = *req.Mode
		}
		resp.Render, err = r.Render(ctx, mode)
		return explained("the episode cannot be drawn", err)
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// textPicture is what render gives for a drawing in text.
func textPicture(text string) jsontext.Value {
	return append(protocol.AppendString([]byte(`{"mode":"text","text":`), text), '}')
}

func (p *Plugin) plan(ctx context.Context, req *protocol.EnvPlanRequest, _ host.Emitter) (*protocol.EnvPlanResponse, error) {
	if req.EpisodeID == nil || *req.EpisodeID == "" {
		return nil, protocol.Violation(protocol.FieldError{Path: "/episode_id", Message: "is required: a plan is made for an episode"})
	}
	resp := &protocol.EnvPlanResponse{}
	err := p.look(ctx, *req.EpisodeID, func(e *episode) (err error) {
		if s, ok := e.world.(Suggester); ok && e.openLocked() == nil {
			resp.SuggestedActions, err = s.Suggest(ctx)
		}
		return explained("no action can be suggested", err)
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// describe answers env/space/req.
func (p *Plugin) describe(ctx context.Context, req *protocol.EnvSpaceRequest, _ host.Emitter) (*protocol.EnvSpaceResponse, error) {
	if err := p.owns(req.EnvName); err != nil {
		return nil, err
	}
	s, err := p.space(ctx)
	if err != nil {
		return nil, err
	}
	resp := &protocol.EnvSpaceResponse{ActionSpace: s.Action, StateSchema: s.State}
	if s.Action == nil {
		resp.ActionSpace = typesSchema(s.Types)
	}
	return resp, nil
}
