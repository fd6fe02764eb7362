package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

const configs = "../../testdata/configs"

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i+1 < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

// view returns a copy of a Config that go-cmp can compare, without secrets and options, and the token as text.
func view(c *Config) (Config, string) {
	v, token := *c, c.AuthToken.Reveal()
	v.AuthToken, v.Secrets = Secret{}, nil
	v.Plugins = append([]Plugin{}, c.Plugins...)
	for i := range v.Plugins {
		v.Plugins[i].Options = Options{}
	}
	return v, token
}

// compare ignores the fields that TestWall checks.
var compare = cmp.Options{cmp.AllowUnexported(Secret{}, Options{}), cmp.FilterPath(func(p cmp.Path) bool {
	return p.String() == "Wall" || p.String() == "Named"
}, cmp.Ignore())}

func texts(warnings []Warning) []string {
	out := []string{}
	for _, w := range warnings {
		out = append(out, w.String())
	}
	return out
}

func write(t testing.TB, path, content string) string {
	t.Helper()
	must.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must.OK(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestNoFileIsDefault(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	src := Source{
		Dir: dir, UserConfigDir: filepath.Join(dir, "none"), Getenv: env("XDG_STATE_HOME", state),
		Available: []string{"tools", "env"},
	}
	c, warnings, err := Load(src)
	must.That(t, err == nil && len(warnings) == 0, "%v %v", err, warnings)
	want := Config{
		UserDir: filepath.Join(dir, "none", "a2e"), HostID: "a2e", Workspace: dir,
		StateDir: filepath.Join(state, "a2e"), Events: "invoke",
		Limits:      Limits{MaxLineBytes: 16777216, MaxQueue: 65536, MaxQueueBytes: 33554432, MaxOutputBytes: 1048576},
		Audit:       Audit{Path: filepath.Join(state, "a2e", "audit.jsonl"), SessionIDSource: "uuid"},
		HTTP:        HTTP{MaxSessions: 1000, IdleSeconds: 600},
		Checkpoints: Checkpoints{MaxCount: 200, MaxBytes: 1 << 30, MaxFileBytes: 32 << 20, MaxFiles: 200_000},
		Store:       Store{Synchronous: "normal"},
		Fleet:       Fleet{Announce: "first_task", MaxTasks: 1, Isolation: "none"},
		Plugins:     []Plugin{{Name: "tools", Type: "tools", Enabled: true}, {Name: "env", Type: "env", Enabled: true}},
	}
	got, token := view(c)
	diff := cmp.Diff(want, got, compare)
	assert.That(t, diff == "" && token == "", "token %q, config (-want +got):\n%s", token, diff)
	src.Dir = filepath.Join(dir, "gone")
	if _, _, err := Load(src); err == nil || !strings.Contains(err.Error(), "workspace") {
		t.Errorf("a workspace that is not there: %v", err)
	}
}

func TestStateDirWithoutXDG(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Logf("the expected folder is that of Linux; here it is %s", defaultStateDir(env("HOME", "/h")))
		return
	}
	for want, getenv := range map[string]func(string) string{
		"/h/.local/state/a2e": env("HOME", "/h", "XDG_STATE_HOME", "relative/is/ignored"),
		"/x/a2e":              env("HOME", "/h", "XDG_STATE_HOME", "/x"),
	} {
		assert.Equal(t, defaultStateDir(getenv), want)
	}
	got := defaultStateDir(nil)
	assert.That(t, filepath.IsAbs(got), "an empty environment gives %s", got)
}

func TestFullFile(t *testing.T) {
	dir := t.TempDir()
	file := must.Get(filepath.Abs(filepath.Join(configs, "full.yaml")))(t)
	src := Source{Path: file, Dir: dir, Getenv: env("A2E_TEST_TOKEN", "s3cret: {"), Available: []string{"tools", "env"}}
	state := filepath.Join(dir, "state")
	must.OK(t, os.Mkdir(state, 0o700))
	c, warnings, err := Load(src)
	must.That(t, err == nil && len(warnings) == 0, "%v %v", err, warnings)
	want := Config{
		File: file, HostID: "build-7", Workspace: dir, StateDir: state, MaxParallel: 8, Events: "namespaced",
		Limits: Limits{MaxLineBytes: 65536, MaxQueue: 128, MaxQueueBytes: 1048576, MaxOutputBytes: 16384},
		Audit: Audit{
			Enabled: true, Path: filepath.Join(state, "trail", "audit.jsonl"),
			SessionIDSource: "host_id",
		},
		HTTP:        HTTP{MaxSessions: 1000, IdleSeconds: 600},
		Checkpoints: Checkpoints{MaxCount: 200, MaxBytes: 1 << 30, MaxFileBytes: 32 << 20, MaxFiles: 200_000},
		Store:       Store{Synchronous: "normal"},
		Sandbox:     "required",
		Children: Children{
			Read: []string{filepath.Dir(dir), filepath.Join(dir, "state")}, MemoryBytes: 1 << 31, AddressBytes: 1 << 36,
			FileBytes: -1, OpenFiles: 256, Processes: 64, CPUSeconds: 600,
		},
		Fleet: Fleet{
			AgentID: "w1", Model: "small-1", ModelTier: "small", ContextWindow: 200000, Announce: "startup",
			MaxTasks: 2, Isolation: "none",
		},
		Plugins: []Plugin{
			{Name: "files", Type: "tools", Enabled: true, Priority: 10, Exclusive: true},
			{Name: "counter", Type: "env", Enabled: true, Priority: -1},
			{Name: "later", Type: "env"},
		},
	}
	assert.That(t, len(c.Auth) == 1 && c.Auth[0].AgentID == "alice" && c.Auth[0].Token.Reveal() == "of alice",
		"auth: %d entries", len(c.Auth))
	got, token := view(c)
	got.Auth = nil
	diff := cmp.Diff(want, got, compare)
	assert.That(t, diff == "" && token == "s3cret: {", "token %q, config (-want +got):\n%s", token, diff)
	var o struct {
		ReadOnly bool `yaml:"read_only"`
	}
	if err := c.Plugins[1].Options.Decode(&o); err != nil || !o.ReadOnly {
		t.Errorf("merged option: %v, %v", o, err)
	}
}

func TestPythonFilesLoadAsTheyAre(t *testing.T) {
	const ignored = "has no meaning for this host and is ignored"
	const left = "it is left out"
	const noSnapshots = ": there are no snapshots; `a2e state export` and `import` save the state and restore it"
	const kept = ignored + ": what this plugin keeps is in the store under state_dir"
	const noModules = ignored + ": no Python module is loaded; commands declares tools that are programs"
	classes := func(names string) string {
		return "cls is ignored, as this host loads no Python class: its own plugins of the same types answer " +
			"instead of " + names + "; to keep a class, run its host as a plugin of type exec"
	}
	const direct = "plugins[%d].metadata.servers[0] is a part of the Python host (transport: direct); " + left
	cases := map[string]struct {
		available []string
		plugins   string
		warnings  []string
	}{
		"python_host.yaml": {[]string{"tools", "env", "proc"}, "my-tools=tools counter=env shells=proc", []string{
			"3:1: server " + ignored,
			"6:1: transport " + ignored,
			"13:1: snapshot_store " + ignored + noSnapshots,
			"17:1: snapshot_mode " + ignored + noSnapshots,
			"18:1: audit_log_path " + ignored,
			"24:3: rotate " + ignored + ": the log grows until another program, such as logrotate, moves it; the " +
				"host then begins a new file",
			"31:11: no such plugin in this build: memory; " + left,
			"32:5: " + classes("store.simple.SimpleMemory, feedback.plugin.Feedback, registry.ToolRegistry, "+
				"skills.folder.FolderSkills, games.counter.Counter, procs.plugin.Procs, mcp.plugin.Bridge"),
			"35:11: no such plugin in this build: learning; " + left,
			"42:7: tool_modules " + noModules,
			"48:11: no such plugin in this build: skill; " + left,
			"71:11: no such plugin in this build: mcp; " + left,
			"75:11: " + fmt.Sprintf(direct, 6),
			"80:7: routing " + ignored,
			"83:7: routing_strategy " + ignored,
			"84:7: fallback_enabled " + ignored,
			"85:7: observability " + ignored,
		}},
		"python_subprocess.yaml": {[]string{"tools", "env"}, "my-tools=tools counter=env", []string{
			"3:1: transport " + ignored,
			"15:5: " + classes("registry.ToolRegistry, games.counter.Counter, procs.plugin.Procs"),
			"17:7: modules " + noModules,
			"22:11: no such plugin in this build: proc; " + left,
		}},
		"python_whole.yaml": {allTypes(), "recall=memory lessons=learning helpers=multi_agent todo=planning " +
			"servers=mcp", []string{
			"3:1: server " + ignored,
			"4:1: transport " + ignored,
			"5:1: snapshot_store " + ignored + noSnapshots,
			"9:5: " + classes("own.recall.SQLiteRecall, own.lessons.Lessons, own.helpers.Orchestrator, "+
				"own.todo.Todo, own.servers.Servers"),
			"10:16: db_path " + kept,
			"14:16: store_root " + kept,
			"14:39: adapt_every " + ignored,
			"14:56: min_experiences " + ignored,
			"14:77: confidence_threshold " + ignored,
			"14:104: scope " + ignored,
			"22:16: ROOT " + kept,
			"28:11: " + fmt.Sprintf(direct, 4),
			"33:21: plugins[4].metadata.servers[1].metadata is read as options of the server itself",
			"37:7: routing_strategy " + ignored,
		}},
		"python_untyped.yaml": {allTypes(), "skills=skill recall=memory learning=learning tools=tools", []string{
			"5:5: plugins[0] has no type; by its name or cls it is taken for one of type skill",
			"6:5: " + classes("own.plugins.Skills, own.plugins.memory.Recall, own.plugins.Lessons, own.plugins.Tools"),
			"7:13: plugins[0].config is read as metadata",
			"7:25: pool_size " + ignored,
			"8:5: plugins[1] has no type; by its name or cls it is taken for one of type memory",
			"10:13: plugins[1].config is read as metadata",
			"10:14: episodic_db_path " + kept,
			"10:46: semantic_db_path " + kept,
			"11:5: plugins[2] has no type; by its name or cls it is taken for one of type learning",
			"13:13: plugins[2].config is read as metadata",
			"14:5: plugins[3] has no type; by its name or cls it is taken for one of type tools",
			"16:13: plugins[3].config is read as metadata",
		}},
		"minimal.yaml": {[]string{"tools", "env"}, "tools=tools env=env", nil},
		"mapping.yaml": {allTypes(), "guarded=tools wide=tools toolkits=toolkits skill=skill env=env proc=proc " +
			"memory=memory learning=learning chains=chains mcp=mcp multi_agent=multi_agent planning=planning " +
			"words=exec", nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			file := must.Get(filepath.Abs(filepath.Join(configs, name)))(t)
			got, warnings, err := Load(Source{Path: file, Dir: t.TempDir(), Available: c.available})
			must.OK(t, err)
			want := []string{}
			for _, w := range c.warnings {
				want = append(want, file+":"+w)
			}
			assert.Diff(t, want, texts(warnings))
			var plugins []string
			for _, p := range got.Plugins {
				plugins = append(plugins, p.Name+"="+p.Type)
			}
			assert.Diff(t, c.plugins, strings.Join(plugins, " "))
		})
	}
}

