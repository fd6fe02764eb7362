package env

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
	"a2e/host/schema"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// realBox is the real tools with a launcher of their own, as plugins.NewToolBox makes them.
type realBox struct {
	*tools.Plugin
	launcher func() (*sandbox.Launcher, error)
	used     bool
}

func (b *realBox) Close(ctx context.Context) error {
	err := b.Plugin.Close(ctx)
	if b.used {
		l, failed := b.launcher()
		err = errors.Join(err, failed, l.Close())
	}
	return err
}

func newRealBox(o host.ToolBoxOptions, launcher string) (host.ToolBox, error) {
	b := &realBox{}
	b.launcher = sync.OnceValues(func() (*sandbox.Launcher, error) {
		b.used = true
		return sandbox.New(sandbox.Options{Workspace: o.Workspace, Launcher: launcher})
	})
	var err error
	b.Plugin, err = tools.New("env", tools.Options{
		AllowedCommands: o.AllowedCommands, Deny: o.Deny,
		NetworkDisabled: !o.Network,
	},
		host.Env{Workspace: o.Workspace, MaxOutputBytes: 64 << 10, Launcher: b.launcher})
	return b, err
}

// workshop returns the environment of a host for the tests of a workspace.
func workshop(t testing.TB) host.Env {
	t.Helper()
	launcher := hosttest.Launcher(t)
	return host.Env{
		Workspace: t.TempDir(), StateDir: t.TempDir(), Now: time.Now, Log: zerolog.Nop(),
		ToolBox: func(o host.ToolBoxOptions) (host.ToolBox, error) { return newRealBox(o, launcher) },
		Confined: func(c host.Confinement) (*sandbox.Launcher, error) {
			return sandbox.New(sandbox.Options{Workspace: c.Folder, Read: c.Read, Launcher: launcher})
		},
	}
}

// realTasks returns the folder of the tasks in testdata.
func realTasks(t testing.TB) string {
	t.Helper()
	root := must.Get(hosttest.Root())(t)
	return filepath.Join(root, "testdata", "tasks")
}

// putFile writes a file and the folders above it. A file named check can be run.
func putFile(t testing.TB, path, text string) {
	t.Helper()
	must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	mode := os.FileMode(0o644)
	if filepath.Base(path) == "check" {
		mode = 0o755
	}
	must.OK(t, os.WriteFile(path, []byte(text), mode))
}

// taskFolder returns a new folder of tasks with the given files, by path.
func taskFolder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		putFile(t, filepath.Join(dir, name), text)
	}
	return dir
}

func makeWorkspace(t testing.TB, opts WorkspaceOptions, e host.Env) *workspace {
	t.Helper()
	made := must.Get(newWorkspace(opts, e))(t)
	w := made.(*workspace)
	t.Cleanup(func() { must.OK(t, w.Close(context.Background())) })
	return w
}

// jsonObject parses JSON.
func jsonObject(t testing.TB, text string) protocol.Object {
	t.Helper()
	obj, err := protocol.ParseObject([]byte(text))
	must.That(t, err == nil, "%s: %v", text, err)
	return obj
}

// beginTask begins an episode that is closed at the end of the test.
func beginTask(t testing.TB, w *workspace, id, task string) *workspaceWorld {
	t.Helper()
	options := `{}`
	if task != "" {
		options = fmt.Sprintf(`{"task":%q}`, task)
	}
	made := must.Get(w.Reset(t.Context(), Reset{EpisodeID: id, Options: jsonObject(t, options)}))(t)
	t.Cleanup(func() { must.OK(t, made.Close(context.Background())) })
	return made.(*workspaceWorld)
}

// asAction reads an action as the plugin does, with the type that the text has.
func asAction(t testing.TB, text string) Action {
	t.Helper()
	obj, kind := jsonObject(t, text), ""
	for _, key := range []string{"type", "action_type"} {
		if val, ok := obj.Get(key); ok {
			kind, _ = val.Str()
		}
	}
	a, _ := (&actionSpace{types: []string{kind}, schema: new(schema.Schema)}).parse(obj, -1)
	return a
}

