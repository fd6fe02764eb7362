package protocol_test

import (
	"bufio"
	"bytes"
	"errors"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestStructsMatchSchemas: every struct has the names, kinds, nulls and defaults of its schema, and no
// others, at every depth.
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

// extensions are fields that protocol/README.md adds to a schema.
var extensions = map[string]bool{
	"proc/status/resp/procs": true, "proc/spawn/req/metadata": true, "proc/write/req/metadata": true,
	"env/space/resp/reset_options": true, "env/batch_step/req/autoreset": true,
	"memory/store/resp/detail": true, "memory/store/resp/versions": true, "memory/retrieve/resp/detail": true,
	"memory/retrieve/resp/next_cursor": true, "memory/retrieve/resp/namespaces": true,
	"memory/retrieve/req/offset": true, "memory/retrieve/req/cursor": true, "memory/retrieve/req/refresh_ttl": true,
	"memory/retrieve/req/history": true, "memory/retrieve/req/list_namespaces": true,
	"memory/retrieve/req/max_depth": true,
	"memory/forget/req/all":         true, "memory/forget/req/confirm": true,
	"chain/resp/truncated": true, "chain/resp/truncated_total": true,
	"chain/resp/handled": true, "chain/resp/handled_total": true, "chain/resp/cached": true,
	"chain/resp/cached_total": true, "chain/resp/from_journal": true,
	"chain/req/journal": true, "chain/req/resume": true, "chain/req/resolve": true,
	"tool/list/resp/tools/0/task": true, "toolkit/list/resp/toolkits/0/problem": true,
	"tool/list/resp/tools/0/score": true, "tool/list/req/detail": true, "tool/list/resp/tools/0/detail": true,
	"tool/call/resp/group": true, "skill/discover/req/query": true,
	"mcp/resource/read/resp/_meta": true, "mcp/prompt/get/resp/_meta": true,
	"handshake/resp/metadata": true,
	"mcp/sample/req/extra":    true, "mcp/sample/resp/extra": true,
	"learn/stats/req/history": true, "learn/stats/resp/history": true,
}

// planned are fields that protocol/README.md adds to the messages of planning, by type.
var planned = map[string]string{
	"create": "done_column delete plan_id force", "create/resp": "error", "add": "priority due estimate force",
	"add/resp":    "error",
	"update":      "title description metadata priority due estimate comment clear action owner lease if_version force",
	"update/resp": "error task remaining", "list": "task_id assignee ready limit folder", "board": "format",
	"board/resp": "text",
}

// added reports whether protocol/README.md adds a field to the schema of a message.
func added(at, name string) bool {
	kind := strings.TrimPrefix(strings.TrimPrefix(at, "planning/plan/"), "planning/task/")
	return extensions[at+"/"+name] || strings.HasPrefix(at, "memory/") && selects[name] || kind != at &&
		slices.Contains(strings.Fields(planned[kind]), name)
}

// selects are fields that both requests about entries of a memory have beside the schema's.
var selects = map[string]bool{
	"all_tags": true, "filter": true, "source": true, "since": true, "until": true,
	"namespace_prefix": true, "folder": true,
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
		if _, ok := properties[name]; !ok && !added(at, name) {
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
	assert.That(c.t, !strings.HasPrefix(typ.Name(), "Nullable") && typ.Kind() != reflect.Pointer,
		"%s may not be null, but %v can", at, typ)
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
		if ok = typ.Kind() == reflect.Map; ok && !strings.HasSuffix(at, "/properties") { // ToolParameter contains itself
			c.value(at+"/*", extra, typ.Elem())
		}
	case name == "object" && hasProperties && len(properties) > 0:
		if ok = typ.Kind() == reflect.Struct; ok {
			c.object(at, properties, typ)
		}
	case name == "object":
		ok = typ.Kind() == reflect.Struct || // a struct of this package, such as protocol.Object
			typ.Kind() == reflect.Map && typ.Elem() == reflect.TypeFor[any]()
	default:
		ok = typ.Kind() == kinds[name]
	}
	assert.That(c.t, ok, "%s: %v does not fit %v", at, typ, schema)
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
			continue // the default depends on the plan: "backlog" if that is a column
		case at+"/"+name == "memory/forget/req/tier":
			continue // all tiers, as a person expects
		case want == false && got[name] == nil:
			continue
		}
		if !cmp.Equal(want, got[name]) {
			c.t.Errorf("%s/%s is %v where nothing was sent, should be %v", at, name, got[name], want)
		}
	}
}

