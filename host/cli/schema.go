package cli

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"

	"a2e/host/config"
	"a2e/plugins"
	"a2e/protocol"
)

type schemaCmd struct {
	Of       string `arg:"" enum:"protocol,config" help:"protocol: a list with one JSON Schema per message type; config: one JSON Schema of the config file."`
	Markdown bool   `help:"Print a page with tables of all keys or messages and their fields instead."`
}

// Run prints the schemas or the page.
func (s schemaCmd) Run(sys *System) error {
	switch {
	case s.Markdown:
		reference := configReference
		if s.Of == "protocol" {
			reference = protocolReference
		}
		page, err := reference()
		if err != nil {
			return fmt.Errorf("schema: %w", err)
		}
		_, err = io.WriteString(sys.Out, page)
		return err
	case s.Of == "config":
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

// referenceHead is the beginning of the page about the config.
const referenceHead = `# Config reference

Every key of the config and of each plugin's options, made from the Go types by ` +
	"`a2e schema config --markdown`" + `.
A dot leads into a mapping, ` + "`[]` into each entry of a list, `NAME` stands for a name of your own. `${VAR}` and `${VAR:-default}`" + ` may stand in every value.
`

// keySchema has the fields of a key's JSON Schema that the reference uses.
type keySchema struct {
	Type        any             `json:"type"` // a string or a list of strings
	Description string          `json:"description"`
	Default     jsontext.Value  `json:"default"`
	Deprecated  bool            `json:"deprecated"`
	Enum        []any           `json:"enum"`
	Minimum     *float64        `json:"minimum"`
	Maximum     *float64        `json:"maximum"`
	AnyOf       []keySchema     `json:"anyOf"`
	Items       jsontext.Value  `json:"items"`
	Others      jsontext.Value  `json:"additionalProperties"`
	Properties  protocol.Object `json:"properties"` // in the order of the Go struct
	Required    []string        `json:"required"`
}

// configReference returns a page with tables of all keys of the config, and of the options of each plugin type.
func configReference() (string, error) {
	raw, err := config.Schema(plugins.OptionTypes())
	if err != nil {
		return "", err
	}
	var all struct {
		keySchema
		Defs map[string]keySchema `json:"$defs"`
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(referenceHead)
	writeKeys(&b, all.keySchema, func(string) bool { return true })
	first := all.Defs["options_"+plugins.Types()[0]]
	common := func(key string) bool { // reports whether all types have this option; it is then listed once
		for _, typ := range plugins.Types() {
			here, _ := first.Properties.Get(key)
			if there, ok := all.Defs["options_"+typ].Properties.Get(key); !ok || string(here) != string(there) {
				return false
			}
		}
		return true
	}
	b.WriteString("\n## Options of every plugin\n")
	writeKeys(&b, first, common)
	for _, typ := range plugins.Types() {
		b.WriteString("\n## Options of " + typ + "\n")
		writeKeys(&b, all.Defs["options_"+typ], func(key string) bool { return !common(key) })
	}
	return b.String(), nil
}

// writeKeys writes a table of the keys of an object that pick selects.
func writeKeys(b *strings.Builder, of keySchema, pick func(key string) bool) {
	b.WriteString("\n| key | value | default | what it says |\n|---|---|---|---|\n")
	for key := range of.Properties.All() {
		if pick(string(key)) {
			writeKey(b, "", string(key), of)
		}
	}
}

// writeKey writes the row of a key, and the rows of all keys below it.
func writeKey(b *strings.Builder, within, key string, of keySchema) {
	var s keySchema
	raw, _ := of.Properties.Get(key)
	if json.Unmarshal(raw, &s) != nil || s.Deprecated || key == "type" && within == "" {
		return
	}
	fallback := ""
	if s.Default != nil {
		fallback = "`" + string(s.Default) + "`"
	}
	if slices.Contains(of.Required, key) {
		fallback = "required"
	}
	cell := strings.NewReplacer("|", `\|`, "\n", " ")
	fmt.Fprintf(b, "| `%s%s` | %s | %s | %s |\n", within, key, cell.Replace(s.value()), cell.Replace(fallback),
		cell.Replace(s.Description))
	if key == "plugins" && within == "" {
		return // the tables of the plugins follow
	}
	for _, inner := range []struct {
		suffix string
		of     keySchema
	}{{".", s}, {"[].", parsed(s.Items)}, {".NAME.", parsed(s.Others)}} {
		for below := range inner.of.Properties.All() {
			writeKey(b, within+key+inner.suffix, string(below), inner.of)
		}
	}
}

// parsed reads a schema that may be missing, or true or false.
func parsed(raw jsontext.Value) (s keySchema) {
	if raw.Kind() == '{' {
		_ = json.Unmarshal(raw, &s) // the schema is from this program and valid
	}
	return s
}

// value describes in a few words the values of the key.
func (s keySchema) value() string {
	switch {
	case len(s.AnyOf) > 0 && len(s.Enum) == 0: // the last alternative is a variable instead of the value
		var words []string
		for _, one := range s.AnyOf {
			if word := one.value(); word != "" {
				words = append(words, word)
			}
		}
		return strings.Join(words, " or ")
	case len(s.Enum) > 0:
		return strings.Trim(strings.ReplaceAll(fmt.Sprintf("%q", s.Enum), `" "`, `", "`), "[]")
	case s.Items != nil:
		return strings.TrimSuffix("list of "+parsed(s.Items).value(), " of ")
	}
	text, _ := s.Type.(string)
	if both, ok := s.Type.([]any); ok {
		text = strings.Trim(strings.ReplaceAll(fmt.Sprint(both), " ", " or "), "[]")
	}
	switch {
	case s.Minimum != nil && s.Maximum != nil:
		text += fmt.Sprintf(", %.0f to %.0f", *s.Minimum, *s.Maximum)
	case s.Minimum != nil:
		text += " from " + strconv.FormatFloat(*s.Minimum, 'f', -1, 64)
	case s.Maximum != nil:
		text += fmt.Sprintf(" up to %v", *s.Maximum)
	}
	return text
}

// messageSchema is an entry of `schema protocol`, in the form of messages.json.
type messageSchema struct {
	Type       protocol.Type       `json:"type"`
	Capability protocol.Capability `json:"capability"`
	Direction  protocol.Direction  `json:"direction"`
	Schema     *jsonschema.Schema  `json:"schema"`
}

// messageSchemas returns the schema of each message type, made from its Go struct and the envelope.
func messageSchemas() ([]messageSchema, error) {
	var out []messageSchema
	for _, info := range protocol.Types() {
		schema, err := schemaOf(info)
		if err != nil {
			return nil, err
		}
		envelope(schema, info)
		out = append(out, messageSchema{info.Type, info.Capability, info.Direction, schema})
	}
	return out, nil
}

// schemaOf returns the schema of a message type without the envelope.
func schemaOf(info protocol.Info) (*jsonschema.Schema, error) {
	t := reflect.TypeOf(info.New()).Elem()
	schema, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[protocol.Object]():                              {Type: "object"},
		reflect.TypeFor[jsontext.Value]():                               {},
		reflect.TypeFor[protocol.NullableMap[protocol.ToolParameter]](): {Types: []string{"null", "object"}},
		reflect.TypeFor[protocol.NullableList[string]](): {AnyOf: []*jsonschema.Schema{
			{Type: "array", Items: &jsonschema.Schema{Type: "string"}}, {Type: "null"},
		}},
		reflect.TypeFor[[]byte](): {Type: "string", ContentEncoding: "base64"},
	}})
	if err == nil {
		relax(schema)
		err = describe(schema, t)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", info.Type, err)
	}
	return schema, nil
}

