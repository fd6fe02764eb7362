package plugins_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
	"a2e/plugins"
	"a2e/protocol"
)

// repeated is an input of the same lines over and over, after a handshake.
type repeated struct {
	head  string
	block []byte
	at    int
	left  int // blocks
}

func (r *repeated) Read(p []byte) (int, error) {
	if r.head != "" {
		n := copy(p, r.head)
		r.head = r.head[n:]
		return n, nil
	}
	if r.left == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.block[r.at:])
	if r.at += n; r.at == len(r.block) {
		r.at = 0
		r.left--
	}
	return n, nil
}

// serveLines runs a host with every plugin on b.N requests in memory: what is
// left of the bench's figures when pipes and the client are taken away.
func serveLines(b *testing.B, line string) {
	const batch = 64
	var block strings.Builder
	for i := range batch {
		fmt.Fprintf(&block, line+"\n", i)
	}
	cfg := config.Default(config.Source{Available: plugins.Types(), Getenv: func(string) string { return "" }})
	cfg.Workspace = b.TempDir()
	made := must.Get(plugins.New(cfg, plugins.Deps{}))(b)
	h := must.Get(host.New(host.Options{Plugins: made, Log: zerolog.Nop()}))(b)
	in := &repeated{head: `{"type":"handshake/req","id":"h","agent_caps":["tools","env"]}` + "\n", block: []byte(block.String()), left: b.N/batch + 1}
	b.ReportAllocs()
	b.ResetTimer()
	must.OK(b, h.Serve(in, io.Discard))
}

func BenchmarkPing(b *testing.B) {
	serveLines(b, `{"a2e":"1.0","type":"ping","id":"0123456789abcdef%016x"}`)
}

func BenchmarkEcho(b *testing.B) {
	for _, size := range []int{100, 10 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			serveLines(b, `{"a2e":"1.0","type":"tool/call/req","id":"0123456789abcdef%016x","tool_name":"echo","arguments":{"text":"`+strings.Repeat("x", size)+`"}}`)
		})
	}
}

// What an untrusted config may set, option by option; exec is only kept when the plugin that
// set it for all is switched off. Whoever adds one here says that no
// value of it that its rule takes gives anybody more than they had.
const mayTighten = `chains.max_cache_bytes chains.max_cache_entries chains.max_depth chains.max_items chains.max_nodes chains.max_parallel chains.max_result_bytes chains.max_state_bytes
env.max_steps learning.trust_agent_env
mcp.allowed_commands mcp.exec mcp.http_allow_private mcp.max_output_bytes mcp.pin mcp.register
memory.max_entry_bytes multi_agent.max_depth multi_agent.max_subagents
proc.allowed_commands proc.exec proc.max_output_bytes proc.max_procs proc.network_disabled proc.timeout
skill.allow_llm_override skill.max_output_bytes skill.max_turns skill.memory_bytes skill.network_disabled skill.trust_workspace skill.user_skills skill.workspace_skills
toolkits.allow_private toolkits.locked
tools.allowed_commands tools.deny tools.exec tools.http_allow_private tools.max_output_bytes tools.network_disabled tools.read_only tools.timeout`

func TestWhatMayTighten(t *testing.T) {
	var got []string
	for typ, tightening := range plugins.Tightening() {
		assert.That(t, tightening.Defaults != nil, "%s has no defaults", typ)
		for name := range tightening.Rules {
			_, is := optionsOf(tightening.Defaults)[name]
			assert.That(t, is, "%s has no option %s", typ, name)
			got = append(got, typ+"."+name)
		}
	}
	slices.Sort(got)
	want := strings.Fields(mayTighten)
	assert.That(t, slices.Equal(got, want), "rules for %q, want %q", got, want)
}

// optionsOf returns the options of a struct and their Go types.
func optionsOf(defaults any) map[string]reflect.Type {
	all := make(map[string]reflect.Type)
	for f := range reflect.TypeOf(defaults).Fields() {
		all[f.Tag.Get("yaml")] = f.Type
	}
	return all
}

