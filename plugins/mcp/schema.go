package mcp

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	v1 "github.com/go-json-experiment/json/v1"
	"github.com/google/jsonschema-go/jsonschema"

	"a2e/host/pattern"
	"a2e/protocol"
)

// The bounds of what is made of a schema.
const (
	maxParameters = 200   // of one object
	maxNested     = 4     // objects within objects
	maxSchemaSize = 2000  // nodes, references followed: what holding arguments against it costs
	maxProblem    = 500   // bytes of what is wrong with arguments
	maxMatching   = 100e6 // steps of all patterns times bytes of what is checked: seconds that nothing can stop
)

// encode gives a value of the SDK as JSON, as the SDK itself would write it.
func encode(v any) (jsontext.Value, error) {
	return json.Marshal(v, v1.OmitEmptyWithLegacySemantics(true), json.Deterministic(true))
}

// parameters gives the members of a JSON Schema of an object, as far as the words of
// tool/list go: what they cannot say is of type any.
func parameters(schema any, depth int) []protocol.ToolParameter {
	obj, _ := schema.(map[string]any)
	members, _ := obj["properties"].(map[string]any)
	required := textsOf(obj["required"])
	out := make([]protocol.ToolParameter, 0, len(members))
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if name == "" || len(out) == maxParameters {
			continue
		}
		p := parameter(members[name], depth)
		p.Name, p.Required = name, slices.Contains(required, name)
		out = append(out, p)
	}
	slices.SortStableFunc(out, func(a, b protocol.ToolParameter) int { // what is needed comes first
		switch {
		case a.Required == b.Required:
			return 0
		case a.Required:
			return -1
		}
		return 1
	})
	return out
}

func parameter(schema any, depth int) protocol.ToolParameter {
	obj, _ := schema.(map[string]any)
	p := protocol.ToolParameter{Type: "any"}
	p.Description, _ = obj["description"].(string)
	if title, ok := obj["title"].(string); ok && p.Description == "" {
		p.Description = title
	}
	words := textsOf(obj["type"])
	if word, ok := obj["type"].(string); ok {
		words = []string{word}
	}
	words = slices.DeleteFunc(words, func(w string) bool { return w == "null" })
	if len(words) == 1 && slices.Contains([]string{"string", "integer", "number", "boolean", "object", "array"}, words[0]) {
		p.Type = words[0]
	}
	if enum := textsOf(obj["enum"]); len(enum) > 0 && p.Type == "string" {
		p.Enum = enum
	}
	if p.Type == "object" && depth < maxNested {
		for _, nested := range parameters(obj, depth+1) {
			if p.Properties == nil {
				p.Properties = make(map[string]protocol.ToolParameter)
			}
			p.Properties[nested.Name] = nested
		}
	}
	return p
}

// textsOf gives a list of texts; nil where it is none.
func textsOf(v any) []string {
	list, _ := v.([]any)
	out := make([]string, 0, len(list))
	for _, item := range list {
		text, ok := item.(string)
		if !ok {
			return nil
		}
		out = append(out, text)
	}
	return out
}

// checker makes the check of a tool's arguments. The schema is made ready at the first
// call; with one that makes no sense here, or would cost too much, the server decides.
func checker(schema any) func(protocol.Object) error {
	resolved := sync.OnceValues(func() (*jsonschema.Resolved, int) { return resolve(schema) })
	known := knownArguments(schema)
	return func(args protocol.Object) error {
		if err := unknownArguments(known, args); err != nil {
			return err
		}
		r, steps := resolved()
		if r == nil || steps*len(args.Raw()) > maxMatching {
			return nil
		}
		var instance map[string]any
		if err := json.Unmarshal(args.Raw(), &instance); err != nil {
			return protocol.Violation(protocol.FieldError{Path: "/arguments", Message: "cannot be read: " + err.Error()})
		}
		return violated(r, instance)
	}
}

// resolve makes a schema ready, and counts the steps of its patterns; nil = it cannot be used.
func resolve(schema any) (r *jsonschema.Resolved, steps int) {
	defer func() {
		if recover() != nil {
			r = nil
		}
	}()
	steps, ok := isBounded(schema, maxSchemaSize)
	if !ok {
		return nil, 0
	}
	raw, err := json.Marshal(schema)
	if err != nil {
		return nil, 0
	}
	var parsed jsonschema.Schema
	if err := json.Unmarshal(raw, &parsed); err != nil {
		return nil, 0
	}
	r, err = parsed.Resolve(nil)
	if err != nil {
		return nil, 0
	}
	return r, steps
}

