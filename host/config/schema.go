package config

import (
	"cmp"
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
	ignore(s, "")
	ignore(s.Properties["audit"], "audit")
	// Other values are ignored, so the list is advice and not a rule.
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
	item.Properties["cls"] = useless()
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
	ignore(meta, "*")
	ignore(meta, typ)
	return meta, nil
}

// ignore adds keys that are accepted without effect.
func ignore(s *jsonschema.Schema, in string) {
	for name := range ignored(in) {
		s.Properties[name] = useless()
	}
}

func useless() *jsonschema.Schema {
	return &jsonschema.Schema{Deprecated: true, Description: "Of the Python host or an older a2e; of no use here."}
}

// object describes a struct by its tags; v's fields are the defaults.
func object(v reflect.Value) (*jsonschema.Schema, error) {
	s := &jsonschema.Schema{
		Type:                 "object",
		Properties:           map[string]*jsonschema.Schema{},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
	}
	for _, f := range fieldsOf(v.Type()) {
		fv := v.FieldByIndex(f.Index)
		p, err := described(f.Type, fv, f.Tag)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		if hasUnit(wantOf(f.name, f.Type)) && len(p.AnyOf) > 0 { // 10MB, 1m30s
			p.AnyOf = slices.Insert(p.AnyOf, 1, &jsonschema.Schema{Type: "string", Pattern: `^[0-9.]+ *[A-Za-zµ]*`})
		}
		p.Description = cmp.Or(f.Tag.Get("doc"), docs()[f.name])
		s.Properties[f.name] = p
		s.PropertyOrder = append(s.PropertyOrder, f.name)
		if f.Tag.Get("required") != "" {
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
		return &jsonschema.Schema{Type: "number"}, nil // object adds that it may have a unit
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
