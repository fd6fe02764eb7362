package config

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// loadUntrusted loads a config with the given contents of the folder's file and of the user's file ("" = no file),
// while no file is trusted. It returns the config and the warnings.
func loadUntrusted(t *testing.T, folder, user string) (*Config, string) {
	t.Helper()
	dir, home := t.TempDir(), t.TempDir()
	if folder != "" {
		write(t, filepath.Join(dir, FolderFile), folder)
	}
	if user != "" {
		write(t, filepath.Join(home, "a2e", "config.yaml"), user)
	}
	c, warnings, err := Load(Source{
		Dir: dir, UserConfigDir: home, Available: []string{"tools", "proc", "memory", "exec"},
		Getenv: func(name string) string {
			if name == "OWN" {
				return "own"
			}
			return "" // LEAK is not set: only untrusted files name it
		},
		Trust: func(string, []byte) error { return errors.New("nobody has") },
	})
	must.That(t, err == nil, "%q: %v", folder, err)
	assert.That(t, len(warnings) <= 1, "%q: %d warnings", folder, len(warnings))
	return c, strings.Join(texts(warnings), "\n")
}

// TestUntrustedFileCountsForNothing: nothing in the file of an untrusted folder takes effect, and one warning says
// what the file asks for.
func TestUntrustedFileCountsForNothing(t *testing.T) {
	const own = "auth_token: ${OWN}\nmax_parallel: 2\nchildren: {processes: 100}\nplugins: {proc: {timeout: 5}}\n"
	for folder, asks := range map[string]string{
		"max_parallel: 1":                        "; it asks for max_parallel: `",
		"auth_token: mine":                       "; it asks for auth_token: `",
		"auth: [{token: mine, agent_id: alice}]": "; it asks for auth: `",
		"auth_token: ${LEAK}":                    "; it asks for auth_token: `",
		"limits: {max_queue: 10}\nsandbox: off":  "; it asks for limits, sandbox: `",
		"audit:":                                 "; it asks for audit: `",
		"plugins: []":                            "; it asks for plugins: `",
		"plugins: [{type: proc}, {type: tools}]": "; it asks for plugins[0], plugins[1]: `",
		"plugins: {proc: false, memory: {x: 1}}": "; it asks for plugins.proc, plugins.memory: `",
		"mcpServers: {a: {command: sh}}":         "; it asks for mcpServers.a: `",
		"max_paralel: 3":                         "; it asks for max_paralel: `",
		"'${LEAK}': 3":                           "; it asks for …: `",
		"<<: {sandbox: off}\nx: &x {y: 3}":       "; it asks for x, sandbox: `",
		"- a":                                    "; it asks for the file: `",
		"max_parallel: 3\nmax_parallel: 1":       "; it also has mistakes: ",
		"a: [":                                   "; it also has mistakes: ",
		"# nothing":                              "",
	} {
		for _, user := range []string{"", own} {
			want, _ := loadUntrusted(t, "", user)
			c, warned := loadUntrusted(t, folder, user)
			must.Equal(t, len(c.Plugins), len(want.Plugins))
			got, without := *c, *want
			for _, c := range []*Config{&got, &without} { // fields that differ by folder, or cannot be compared
				c.Untrusted, c.File, c.Workspace, c.UserDir, c.Wall, c.Secrets, c.Plugins = nil, "", "", "", nil, nil,
					nil
			}
			assert.That(t, reflect.DeepEqual(got, without), "%q over %q: %+v, want %+v", folder, user, got, without)
			for i, p := range c.Plugins {
				other := want.Plugins[i]
				same := p.Name == other.Name && p.Enabled == other.Enabled && reflect.DeepEqual(said(p.Options),
					said(other.Options))
				assert.That(t, same, "%q over %q: plugin %s", folder, user, p.Name)
			}
			assert.That(t, strings.Contains(warned, asks) && (asks != "") == strings.Contains(warned,
				"so it is not used"),
				"%q over %q warns %q, want %q", folder, user, warned, asks)
			assert.That(t, len(c.Untrusted) == 1 && (user != "" || c.File == ""), "%q: file %q, untrusted %q", folder,
				c.File, c.Untrusted)
		}
	}
}

// said returns all settings of the options.
func said(o Options) []Setting {
	if o.node == nil {
		return nil
	}
	return settings(o.node, "", nil)
}

