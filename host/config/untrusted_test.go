package config

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// guarded has one option of each kind.
type guarded struct {
	Allowed []string `yaml:"allowed"`
	Deny    []string `yaml:"deny"`
	Open    bool     `yaml:"open"`
	Level   string   `yaml:"level" enum:"any,some,none"`
	Limit   float64  `yaml:"limit" min:"0"`
	Depth   int      `yaml:"depth"`
	Command []string `yaml:"command"`
}

func tightenGuarded() map[string]Tightening {
	inherited := func(base *Config) []string {
		for _, p := range base.Plugins {
			var o guarded
			if p.Enabled && p.Options.Decode(&o) == nil && o.Allowed != nil {
				return o.Allowed
			}
		}
		return nil
	}
	rules := map[string]Rule{
		"allowed": Within(inherited, []string{"a", "b"}), "deny": Longer(func(_ *Config, s string) bool { return s != "[" }), "open": Only(false),
		"level": Ordered("any", "some", "none"), "limit": Lower(10), "depth": LowerOrNone(),
	}
	defaults := guarded{Open: true, Level: "some", Depth: 3}
	return map[string]Tightening{"tools": {defaults, rules}, "proc": {defaults, rules}}
}

// loadUntrusted reads the files of a folder and of the user, of which "" is none.
func loadUntrusted(t *testing.T, folder, user string) (*Config, string) {
	t.Helper()
	dir, home := t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, FolderFile), folder)
	if user != "" {
		write(t, filepath.Join(home, "a2e", "config.yaml"), user)
	}
	c, warnings, err := Load(Source{
		Dir: dir, UserConfigDir: home, Available: []string{"tools", "proc", "memory", "exec"}, Tighten: tightenGuarded,
		Getenv: func(name string) string {
			if name == "OWN" {
				return "own"
			}
			return "" // and LEAK is asked for by nobody
		},
		Trust: func(string, []byte) error { return errors.New("nobody has") },
	})
	must.That(t, err == nil, "%q: %v", folder, err)
	assert.That(t, len(warnings) <= 1, "%q: %d warnings", folder, len(warnings))
	return c, strings.Join(texts(warnings), "\n")
}

func optionsOf(t *testing.T, c *Config, name string) guarded {
	t.Helper()
	o := guarded{Open: true, Level: "some", Depth: 3}
	for _, p := range c.Plugins {
		if p.Name == name {
			must.OK(t, p.Options.Decode(&o))
			return o
		}
	}
	t.Fatalf("no plugin %s", name)
	return o
}

