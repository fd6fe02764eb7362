package plugins_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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

// repeated is an input that sends a handshake, and then the same block of lines again and again.
type repeated struct {
	head  string
	block []byte
	at    int
	left  int // blocks that are still to be sent
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

// serveLines runs a host with every plugin on b.N requests in memory. The result is the part of the figures of `a2e
// bench` that comes neither from the pipes nor from the client.
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
	in := &repeated{
		head:  `{"type":"handshake/req","id":"h","agent_caps":["tools","env"]}` + "\n",
		block: []byte(block.String()), left: b.N/batch + 1,
	}
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

// loadStrict reads a config whose proc plugin has these allowed commands, with exec: strict.
func loadStrict(t *testing.T, dir string, allowed ...string) error {
	t.Helper()
	text := fmt.Sprintf("workspace: %q\nstate_dir: %q\nplugins:\n  - {name: t, type: tools}\n  - {name: p, type: "+
		"proc, metadata: {exec: strict, allowed_commands: [%s]}}\n",
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

// TestWallStrictConfig guards against an allow list under exec: strict with an entry that can start any other program.
func TestWallStrictConfig(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	must.OK(t, os.Mkdir(dir, 0o755))
	for _, entry := range []string{
		"sh", "bash", "dash", "python3", "python3.11", "python", "pypy3", "perl", "perl5.36", "ruby3.1", "node",
		"nodejs", "php8.2", "lua5.4", "env", "xargs", "find", "git", "make", "gmake", "npx", "npm",
		"awk", "gawk", "mawk", "sed", "busybox", "timeout", "nice", "nohup", "setsid", "sudo", "ssh", "tar",
		"vim.basic", "vi", "less", "go", "cargo", "gcc-12", "x86_64-linux-gnu-gcc-12", "docker", "strace", "gdb",
		"python3 -c", "python3 -I -B", "sh -c", "env -i", "env A=1", "env python3", "env -i A=1 python3 -c", "xargs sh",
		"nice -n", "timeout env", "sudo -n bash", "git -c", "find -exec", "node -e", "ld-linux-x86-64.so.2",
	} {
		t.Run(entry, func(t *testing.T) {
			if err := loadStrict(t, dir, "ls", entry); err == nil || !strings.Contains(err.Error(), `"`+entry+`"`) ||
				!strings.Contains(err.Error(), "tools/run.py") {
				t.Errorf("it is allowed: %v", err)
			}
		})
	}
	for _, entry := range []string{
		"ls", "cat", "python3 tools/run.py", "python3 -I tools/run.py", "git status",
		"make test", "sh build.sh", "env python3 x.py", "head", "wc",
	} {
		err := loadStrict(t, dir, entry)
		assert.That(t, err == nil, "%s: %v", entry, err)
	}
}

// TestWallStrictLinks: exec: strict judges a program by the file that a link leads to, not by the name of the link.
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
	for name, to := range map[string]string{
		"helper": "bash", "run": "python3.11", "two": "helper", "sh": "busybox",
		"cat": "busybox",
	} {
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

// TestWallStrictArguments: an entry with arguments allows only the commands that begin with exactly these arguments, in
// the folder for which they are meant.
func TestWallStrictArguments(t *testing.T) {
	list := must.Get(sandbox.NewAllowList([]string{"sh build.sh", "sh -e test.sh fast", "cat"},
		sandbox.SafePath(os.Getenv("PATH"), ""), "", true))(t)
	for i, words := range [][]string{
		{"sh"},
		{"sh", "-c", "id"},
		{"sh", "other.sh"},
		{"sh", "./build.sh"},
		{"sh", "-x", "build.sh"},
		{"sh", "build.sh "},
		{"sh build.sh"},
		{"sh", "-e", "test.sh"},
		{"sh", "-e", "test.sh", "slow"},
		{"sh", ""},
		{"sh", "--", "build.sh"},
		{"sh", "-e", "build.sh"},
		{"bash", "build.sh"},
		{"", "build.sh"},
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
	for _, words := range [][]string{
		{"sh", "build.sh"},
		{"sh", "build.sh", "-c", "x"},
		{"sh", "-e", "test.sh", "fast", "more"},
		{"cat", "any"},
	} {
		_, err := list.Resolve(".", words...)
		assert.That(t, err == nil, "%q: %v", words, err)
	}
}

// component is the entry of one component in the answers to learn/stats and learn/adapt.
type component struct {
	Kind    string  `json:"kind"`
	Name    string  `json:"component_name"`
	Calls   int     `json:"calls_total"`
	Success int     `json:"calls_success"`
	Reward  float64 `json:"reward_mean"`
	Weight  float64 `json:"routing_weight"`
}

// TestTheLoopThatMakesAnAgentBetter: tools solve a task whose test fails, the check passes, and the recorded calls move
// the weights of the tools in one group.
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
		p.Call(protocol.TypeEnvStepReq, fmt.Sprintf(`{"episode_id":%q,"action":%s}`, v.Obs.EpisodeID, action)).Decode(t,
			&v)
	}
	must.That(t, v.Obs.Reward == 1 && v.Obs.Done, "the check gave %+v", v)
	after := known()
	env := after["env workspace"]
	assert.That(t, env.Calls == 4 && env.Success == 4 && env.Reward == 0.25, "the environment: %+v", env)
	if run, edit := after["tool run_command"], after["tool edit_file"]; run.Calls != 2 || run.Success != 1 ||
		edit.Calls != 1 || edit.Success != 1 || run.Weight != 1 || edit.Weight != 1 {
		t.Errorf("the tools: %+v, %+v", run, edit)
	}
	var adapted struct {
		Updated []component `json:"updated"`
	}
	p.Call(protocol.TypeLearnAdaptReq, `{"strategy":"softmax"}`).Decode(t, &adapted)
	now := known()
	run, edit := now["tool run_command"].Weight, now["tool edit_file"].Weight
	assert.That(t, !(edit <= 1) && !(run >= 1), "the tool that always worked weighs %v, the other one %v", edit, run)
	assert.Equal(t, byName(adapted.Updated)["tool edit_file"].Weight, now["tool edit_file"].Weight,
		"adapt says …, stats")
}

// TestLookingAtToolsMakesNoStore: listing and searching the tools makes no store.
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
