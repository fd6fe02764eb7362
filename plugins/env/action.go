package env

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"a2e/host/schema"
	"a2e/protocol"
)

// Bounds of an action space.
const (
	maxProblems = 20   // types that a refusal lists
	maxParts    = 2000 // parts of the schema, counting what references stand for
	maxFitting  = 256  // actions that are remembered as fitting, and the longest of them in bytes
)

// typesSchema returns the JSON Schema of actions that have one of these types.
func typesSchema(types []string) map[string]any {
	choice := map[string]any{"type": "string", "enum": types}
	return map[string]any{
		"type": "object",
		"properties": map[string]any{
			"type": choice, "action_type": choice,
			"payload": map[string]any{"type": "object"},
		},
		"anyOf": []any{
			map[string]any{"required": []string{"type"}},
			map[string]any{"required": []string{"action_type"}},
		},
	}
}

// optionsSchema returns the JSON Schema of the options of a reset: these and no others.
func optionsSchema(properties map[string]any) map[string]any {
	s := map[string]any{"type": "object", "additionalProperties": false}
	if properties != nil {
		s["properties"] = properties
	}
	return s
}

// actions reads the actions of one environment and refuses those that do not fit its space.
type actions struct {
	load  func(context.Context) (Space, error)
	ready atomic.Pointer[actionSpace]
}

// actionSpace is a space that actions are checked against.
type actionSpace struct {
	types   []string
	schema  *schema.Schema // nil = only the types are checked
	options *schema.Schema // for a reset; nil = any options fit

	mu      sync.Mutex
	fitting map[string]bool // actions that fit the schema, by their JSON; guarded by mu
}

// get returns the space, which is made at the first action. Two requests at once may both make it, which
// does no harm.
func (a *actions) get(ctx context.Context) (*actionSpace, error) {
	if s := a.ready.Load(); s != nil {
		return s, nil
	}
	space, err := a.load(ctx)
	if err != nil {
		return nil, err
	}
	s := &actionSpace{types: space.Types, fitting: make(map[string]bool)}
	if space.Action != nil {
		if s.schema, err = schema.Compile(space.Action, maxParts); err != nil {
			return nil, protocol.Errorf(protocol.CodeRuntimeError, "the action space of the environment is not a "+
				"JSON Schema: %w", err)
		}
	}
	if space.Options != nil {
		if s.options, err = schema.Compile(space.Options, maxParts); err != nil {
			return nil, protocol.Errorf(protocol.CodeRuntimeError, "reset_options of the environment is not a JSON "+
				"Schema: %w", err)
		}
	}
	a.ready.Store(s)
	return s, nil
}

// checkOptions refuses options of a reset that the environment does not have.
func (a *actions) checkOptions(ctx context.Context, options protocol.Object) error {
	if options.Len() == 0 {
		return nil
	}
	s, err := a.get(ctx)
	if err != nil || s.options == nil {
		return err
	}
	if wrong := s.options.Check(options.Raw(), "/options"); wrong != nil {
		return protocol.Violation(wrong...)
	}
	return nil
}

// read returns the action in an object. place is its index in a batch, -1 = of a single step.
func (a *actions) read(ctx context.Context, obj protocol.Object, place int) (Action, error) {
	s, err := a.get(ctx)
	if err != nil {
		return Action{}, err
	}
	action, err := s.parse(obj, place)
	if err != nil || s.schema == nil {
		return action, err
	}
	return action, s.validate(obj, actionPath(place))
}

// actionPath returns the JSON Pointer of an action in its request. Only errors and schemas need it.
func actionPath(place int) string {
	if place < 0 {
		return "/action"
	}
	return "/actions/" + strconv.Itoa(place)
}

// misfit returns the error for a wrong member of an action.
func misfit(place int, key, problem string) error {
	return protocol.Wrong(actionPath(place)+"/"+key, "%s", problem)
}

