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

// Schema returns the JSON Schema (2020-12) of the config file, indented. options maps plugin types to
// a value of their option struct, whose non-zero fields become defaults; types without an entry accept
// any options.
func Schema(options map[string]any) ([]byte, error) {
	defaults := Default(Source{})
	defaults.StateDir = "" // it depends on the machine
	var d describer
	s := d.object(reflect.ValueOf(*defaults))
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.ID, s.Title = "urn:a2e:config", "a2e config"
	s.Description = "The config file of a2e, the agent-to-environment host."
	s.Defs = map[string]*jsonschema.Schema{
		"variable": {Type: "string", Pattern: `\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}`, Description: "A value that " +
			"holds ${NAME} or ${NAME:-default}."},
	}
	ignore(s, "")
	ignore(s.Properties["audit"], "audit")
	s.Properties["audit"].Properties["enabled"].Default = []byte("true")
	d.plugins(s, options)
	if d.err != nil {
		return nil, d.err
	}
	return json.Marshal(s, json.Deterministic(true), jsontext.WithIndent("  "))
}

// describer makes schemas of Go values, and keeps the first error about a type that has no schema.
type describer struct{ err error }

// plugins describes both forms of plugins. The options of a type are described only once, under $defs.
func (d *describer) plugins(s *jsonschema.Schema, options map[string]any) {
	item := d.object(reflect.ValueOf(Plugin{}))
	item.Properties["cls"] = useless()
	names := map[string][]string{}
	for alias, t := range protocol.CapabilityAliases() {
		names[string(t)] = append(names[string(t)], alias)
	}
	other := &jsonschema.Schema{Type: "object", Required: []string{"type"}, Description: "Options of a plugin of " +
		"another name."}
	byName := &jsonschema.Schema{
		Type: "object", Properties: map[string]*jsonschema.Schema{},
		AdditionalProperties: other,
	}
	var all []string
	for _, t := range slices.Sorted(maps.Keys(options)) {
		slices.Sort(names[t])
		same := append([]string{t}, names[t]...)
		all = append(all, same...)
		isType := &jsonschema.Schema{Enum: anys(same)}
		meta := d.metadata(t, options[t])
		meta.Properties["type"] = isType // only in the mapping, which Load checks
		s.Defs["options_"+t] = meta
		ref := &jsonschema.Schema{Ref: "#/$defs/options_" + t}
		when := &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"type": isType}}
		item.AllOf = append(item.AllOf, &jsonschema.Schema{
			If:   when,
			Then: &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"metadata": ref}},
		})
		other.AllOf = append(other.AllOf, &jsonschema.Schema{If: when, Then: ref})
		for _, name := range same {
			byName.Properties[name] = &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
				ref,
				{Types: []string{"boolean", "null"}},
				{Ref: variableRef},
			}}
		}
	}
	item.Properties["type"].AnyOf[0].Enum = anys(all)
	other.Properties = map[string]*jsonschema.Schema{"type": {Enum: anys(all)}}
	p := s.Properties["plugins"]
	p.Type, p.Items, p.Default = "", nil, nil
	p.AnyOf = []*jsonschema.Schema{byName, {Type: "array", Items: item}}
}

// metadata describes the options of one plugin type.
func (d *describer) metadata(typ string, options any) *jsonschema.Schema {
	meta := d.object(reflect.ValueOf(control{Enabled: true}))
	if options == nil {
		meta.AdditionalProperties = nil
		return meta
	}
	own := d.object(reflect.Indirect(reflect.ValueOf(options)))
	maps.Copy(meta.Properties, own.Properties)
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
	return meta
}

// ignore adds the keys that have no effect.
func ignore(s *jsonschema.Schema, in string) {
	for name := range ignored(in) {
		s.Properties[name] = useless()
	}
}

func useless() *jsonschema.Schema {
	return &jsonschema.Schema{Deprecated: true, Description: "Of the Python host or an older a2e; of no use here."}
}