func takeStep(t testing.TB, w *workspaceWorld, text string) Outcome {
	t.Helper()
	out, err := w.Step(t.Context(), asAction(t, text))
	must.That(t, err == nil, "%s: %v", text, err)
	return out
}

// seen is a state as the agent reads it.
type seen struct {
	Task  string `json:"task"`
	Files []struct {
		Path string `json:"path"`
		Size int64  `json:"size"`
	} `json:"files"`
	More bool `json:"files_truncated"`
	Last *struct {
		Type      string         `json:"type"`
		Success   bool           `json:"success"`
		Data      jsontext.Value `json:"data"`
		Error     string         `json:"error"`
		ErrorCode string         `json:"error_code"`
		ExitCode  *int           `json:"exit_code"`
	} `json:"last"`
	Done bool `json:"done"`
}

func (s *seen) paths() (all []string) {
	for _, f := range s.Files {
		all = append(all, f.Path)
	}
	return all
}

func lookAt(t testing.TB, w World) *seen {
	t.Helper()
	raw := must.Get(w.AppendState(t.Context(), nil))(t)
	var s seen
	must.OK(t, json.Unmarshal(raw, &s))
	return &s
}

// verdictOf returns one entry of the verdict in an outcome.
func verdictOf(t testing.TB, out Outcome, key string) any {
	t.Helper()
	info, ok := out.Info["check"].(map[string]any)
	must.That(t, ok, "no verdict in %+v", out)
	return info[key]
}

const mend = `{"type":"edit_file","path":"calc.py","old":"a - b","new":"a + b"}`

// fakeVerdict is a Python module that an agent writes in the hope that a check imports it.
const fakeVerdict = "import os, sys\nprint('{\"reward\": 1}')\nsys.stdout.flush()\nos._exit(0)\n"

// cheat returns the action that writes a file.
func cheat(path, text string) []string {
	raw, _ := json.Marshal(map[string]string{"type": "write_file", "path": path, "content": text})
	return []string{string(raw)}
}