// TestBatchStepFromALine: the handwritten decoder of a batch reads its ids and actions, and names each
// wrong element.
func TestBatchStepFromALine(t *testing.T) {
	for _, tc := range []struct {
		line    string
		ids     []string
		actions []string
		wrong   []string // paths of the problems
	}{
		{line: `{"episode_ids":[],"actions":[]}`},
		{
			line: `{"episode_ids":["a","b"],"actions":[{"type":"x"},{}]}`, ids: []string{"a", "b"},
			actions: []string{`{"type":"x"}`, `{}`},
		},
		{
			line: ` { "actions" : [ { "p" : { "q" : [ 1 , "]" ] } , "type" : "\u0078" } ] , "episode_ids" : [ "\u0061\"" , "ü" ] } `,
			ids:  []string{`a"`, "ü"}, actions: []string{`{ "p" : { "q" : [ 1 , "]" ] } , "type" : "\u0078" }`},
		},
		{line: `{"episode_ids":["a",1,null],"actions":[{},[],"x"]}`, wrong: []string{
			"/episode_ids/1", "/episode_ids/2",
			"/actions/1", "/actions/2",
		}},
		{line: `{"episode_ids":"a","actions":{}}`, wrong: []string{"/episode_ids", "/actions"}},
	} {
		obj, err := protocol.ParseObject([]byte(tc.line))
		if err != nil {
			t.Fatal(err)
		}
		var req protocol.EnvBatchStepRequest
		err = req.DecodeLine(obj)
		var paths []string
		if refusal, ok := errors.AsType[*protocol.Error](err); ok {
			for _, p := range refusal.Detail["errors"].([]protocol.FieldError) {
				paths = append(paths, p.Path)
			}
		}
		assert.That(t, slices.Equal(paths, tc.wrong), "%s: problems at %q, want %q", tc.line, paths, tc.wrong)
		if err != nil {
			continue
		}
		var actions []string
		for _, a := range req.Actions {
			actions = append(actions, string(a.Raw()))
			if v, ok := a.Get("type"); ok {
				text, _ := v.Str()
				assert.That(t, text == "x", "%s: the type is %q", tc.line, text)
			}
		}
		assert.That(t, slices.Equal(req.EpisodeIDs, tc.ids) && slices.Equal(actions, tc.actions),
			"%s: %q %q, want %q %q", tc.line, req.EpisodeIDs, actions, tc.ids, tc.actions)
	}
}

func TestValueStrings(t *testing.T) {
	for text, want := range map[string][]string{`[]`: nil, `["a", "b\n"]`: {"a", "b\n"}} {
		if got, ok := protocol.Value(text).Strings(); !ok || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", text, got, ok)
		}
	}
	for _, text := range []string{`"a"`, `[1]`, `{}`, `[["a"]]`} {
		if got, ok := protocol.Value(text).Strings(); ok {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// TestWallNulls: a null from another program, at every place of every type, is mended to a value that
// the schema allows there, or the message is refused.
func TestWallNulls(t *testing.T) {
	wire := map[string]*wireType{}
	for _, w := range loadWire(t) {
		wire[w.Type] = &w
	}
	file := must.Get(os.Open(samplesFile))(t)
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var whole map[string]any
		must.OK(t, json.Unmarshal(lines.Bytes(), &whole))
		typ := whole["type"].(string)
		t.Run(typ, func(t *testing.T) {
			for key := range whole {
				switch key {
				case "a2e", "version", "type", "id", "ts", "req_id":
				default:
					nullEach(whole[key], func(val any) { whole[key] = val }, "/"+key, func(path string) {
						checkMended(t, wire[typ], whole, path)
					})
				}
			}
		})
	}
}

// nullEach replaces a value, and each value in it, by null, and calls try each time.
func nullEach(val any, set func(any), path string, try func(path string)) {
	set(nil)
	try(path)
	set(val)
	switch val := val.(type) {
	case map[string]any:
		for key := range val {
			nullEach(val[key], func(v any) { val[key] = v }, path+"/"+key, try)
		}
	case []any:
		for i := range val {
			nullEach(val[i], func(v any) { val[i] = v }, path+"/"+strconv.Itoa(i), try)
		}
	}
}

func checkMended(t *testing.T, w *wireType, whole map[string]any, path string) {
	t.Helper()
	line, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	obj := must.Get(protocol.ParseObject(line))(t)
	mended, err := protocol.Mend(protocol.Type(w.Type), obj)
	if err != nil {
		assert.That(t, bytes.Contains([]byte(err.Error()), []byte(path)), "%s: %v", path, err)
		return
	}
	w.validate(t, mended.Raw())
}

// wireType is one line of messages.json.
type wireType struct {
	Type       string         `json:"type"`
	Capability string         `json:"capability"`
	Direction  string         `json:"direction"`
	Schema     map[string]any `json:"schema"`

	compiled *jsonschema.Schema
}

// envelope names the fields that the host adds around a struct.
var envelope = map[string]bool{"a2e": true, "version": true, "type": true, "id": true, "ts": true, "req_id": true}

// loadWire reads messages.json and compiles its schemas.
func loadWire(t *testing.T) []wireType {
	t.Helper()
	raw, err := os.ReadFile("../testdata/wire/messages.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []wireType
	must.OK(t, json.Unmarshal(raw, &rows))
	docs := must.Get(jsonschema.UnmarshalJSON(bytes.NewReader(raw)))(t)
	compiler := jsonschema.NewCompiler()
	for i, doc := range docs.([]any) {
		url := "a2e:" + rows[i].Type
		must.OK(t, compiler.AddResource(url, doc.(map[string]any)["schema"]))
		if rows[i].compiled, err = compiler.Compile(url); err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

// validate checks one line against the schema of its type.
func (w *wireType) validate(t *testing.T, line []byte) {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	must.That(t, err == nil, "%s: %v in %s", w.Type, err, line)
	if err := w.compiled.Validate(doc); err != nil {
		t.Errorf("%s: %v\n%s", w.Type, err, line)
	}
}

// message builds the line of a struct as the host does.
func message(t *testing.T, info *protocol.Info, body any) []byte {
	t.Helper()
	var reqID protocol.Value
	switch info.Direction {
	case protocol.AgentResponse, protocol.HostResponse, protocol.HostEvent:
		reqID = protocol.Value(`"0000000000000000000000000000a2e0"`)
	}
	id := []byte("0123456789abcdef0123456789abcdef")
	line := protocol.AppendHeader(nil, info.Type, id, time.Unix(1767225600, 500_000_000), reqID)
	line, err := protocol.AppendBody(line, body)
	must.That(t, err == nil, "%s: %v", info.Type, err)
	return line
}