// relax makes the schema accept what the protocol allows: unknown fields, and missing ones, which
// have their defaults.
func relax(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	s.Required = nil
	if slices.Equal(s.Types, []string{"null", "array"}) {
		s.Type, s.Types = "array", nil // in this protocol a plain list is never null
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

// describe adds the descriptions and the defaults of fields.
func describe(s *jsonschema.Schema, t reflect.Type) error {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		if s.Items != nil {
			s = s.Items
		} else if s.AdditionalProperties != nil {
			s = s.AdditionalProperties
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || s.Properties == nil {
		return nil
	}
	v := reflect.New(t)
	if d, ok := v.Interface().(protocol.Defaulter); ok {
		d.SetDefaults()
	}
	raw, err := json.Marshal(v.Interface())
	var defaults map[string]jsontext.Value
	if err == nil {
		err = json.Unmarshal(raw, &defaults)
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		p := s.Properties[name]
		if p == nil {
			continue
		}
		if inner := describe(p, f.Type); inner != nil {
			err = inner
		}
		d := protocol.DescribeField(t, name)
		p.Description = d.Text
		for _, value := range d.Enum {
			p.Enum = append(p.Enum, value)
		}
		value := defaults[name]
		other := value.Kind() == '{' && len(value) > 2 || value.Kind() == '"' && len(d.Enum) > 0 &&
			!slices.Contains(d.Enum, strings.Trim(string(value), `"`))
		if len(value) > 0 && !other {
			p.Default = []byte(value)
		}
	}
	return err
}

// envelope adds the fields that every message has.
func envelope(s *jsonschema.Schema, info protocol.Info) {
	if s.Properties == nil {
		s.Properties = make(map[string]*jsonschema.Schema)
	}
	var typ any = string(info.Type)
	s.Description = protocol.Describe(info.Type).Text
	s.Properties["type"] = &jsonschema.Schema{Const: &typ}
	for _, name := range []string{"a2e", "version", "id"} {
		s.Properties[name] = &jsonschema.Schema{Type: "string"}
	}
	s.Properties["ts"] = &jsonschema.Schema{Type: "number"}
	if info.Direction != protocol.AgentRequest && info.Direction != protocol.HostRequest {
		s.Properties["req_id"] = &jsonschema.Schema{Type: "string"}
	}
	for _, name := range envelopeFields() {
		if p := s.Properties[name]; p != nil {
			p.Description = protocol.DescribeField(reflect.TypeFor[protocol.Ping](), name).Text
		}
	}
	s.Required = append([]string{"type"}, info.Required...)
	for _, name := range s.Required {
		s.Properties[name].Default = nil
	}
}

func envelopeFields() []string { return []string{"type", "a2e", "version", "id", "ts", "req_id"} }

// protocolReference returns a page with a table of the fields of each message type.
func protocolReference() (string, error) {
	all, err := messageSchemas()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(`# Message reference

Every message type of the protocol, made from the Go types by ` + "`a2e schema protocol --markdown`" + `. A dot leads into an object, ` + "`[]` into each entry of a list" + `.
A field that is not required may be left out of what you send, and has its default then. The host sends all fields.

## Every message has
`)
	ts := messageSchema{Schema: all[1].Schema} // the schema of an answer, which has all fields of the envelope
	inEnvelope := func(key string) bool { return slices.Contains(envelopeFields(), key) }
	if err := ts.fields(&b, inEnvelope); err != nil {
		return "", err
	}
	b.WriteString("\nRequests have no `req_id`.\n")
	capability := protocol.Capability("none yet")
	for i, m := range all {
		if m.Capability != capability {
			capability = m.Capability
			title := string(capability)
			if title == "" {
				title = "the session"
			}
			fmt.Fprintf(&b, "\n## Messages of %s\n", title)
		}
		fmt.Fprintf(&b, "\n### `%s`\n\n%s (%s", m.Type, m.Schema.Description, strings.Replace(string(m.Direction), "->",
			" to ", 1))
		if response := protocol.Types()[i].Response; response != "" {
			fmt.Fprintf(&b, ", answered by `%s`", response)
		}
		b.WriteString(")\n")
		if err := m.fields(&b, func(key string) bool { return !inEnvelope(key) }); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// fields writes the table of the fields that pick selects, if there are any.
func (m messageSchema) fields(b *strings.Builder, pick func(string) bool) error {
	raw, err := json.Marshal(m.Schema)
	if err != nil {
		return err
	}
	of := parsed(raw)
	for key := range of.Properties.All() {
		if pick(string(key)) {
			writeKeys(b, of, pick)
			break
		}
	}
	return nil
}
