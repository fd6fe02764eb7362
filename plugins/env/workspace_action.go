package env

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host/schema"
	"a2e/protocol"
)

// The action types besides the names of tools. A tool with such a name can be called only by actionTool.
const (
	actionSubmit = "submit" // check the work and end the episode
	actionTool   = "tool"   // {"tool_name":…,"arguments":{…}}
)

// An action is one of these, with the arguments in payload or beside the type:
//
//	{"type":"read_file","path":"a"}    {"action_type":"read_file","payload":{"path":"a"}}
//	{"action_type":"tool","payload":{"tool_name":"read_file","arguments":{"path":"a"}}}
//	{"type":"submit"}

// workspaceSpace describes the actions that the tools provide, and the states.
func workspaceSpace(tools []protocol.ToolDefinition) Space {
	var types, names []string
	var rules []any
	for _, def := range tools {
		names = append(names, def.Name)
		if def.Name == actionSubmit || def.Name == actionTool {
			continue
		}
		types = append(types, def.Name)
		rules = append(rules, actionRule(def.Name, def.Description, objectSchema(def.InputParameters)))
	}
	types = append(types, actionTool, actionSubmit)
	rules = append(rules,
		actionRule(actionTool, "Call a tool by its name.", map[string]any{
			"type": "object", "additionalProperties": false, "required": []string{"tool_name"},
			"properties": map[string]any{
				"tool_name": map[string]any{"type": "string", "enum": names},
				"arguments": map[string]any{"type": "object", "description": "As the action of the tool's name " +
					"takes them."},
			},
		}),
		actionRule(actionSubmit, "Check the work. It ends the episode with its reward.", objectSchema(nil)))
	action := typesSchema(types)
	action["allOf"] = rules
	task := map[string]any{"type": []string{"string", "null"}, "description": "The folder or the id of a task."}
	return Space{
		Types: types, Action: action, State: workspaceStateSchema(),
		Options: optionsSchema(map[string]any{"task": task}),
	}
}

// actionRule returns the schema of the arguments of one action type, in payload or beside the type.
func actionRule(name, description string, args map[string]any) map[string]any {
	named := func(key string) map[string]any {
		return map[string]any{
			"properties": map[string]any{key: map[string]any{"const": name}},
			"required":   []string{key},
		}
	}
	beside := maps.Clone(args)
	properties := maps.Clone(args["properties"].(map[string]any))
	for _, key := range []string{"type", "action_type"} {
		if _, own := properties[key]; !own {
			properties[key] = true
		}
	}
	beside["properties"] = properties
	return map[string]any{
		"description": description,
		"if":          map[string]any{"anyOf": []any{named("type"), named("action_type")}},
		"then": map[string]any{
			"if": map[string]any{"required": []string{"payload"}},
			"then": map[string]any{
				"properties":           map[string]any{"type": true, "action_type": true, "payload": args},
				"additionalProperties": false,
			},
			"else": beside,
		},
	}
}

// objectSchema returns the JSON Schema of a tool's parameters.
func objectSchema(params []protocol.ToolParameter) (s map[string]any) {
	_ = json.Unmarshal(schema.Object(params, true), &s) // schema.Object returns JSON
	return s
}

// toolCall is an action other than submit.
type toolCall struct {
	name string
	args protocol.Object
	at   string // JSON Pointer of the arguments
}

// callOf reads an action. The error is `unknown_action` or `schema_violation`.
func (w *workspace) callOf(a Action) (toolCall, error) {
	c := toolCall{name: a.Type, args: a.Payload, at: "/action"}
	if _, ok := a.Whole.Get("payload"); ok {
		c.at += "/payload"
	}
	if a.Type == actionTool {
		val, _ := a.Payload.Get("tool_name")
		name, ok := val.Str()
		if !ok {
			return c, protocol.Wrong(c.at+"/tool_name", "must be the name of a tool")
		}
		c.name, c.args = name, protocol.Object{}
		c.at += "/arguments"
		if val, ok := a.Payload.Get("arguments"); ok {
			args, err := protocol.ParseObject(val)
			if err != nil {
				return c, protocol.Wrong(c.at, "must be an object")
			}
			c.args = args
		}
	}
	if !slices.Contains(w.names, c.name) {
		return c, protocol.Errorf(protocol.CodeUnknownAction, "unknown action %.64q of workspace; there are: %s",
			c.name, strings.Join(w.space.Types, ", ")).
			With("known", w.space.Types)
	}
	return c, nil
}

// misfit returns the answer to arguments that the tool refused by their schema, with paths into the
// action; nil for any other error.
func (c toolCall) misfit(err error) error {
	var known *protocol.Error
	if !errors.As(err, &known) || known.Code != protocol.CodeSchemaViolation {
		return nil
	}
	problems, _ := known.Detail["errors"].([]protocol.FieldError)
	if len(problems) == 0 {
		return known
	}
	problems = slices.Clone(problems)
	for i, p := range problems {
		problems[i].Path = c.at + strings.TrimPrefix(p.Path, "/arguments")
	}
	return protocol.Violation(problems...)
}
