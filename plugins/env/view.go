package env

import (
	"context"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

// look finds an episode and calls f with its lock held.
func look[R any](ctx context.Context, p *Plugin, id string, f func(*episode) (R, error)) (none R, err error) {
	e, err := p.find(ctx, id)
	if err != nil {
		return none, err
	}
	p.detach(ctx)
	if !e.lock(ctx) {
		return none, context.Cause(ctx)
	}
	defer e.mu.Unlock()
	if e.closed {
		return none, unknownEpisode(id)
	}
	return f(e)
}

func (p *Plugin) observe(ctx context.Context, req *protocol.EnvObserveRequest, _ host.Emitter) (*observed, error) {
	return look(ctx, p, req.EpisodeID, func(e *episode) (*observed, error) {
		if err := e.lookLocked(ctx, true); err != nil {
			return nil, explained("the state of the episode cannot be seen", err)
		}
		return &observed{e.seenLocked(p.micros())}, nil
	})
}

// render draws the episode. An unknown mode means the first mode of the world.
func (p *Plugin) render(ctx context.Context, req *protocol.EnvRenderRequest,
	_ host.Emitter,
) (*protocol.EnvRenderResponse, error) {
	return look(ctx, p, req.EpisodeID, func(e *episode) (*protocol.EnvRenderResponse, error) {
		modes := e.world.Modes()
		mode := modes[0]
		if req.Mode != nil && slices.Contains(modes, *req.Mode) {
			mode = *req.Mode
		}
		drawn, err := e.world.Render(ctx, mode)
		if err != nil {
			return nil, explained("the episode cannot be drawn", err)
		}
		return &protocol.EnvRenderResponse{Render: drawn}, nil
	})
}

// textPicture returns the answer to render for a drawing in text.
func textPicture(text string) jsontext.Value {
	return append(protocol.AppendString([]byte(`{"mode":"text","text":`), text), '}')
}

func (p *Plugin) plan(ctx context.Context, req *protocol.EnvPlanRequest, _ host.Emitter) (*protocol.EnvPlanResponse,
	error,
) {
	if req.EpisodeID == nil || *req.EpisodeID == "" {
		return nil, protocol.Wrong("/episode_id", "is required: a plan is made for an episode")
	}
	return look(ctx, p, *req.EpisodeID, func(e *episode) (resp *protocol.EnvPlanResponse, err error) {
		resp = &protocol.EnvPlanResponse{}
		if s, ok := e.world.(Suggester); ok && e.openLocked() == nil {
			resp.SuggestedActions, err = s.Suggest(ctx)
		}
		return resp, explained("no action can be suggested", err)
	})
}

// describe answers env/space/req.
func (p *Plugin) describe(ctx context.Context, req *protocol.EnvSpaceRequest,
	_ host.Emitter,
) (*protocol.EnvSpaceResponse, error) {
	if err := p.owns(req.EnvName); err != nil {
		return nil, err
	}
	s, err := p.space(ctx)
	if err != nil {
		return nil, err
	}
	resp := &protocol.EnvSpaceResponse{ActionSpace: s.Action, StateSchema: s.State, ResetOptions: s.Options}
	if s.Action == nil {
		resp.ActionSpace = typesSchema(s.Types)
	}
	return resp, nil
}

// observation is an outgoing protocol.EnvObservation. Every step writes one, so it is encoded by append.
type observation struct {
	episode   string
	step      int64
	state     []byte // a JSON object
	done      bool
	truncated bool
	reward    float64
	at        int64 // microseconds since 1970
	meta      map[string]any
}

func (o *observation) append(dst []byte) ([]byte, error) {
	dst = append(dst, `{"episode_id":`...)
	dst = protocol.AppendString(dst, o.episode)
	dst = append(dst, `,"step_num":`...)
	dst = strconv.AppendInt(dst, o.step, 10)
	dst = append(dst, `,"state":`...)
	dst = append(dst, o.state...)
	dst = append(dst, `,"done":`...)
	dst = strconv.AppendBool(dst, o.done)
	dst = append(dst, `,"truncated":`...)
	dst = strconv.AppendBool(dst, o.truncated)
	dst = appendNumber(append(dst, `,"reward":`...), o.reward)
	dst = append(dst, `,"created_at":`...)
	dst = appendMicros(dst, o.at)
	dst = append(dst, `,"metadata":`...)
	if o.meta == nil {
		return append(dst, "{}}"...), nil
	}
	dst, err := protocol.AppendJSON(dst, o.meta)
	return append(dst, '}'), err
}

// appendNumber appends a float as JSON; it must not be NaN or infinite.
func appendNumber(dst []byte, f float64) []byte {
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	return strconv.AppendFloat(dst, f, 'f', -1, 64)
}

// appendMicros appends a time in microseconds since 1970 as seconds.
func appendMicros(dst []byte, at int64) []byte {
	return protocol.AppendSeconds(dst, time.UnixMicro(at))
}

// observed is the answer to reset, step and observe.
type observed struct{ observation }

// AppendJSON implements protocol.Appender.
func (r *observed) AppendJSON(dst []byte) ([]byte, error) {
	dst, err := r.observation.append(append(dst, `{"obs":`...))
	return append(dst, '}'), err
}

// batchResponse is the answer to a batch: a protocol.EnvBatchStepResponse.
type batchResponse struct{ moves []move }

// AppendJSON implements protocol.Appender.
func (r *batchResponse) AppendJSON(dst []byte) ([]byte, error) {
	dst = append(dst, `{"results":[`...)
	for i := range r.moves {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"type":"`+string(protocol.TypeEnvStepResp)+`","obs":`...)
		var err error
		seen := &r.moves[i].seen
		if r.moves[i].shown != nil {
			seen = r.moves[i].shown
		}
		if dst, err = seen.append(dst); err != nil {
			return dst, err
		}
		dst = append(dst, '}')
	}
	return append(dst, ']', '}'), nil
}
