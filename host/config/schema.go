package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"

	"a2e/protocol"
)

const variableRef = "#/$defs/variable"

// Schema returns the JSON Schema (2020-12) of the config file, indented. options
// maps plugin types to a value of their option struct, whose non-zero fields
// show as defaults; types without an entry take any options.
func Schema(options map[string]any) ([]byte, error) {
	defaults := Default(Source{})
	defaults.StateDir = "" // depends on the machine
	s, err := object(reflect.ValueOf(*defaults))
	if err != nil {
		return nil, err
	}
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.ID, s.Title = "urn:a2e:config", "a2e config"
	s.Description = "The config file of a2e, the agent-to-environment host."
	s.Defs = map[string]*jsonschema.Schema{
		"variable": {Type: "string", Pattern: `\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}`, Description: "A value that holds ${NAME} or ${NAME:-default}."},
	}
	ignore(s, ignoredTop())
	// Other values are ignored, so the list is advice and not a rule.
	s.Properties["snapshot_mode"].Examples = anys(snapshotModes())
	s.Properties["audit"].Properties["enabled"].Default = []byte("true")
	if err = pluginsSchema(s, options); err != nil {
		return nil, err
	}
	return json.Marshal(s, json.Deterministic(true), jsontext.WithIndent("  "))
}

// pluginsSchema describes both forms of plugins. The options of a type stand once, under
// $defs.
func pluginsSchema(s *jsonschema.Schema, options map[string]any) error {
	item, err := object(reflect.ValueOf(Plugin{}))
	if err != nil {
		return err
	}
	ignore(item, map[string]string{"cls": ""})
	names := map[string][]string{}
	for alias, t := range protocol.CapabilityAliases() {
		names[string(t)] = append(names[string(t)], alias)
	}
	other := &jsonschema.Schema{Type: "object", Required: []string{"type"}, Description: "Options of a plugin of another name."}
	byName := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}, AdditionalProperties: other}
	var all []string
	for _, t := range slices.Sorted(maps.Keys(options)) {
		slices.Sort(names[t])
		same := append([]string{t}, names[t]...)
		all = append(all, same...)
		meta, err := metadataSchema(t, options[t])
		if err != nil {
			return fmt.Errorf("options of plugin type %s: %w", t, err)
		}
		isType := &jsonschema.Schema{Enum: anys(same)}
		meta.Properties["type"] = isType // in the mapping alone; Load knows
		s.Defs["options_"+t] = meta
		ref := &jsonschema.Schema{Ref: "#/$defs/options_" + t}
		when := &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"type": isType}}
		item.AllOf = append(item.AllOf, &jsonschema.Schema{If: when, Then: &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"metadata": ref}}})
		other.AllOf = append(other.AllOf, &jsonschema.Schema{If: when, Then: ref})
		for _, name := range same {
			byName.Properties[name] = &jsonschema.Schema{AnyOf: []*jsonschema.Schema{ref, {Types: []string{"boolean", "null"}}, {Ref: variableRef}}}
		}
	}
	item.Properties["type"].AnyOf[0].Enum = anys(all)
	other.Properties = map[string]*jsonschema.Schema{"type": {Enum: anys(all)}}
	p := s.Properties["plugins"]
	p.Type, p.Items, p.Default = "", nil, nil
	p.AnyOf = []*jsonschema.Schema{byName, {Type: "array", Items: item}}
	return nil
}

// metadataSchema describes the options of one plugin type.
func metadataSchema(typ string, options any) (*jsonschema.Schema, error) {
	meta, err := object(reflect.ValueOf(control{Enabled: true}))
	if err != nil {
		return nil, err
	}
	if options == nil {
		meta.AdditionalProperties = nil
		return meta, nil
	}
	v := reflect.Indirect(reflect.ValueOf(options))
	if v.Kind() != reflect.Struct {
		return nil, fmt.Errorf("%T is not a struct", options)
	}
	own, err := object(v)
	if err != nil {
		return nil, err
	}
	for _, name := range own.PropertyOrder {
		meta.Properties[name] = own.Properties[name]
	}
	meta.PropertyOrder = append(meta.PropertyOrder, own.PropertyOrder...)
	meta.Required = own.Required
	for alias, name := range optionAliases(typ) {
		if same, ok := own.Properties[name]; ok {
			copied := *same
			copied.Deprecated, copied.Description = true, "Another name of "+name+"."
			meta.Properties[alias] = &copied
		}
	}
	ignore(meta, ignoredOptions(typ))
	return meta, nil
}

// ignore adds keys that are accepted without effect.
func ignore(s *jsonschema.Schema, names map[string]string) {
	for name := range names {
		s.Properties[name] = &jsonschema.Schema{Deprecated: true, Description: "Of the Python host; ignored with a warning."}
	}
}

