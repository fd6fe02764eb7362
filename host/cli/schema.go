package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/config"
	"a2e/plugins"
	"a2e/protocol"
)

type schemaCmd struct {
	Of       string `arg:"" enum:"protocol,config" help:"protocol: a list with one JSON Schema per message type; config: one JSON Schema of the config file."`
	Markdown bool   `help:"Print a page with tables of all keys or messages and their fields instead."`
}

// Run prints the schemas.
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

// referenceHead opens the page of the config.
const referenceHead = `# Config reference

Every key of the config and of each plugin's options, made from the Go types by ` + "`a2e schema config --markdown`" + `.
A dot leads into a mapping, ` + "`[]` into each entry of a list, `NAME` stands for a name of your own. `${VAR}` and `${VAR:-default}`" + ` may stand in every value.
`

// keySchema is what the reference takes from the JSON Schema of a key.
type keySchema struct {
	Type        any             `json:"type"` // a text or a list
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

// configReference returns a page with tables of all keys of the config and of the options of
// each type of plugin.
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
	common := func(key string) bool { // said once, as all types have it
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

// writeKeys writes the table of those keys of an object that pick chooses.
func writeKeys(b *strings.Builder, of keySchema, pick func(key string) bool) {
	b.WriteString("\n| key | value | default | what it says |\n|---|---|---|---|\n")
	for key := range of.Properties.All() {
		if pick(string(key)) {
			writeKey(b, "", string(key), of)
		}
	}
}

// writeKey writes the row of a key, and those of all keys below it.
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
	fmt.Fprintf(b, "| `%s%s` | %s | %s | %s |\n", within, key, cell.Replace(s.value()), cell.Replace(fallback), cell.Replace(s.Description))
	if key == "plugins" && within == "" {
		return // their tables follow
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

// parsed reads a schema that may be absent, or true or false.
func parsed(raw jsontext.Value) (s keySchema) {
	if raw.Kind() == '{' {
		_ = json.Unmarshal(raw, &s) // it was made here
	}
	return s
}

// value says in a few words what the key takes.
func (s keySchema) value() string {
	switch {
	case len(s.AnyOf) > 0 && len(s.Enum) == 0: // a variable in its place is the last of them
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
