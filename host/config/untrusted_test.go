package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	if err != nil {
		t.Fatalf("%q: %v", folder, err)
	}
	if len(warnings) > 1 {
		t.Errorf("%q: %d warnings", folder, len(warnings))
	}
	return c, strings.Join(texts(warnings), "\n")
}

func optionsOf(t *testing.T, c *Config, name string) guarded {
	t.Helper()
	o := guarded{Open: true, Level: "some", Depth: 3}
	for _, p := range c.Plugins {
		if p.Name == name {
			if err := p.Options.Decode(&o); err != nil {
				t.Fatal(err)
			}
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
		if diff := cmp.Diff(tc.want, tc.get(c)); diff != "" {
			t.Errorf("%q over %q (-want +got):\n%s", tc.folder, tc.user, diff)
		}
		if tc.left == "" && strings.Contains(warned, "left out") || !strings.Contains(warned, tc.left) {
			t.Errorf("%q over %q warns %q, want %q", tc.folder, tc.user, warned, tc.left)
		}
		if c.Untrusted == "" || tc.user == "" && c.File != "" {
			t.Errorf("%q: file %q, untrusted %q", tc.folder, c.File, c.Untrusted)
		}
	}
}

// No variable of an untrusted file is so much as looked up.
func TestUntrustedFileExpandsNothing(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, FolderFile), "auth_token: ${LEAK}\nhost_id: ${LEAK:-x}\nmax_parallel: ${LEAK:-1}\n"+
		"snapshot_mode: ${LEAK}\nplugins:\n  - {name: ${LEAK}, type: ${LEAK}}\n  - {name: tools, type: tools, metadata: {deny: [\"${LEAK}\"], level: \"${LEAK}\", open: ${LEAK:-no}, enabled: ${LEAK}}}\n")
	_, warnings, err := Load(Source{Dir: dir, Available: []string{"tools"}, Tighten: tightenGuarded, Getenv: func(name string) string {
		if name == "LEAK" {
			t.Error("the variable was looked up")
		}
		return ""
	}})
	if err != nil || len(warnings) != 1 {
		t.Errorf("%v, %v", err, warnings)
	}
}

// What is trusted are the bytes that were read: Trust gets those that count.
func TestTrustSeesWhatCounts(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, FolderFile), "host_id: looked-at")
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, warnings, err := Load(Source{Dir: dir, Trust: func(at string, content []byte) error {
		if at != filepath.Join(real, FolderFile) || string(content) != "host_id: looked-at" {
			t.Errorf("asked for %s with %q", at, content)
		}
		return os.WriteFile(path, []byte("host_id: swapped"), 0o600)
	}})
	if err != nil || c.HostID != "looked-at" || c.File != filepath.Join(real, FolderFile) || c.Untrusted != "" || len(warnings) > 0 {
		t.Errorf("%+v, %v, %v", c, warnings, err)
	}
}
