package cli

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"

	"a2e/host/config"
	"a2e/plugins"
	"a2e/protocol"
)

type schemaCmd struct {
	Of string `arg:"" enum:"protocol,config" help:"protocol: a list with one JSON Schema per message type; config: one JSON Schema of the config file."`
}

// Help implements kong.HelpProvider.
func (schemaCmd) Help() string {
	return "Both are made from the Go types of this build.\n\nExamples:\n  a2e schema protocol\n  a2e schema config > a2e.schema.json"
}

// Run prints the schemas.
func (s schemaCmd) Run(sys *System) error {
	if s.Of == "config" {
		schema, err := config.Schema(plugins.OptionTypes())
		if err != nil {
			return fmt.Errorf("schema: %w", err)
		}
		return printJSON(sys.Out, jsontext.Value(schema))
	}
	schemas, err := messageSchemas()
	if err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	return printJSON(sys.Out, schemas)
}

// messageSchema is one entry of `schema protocol`, the shape of messages.json.
type messageSchema struct {
	Type       protocol.Type       `json:"type"`
	Capability protocol.Capability `json:"capability"`
	Direction  protocol.Direction  `json:"direction"`
	Schema     *jsonschema.Schema  `json:"schema"`
}

// messageSchemas makes the schema of each message type from its Go struct and
// the envelope.
func messageSchemas() ([]messageSchema, error) {
	opts := &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[protocol.Object]():                              {Type: "object"},
		reflect.TypeFor[jsontext.Value]():                               {},
		reflect.TypeFor[protocol.NullableMap[protocol.ToolParameter]](): {Types: []string{"null", "object"}},
		reflect.TypeFor[protocol.NullableList[string]](): {AnyOf: []*jsonschema.Schema{
			{Type: "array", Items: &jsonschema.Schema{Type: "string"}}, {Type: "null"},
		}},
		reflect.TypeFor[[]byte](): {Type: "string", ContentEncoding: "base64"},
	}}
	var out []messageSchema
	for _, info := range protocol.Types() {
		t := reflect.TypeOf(info.New()).Elem()
		schema, err := jsonschema.ForType(t, opts)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", info.Type, err)
		}
		relax(schema)
		envelope(schema, info)
		out = append(out, messageSchema{info.Type, info.Capability, info.Direction, schema})
	}
	return out, nil
}

// relax opens the schema for what the wire allows: unknown fields, and absent
// ones, which take their defaults.
func relax(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	s.Required = nil
	if slices.Equal(s.Types, []string{"null", "array"}) {
		s.Type, s.Types = "array", nil // a plain list is never null on this wire
	}
	if s.Properties != nil {
		s.AdditionalProperties = nil
	}
	for _, p := range s.Properties {
		relax(p)
	}
	relax(s.Items)
	relax(s.AdditionalProperties)
}

// envelope adds the fields that every message has.
func envelope(s *jsonschema.Schema, info protocol.Info) {
	if s.Properties == nil {
		s.Properties = make(map[string]*jsonschema.Schema)
	}
	var typ any = string(info.Type)
	s.Properties["type"] = &jsonschema.Schema{Const: &typ}
	s.Properties["a2e"] = &jsonschema.Schema{Type: "string", Description: "protocol version; either this or version, or both"}
	s.Properties["version"] = &jsonschema.Schema{Type: "string"}
	s.Properties["id"] = &jsonschema.Schema{Type: "string"}
	s.Properties["ts"] = &jsonschema.Schema{Type: "number", Description: "seconds since 1970"}
	if info.Direction != protocol.AgentRequest && info.Direction != protocol.HostRequest {
		s.Properties["req_id"] = &jsonschema.Schema{Type: "string", Description: "the id of the request that this belongs to"}
	}
	s.Required = append([]string{"type"}, info.Required...)
}