// object describes a struct by its tags; the values of v's fields are the defaults.
func (d *describer) object(v reflect.Value) *jsonschema.Schema {
	s := &jsonschema.Schema{
		Type:                 "object",
		Properties:           map[string]*jsonschema.Schema{},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
	}
	if v.Kind() != reflect.Struct {
		d.err = fmt.Errorf("%s is not a struct", v.Type())
		return s
	}
	for _, f := range fieldsOf(v.Type()) {
		p := d.value(f.Type, v.FieldByIndex(f.Index), f.Tag)
		if hasUnit(wantOf(f.name, f.Type)) && len(p.AnyOf) > 0 { // for example 10MB or 1m30s
			p.AnyOf = slices.Insert(p.AnyOf, 1, &jsonschema.Schema{Type: "string", Pattern: `^[0-9.]+ *[A-Za-zµ]*`})
		}
		p.Description = cmp.Or(f.Tag.Get("doc"), docs()[f.name])
		s.Properties[f.name] = p
		s.PropertyOrder = append(s.PropertyOrder, f.name)
		if f.Tag.Get("required") != "" {
			s.Required = append(s.Required, f.name)
		}
	}
	return s
}

// value describes a field. A scalar may also be a variable.
func (d *describer) value(t reflect.Type, v reflect.Value, rules reflect.StructTag) *jsonschema.Schema {
	s := d.typed(t, v, rules)
	switch s.Type {
	case "string", "integer", "number", "boolean":
		s = &jsonschema.Schema{AnyOf: []*jsonschema.Schema{s, {Ref: variableRef}}}
	}
	scalar := s.AnyOf != nil || s.Type == "array"
	if scalar && v.IsValid() && !v.IsZero() && t != secretType && t != durationType && d.err == nil {
		s.Default, d.err = json.Marshal(v.Interface())
	}
	return s
}

func (d *describer) typed(t reflect.Type, v reflect.Value, rules reflect.StructTag) *jsonschema.Schema {
	switch t {
	case secretType:
		return &jsonschema.Schema{Type: "string"}
	case optionsType:
		return &jsonschema.Schema{Type: "object"}
	case durationType:
		return &jsonschema.Schema{Type: "number"} // object adds that it may have a unit
	}
	switch t.Kind() {
	case reflect.Pointer:
		return d.typed(t.Elem(), reflect.Zero(t.Elem()), rules)
	case reflect.Struct:
		if !v.IsValid() {
			v = reflect.Zero(t)
		}
		s := d.object(v)
		if rules.Get("switch") != "" {
			s.Type, s.Types = "", []string{"boolean", s.Type}
		}
		return s
	case reflect.Map:
		return &jsonschema.Schema{Type: "object", AdditionalProperties: d.value(t.Elem(), reflect.Value{}, "")}
	case reflect.Slice:
		return &jsonschema.Schema{Type: "array", Items: d.value(t.Elem(), reflect.Value{}, rules)}
	}
	s := &jsonschema.Schema{}
	switch v := reflect.Zero(t); {
	case t.Kind() == reflect.Interface:
	case t.Kind() == reflect.String:
		s.Type = "string"
	case t.Kind() == reflect.Bool:
		s.Type = "boolean"
	case v.CanInt():
		s.Type = "integer"
	case v.CanFloat():
		s.Type = "number"
	default:
		d.err = fmt.Errorf("the Go type %s has no schema", t)
	}
	if lowest, ok := bound(rules, "min"); ok {
		s.Minimum = &lowest
	}
	if highest, ok := bound(rules, "max"); ok {
		s.Maximum = &highest
	}
	if enum := rules.Get("enum"); enum != "" {
		s.Enum = anys(strings.Split(enum, ","))
	}
	return s
}

func anys[T any](in []T) []any {
	out := make([]any, len(in))
	for i, v := range in {
		out[i] = v
	}
	return out
}