// TestBothFormsOfPlugins: a mapping of plugins changes the default plugins; a list replaces them. The MCP servers at
// the top of the file go to the plugin of type mcp.
func TestBothFormsOfPlugins(t *testing.T) {
	dir := t.TempDir()
	load := func(text string) (*Config, string) {
		t.Helper()
		c, warnings, err := Load(Source{
			Path: write(t, filepath.Join(dir, "c.yaml"), text), Dir: dir,
			Available: []string{"tools", "env", "mcp"}, Getenv: env("ID", "one"),
		})
		must.That(t, err == nil, "%s: %v", text, err)
		return c, strings.Join(texts(warnings), "\n")
	}
	const servers = "mcpServers: {a: {command: \"${ID}\"}}\n"
	for text, want := range map[string]struct{ plugins, off, warns string }{
		"plugins: {}":           {"tools env mcp", "", ""},
		"plugins: {env: false}": {"tools -env mcp", "", ""},
		"plugins: {env: {enabled: no}, mcp: , tools: on}": {"tools -env mcp", "", ""},
		"plugins: {m: {type: env}, n: {type: env}}":       {"tools m n mcp", "", ""},
		"plugins: {m: {type: env}, env: }":                {"tools m env mcp", "", ""},
		"plugins: {memory: {}}": {"tools env mcp", "", "no such plugin in this build: " +
			"memory"},
		"plugins: [{name: t, type: tools}]":             {"t", "env mcp", ""},
		"plugins: []":                                   {"", "tools env mcp", ""},
		servers:                                         {"tools env mcp+", "", ""},
		servers + "plugins: {mcp: {pin: true}}":         {"tools env mcp+", "", ""},
		servers + "plugins: {m: {type: mcp}}":           {"tools env m+", "", ""},
		servers + "plugins: {mcp: false}":               {"tools env -mcp", "", "mcpServers has no effect"},
		servers + "plugins: [{name: mcp, type: tools}]": {"mcp mcpServers+", "env", ""},
		servers + "plugins: [{name: m, type: mcp}]":     {"m+", "tools env", ""},
	} {
		c, warned := load(text)
		var got []string
		for _, p := range c.Plugins {
			var o struct {
				Servers map[string]struct {
					Command string `yaml:"command"`
				} `yaml:"mcpServers"`
				Pin bool `yaml:"pin"`
			}
			name := p.Name
			err := p.Options.Decode(&o)
			assert.That(t, err == nil, "%s: %v", text, err)
			if o.Servers["a"].Command == "one" {
				name += "+"
			}
			if !p.Enabled {
				name = "-" + name
			}
			got = append(got, name)
		}
		if strings.Join(got, " ") != want.plugins || strings.Join(c.Off, " ") != want.off ||
			(want.warns == "") != (warned == "") || !strings.Contains(warned, want.warns) {
			t.Errorf("%s: plugins %q, off %q, warnings %q", text, got, c.Off, warned)
		}
	}
}