// parse reads the two spellings of an action: {"type":…, …} and
// {"action_type":…,"payload":{…}}.
func (s *actionSpace) parse(obj protocol.Object, place int) (Action, error) {
	a := Action{Whole: obj}
	if len(s.types) == 0 {
		return s.payload(a, obj, place)
	}
	typed, plain := false, true
	for key, val := range obj.All() {
		if k := string(key); k != "type" && k != "action_type" {
			plain = false
			continue
		}
		name, err := s.typeOf(string(key), val, place)
		if err != nil {
			return a, err
		}
		if typed && name != a.Type {
			return a, misfit(place, string(key), "names another action than the other spelling; send one of them")
		}
		a.Type, typed = name, true
	}
	switch {
	case !typed:
		return a, s.unknown(nil, place)
	case plain:
		return a, nil
	}
	return s.payload(a, obj, place)
}

// typeOf returns the action type that val names, or an error if the space does not have it.
func (s *actionSpace) typeOf(key string, val protocol.Value, place int) (string, error) {
	if val.Kind() != '"' {
		return "", misfit(place, key, "should be a string")
	}
	inner := val[1 : len(val)-1]
	for _, t := range s.types {
		if string(inner) == t {
			return t, nil
		}
	}
	if name, _ := val.Str(); slices.Contains(s.types, name) { // the name has escapes
		return name, nil
	}
	return "", s.unknown(val, place)
}

// payload sets the payload of an action: everything that it has besides its type.
func (s *actionSpace) payload(a Action, obj protocol.Object, place int) (_ Action, err error) {
	if val, ok := obj.Get("payload"); ok {
		if s.schema != nil && val.Kind() != '{' {
			return a, nil // the schema says what it should be
		}
		if a.Payload, err = protocol.ParseObject(val); err != nil {
			return a, misfit(place, "payload", "should be an object")
		}
		return a, nil
	}
	if a.Payload = obj; len(s.types) == 0 {
		return a, nil
	}
	rest := []byte{'{'}
	for key, val := range obj.All() {
		if k := string(key); k != "type" && k != "action_type" {
			if len(rest) > 1 {
				rest = append(rest, ',')
			}
			rest = append(append(protocol.AppendString(rest, key), ':'), val...)
		}
	}
	if a.Payload, err = protocol.ParseObject(append(rest, '}')); err != nil { // its members were valid JSON
		return a, misfit(place, "payload", err.Error())
	}
	return a, nil
}

// unknown returns the refusal of an action whose type is unknown; val = nil means that it has none.
func (s *actionSpace) unknown(val protocol.Value, place int) error {
	list := strings.Join(s.types[:min(len(s.types), maxProblems)], ", ")
	if len(s.types) > maxProblems {
		list += ", …"
	}
	var err *protocol.Error
	if val == nil {
		err = protocol.Errorf(protocol.CodeUnknownAction, "the action has no \"type\"; send {\"type\":%q} for one "+
			"of: %s", s.types[0], list)
	} else {
		name, _ := val.Str()
		hint := strings.TrimLeft(schema.DidYouMean(name, s.types)+" there are: ", " ")
		err = protocol.Errorf(protocol.CodeUnknownAction, "unknown action %.64s; %s%s", val, hint, list)
	}
	return err.With("known", s.types).With("path", actionPath(place))
}

// validate checks an action against the whole schema. It remembers actions that fit, as most agents repeat
// a few.
func (s *actionSpace) validate(obj protocol.Object, path string) error {
	raw := obj.Raw()
	s.mu.Lock()
	known := s.fitting[string(raw)]
	s.mu.Unlock()
	if known {
		return nil
	}
	if wrong := s.schema.Check(raw, path); wrong != nil {
		return protocol.Violation(wrong...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.fitting) >= maxFitting {
		clear(s.fitting)
	}
	if len(raw) <= maxFitting {
		s.fitting[string(raw)] = true
	}
	return nil
}