// What an untrusted file of the folder gives is held against what holds without it: the
// defaults, or the user's own file.
func TestUntrustedFileOnlyTightens(t *testing.T) {
	const own = "auth_token: ${OWN}\nmax_parallel: 2\nsandbox: required\nchildren: {processes: 100}\n" +
		"plugins: [{name: t, type: tools, metadata: {allowed: [b, c], deny: [x], level: none, limit: 5, depth: 1, open: false, command: [\"${OWN}\"]}}, {name: p, type: proc}]\n"
	for _, tc := range []struct {
		folder, user string
		get          func(c *Config) any
		want         any
		left         string // part of the warning; "" = nothing is left out
	}{
		{"max_parallel: 3", "", func(c *Config) any { return c.MaxParallel }, 3, ""},
		{"max_parallel: 5", "", func(c *Config) any { return c.MaxParallel }, 4, "left out: max_parallel"},
		{"max_parallel: 3", own, func(c *Config) any { return c.MaxParallel }, 2, "left out: max_parallel"},
		{"max_parallel: 1", own, func(c *Config) any { return c.MaxParallel }, 1, ""},
		{"max_parallel: -3", "", func(c *Config) any { return c.MaxParallel }, 4, "left out: max_parallel"},
		{"max_parallel: ${N:-1}", "", func(c *Config) any { return c.MaxParallel }, 4, "left out: max_parallel"},
		{"limits: {max_queue: 10, max_line_bytes: 1}", "", func(c *Config) any { return []int{c.Limits.MaxQueue, c.Limits.MaxLineBytes} }, []int{10, 16 << 20}, "left out: limits.max_line_bytes"},
		{"sandbox: required", "", func(c *Config) any { return c.Sandbox }, "required", ""},
		{"sandbox: best_effort", "", func(c *Config) any { return c.Sandbox }, "", "left out: sandbox"},
		{"sandbox: off", own, func(c *Config) any { return c.Sandbox }, "required", "left out: sandbox"},
		{"sandbox: required", "sandbox: off", func(c *Config) any { return c.Sandbox }, "required", ""},
		{"children: {processes: 1025, cpu_seconds: 3, file_bytes: -1, read: [/]}", "", func(c *Config) any { return c.Children }, Children{CPUSeconds: 3}, "children.processes, children.file_bytes, children.read"},
		{"children: {processes: 99}", own, func(c *Config) any { return c.Children.Processes }, int64(99), ""},
		{"children: {processes: 0}", own, func(c *Config) any { return c.Children.Processes }, int64(100), "left out: children.processes"},
		{"auth_token: mine", "", func(c *Config) any { return c.AuthToken.Reveal() }, "mine", ""},
		{"auth_token: mine", own, func(c *Config) any { return c.AuthToken.Reveal() }, "own", "left out: auth_token"},
		{"auth_token: ${LEAK}", "", func(c *Config) any { return c.AuthToken.Reveal() }, "", "left out: auth_token"},
		{"audit:", "", func(c *Config) any { return c.Audit.Enabled }, false, "left out: audit"},
		{"workspace: /", "", func(c *Config) any { return c.Workspace == "/" }, false, "left out: workspace"},
		{"plugins: []", "", func(c *Config) any { return len(c.Plugins) }, 0, ""},
		{"plugins: [{name: proc, type: procs}]", "", func(c *Config) any { return c.Plugins[0].Name + string(rune('0'+len(c.Plugins))) }, "proc1", ""},
		{"plugins: [{name: proc, type: proc, metadata: {enabled: no}}]", "", func(c *Config) any { return len(c.Plugins) }, 0, ""},
		{"plugins: [{name: e, type: exec, metadata: {command: [sh]}}]", "", func(c *Config) any { return len(c.Plugins) }, 0, "left out: plugins[0]"},
		{"plugins: [{name: tools, type: tools, metadata: {allowed: [b, z], deny: [y], level: none, limit: 3, depth: 0, open: false}}]", "",
			func(c *Config) any { return optionsOf(t, c, "tools") }, guarded{Allowed: []string{"b"}, Deny: []string{"y"}, Level: "none", Limit: 3}, "left out: plugins[0].metadata.allowed"},
		{"plugins: [{name: tools, type: tools, metadata: {deny: ['['], level: any, limit: 11, depth: 4, open: yes, command: [sh], other: 1}}]", "",
			func(c *Config) any { return optionsOf(t, c, "tools") }, guarded{Open: true, Level: "some", Depth: 3}, "metadata.deny, plugins[0].metadata.level, plugins[0].metadata.limit, plugins[0].metadata.depth, plugins[0].metadata.command, plugins[0].metadata.other"},
		{"plugins: [{name: t, type: tools, metadata: {allowed: [a, b], deny: [y], level: some, limit: 6, depth: 2, open: true}}]", own,
			func(c *Config) any { return optionsOf(t, c, "t") }, guarded{Allowed: []string{"b"}, Deny: []string{"x", "y"}, Level: "none", Limit: 5, Depth: 1, Command: []string{"own"}}, "metadata.allowed, plugins[0].metadata.level"},
		// what a plugin had from another one stays when that is switched off
		{"plugins: [{name: p, type: proc}]", own, func(c *Config) any { return optionsOf(t, c, "p").Allowed }, []string{"b", "c"}, ""},
		// a plugin that stands before others stays
		{"plugins: [{name: p, type: proc}]", "plugins: [{name: t, type: tools, metadata: {exclusive: true}}, {name: p, type: proc}]", func(c *Config) any { return len(c.Plugins) }, 2, "left out: plugins"},
		// a mapping: what it does not name stays as it is
		{"plugins: {}", "", func(c *Config) any { return len(c.Plugins) }, 3, ""},
		{"plugins: {proc: false, memory: {enabled: off}}", "", func(c *Config) any { return len(c.Plugins) }, 1, ""},
		{"plugins: {proc: true, memory: , tools: {}}", "", func(c *Config) any { return len(c.Plugins) }, 3, ""},
		{"plugins: {procs: no, proc: {open: true}}", "", func(c *Config) any { return len(c.Plugins) }, 2, "left out: plugins.proc"},
		{"plugins: {proc: '${LEAK:-false}', memory: 'false', tools: [x], '${LEAK}': false}", "", func(c *Config) any { return len(c.Plugins) }, 3, "left out: plugins.proc, plugins.memory, plugins.tools, plugins.…"},
		{"plugins: {exec: {command: [sh]}, e: {type: exec, command: [sh]}, none: true}", "", func(c *Config) any { return len(c.Plugins) }, 3, "left out: plugins.exec, plugins.e, plugins.none"},
		{"plugins: {tools: {allowed: [b, z], deny: [y, '['], level: any, limit: 3, command: [sh], priority: 9, exclusive: true}}", "",
			func(c *Config) any { return optionsOf(t, c, "tools") }, guarded{Allowed: []string{"b"}, Deny: []string{"y"}, Open: true, Level: "some", Limit: 3, Depth: 3},
			"plugins.tools.allowed, plugins.tools.deny, plugins.tools.level, plugins.tools.command, plugins.tools.priority, plugins.tools.exclusive"},
		{"plugins: {mine: {type: tools, limit: 3, open: true}}", "", func(c *Config) any { return []any{len(c.Plugins), optionsOf(t, c, "tools").Limit} }, []any{3, 3.0}, "left out: plugins.mine.type"},
		{"plugins: {mine: {type: tools, limit: 3}, tools: {level: any}}", own, func(c *Config) any { return optionsOf(t, c, "t").Limit }, 3.0, "left out: plugins.mine.type, plugins.tools"},
		{"plugins: {tools: {metadata: {limit: 3}, type: {x: y}}}", "", func(c *Config) any { return optionsOf(t, c, "tools").Limit }, 0.0, "left out: "},
		{"plugins: {proc: false}", "plugins: {tools: {priority: 1}}", func(c *Config) any { return len(c.Plugins) }, 3, "left out: plugins"},
		{"plugins: {proc: true}", "plugins: {proc: false}", func(c *Config) any { return c.Plugins[1].Enabled }, false, ""},
		{"plugins: {tools: false}", own, func(c *Config) any { return optionsOf(t, c, "p").Allowed }, []string{"b", "c"}, ""},
		{"plugins: {<<: {tools: {open: true, limit: 99}}, proc: &a {limit: 3}}", "", func(c *Config) any { return []any{optionsOf(t, c, "tools").Limit, optionsOf(t, c, "proc").Limit} }, []any{0.0, 3.0}, "left out: plugins.tools.limit"},
		{"mcpServers: {a: {command: sh}}", "", func(c *Config) any { return c.MCPServers == nil && c.Plugins[0].Options.node == nil }, true, "left out: mcpServers"},
		{"mcpServers: {}", "", func(c *Config) any { return c.MCPServers }, nil, "left out: mcpServers"},
		{"max_parallel: 3\nmax_parallel: 1", "", func(c *Config) any { return c.MaxParallel }, 4, "nothing in it counts"},
		{"max_paralel: 3\nsandbox: required", "", func(c *Config) any { return c.Sandbox }, "required", "left out: max_paralel"},
		{"a: [", "", func(c *Config) any { return c.MaxParallel }, 4, "it is wrong besides: "},
		{"<<: {sandbox: off}\nx: &x {max_parallel: 3}\n", "", func(c *Config) any { return c.Sandbox }, "", "sandbox"},
		{"- a", "", func(c *Config) any { return c.MaxParallel }, 4, "left out: the file"},
		{"# nothing", "", func(c *Config) any { return c.MaxParallel }, 4, ""},
	} {
		c, warned := loadUntrusted(t, tc.folder, tc.user)
		diff := cmp.Diff(tc.want, tc.get(c))
		assert.Equal(t, diff, "", "%q over %q", tc.folder, tc.user)
		assert.That(t, (tc.left != "" || !strings.Contains(warned, "left out")) && strings.Contains(warned, tc.left),
			"%q over %q warns %q, want %q", tc.folder, tc.user, warned, tc.left)
		assert.That(t, c.Untrusted != "" && (tc.user != "" || c.File == ""), "%q: file %q, untrusted %q", tc.folder, c.File, c.Untrusted)
	}
}