// TestUpperCaseOptions: options of a Python config that this host has work under their Python names.
func TestUpperCaseOptions(t *testing.T) {
	c, _, err := Load(Source{Path: mustAbs(t, "python_host.yaml"), Dir: t.TempDir(), Available: []string{"proc"}})
	must.OK(t, err)
	type procOptions struct {
		AllowedCommands []string      `yaml:"allowed_commands"`
		Timeout         time.Duration `yaml:"timeout"`
		MaxOutputBytes  int           `yaml:"max_output_bytes"`
		MaxProcs        int           `yaml:"max_procs"`
		NetworkDisabled bool          `yaml:"network_disabled"`
	}
	var got procOptions
	must.OK(t, c.Plugins[0].Options.Decode(&got))
	want := procOptions{[]string{"bash", "ls"}, 20 * time.Second, 500000, 3, true}
	assert.Diff(t, want, got)
	assert.That(t, c.AuthToken.Reveal() == "" && c.Audit.Enabled, "%+v", c)
}

func mustAbs(t testing.TB, name string) string {
	t.Helper()
	return must.Get(filepath.Abs(filepath.Join(configs, name)))(t)
}

func TestSearchOrder(t *testing.T) {
	dir := t.TempDir()
	work, user := filepath.Join(dir, "work"), filepath.Join(dir, "user")
	flag := write(t, filepath.Join(dir, "flag.yaml"), "host_id: flag")
	write(t, filepath.Join(work, "env.yaml"), "host_id: env")
	src := Source{Path: flag, Dir: work, UserConfigDir: user, Getenv: env("A2E_CONFIG", "env.yaml")}
	src.Trust = func(string, []byte) error { return nil }
	write(t, filepath.Join(work, "a2e.yaml"), "host_id: work")
	write(t, filepath.Join(user, "a2e", "config.yaml"), "host_id: user")
	expect := func(want string) {
		t.Helper()
		c, _, err := Load(src)
		assert.That(t, err == nil && c.HostID == want, "want %s: %v, %v", want, c, err)
	}
	expect("flag")
	src.Path = ""
	expect("env")
	src.Getenv = nil
	expect("work")
	src.Trust = nil
	expect("user")
	must.OK(t, os.Remove(filepath.Join(work, "a2e.yaml")))
	expect("user")
	src.UserConfigDir = ""
	expect("a2e")

	missing := filepath.Join(dir, "missing.yaml")
	for by, s := range map[string]Source{
		"--config":   {Path: missing, Dir: work},
		"A2E_CONFIG": {Dir: work, Getenv: env("A2E_CONFIG", missing)},
	} {
		_, _, err := Load(s)
		assert.That(t, errors.Is(err, fs.ErrNotExist) && strings.Contains(err.Error(), "missing.yaml, named by "+by),
			"%s: %v", by, err)
	}
	must.OK(t, os.Mkdir(filepath.Join(work, "a2e.yaml"), 0o700))
	if _, warnings, err := Load(Source{Dir: work}); err != nil || len(warnings) != 1 ||
		!strings.Contains(warnings[0].String(), "not a regular file") {
		t.Errorf("a folder named a2e.yaml: %v, %v", err, warnings)
	}
}