// object describes a struct by its tags; v's fields are the defaults.
func object(v reflect.Value) (*jsonschema.Schema, error) {
	s := &jsonschema.Schema{
		Type:                 "object",
		Properties:           map[string]*jsonschema.Schema{},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
	}
	for _, f := range fieldsOf(v.Type()) {
		fv := v.FieldByIndex(f.index)
		p, err := described(f.typ, fv, f.tag)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		if unitOf(f.name).want != "" && len(p.AnyOf) > 0 { // 10MB, 1m30s
			p.AnyOf = slices.Insert(p.AnyOf, 1, &jsonschema.Schema{Type: "string", Pattern: `^[0-9.]+ *[A-Za-zµ]`})
		}
		p.Description = f.tag.Get("doc")
		s.Properties[f.name] = p
		s.PropertyOrder = append(s.PropertyOrder, f.name)
		if f.tag.Get("required") != "" {
			s.Required = append(s.Required, f.name)
		}
	}
	return s, nil
}

// described returns the schema of a field, which may also be a variable when its
// value is a scalar.
func described(t reflect.Type, v reflect.Value, rules reflect.StructTag) (*jsonschema.Schema, error) {
	s, err := typed(t, v, rules)
	if err != nil {
		return nil, err
	}
	switch s.Type {
	case "string", "integer", "number", "boolean":
		s = &jsonschema.Schema{AnyOf: []*jsonschema.Schema{s, {Ref: variableRef}}}
	}
	if scalar := s.AnyOf != nil || s.Type == "array"; scalar && v.IsValid() && !v.IsZero() && t != secretType && t != durationType {
		s.Default, err = json.Marshal(v.Interface())
	}
	return s, err
}

func typed(t reflect.Type, v reflect.Value, rules reflect.StructTag) (*jsonschema.Schema, error) {
	switch t {
	case secretType:
		return &jsonschema.Schema{Type: "string"}, nil
	case optionsType:
		return &jsonschema.Schema{Type: "object"}, nil
	case durationType:
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "number"}, {Type: "string"}}}, nil
	}
	s := &jsonschema.Schema{}
	if lowest, ok := bound(rules, "min"); ok {
		s.Minimum = &lowest
	}
	if highest, ok := bound(rules, "max"); ok {
		s.Maximum = &highest
	}
	if enum := rules.Get("enum"); enum != "" {
		s.Enum = anys(strings.Split(enum, ","))
	}
	var err error
	switch t.Kind() {
	case reflect.Pointer:
		return typed(t.Elem(), reflect.Zero(t.Elem()), rules)
	case reflect.Interface:
	case reflect.Struct:
		if !v.IsValid() {
			v = reflect.Zero(t)
		}
		s, err := object(v)
		if err == nil && rules.Get("switch") != "" {
			s.Type, s.Types = "", []string{"boolean", s.Type}
		}
		return s, err
	case reflect.Map:
		s.Type = "object"
		s.AdditionalProperties, err = described(t.Elem(), reflect.Value{}, "")
	case reflect.Slice:
		s.Type = "array"
		s.Items, err = described(t.Elem(), reflect.Value{}, rules)
		s.Minimum, s.Maximum, s.Enum = nil, nil, nil
	case reflect.String:
		s.Type = "string"
	case reflect.Bool:
		s.Type = "boolean"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		s.Type = "integer"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		s.Type = "integer"
		if s.Minimum == nil {
			s.Minimum = new(float64)
		}
	case reflect.Float32, reflect.Float64:
		s.Type = "number"
	default:
		err = fmt.Errorf("the Go type %s has no schema", t)
	}
	return s, err
}

func anys[T any](in []T) []any {
	out := make([]any, len(in))
	for i, v := range in {
		out[i] = v
	}
	return out
}

// Rule says when a value that an untrusted file gives for a key only tightens. A key
// without a rule never does. The rules of the host's own keys are in topRules, those of
// options come with Source.Tighten.
type Rule struct {
	// take returns the value to hold, made of the one that holds and the one that is given;
	// all is false where what is given would widen something, in whole or, with inPart, in
	// part: then v counts all the same.
	take   func(base *Config, held, given reflect.Value) (v reflect.Value, all bool)
	inPart bool
	// settle returns the value of a key that the file does not name; nil = it stays.
	settle func(base *Config, held reflect.Value) reflect.Value
}

// Lower takes a number above 0 that is not above the one that holds. Where that one is 0
// or less, it stands for usual, or for no bound where usual is 0 as well.
func Lower(usual float64) Rule { return LowerThan(func(*Config) float64 { return usual }) }

