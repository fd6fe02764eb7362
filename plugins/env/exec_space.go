package env

import (
	"context"
	"slices"
	"time"

	"a2e/protocol"
)

// Space implements Environment. It starts the program where none ran yet; when that
// fails, it allows any action, as the next reset fails with the reason.
func (x *external) Space() Space {
	space, err := x.LoadSpace(x.ctx)
	if err != nil {
		object := map[string]any{"type": "object"}
		return Space{Action: object, State: object}
	}
	return space
}

// LoadSpace implements SpaceLoader.
func (x *external) LoadSpace(ctx context.Context) (Space, error) {
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
	return Space{Types: actionTypes(resp.ActionSpace), Action: resp.ActionSpace, State: resp.StateSchema}, nil
}

// actionTypes gives the action types that a schema names, by `const` or `enum` of the
// property `type` or `action_type`, in the schema itself or in one of its choices.
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
