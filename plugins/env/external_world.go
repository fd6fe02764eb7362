package env

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/child"
	"a2e/protocol"
)

// execWorld is one episode of the program.
type execWorld struct {
	child  *execChild
	push   func(*protocol.EnvStatePush)
	within time.Duration
	id     string // the program's id of the episode; set before the first answer is read

	state protocol.Value // an object
	stale atomic.Bool    // the state has changed since it was read
}

// Step implements World. After a timeout the program may still take the step.
func (w *execWorld) Step(ctx context.Context, a Action) (Outcome, error) {
	var out Outcome
	err := w.look(ctx, protocol.TypeEnvStepReq, (*stepRequest)(&protocol.EnvStepRequest{
		EpisodeID: w.id,
		Action:    a.Whole,
	}), &out)
	return out, err
}

// stepRequest encodes itself, which is much cheaper than reflection.
type stepRequest protocol.EnvStepRequest

// AppendJSON implements protocol.Appender.
func (r *stepRequest) AppendJSON(dst []byte) ([]byte, error) {
	dst = protocol.AppendString(append(dst, `{"episode_id":`...), r.EpisodeID)
	dst, err := protocol.AppendJSON(append(dst, `,"action":`...), r.Action)
	return append(dst, '}'), err
}

// AppendState implements World.
func (w *execWorld) AppendState(ctx context.Context, dst []byte) ([]byte, error) {
	if w.stale.Load() {
		if err := w.Observe(ctx); err != nil {
			return nil, err
		}
	}
	select {
	case <-w.child.Done():
		return nil, w.child.End()
	default:
		return appendPlain(dst, w.state), nil
	}
}

// Observe implements Observer.
func (w *execWorld) Observe(ctx context.Context) error {
	return w.look(ctx, protocol.TypeEnvObserveReq, &protocol.EnvObserveRequest{EpisodeID: w.id}, nil)
}

// Modes implements World.
func (w *execWorld) Modes() []string { return []string{"screenshot", "text"} }

// Render implements World.
func (w *execWorld) Render(ctx context.Context, mode string) (jsontext.Value, error) {
	r, err := w.child.call(ctx, protocol.TypeEnvRenderReq, &protocol.EnvRenderRequest{EpisodeID: w.id, Mode: &mode},
		nil, w.within)
	if err != nil {
		return nil, err
	}
	var resp protocol.EnvRenderResponse
	if err := r.decode(&resp); err != nil {
		return nil, err
	}
	return resp.Render, nil
}

// Close implements World. If the program has ended, its episodes count as closed.
func (w *execWorld) Close(ctx context.Context) error {
	w.child.mu.Lock()
	delete(w.child.worlds, w.id)
	w.child.mu.Unlock()
	_, err := w.child.call(ctx, protocol.TypeEnvCloseReq, &protocol.EnvCloseRequest{EpisodeID: w.id}, nil, w.within)
	var ended *child.Ended
	var own *protocol.Error
	if errors.As(err, &ended) || errors.As(err, &own) && own.Code == protocol.CodeUnknownEpisode {
		return nil
	}
	return err
}

// look sends a request whose answer is an observation, which becomes the state. out, if not nil, is set to
// the outcome of the step.
func (w *execWorld) look(ctx context.Context, t protocol.Type, body any, out *Outcome) error {
	r, err := w.child.call(ctx, t, body, w, w.within)
	if err != nil {
		if r.typ != protocol.TypeError {
			w.stale.Store(true) // no readable answer: it is unknown what the program did
		}
		return err
	}
	got, state, err := readObs(r.obs)
	if err != nil {
		w.stale.Store(true)
		return err
	}
	w.state = state
	if out != nil {
		*out = got
	}
	return nil
}

// readObs reads an observation.
func readObs(raw protocol.Value) (out Outcome, state protocol.Value, err error) {
	obs, err := protocol.ParseObject(raw)
	if err != nil {
		return out, nil, malformed("obs: %v", err)
	}
	for key, val := range obs.All() {
		ok := true
		switch string(key) {
		case "state":
			_, err := protocol.ParseObject(val)
			state, ok = val, err == nil
		case "metadata":
			out.Info = membersOf(val)
			ok = out.Info != nil || val.Kind() == 'n'
		case "reward":
			out.Reward, ok = number(val)
		case "done":
			out.Done, ok = boolean(val)
		case "truncated":
			out.Truncated, ok = boolean(val)
		}
		if !ok {
			return out, nil, malformed("obs.%s has the wrong type", key)
		}
	}
	if state == nil {
		return out, nil, malformed("obs has no state")
	}
	return out, state, nil
}