func TestWorkspaceTaskIsSolved(t *testing.T) {
	w := makeWorkspace(t, WorkspaceOptions{Tasks: realTasks(t)}, workshop(t))
	for _, tc := range []struct {
		name   string
		steps  []string
		reward float64
	}{
		{"nothing done", nil, 0},
		{"mended", []string{mend}, 1},
		{"mended, the other spelling", []string{`{"action_type":"tool","payload":{"tool_name":"edit_file","arguments":{"path":"calc.py","old":"a - b","new":"a + b"}}}`}, 1},
		{"the seen test alone", []string{`{"type":"write_file","payload":{"path":"calc.py","content":"def add(a, b):\n    return 5\n"}}`}, 0},
		{"hidden test replaced", []string{
			`{"type":"write_file","path":"tests/test_hidden.py","content":"print('all good')\n"}`,
			`{"type":"write_file","path":"calc.py","content":"def add(a, b):\n    return 5\n"}`,
		}, 0},
		{"its folder replaced", []string{mend, `{"type":"run_command","command":["sh","-c","mv tests t && ln -s t tests"]}`}, 1},
		{"its folder led astray", []string{mend, `{"type":"run_command","command":["sh","-c","rm -r tests && ln -s /tmp tests"]}`}, 1},
		{"a way out of the check", cheat("calc.py", "import os\nos._exit(0)\n"), 0},
		{"a way out when it is called", cheat("calc.py", "import os\ndef add(a, b): os._exit(0)\n"), 0},
		{"equal to everything", cheat("calc.py", "class E:\n    __eq__ = lambda a, b: True\n    __ne__ = lambda a, "+
			"b: False\n    __hash__ = lambda a: 0\ndef add(a, b): return E()\n"), 0},
		{"a number equal to everything", cheat("calc.py", "class E(int):\n    __eq__ = lambda a, b: True\ndef "+
			"add(a, b): return E(5)\n"), 0},
		{"a text equal to everything", cheat("calc.py", "class E(str):\n    __eq__ = lambda a, b: True\n    split = "+
			"lambda a: a\ndef add(a, b): return E('5')\n"), 0},
		{"a verdict", cheat("calc.py", "print('{\"reward\": 1}')\ndef add(a, b): return print('{\"reward\": 1, "+
			"\"nonce\": \"\"}')\n"), 0},
		{"what Python and a shell would load", slices.Concat(cheat("unittest.py", fakeVerdict),
			cheat("json.py", fakeVerdict), cheat("sitecustomize.py", fakeVerdict),
			cheat("conftest.py", fakeVerdict), cheat("x.pth", "import os; os._exit(0)\n"),
			cheat("python3", "#!/bin/sh\necho '{\"reward\": 1}'\n"),
			[]string{`{"type":"run_command","command":["sh","-c","chmod +x python3"]}`}), 0},
		{"all of them, and the work", append(append(append(cheat("unittest.py", fakeVerdict),
			cheat("conftest.py", fakeVerdict)...), cheat("python3", "x")...), mend), 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			world := beginTask(t, w, "e", "add")
			if s := lookAt(t, world); s.Task != "fix-add" || !slices.Equal(s.paths(),
				[]string{"calc.py", "tests/test_seen.py"}) || s.Last != nil || s.Done {
				t.Fatalf("the beginning: %+v", s)
			}
			for _, text := range tc.steps {
				out := takeStep(t, world, text)
				assert.That(t, !out.Done && out.Reward == 0 && out.Info == nil, "%s: %+v", text, out)
				s := lookAt(t, world)
				assert.That(t, s.Last != nil && s.Last.Success, "%s: %+v", text, s.Last)
			}
			before := lookAt(t, world)
			out := takeStep(t, world, `{"type":"submit"}`)
			assert.That(t, out.Done && !out.Truncated && out.Reward == tc.reward &&
				verdictOf(t, out, "score") == tc.reward, "submitted: %+v", out)
			s := lookAt(t, world)
			assert.That(t, s.Done && s.Last.Type == "submit" && slices.Equal(s.paths(), before.paths()),
				"after the end: %+v, before it %v", s, before.paths())
			assert.OK(t, world.Close(t.Context()))
		})
	}
}

// TestWorkspaceStateIsLive: the list of files follows each action, and observe shows what others have changed.
func TestWorkspaceStateIsLive(t *testing.T) {
	w := makeWorkspace(t, WorkspaceOptions{Tasks: realTasks(t)}, workshop(t))
	world := beginTask(t, w, "e", "score")
	s := lookAt(t, world)
	assert.That(t, len(s.Files) == 0, "a task without files begins with %v", s.paths())
	takeStep(t, world, `{"type":"write_file","path":"sub/words.txt","content":"apple\n"}`)
	putFile(t, filepath.Join(world.folder.work(), "late"), "x")
	if s := lookAt(t, world); !slices.Equal(s.paths(), []string{"late", "sub/words.txt"}) || s.Files[1].Size != 6 {
		t.Errorf("%+v", s.Files)
	}
	for i := range maxShownFiles {
		putFile(t, filepath.Join(world.folder.work(), fmt.Sprint("many", i)), "")
	}
	if s := lookAt(t, world); len(s.Files) != maxShownFiles || !s.More {
		t.Errorf("%d files of many, more: %v", len(s.Files), s.More)
	}
	text, err := world.Render(t.Context(), "")
	assert.That(t, err == nil && strings.Contains(string(text), "apple, pear and plum") &&
		strings.Contains(string(text), `\nlate\n`), "rendered %.200s, %v", text, err)
}