// Every option of every type, given in an untrusted config with values of every kind: none
// stops the host, what has no rule is left out, and what a rule takes fits the plugin.
func TestWallTrustEveryOption(t *testing.T) {
	values := []string{"true", "false", "0", "1", "-1", "2.5", "1000000000", "x", "any", "off", "[]", "[x]", "[sh, x]", "[sh, -c, x]", "{}", "{x: {command: sh}}", "[{name: x, command: [sh]}]",
		"http://127.0.0.1:1", `"${LEAK}"`, `"[${LEAK:-x}]"`, "/", "~", "null"}
	for typ, tightening := range plugins.Tightening() {
		t.Run(typ, func(t *testing.T) {
			for _, name := range slices.Sorted(maps.Keys(optionsOf(tightening.Defaults))) {
				_, rule := tightening.Rules[name]
				for i, value := range values {
					tryOption(t, typ, name, value, rule, i%2 == 0)
				}
			}
		})
	}
}

// tryOption tries a value in a mapping of plugins, or in a list.
func tryOption(t *testing.T, typ, name, value string, rule, mapping bool) {
	t.Helper()
	dir := t.TempDir()
	text := "plugins: [{name: " + typ + ", type: " + typ + ", metadata: {" + name + ": " + value + "}}]\n"
	path := "plugins, plugins[0].metadata."
	if mapping {
		text, path = "plugins: {"+typ+": {"+name+": "+value+"}}\n", "plugins."+typ+"."
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, config.FolderFile), []byte(text), 0o600))
	src := config.Source{Dir: dir, Available: plugins.Types(), Tighten: plugins.Tightening, Trust: func(string, []byte) error { return errors.New("no") }, Getenv: func(name string) string {
		assert.That(t, name != "LEAK", "%s.%s: %s is looked up", typ, name, value)
		return map[string]string{"HOME": dir}[name]
	}}
	cfg, warnings, err := config.Load(src)
	must.That(t, err == nil, "%s.%s: %s: %v", typ, name, value, err)
	made, err := plugins.New(cfg, plugins.Deps{})
	assert.That(t, err == nil, "%s.%s: %s stops the host: %v", typ, name, value, err)
	for _, p := range made {
		assert.OK(t, p.Close(t.Context()))
	}
	assert.That(t, len(warnings) != 1 || !strings.Contains(warnings[0].Message, "it only tightens: "+path+name) || rule,
		"%s.%s: %s counts without a rule", typ, name, value)
	plain := config.Default(src)
	if i := slices.IndexFunc(plain.Plugins, func(p config.Plugin) bool { return p.Type == typ }); !rule && i >= 0 {
		at, left := 0, 1
		if mapping {
			at, left = i, len(plain.Plugins)
		}
		assert.That(t, len(cfg.Plugins) == left && sameOptions(t, typ, cfg.Plugins[at], plain.Plugins[i]),
			"%s.%s: %s gives %+v", typ, name, value, cfg.Plugins)
	}
}

// sameOptions compares what the plugin makes of its entries.
func sameOptions(t *testing.T, typ string, a, b config.Plugin) bool {
	t.Helper()
	read := func(p config.Plugin) any {
		v := reflect.New(reflect.TypeOf(plugins.OptionTypes()[typ]))
		v.Elem().Set(reflect.ValueOf(plugins.OptionTypes()[typ]))
		assert.OK(t, p.Options.Decode(v.Interface()))
		return v.Elem().Interface()
	}
	return reflect.DeepEqual(read(a), read(b)) && a.Priority == b.Priority && a.Exclusive == b.Exclusive
}

// loadStrict reads a config whose proc plugin has these allowed commands, with exec: strict.
func loadStrict(t *testing.T, dir string, allowed ...string) error {
	t.Helper()
	text := fmt.Sprintf("workspace: %q\nstate_dir: %q\nplugins:\n  - {name: t, type: tools}\n  - {name: p, type: proc, metadata: {exec: strict, allowed_commands: [%s]}}\n",
		dir, filepath.Join(filepath.Dir(dir), "state"), `"`+strings.Join(allowed, `", "`)+`"`)
	file := filepath.Join(t.TempDir(), "c.yaml")
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	cfg, _, err := config.Load(config.Source{Path: file, Dir: dir, Available: plugins.Types()})
	if err != nil {
		return err
	}
	made, err := plugins.New(cfg, plugins.Deps{})
	for _, p := range made {
		_ = p.Close(t.Context())
	}
	if err == nil {
		_, err = plugins.AllowedPrograms(cfg)
	}
	return err
}