func TestPathsAndAudit(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.Mkdir(filepath.Join(dir, "ws"), 0o700))
	home := filepath.Join(dir, "home")
	cases := []struct {
		text  string
		check func(c *Config) any
		want  any
	}{
		{"audit: {}", func(c *Config) any { return c.Audit.Enabled }, true},
		{"audit:", func(c *Config) any { return c.Audit.Enabled }, true},
		{"audit: {path: x}", func(c *Config) any { return c.Audit.Enabled }, true},
		{"checkpoints: true", func(c *Config) any { return c.Checkpoints.Enabled }, true},
		{"checkpoints: no", func(c *Config) any { return c.Checkpoints.Enabled }, false},
		{"checkpoints: {max_count: 7}", func(c *Config) any {
			return c.Checkpoints.Enabled &&
				c.Checkpoints.MaxCount == 7
		}, true},
		{"checkpoints: {enabled: false, restore: true}", func(c *Config) any { return c.Checkpoints.Enabled }, false},
		{"audit: {enabled: no}", func(c *Config) any { return c.Audit.Enabled }, false},
		{"host_id: x", func(c *Config) any { return c.Audit.Enabled }, false},
		{
			"state_dir: s\naudit: {path: null}", func(c *Config) any { return c.Audit.Path },
			filepath.Join(dir, "s", "audit.jsonl"),
		},
		{"audit: {path: ~/a}", func(c *Config) any { return c.Audit.Path }, filepath.Join(home, "a")},
		{"state_dir: ~/s", func(c *Config) any { return c.StateDir }, filepath.Join(home, "s")},
		{"workspace: ws", func(c *Config) any { return c.Workspace }, filepath.Join(dir, "ws")},
		{"workspace: ${W}", func(c *Config) any { return c.Workspace }, filepath.Join(dir, "ws")},
		{
			`children: {read: [ws, ~/../ws, "${W}/.", c.yaml, /]}`, func(c *Config) any { return c.Children.Read },
			[]string{
				filepath.Join(dir, "ws"), filepath.Join(dir, "ws"), filepath.Join(dir, "ws"),
				filepath.Join(dir, "c.yaml"), filepath.Clean("/"),
			},
		},
		{"children:", func(c *Config) any { return c.Children }, Children{}},
		{"children: {open_files: -1}", func(c *Config) any { return c.Children.OpenFiles }, int64(-1)},
		{"", func(c *Config) any { return len(c.Plugins) }, 1},
		{"# nothing\n", func(c *Config) any { return len(c.Plugins) }, 1},
		{"plugins:", func(c *Config) any { return len(c.Plugins) }, 1},
		{"plugins: []", func(c *Config) any { return len(c.Plugins) }, 0},
		{`host_id: "$${x} $y $$ ${W:-no}"`, func(c *Config) any { return c.HostID }, "${x} $y $$ ws"},
		{"host_id: ${NONE:-}x", func(c *Config) any { return c.HostID }, "x"},
		{"host_id: 2024-01-02", func(c *Config) any { return c.HostID }, "2024-01-02"},
		{`max_parallel: "${N}"`, func(c *Config) any { return c.MaxParallel }, 7},
		{"auth_token: ${N}", func(c *Config) any { return c.AuthToken.Reveal() }, "7"},
		{"\ufeffhost_id: bom", func(c *Config) any { return c.HostID }, "bom"},
	}
	for _, c := range cases {
		file := write(t, filepath.Join(dir, "c.yaml"), c.text)
		getenv := env("W", "ws", "N", "7", "HOME", home, "USERPROFILE", home)
		got, _, err := Load(Source{Path: file, Dir: dir, Getenv: getenv, Available: []string{"tools"}})
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
		} else if diff := cmp.Diff(c.want, c.check(got)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.text, diff)
		}
	}
}