func TestWorkspaceNumberReward(t *testing.T) {
	w := makeWorkspace(t, WorkspaceOptions{Tasks: realTasks(t)}, workshop(t))
	world := beginTask(t, w, "e", "score")
	takeStep(t, world, `{"type":"write_file","path":"words.txt","content":"apple\npear\nfig\n"}`)
	out := takeStep(t, world, `{"type":"submit"}`)
	assert.That(t, out.Reward == 2.0/3 && out.Done, "%+v", out)
	for text, want := range map[string]any{
		"": nil, "none": nil, "1": 1.0, "tests: 3/4": 4.0, "score=-0.5.": -0.5, "0.25\nv2\n": 0.25,
		"done: 1e-3)": 0.001, "nan inf 2024-01-05": nil, "+.5": 0.5,
	} {
		got, ok := lastNumber(text)
		assert.That(t, ok == (want != nil) && (!ok || got == want), "the last number of %q is %v, %v", text, got, ok)
	}
	wide := task{taskOptions: taskOptions{Reward: rewardNumber, Range: []float64{-1, 1}}}
	for text, want := range map[string]float64{"7": 1, "-7": -1, "0.5": 0.5, "nothing": -1} {
		got, reason := wide.reward(sandbox.State{}, text)
		assert.That(t, got == want && (reason != "") == (text == "nothing"), "%q gives %v, %q", text, got, reason)
	}
}

// TestWorkspaceCheckEachStep: with check_each_step, the reward of a step is the change of the score, and the rewards
// add up to the score.
func TestWorkspaceCheckEachStep(t *testing.T) {
	w := makeWorkspace(t, WorkspaceOptions{Tasks: realTasks(t), CheckEachStep: true}, workshop(t))
	world := beginTask(t, w, "e", "score")
	var sum float64
	for _, tc := range []struct {
		action string
		reward float64
		judged bool
	}{
		{`{"type":"write_file","path":"words.txt","content":"apple\n"}`, 1.0 / 3, true},
		{`{"type":"read_file","path":"words.txt"}`, 0, false},
		{`{"type":"edit_file","path":"words.txt","old":"cherry","new":"pear"}`, 0, false}, // changed nothing
		{`{"type":"run_command","command":["sh","-c","printf 'apple pear plum' > words.txt; exit 3"]}`, 2.0 / 3, true},
		{`{"type":"write_file","path":"words.txt","content":"apple"}`, -2.0 / 3, true},
		{`{"type":"submit"}`, 0, true},
	} {
		out := takeStep(t, world, tc.action)
		sum += out.Reward
		d := out.Reward - tc.reward
		assert.That(t, d >= -1e-9 && d <= 1e-9 && (out.Info != nil) == tc.judged, "%s: %+v, want %v", tc.action, out,
			tc.reward)
	}
	d := sum - 1.0/3
	assert.That(t, d >= -1e-9 && d <= 1e-9, "the rewards add up to %v", sum)
}

// TestWorkspaceMaxSteps: the last action of an episode is checked, and truncates the episode.
func TestWorkspaceMaxSteps(t *testing.T) {
	dir := taskFolder(t, map[string]string{
		"a/task.yaml": "description: x\nmax_steps: 2\n", "a/check": "#!/bin/sh\ntest -e done\n",
		"b/task.yaml": "description: x\n", "b/check": "#!/bin/sh\ntest -e done\n",
	})
	w := makeWorkspace(t, WorkspaceOptions{Tasks: dir, MaxSteps: 1}, workshop(t))
	world := beginTask(t, w, "e", "")
	// A failed action counts.
	out := takeStep(t, world, `{"type":"read_file","path":"no"}`)
	assert.That(t, !out.Truncated && !out.Done, "%+v", out)
	out = takeStep(t, world, `{"type":"write_file","path":"done","content":""}`)
	assert.That(t, out.Truncated && !out.Done && out.Reward == 1, "the last one: %+v", out)
	s := lookAt(t, world)
	assert.That(t, s.Done, "the episode goes on")
	out = takeStep(t, beginTask(t, w, "f", "b"), `{"type":"read_file","path":"no"}`)
	assert.That(t, out.Truncated && out.Reward == 0, "where the config has the limit: %+v", out)
}