// violated holds arguments against a schema.
func violated(r *jsonschema.Resolved, instance map[string]any) (wrong error) {
	defer func() {
		if recover() != nil {
			wrong = nil // the server decides
		}
	}()
	err := r.Validate(instance)
	if err == nil {
		return nil
	}
	return protocol.Violation(problemOf(err.Error()))
}

// problemOf reads where the schema package found something wrong.
func problemOf(text string) protocol.FieldError {
	p := protocol.FieldError{Path: "/arguments"}
	step := regexp.MustCompile(`^validating (root|\S+): `)
	for {
		at := step.FindStringSubmatch(text)
		if at == nil {
			break
		}
		text = text[len(at[0]):]
		if place, ok := strings.CutPrefix(at[1], "/properties/"); ok {
			p.Path = "/arguments/" + strings.ReplaceAll(place, "/properties/", "/")
		}
	}
	p.Message = clip(text, maxProblem)
	return p
}

// knownArguments names the arguments of a tool that declares all it takes; ok = false for
// one that may take others.
func knownArguments(schema any) (names []string) {
	obj, _ := schema.(map[string]any)
	members, declared := obj["properties"].(map[string]any)
	for _, key := range []string{"additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "if", "$ref", "$dynamicRef", "dependentSchemas"} {
		if _, ok := obj[key]; ok {
			declared = false
		}
	}
	if !declared {
		return nil
	}
	return append(slices.Sorted(maps.Keys(members)), "") // never nil
}

// unknownArguments refuses arguments that a tool does not declare.
func unknownArguments(known []string, args protocol.Object) error {
	if known == nil {
		return nil
	}
	var wrong problems
	for key := range args.All() {
		if name := string(key); name == "" || !slices.Contains(known, name) {
			names := strings.Join(slices.DeleteFunc(slices.Clone(known), func(n string) bool { return n == "" }), ", ")
			if names == "" {
				names = "no arguments"
			}
			if wrong.add("/arguments/"+shortened(name), "unknown argument; there are: %s", clip(names, maxProblem)); len(wrong) == 20 {
				break
			}
		}
	}
	if wrong != nil {
		return protocol.Violation(wrong...)
	}
	return nil
}

// walker counts what a schema comes to when its references are followed: one that refers
// to itself, or doubles with each step, would never end. It follows those that lie within
// the schema; with any other there is no bound.
type walker struct {
	root  any
	left  int // nodes; below 0 it is too much
	steps int // of all patterns, each of which may be tried for each byte of a text
}

// isBounded tells whether a schema comes to so many nodes at most, and how many steps its
// patterns have.
func isBounded(schema any, most int) (steps int, ok bool) {
	w := walker{root: schema, left: most}
	w.walk(schema)
	return w.steps, w.left >= 0
}

func (w *walker) walk(v any) {
	if w.left--; w.left < 0 {
		return
	}
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			w.walk(item)
		}
	case map[string]any:
		for key, item := range v {
			ref, isText := item.(string)
			switch {
			case (key == "$dynamicRef" || key == "$recursiveRef" || key == "$id") && isText:
				w.left = -1
			case key == "$ref" && isText:
				w.follow(ref)
			case key == "pattern" && isText:
				w.count(ref)
			case key == "patternProperties":
				for expr := range members(item) {
					w.count(expr)
				}
				w.walk(item)
			default:
				w.walk(item)
			}
		}
	}
}

func members(v any) map[string]any {
	obj, _ := v.(map[string]any)
	return obj
}

// count adds the steps of a pattern; what is none is found elsewhere.
func (w *walker) count(expr string) {
	steps, err := pattern.Steps(expr, pattern.MaxSteps)
	if tooMany := (*pattern.StepsError)(nil); errors.As(err, &tooMany) {
		w.left = -1
	}
	if w.steps += steps; w.steps > pattern.MaxSteps {
		w.left = -1
	}
}

func (w *walker) follow(ref string) {
	at, ok := strings.CutPrefix(ref, "#")
	if !ok || at != "" && !strings.HasPrefix(at, "/") {
		w.left = -1
		return
	}
	target := w.root
	for token := range jsontext.Pointer(at).Tokens() {
		target = members(target)[token]
	}
	w.walk(target)
}

// clip shortens text to about n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