func TestSecretShowsNothing(t *testing.T) {
	type holder struct{ hidden Secret }
	s := NewSecret("hunter2")
	c := Config{AuthToken: s}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, value := range []any{s, &s, c, &c, holder{s}, []Secret{s}, map[string]Secret{"k": s}} {
			text := fmt.Sprintf(format, value)
			assert.That(t, !strings.Contains(text, "hunter2") && !strings.Contains(text, "68756e746572"),
				"%s of %T: %s", format, value, text)
		}
	}
	assert.That(t, s.Reveal() == "hunter2" && s.Hash() == NewSecret("hunter2").Hash() &&
		s.Hash() != (Secret{}).Hash() && (Secret{}).Reveal() == "", "Reveal or Hash")
	assert.Equal(t, s.String()+s.GoString(), "[redacted][redacted]")
}

// allTypes returns the plugin types of a complete build.
func allTypes() []string {
	return []string{
		"tools", "toolkits", "skill", "env", "proc", "memory", "learning", "chains", "mcp", "multi_agent",
		"planning", typeExec,
	}
}

// TestUnits: sizes and durations can have a unit.
func TestUnits(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]int{
		"2048": 2048, "2kB": 2000, "2 KiB": 2048, "16MiB": 16 << 20,
		"1.5MB": 1_500_000, "1GB": 1_000_000_000,
	} {
		c, _, err := Load(Source{Path: write(t, filepath.Join(dir, "c.yaml"),
			"limits: {max_line_bytes: "+text+"}\nchildren: {cpu_seconds: 1m30s}"), Dir: dir})
		must.OK(t, err)
		assert.That(t, int(c.Limits.MaxLineBytes) == want && c.Children.CPUSeconds == 90, "%s is %d", text,
			c.Limits.MaxLineBytes)
	}
}