// membersOf returns the members of an object as raw JSON; nil = it is not an object.
func membersOf(raw protocol.Value) map[string]any {
	if raw.Kind() != '{' {
		return nil
	}
	obj, err := protocol.ParseObject(raw)
	if err != nil {
		return nil
	}
	members := make(map[string]any, obj.Len())
	for key, val := range obj.All() {
		members[string(key)] = jsontext.Value(val)
	}
	return members
}

func number(val protocol.Value) (n float64, ok bool) {
	if val.Kind() == 'n' {
		return 0, true
	}
	n, err := strconv.ParseFloat(string(val), 64)
	return n, err == nil && val.Kind() == '0'
}

func boolean(val protocol.Value) (yes, ok bool) {
	return val.Kind() == 't', val.Kind() == 't' || val.Kind() == 'f'
}

// check returns the reply if it answers a request of type t, or else an error.
func (r reply) check(t protocol.Type) (reply, error) {
	switch r.typ {
	case answerTo(t):
		return r, r.err
	case protocol.TypeError:
		return r, r.failure()
	}
	return r, malformed("%s was answered by %.64q", t, r.typ)
}

// answerTo returns the type of the answer to a request of type t.
func answerTo(t protocol.Type) protocol.Type { return t[:len(t)-len("req")] + "resp" }

// failure returns the error that the program answered with.
func (r reply) failure() error {
	var e protocol.Error
	if err := r.decode(&e); err != nil {
		return err
	}
	if e.Code == "" {
		e.Code = protocol.CodeRuntimeError
	}
	if e.Message == "" {
		e.Message = "the program of the environment does not say why"
	}
	obj, err := protocol.ParseObject(r.line)
	if err != nil {
		return malformed("%v", err)
	}
	if val, _ := obj.Get("retryable"); val.Kind() != 't' && val.Kind() != 'f' {
		e.Retryable = e.Code.Retryable()
	}
	return &e
}

// decode reads the answer into dst, a pointer to the struct of its type.
func (r reply) decode(dst any) error {
	obj, err := protocol.ParseObject(r.line)
	if err == nil {
		err = protocol.Decode(obj, nil, dst)
	}
	if err != nil {
		return malformed("%s: %v", r.typ, err)
	}
	return nil
}

// malformed returns the error for an answer that is invalid.
func malformed(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeRuntimeError, "the program of the environment gave an answer that does not "+
		"fit: %s", fmt.Sprintf(format, args...))
}

// Space implements Environment. It starts the program if none has run yet.
func (x *external) Space(ctx context.Context) (Space, error) {
	host.HandOff(ctx)
	x.mu.Lock()
	known := x.space
	x.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	if _, err := x.running(ctx); err != nil {
		return Space{}, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return *x.space, nil
}

// space asks the program for its space.
func (c *execChild) space(ctx context.Context, name string, within time.Duration) (Space, error) {
	r, err := c.call(ctx, protocol.TypeEnvSpaceReq, &protocol.EnvSpaceRequest{EnvName: name}, nil, within)
	if err != nil {
		return Space{}, err
	}
	var resp protocol.EnvSpaceResponse
	if err := r.decode(&resp); err != nil {
		return Space{}, err
	}
	if resp.ActionSpace == nil || resp.StateSchema == nil {
		return Space{}, malformed("%s needs action_space and state_schema, each a JSON Schema", r.typ)
	}
	return Space{
		Types: actionTypes(resp.ActionSpace), Action: resp.ActionSpace, State: resp.StateSchema,
		Options: resp.ResetOptions,
	}, nil
}

// actionTypes returns the action types that a schema names: by `const` or `enum` of the property `type` or
// `action_type`, in the schema itself or in one of its choices.
func actionTypes(schema map[string]any) []string {
	var types []string
	add := func(val any) {
		if name, ok := val.(string); ok && !slices.Contains(types, name) {
			types = append(types, name)
		}
	}
	properties, _ := schema["properties"].(map[string]any)
	for _, key := range []string{"type", "action_type"} {
		property, _ := properties[key].(map[string]any)
		add(property["const"])
		names, _ := property["enum"].([]any)
		for _, name := range names {
			add(name)
		}
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf"} {
		choices, _ := schema[key].([]any)
		for _, choice := range choices {
			one, _ := choice.(map[string]any)
			for _, name := range actionTypes(one) {
				add(name)
			}
		}
	}
	return types
}
