package protocol_test

import (
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"a2e/protocol"
)

// TestStructsMatchSchemas holds every struct against its schema, in both
// directions and at every depth: names, kinds, null and defaults.
func TestStructsMatchSchemas(t *testing.T) {
	for _, w := range loadWire(t) {
		info, _ := protocol.Lookup(protocol.Type(w.Type))
		defs, _ := w.Schema["$defs"].(map[string]any)
		c := checker{t: t, defs: defs}
		properties := maps.Clone(w.Schema["properties"].(map[string]any))
		maps.DeleteFunc(properties, func(name string, _ any) bool { return envelope[name] })
		c.object(w.Type, properties, reflect.TypeOf(info.New()).Elem())
	}
}

// extensions are fields that WIRE adds to a schema.
var extensions = map[string]bool{
	"proc/status/resp/procs": true, "proc/spawn/req/metadata": true, "proc/write/req/metadata": true,
	"planning/task/add/resp/error": true, "planning/task/update/resp/error": true,
	"memory/store/resp/detail": true, "memory/retrieve/resp/detail": true,
}

type checker struct {
	t    *testing.T
	defs map[string]any
}

// object compares a schema's properties with a struct's fields.
func (c checker) object(at string, properties map[string]any, typ reflect.Type) {
	fields := jsonFields(typ)
	for name, schema := range properties {
		field, ok := fields[name]
		if !ok {
			c.t.Errorf("%s has no field for %q", at, name)
			continue
		}
		c.value(at+"/"+name, schema.(map[string]any), field)
	}
	for name := range fields {
		if _, ok := properties[name]; !ok && !extensions[at+"/"+name] {
			c.t.Errorf("%s: the field %q is not in the schema", at, name)
		}
	}
	c.defaults(at, properties, typ)
}

// jsonFields returns the members that a struct encodes as, embedded ones included.
func jsonFields(typ reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for field := range typ.Fields() {
		if field.Anonymous {
			maps.Copy(fields, jsonFields(field.Type))
		} else if field.IsExported() {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "-" {
				fields[name] = field.Type
			}
		}
	}
	return fields
}

// value compares one schema with one Go type.
func (c checker) value(at string, schema map[string]any, typ reflect.Type) {
	if ref, ok := schema["$ref"].(string); ok {
		schema = c.defs[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
	}
	if either, ok := schema["anyOf"].([]any); ok {
		c.nullable(at, either[0].(map[string]any), typ)
		return
	}
	if strings.HasPrefix(typ.Name(), "Nullable") || typ.Kind() == reflect.Pointer {
		c.t.Errorf("%s may not be null, but %v can", at, typ)
	}
	c.plain(at, schema, typ)
}

func (c checker) nullable(at string, schema map[string]any, typ reflect.Type) {
	switch {
	case typ.Kind() == reflect.Pointer:
		typ = typ.Elem()
	case strings.HasPrefix(typ.Name(), "Nullable"), typ == reflect.TypeFor[jsontext.Value]():
	case strings.HasSuffix(at, "/obs/metadata"): // {} in place of null
	default:
		c.t.Errorf("%s may be null, but %v cannot", at, typ)
	}
	if ref, ok := schema["$ref"].(string); ok {
		schema = c.defs[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
	}
	c.plain(at, schema, typ)
}

// plain compares a schema that is neither a reference nor nullable.
func (c checker) plain(at string, schema map[string]any, typ reflect.Type) {
	properties, hasProperties := schema["properties"].(map[string]any)
	extra, hasExtra := schema["additionalProperties"].(map[string]any)
	kinds := map[string]reflect.Kind{"string": reflect.String, "boolean": reflect.Bool, "number": reflect.Float64}
	var ok bool
	switch name, _ := schema["type"].(string); {
	case schema["const"] != nil:
		ok = typ.Kind() == reflect.String
	case name == "":
		ok = typ == reflect.TypeFor[jsontext.Value]()
	case name == "integer":
		ok = typ.Kind() == reflect.Int || typ.Kind() == reflect.Int64
	case name == "array":
		if ok = typ.Kind() == reflect.Slice || typ.Kind() == reflect.Array; ok && schema["prefixItems"] == nil {
			c.value(at+"/0", schema["items"].(map[string]any), typ.Elem())
		}
	case name == "object" && hasExtra:
		if ok = typ.Kind() == reflect.Map; ok && !strings.HasSuffix(at, "/properties") { // ToolParameter holds itself
			c.value(at+"/*", extra, typ.Elem())
		}
	case name == "object" && hasProperties && len(properties) > 0:
		if ok = typ.Kind() == reflect.Struct; ok {
			c.object(at, properties, typ)
		}
	case name == "object":
		ok = typ.Kind() == reflect.Struct || // a shape of ours, or protocol.Object
			typ.Kind() == reflect.Map && typ.Elem() == reflect.TypeFor[any]()
	default:
		ok = typ.Kind() == kinds[name]
	}
	if !ok {
		c.t.Errorf("%s: %v does not fit %v", at, typ, schema)
	}
}

// defaults compares SetDefaults with the defaults of the schema. A null stands
// for a default of false.
func (c checker) defaults(at string, properties map[string]any, typ reflect.Type) {
	val := reflect.New(typ).Interface()
	if d, ok := val.(protocol.Defaulter); ok {
		d.SetDefaults()
	}
	raw, err := protocol.AppendJSON(nil, val)
	if err != nil {
		c.t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		c.t.Fatal(err)
	}
	_, stamped := typ.FieldByName("Stamp")
	for name, schema := range properties {
		if _, ok := got[name]; !ok && !(stamped && envelope[name]) {
			c.t.Errorf("%s/%s is left out when it is zero", at, name)
		}
		want, ok := schema.(map[string]any)["default"]
		switch {
		case !ok, stamped && envelope[name]:
			continue
		case at+"/"+name == "skill/discover/resp/skills/0/arguments", strings.HasSuffix(name, "provider_config"):
			continue // the schema's default does not fit the schema's type
		case at+"/"+name == "planning/task/add/status" && got[name] == "":
			continue // the default depends on the plan: "backlog" where that is a column
		case want == false && got[name] == nil:
			continue
		}
		if !cmp.Equal(want, got[name]) {
			c.t.Errorf("%s/%s is %v where nothing was sent, should be %v", at, name, got[name], want)
		}
	}
}