// TestWallStrictConfig guards against an allow list under exec: strict on which one entry
// starts everything else.
func TestWallStrictConfig(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	must.OK(t, os.Mkdir(dir, 0o755))
	for _, entry := range []string{
		"sh", "bash", "dash", "python3", "python3.11", "python", "pypy3", "perl", "perl5.36", "ruby3.1", "node", "nodejs", "php8.2", "lua5.4", "env", "xargs", "find", "git", "make", "gmake", "npx", "npm",
		"awk", "gawk", "mawk", "sed", "busybox", "timeout", "nice", "nohup", "setsid", "sudo", "ssh", "tar", "vim.basic", "vi", "less", "go", "cargo", "gcc-12", "x86_64-linux-gnu-gcc-12", "docker", "strace", "gdb",
		"python3 -c", "python3 -I -B", "sh -c", "env -i", "env A=1", "env python3", "env -i A=1 python3 -c", "xargs sh", "nice -n", "timeout env", "sudo -n bash", "git -c", "find -exec", "node -e", "ld-linux-x86-64.so.2",
	} {
		t.Run(entry, func(t *testing.T) {
			if err := loadStrict(t, dir, "ls", entry); err == nil || !strings.Contains(err.Error(), `"`+entry+`"`) || !strings.Contains(err.Error(), "tools/run.py") {
				t.Errorf("it is allowed: %v", err)
			}
		})
	}
	for _, entry := range []string{"ls", "cat", "python3 tools/run.py", "python3 -I tools/run.py", "git status", "make test", "sh build.sh", "env python3 x.py", "head", "wc"} {
		err := loadStrict(t, dir, entry)
		assert.That(t, err == nil, "%s: %v", entry, err)
	}
}

// TestWallStrictLinks: what a program is, not what its link is called.
func TestWallStrictLinks(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	put := func(name, text string) {
		must.OK(t, os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755))
	}
	must.OK(t, os.Mkdir(bin, 0o755))
	put("bash", "\x7fELF")
	put("python3.11", "\x7fELF")
	put("busybox", "\x7fELF")
	put("script", "#!/bin/sh\n")
	put("plain", "\x7fELF")
	for name, to := range map[string]string{"helper": "bash", "run": "python3.11", "two": "helper", "sh": "busybox", "cat": "busybox"} {
		must.OK(t, os.Symlink(to, filepath.Join(bin, name)))
	}
	for _, name := range []string{"helper", "run", "two", "sh", "busybox", "script", "script -x"} {
		t.Run(name, func(t *testing.T) {
			if list, err := sandbox.NewAllowList([]string{name}, []string{bin}, "", true); err == nil {
				t.Errorf("it is allowed: %v", list.Names())
			}
		})
	}
	for _, name := range []string{"plain", "cat", "helper build.sh", "script x"} {
		_, err := sandbox.NewAllowList([]string{name}, []string{bin}, "", true)
		assert.That(t, err == nil, "%s: %v", name, err)
	}
}

// TestWallStrictArguments: what is allowed with arguments starts with these and no others.
func TestWallStrictArguments(t *testing.T) {
	list := must.Get(sandbox.NewAllowList([]string{"sh build.sh", "sh -e test.sh fast", "cat"}, sandbox.SafePath(os.Getenv("PATH"), ""), "", true))(t)
	for i, words := range [][]string{
		{"sh"}, {"sh", "-c", "id"}, {"sh", "other.sh"}, {"sh", "./build.sh"}, {"sh", "-x", "build.sh"}, {"sh", "build.sh "}, {"sh build.sh"}, {"sh", "-e", "test.sh"}, {"sh", "-e", "test.sh", "slow"},
		{"sh", ""}, {"sh", "--", "build.sh"}, {"sh", "-e", "build.sh"}, {"bash", "build.sh"}, {"", "build.sh"},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			path, err := list.Resolve("", words...)
			assert.That(t, err != nil, "%q starts %s", words, path)
		})
	}
	t.Run("another folder", func(t *testing.T) {
		path, err := list.Resolve("sub", "sh", "build.sh")
		assert.That(t, err != nil, "it starts %s on a file of another folder", path)
	})
	for _, words := range [][]string{{"sh", "build.sh"}, {"sh", "build.sh", "-c", "x"}, {"sh", "-e", "test.sh", "fast", "more"}, {"cat", "any"}} {
		_, err := list.Resolve(".", words...)
		assert.That(t, err == nil, "%q: %v", words, err)
	}
}