// No variable of an untrusted file is so much as looked up.
func TestUntrustedFileExpandsNothing(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, FolderFile), "auth_token: ${LEAK}\nhost_id: ${LEAK:-x}\nmax_parallel: ${LEAK:-1}\n"+
		"snapshot_mode: ${LEAK}\nplugins:\n  - {name: ${LEAK}, type: ${LEAK}}\n  - {name: tools, type: tools, metadata: {deny: [\"${LEAK}\"], level: \"${LEAK}\", open: ${LEAK:-no}, enabled: ${LEAK}}}\n")
	_, warnings, err := Load(Source{Dir: dir, Available: []string{"tools"}, Tighten: tightenGuarded, Getenv: func(name string) string {
		assert.That(t, name != "LEAK", "the variable was looked up")
		return ""
	}})
	assert.That(t, err == nil && len(warnings) == 1, "%v, %v", err, warnings)
}

// What is trusted are the bytes that were read: Trust gets those that count.
func TestTrustSeesWhatCounts(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, FolderFile), "host_id: looked-at")
	real := must.Get(filepath.EvalSymlinks(dir))(t)
	c, warnings, err := Load(Source{Dir: dir, Trust: func(at string, content []byte) error {
		assert.That(t, at == filepath.Join(real, FolderFile) && string(content) == "host_id: looked-at",
			"asked for %s with %q", at, content)
		return os.WriteFile(path, []byte("host_id: swapped"), 0o600)
	}})
	assert.That(t, err == nil && c.HostID == "looked-at" && c.File == filepath.Join(real, FolderFile) && c.Untrusted == "" && len(warnings) <= 0, "%+v, %v, %v", c, warnings, err)
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