// TestUntrustedFileExpandsNothing: the variables that an untrusted file names are not even looked up.
func TestUntrustedFileExpandsNothing(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, FolderFile), "auth_token: ${LEAK}\nhost_id: ${LEAK:-x}\nmax_parallel: ${LEAK:-1}\n"+
		"snapshot_mode: ${LEAK}\nplugins:\n  - {name: ${LEAK}, type: ${LEAK}}\n  - {name: tools, type: tools, "+
		"metadata: {deny: [\"${LEAK}\"], level: \"${LEAK}\", open: ${LEAK:-no}, enabled: ${LEAK}}}\n")
	_, warnings, err := Load(Source{Dir: dir, Available: []string{"tools"}, Getenv: func(name string) string {
		assert.That(t, name != "LEAK", "the variable was looked up")
		return ""
	}})
	assert.That(t, err == nil && len(warnings) == 1, "%v, %v", err, warnings)
}

// TestTrustSeesWhatCounts: Trust gets the same bytes that Load uses, so a file that changes in between is not
// trusted.
func TestTrustSeesWhatCounts(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, FolderFile), "host_id: looked-at")
	real := must.Get(filepath.EvalSymlinks(dir))(t)
	c, warnings, err := Load(Source{Dir: dir, Trust: func(at string, content []byte) error {
		assert.That(t, at == filepath.Join(real, FolderFile) && string(content) == "host_id: looked-at",
			"asked for %s with %q", at, content)
		return os.WriteFile(path, []byte("host_id: swapped"), 0o600)
	}})
	assert.That(t, err == nil && c.HostID == "looked-at" && c.File == filepath.Join(real, FolderFile) &&
		c.Untrusted == nil && len(warnings) <= 0, "%+v, %v, %v", c, warnings, err)
}

func compiled(t *testing.T, options map[string]any) *jsonschema.Schema {
	t.Helper()
	whole := map[string]any{}
	for _, t := range allTypes() {
		whole[t] = options[t] // nil = anything
	}
	text := must.Get(Schema(whole))(t)
	doc := must.Get(jsonschema.UnmarshalJSON(bytes.NewReader(text)))(t)
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft7) // the schema itself must name 2020-12
	must.OK(t, c.AddResource("config.json", doc))
	s, err := c.Compile("config.json")
	must.That(t, err == nil, "%v\n%s", err, text)
	assert.Equal(t, s.DraftVersion, 2020, "draft")
	return s
}

type schemaOptions struct {
	ReadOnly bool `yaml:"read_only"`
	MaxProcs int  `yaml:"max_procs" min:"1"`
}

// TestSchemaAgreesWithLoad: the schema accepts good files, as Load does, and refuses the mistakes that a schema can
// express.
func TestSchemaAgreesWithLoad(t *testing.T) {
	s := compiled(t, map[string]any{"tools": schemaOptions{MaxProcs: 3}, "env": &schemaOptions{}})
	load := func(text string) any {
		t.Helper()
		var v any
		must.OK(t, yaml.Load([]byte(text), &v))
		return v
	}
	for _, name := range []string{"minimal.yaml", "full.yaml", "python_subprocess.yaml", "mapping.yaml"} {
		data := must.Get(os.ReadFile(filepath.Join(configs, name)))(t)
		err := s.Validate(load(string(data)))
		assert.That(t, err == nil, "%s: %v", name, err)
	}
	good := []string{
		"max_parallel: ${N:-4}",
		"plugins: [{name: a, type: tools, metadata: {MAX_PROCS: 2, tool_modules: [x], enabled: true}}]",
		"plugins: [{name: a, type: procs, cls: x.y, metadata: {anything: 1}}]",
		"plugins: {}", "plugins: {tools: {max_procs: 2}, procs: false, env:, memory: true}",
		"plugins: {a: {type: tools, priority: 3, max_procs: 2}, b: {type: tools}}",
		"mcpServers: {files: {command: mcp-files}}",
	}
	for _, text := range good {
		err := s.Validate(load(text))
		assert.That(t, err == nil, "%q: %v", text, err)
	}
	bad := []string{
		"max_paralel: 3", "max_parallel: 0", "max_parallel: four", "max_parallel: 1.5", "events: all", "host_id: [a]",
		"limits: {max_queue: 0}",
		"audit: {size: 3}", "plugins: [{name: a}]", "plugins: [{name: a, type: database}]", "plugins: x",
		"plugins: {tools: {readonly: true}}", "plugins: {tools: 3}", "plugins: {database: {}}",
		"plugins: {database: true}", "plugins: {a: {type: tools, readonly: true}}",
		"plugins: [{name: a, type: tools, metadata: {readonly: true}}]", "plugins: [{name: a, type: tools, " +
			"metadata: {max_procs: 0}}]",
		"plugins: [{name: a, type: env, metadata: {priority: high}}]", "plugins: [{name: a, type: env, enabled: true}]",
	}
	dir := t.TempDir()
	for _, text := range bad {
		assert.Fails(t, s.Validate(load(text)), "", "the schema accepts %q", text)
		c, _, err := read(Source{Dir: dir, Available: allTypes(), Getenv: env()}, &file{name: "x", data: []byte(text)})
		if err == nil {
			err = c.Plugins[0].Options.Decode(&schemaOptions{})
			assert.That(t, err != nil || text == "plugins: [{name: a, type: tools, metadata: {max_procs: 0}}]",
				"Load accepts %q", text)
		}
	}
}