// component is what learn/stats and learn/adapt say of one.
type component struct {
	Kind    string  `json:"kind"`
	Name    string  `json:"component_name"`
	Calls   int     `json:"calls_total"`
	Success int     `json:"calls_success"`
	Reward  float64 `json:"reward_mean"`
	Weight  float64 `json:"routing_weight"`
}

// TestTheLoopThatMakesAnAgentBetter: a task whose test fails is solved by tools, its
// check passes, and what that taught moves the weights of the tools of one group.
func TestTheLoopThatMakesAnAgentBetter(t *testing.T) {
	root := must.Get(hosttest.Root())(t)
	cfg := load(t, fmt.Sprintf(`plugins:
  - {name: tasks, type: env, metadata: {env: workspace, workspace: {tasks: %q, task: add}}}
  - {name: learn, type: learning}
`, filepath.Join(root, "testdata", "tasks")))
	made := must.Get(plugins.New(cfg, plugins.Deps{Log: zerolog.Nop()}))(t)
	p := hosttest.New(t, host.Options{Plugins: made, Groups: host.Groups{"mend": {"edit_file", "run_command"}}})
	p.Handshake(protocol.CapEnv, protocol.CapLearning)
	known := func() map[string]component {
		var resp struct {
			Components []component `json:"components"`
		}
		p.Call(protocol.TypeLearnStatsReq, `{}`).Decode(t, &resp)
		return byName(resp.Components)
	}
	before := known()
	must.Equal(t, len(before), 0, "before anything there is %v", before)
	var v taskView
	p.Call(protocol.TypeEnvResetReq, `{"env_name":"workspace"}`).Decode(t, &v)
	for _, action := range []string{
		`{"type":"run_command","command":["python3","-B","tests/test_seen.py"]}`,
		`{"type":"edit_file","path":"calc.py","old":"a - b","new":"a + b"}`,
		`{"type":"run_command","command":["python3","-B","tests/test_seen.py"]}`,
		`{"type":"submit"}`,
	} {
		p.Call(protocol.TypeEnvStepReq, fmt.Sprintf(`{"episode_id":%q,"action":%s}`, v.Obs.EpisodeID, action)).Decode(t, &v)
	}
	must.That(t, v.Obs.Reward == 1 && v.Obs.Done, "the check gave %+v", v)
	after := known()
	env := after["env workspace"]
	assert.That(t, env.Calls == 4 && env.Success == 4 && env.Reward == 0.25, "the environment: %+v", env)
	if run, edit := after["tool run_command"], after["tool edit_file"]; run.Calls != 2 || run.Success != 1 || edit.Calls != 1 || edit.Success != 1 || run.Weight != 1 || edit.Weight != 1 {
		t.Errorf("the tools: %+v, %+v", run, edit)
	}
	var adapted struct {
		Updated []component `json:"updated"`
	}
	p.Call(protocol.TypeLearnAdaptReq, `{"strategy":"softmax"}`).Decode(t, &adapted)
	now := known()
	run, edit := now["tool run_command"].Weight, now["tool edit_file"].Weight
	assert.That(t, !(edit <= 1) && !(run >= 1), "the tool that always worked weighs %v, the other one %v", edit, run)
	assert.Equal(t, byName(adapted.Updated)["tool edit_file"].Weight, now["tool edit_file"].Weight, "adapt says …, stats")
}

// Who only looks at tools leaves no store behind.
func TestLookingAtToolsMakesNoStore(t *testing.T) {
	cfg := load(t, "plugins: [{name: tools, type: tools}, {name: learn, type: learning}]\n")
	made := must.Get(plugins.New(cfg, plugins.Deps{Log: zerolog.Nop()}))(t)
	p := hosttest.New(t, host.Options{Plugins: made})
	p.Handshake(protocol.CapTools)
	for _, query := range []string{"", "read a file"} {
		var resp protocol.ToolListResponse
		p.Call(protocol.TypeToolListReq, fmt.Sprintf(`{"query":%q}`, query)).Decode(t, &resp)
		assert.That(t, len(resp.Tools) != 0, "%q found no tool", query)
	}
	p.Close()
	_, err := os.Stat(plugins.StatePath(cfg))
	assert.That(t, errors.Is(err, fs.ErrNotExist), "there is a store: %v", err)
}

func byName(all []component) map[string]component {
	named := make(map[string]component)
	for _, c := range all {
		named[c.Kind+" "+c.Name] = c
	}
	return named
}