// The schema agrees with Load on good files and on the mistakes that a schema can see.
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
		"plugins: {}", "plugins: {tools: {max_procs: 2}, procs: false, env:, memory: true}", "plugins: {a: {type: tools, priority: 3, max_procs: 2}, b: {type: tools}}",
		"mcpServers: {files: {command: mcp-files}}",
	}
	for _, text := range good {
		err := s.Validate(load(text))
		assert.That(t, err == nil, "%q: %v", text, err)
	}
	bad := []string{
		"max_paralel: 3", "max_parallel: 0", "max_parallel: four", "max_parallel: 1.5", "events: all", "host_id: [a]", "limits: {max_queue: 0}",
		"audit: {rotate: {size: 3}}", "plugins: [{name: a}]", "plugins: [{name: a, type: database}]", "plugins: x", "plugins: {tools: {readonly: true}}", "plugins: {tools: 3}", "plugins: {database: {}}", "plugins: {database: true}", "plugins: {a: {type: tools, readonly: true}}",
		"plugins: [{name: a, type: tools, metadata: {readonly: true}}]", "plugins: [{name: a, type: tools, metadata: {max_procs: 0}}]",
		"plugins: [{name: a, type: env, metadata: {priority: high}}]", "plugins: [{name: a, type: env, enabled: true}]",
	}
	dir := t.TempDir()
	for _, text := range bad {
		assert.Fails(t, s.Validate(load(text)), "", "the schema accepts %q", text)
		c, _, err := read(Source{Dir: dir, Available: allTypes(), Getenv: env()}, &file{name: "x", data: []byte(text)})
		if err == nil {
			err = c.Plugins[0].Options.Decode(&schemaOptions{})
			assert.That(t, err != nil || text == "plugins: [{name: a, type: tools, metadata: {max_procs: 0}}]", "Load accepts %q", text)
		}
	}
}

func TestSchemaShowsDefaultsAndRefusesOddTypes(t *testing.T) {
	text := must.Get(Schema(map[string]any{"tools": schemaOptions{MaxProcs: 3}}))(t)
	for _, want := range []string{`"default": 16777216`, `"default": 3`, `"description": "Who decides`, `"https://json-schema.org/draft/2020-12/schema"`} {
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
		case tc.want == "" && (err != nil || got.Text != "run ${HOME:-x} and ${x%%y}" || got.Limit != 3 || len(got.Names) != 1):
			t.Errorf("%q: %+v, %v", tc.text, got, err)
		case tc.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.want)):
			t.Errorf("%q: %v, want %q", tc.text, err, tc.want)
		}
	}
	assert.Fails(t, DecodeText("f.yaml", nil, file{}), "", "a struct that cannot be filled was taken")
}

// A child agent without a depth that makes sense would have children without end.
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