func TestSchemaShowsDefaultsAndRefusesOddTypes(t *testing.T) {
	text := must.Get(Schema(map[string]any{"tools": schemaOptions{MaxProcs: 3}}))(t)
	for _, want := range []string{
		`"default": 16777216`, `"default": 3`, `"description": "Name of this`,
		`"https://json-schema.org/draft/2020-12/schema"`,
	} {
		assert.That(t, bytes.Contains(text, []byte(want)), "no %s in the schema", want)
	}
	again, err := Schema(map[string]any{"tools": schemaOptions{MaxProcs: 3}})
	assert.That(t, err == nil && bytes.Equal(text, again), "not the same twice: %v", err)
	for _, odd := range []any{3, struct{ C chan int }{}} {
		_, err := Schema(map[string]any{"tools": odd})
		assert.That(t, err != nil, "a schema of %T", odd)
	}
}

func TestDecodeText(t *testing.T) {
	type file struct {
		ID    string   `yaml:"id" required:"true"`
		Text  string   `yaml:"text"`
		Limit int      `yaml:"limit" min:"0"`
		Names []string `yaml:"names"`
	}
	for _, tc := range []struct{ text, want string }{
		{"id: a\ntext: run ${HOME:-x} and ${x%%y}\nlimit: 3\nnames: [b]\n", ""},
		{"id: a\nlimits: 3\n", `f.yaml:2:1: unknown key "limits" in the file: did you mean "limit"?`},
		{"text: a\n", `f.yaml:1:1: the file needs the key "id"`},
		{"id: a\nlimit: many\n", "f.yaml:2:8: limit must be a whole number, not a string"},
		{"id: [a\n", "f.yaml:"},
		{"- a\n", "f.yaml:1:1: the file must be a mapping"},
	} {
		var got file
		err := DecodeText("f.yaml", []byte(tc.text), &got)
		switch {
		case tc.want == "" && (err != nil || got.Text != "run ${HOME:-x} and ${x%%y}" || got.Limit != 3 ||
			len(got.Names) != 1):
			t.Errorf("%q: %+v, %v", tc.text, got, err)
		case tc.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.want)):
			t.Errorf("%q: %v, want %q", tc.text, err, tc.want)
		}
	}
	assert.Fails(t, DecodeText("f.yaml", nil, file{}), "", "a struct that cannot be filled was taken")
}

// TestAgentBelowZero: a negative depth or max_steps is refused, because such a child agent could have children
// without end.
func TestAgentBelowZero(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		`{"agent_id":"a","tool_scope":"shared","depth":2,"max_steps":3}`: true,
		`{"agent_id":"a","tool_scope":"shared","depth":-2}`:              false,
		`{"agent_id":"a","tool_scope":"shared","max_steps":-1}`:          false,
	} {
		agent, err := agentOf(env("A2E_AGENT", text))
		assert.That(t, (err == nil) == ok && (agent != nil) == ok && (ok || strings.Contains(err.Error(), "negative")),
			"%s: %v, %v", text, agent, err)
	}
}