// LowerThan is Lower with a usual number that depends on the rest of the config.
func LowerThan(usual func(base *Config) float64) Rule {
	return Rule{take: func(base *Config, held, given reflect.Value) (reflect.Value, bool) {
		bound, n := numberOf(held), numberOf(given)
		if bound <= 0 {
			bound = usual(base)
		}
		return given, n > 0 && (bound <= 0 || n <= bound)
	}}
}

// LowerOrNone is Lower for a number of which 0 is the tightest.
func LowerOrNone() Rule {
	return Rule{take: func(_ *Config, held, given reflect.Value) (reflect.Value, bool) {
		return given, numberOf(given) >= 0 && numberOf(given) <= numberOf(held)
	}}
}

func numberOf(v reflect.Value) float64 {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanFloat():
		return v.Float()
	}
	return 0
}

// Only takes a boolean of this value.
func Only(tight bool) Rule {
	return Rule{take: func(_ *Config, _, given reflect.Value) (reflect.Value, bool) { return given, given.Bool() == tight }}
}

// Ordered takes one of some texts, listed from the loosest to the tightest, that does not
// stand before the one that holds.
func Ordered(values ...string) Rule {
	return Rule{take: func(_ *Config, held, given reflect.Value) (reflect.Value, bool) {
		before, after := slices.Index(values, held.String()), slices.Index(values, given.String())
		return given, before >= 0 && after >= before
	}}
}

// Longer adds texts to a list of what is denied. valid reports whether a text can stand there.
func Longer(valid func(base *Config, text string) bool) Rule {
	return Rule{inPart: true, take: func(base *Config, held, given reflect.Value) (reflect.Value, bool) {
		old, more := held.Interface().([]string), given.Interface().([]string)
		added := slices.DeleteFunc(slices.Clone(more), func(s string) bool { return !valid(base, s) })
		if len(added) == 0 {
			return held, false
		}
		return reflect.ValueOf(slices.Concat(old, added)), len(added) == len(more)
	}}
}

// Within takes of a list of what is allowed the texts that were allowed before. A list that
// holds as nil stands for that of inherited, or for usual where that is nil as well.
func Within(inherited func(base *Config) []string, usual []string) Rule {
	return Rule{
		inPart: true,
		take: func(base *Config, held, given reflect.Value) (reflect.Value, bool) {
			allowed := held.Interface().([]string)
			if allowed == nil {
				allowed = inherited(base)
			}
			if allowed == nil {
				allowed = usual
			}
			both, all := []string{}, true
			for _, name := range given.Interface().([]string) {
				if slices.Contains(allowed, name) {
					both = append(both, name)
				} else {
					all = false
				}
			}
			return reflect.ValueOf(both), all
		},
		// The plugin that it is inherited from may be switched off.
		settle: func(base *Config, held reflect.Value) reflect.Value {
			if list := inherited(base); held.IsNil() && list != nil {
				return reflect.ValueOf(list)
			}
			return held
		},
	}
}

// Inherited takes nothing. It writes down a text that others of the plugins set, as they may
// be switched off.
func Inherited(inherited func(base *Config) string) Rule {
	return Rule{settle: func(base *Config, held reflect.Value) reflect.Value {
		if text := inherited(base); text != "" {
			return reflect.ValueOf(text)
		}
		return held
	}}
}

// firstToken takes a token where none is asked for so far: the user's own is not replaced
// by one that the folder knows.
func firstToken() Rule {
	return Rule{take: func(_ *Config, held, given reflect.Value) (reflect.Value, bool) {
		return given, held.Interface().(Secret).Reveal() == "" && given.Interface().(Secret).Reveal() != ""
	}}
}

// topRules are those of the host's own keys. What bounds how long records are kept is
// not among them: less of that destroys the user's.
func topRules() map[string]Rule {
	return map[string]Rule{
		"auth_token":              firstToken(),
		"max_parallel":            Lower(0),
		"limits.max_line_bytes":   Lower(0),
		"limits.max_queue":        Lower(0),
		"limits.max_queue_bytes":  Lower(0),
		"limits.max_output_bytes": Lower(0),
		"fleet.max_tasks":         Lower(0),
		"sandbox":                 Ordered("off", "best_effort", "", "required"), // "" = required for skills, best_effort for the rest
		"children.memory_bytes":   Lower(4 << 30),                                // the least default
		"children.address_bytes":  Lower(0),
		"children.file_bytes":     Lower(2 << 30),
		"children.open_files":     Lower(16384),
		"children.processes":      Lower(1024),
		"children.cpu_seconds":    Lower(0),
		"children.disk_bytes":     Lower(8 << 30),
	}
}
