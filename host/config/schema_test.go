package config

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"
)

func compiled(t *testing.T, options map[string]any) *jsonschema.Schema {
	t.Helper()
	whole := map[string]any{}
	for _, t := range allTypes() {
		whole[t] = options[t] // nil = anything
	}
	text, err := Schema(whole)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft7) // the schema itself must name 2020-12
	if err := c.AddResource("config.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("config.json")
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if s.DraftVersion != 2020 {
		t.Errorf("draft %d", s.DraftVersion)
	}
	return s
}

type schemaOptions struct {
	ReadOnly bool `yaml:"read_only"`
	MaxProcs int  `yaml:"max_procs" min:"1"`
}

// The schema agrees with Load on good files and on the mistakes that a schema can see.
func TestSchemaAgreesWithLoad(t *testing.T) {
	s := compiled(t, map[string]any{"tools": schemaOptions{MaxProcs: 3}, "env": &schemaOptions{}})
	load := func(text string) any {
		t.Helper()
		var v any
		if err := yaml.Load([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, name := range []string{"minimal.yaml", "full.yaml", "python_subprocess.yaml", "mapping.yaml"} {
		data, err := os.ReadFile(filepath.Join(configs, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(load(string(data))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	good := []string{
		"max_parallel: ${N:-4}",
		"plugins: [{name: a, type: tools, metadata: {MAX_PROCS: 2, tool_modules: [x], enabled: true}}]",
		"plugins: [{name: a, type: procs, cls: x.y, metadata: {anything: 1}}]",
		"plugins: {}", "plugins: {tools: {max_procs: 2}, procs: false, env:, memory: true}", "plugins: {a: {type: tools, priority: 3, max_procs: 2}, b: {type: tools}}",
		"mcpServers: {files: {command: mcp-files}}",
	}
	for _, text := range good {
		if err := s.Validate(load(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	bad := []string{
		"max_paralel: 3", "max_parallel: 0", "max_parallel: four", "max_parallel: 1.5", "events: all", "host_id: [a]", "limits: {max_queue: 0}",
		"audit: {rotate: {size: 3}}", "plugins: [{name: a}]", "plugins: [{name: a, type: database}]", "plugins: x", "plugins: {tools: {readonly: true}}", "plugins: {tools: 3}", "plugins: {database: {}}", "plugins: {database: true}", "plugins: {a: {type: tools, readonly: true}}",
		"plugins: [{name: a, type: tools, metadata: {readonly: true}}]", "plugins: [{name: a, type: tools, metadata: {max_procs: 0}}]",
		"plugins: [{name: a, type: env, metadata: {priority: high}}]", "plugins: [{name: a, type: env, enabled: true}]",
	}
	dir := t.TempDir()
	for _, text := range bad {
		if err := s.Validate(load(text)); err == nil {
			t.Errorf("the schema accepts %q", text)
		}
		c, _, err := read(Source{Dir: dir, Available: allTypes(), Getenv: env()}, &file{name: "x", data: []byte(text)})
		if err == nil {
			err = c.Plugins[0].Options.Decode(&schemaOptions{})
			if err == nil && text != "plugins: [{name: a, type: tools, metadata: {max_procs: 0}}]" {
				t.Errorf("Load accepts %q", text)
			}
		}
	}
}

func TestSchemaShowsDefaultsAndRefusesOddTypes(t *testing.T) {
	text, err := Schema(map[string]any{"tools": schemaOptions{MaxProcs: 3}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"default": 16777216`, `"default": 3`, `"description": "Who decides`, `"https://json-schema.org/draft/2020-12/schema"`} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("no %s in the schema", want)
		}
	}
	again, err := Schema(map[string]any{"tools": schemaOptions{MaxProcs: 3}})
	if err != nil || !bytes.Equal(text, again) {
		t.Errorf("not the same twice: %v", err)
	}
	for _, odd := range []any{3, struct{ C chan int }{}} {
		if _, err := Schema(map[string]any{"tools": odd}); err == nil {
			t.Errorf("a schema of %T", odd)
		}
	}
}
