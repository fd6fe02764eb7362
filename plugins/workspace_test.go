package plugins_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/plugins"
	"a2e/protocol"
)

// workspaceConfig is a config with the tasks of testdata.
func workspaceConfig(t *testing.T) *config.Config {
	t.Helper()
	root, err := hosttest.Root()
	if err != nil {
		t.Fatal(err)
	}
	return load(t, fmt.Sprintf(`plugins:
  - name: tasks
    type: env
    metadata: {env: workspace, workspace: {tasks: %q}}
`, filepath.Join(root, "testdata", "tasks")))
}

// taskHost is a host of the config's plugins, after the handshake.
func taskHost(t *testing.T, cfg *config.Config) *hosttest.Pair {
	t.Helper()
	made, err := plugins.New(cfg, plugins.Deps{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	p := hosttest.Start(t, host.Options{Plugins: made})
	p.Handshake(protocol.CapEnv)
	return p
}

// taskView is what the agent sees of an episode.
type taskView struct {
	Obs struct {
		EpisodeID string  `json:"episode_id"`
		StepNum   int     `json:"step_num"`
		Done      bool    `json:"done"`
		Reward    float64 `json:"reward"`
		State     struct {
			Task  string `json:"task"`
			Files []struct {
				Path string `json:"path"`
			} `json:"files"`
			Last *struct {
				Success   bool   `json:"success"`
				ErrorCode string `json:"error_code"`
				ExitCode  *int   `json:"exit_code"`
			} `json:"last"`
			Done bool `json:"done"`
		} `json:"state"`
	} `json:"obs"`
}

func (v *taskView) paths() (all []string) {
	for _, f := range v.Obs.State.Files {
		all = append(all, f.Path)
	}
	return all
}

// TestTaskIsSolved: a failing check, edits by tools, a restart of the host, a check
// that passes, and the experiences of it.
func TestTaskIsSolved(t *testing.T) {
	cfg := workspaceConfig(t)
	p := taskHost(t, cfg)
	ask := func(typ protocol.Type, fields string, args ...any) (v taskView) {
		t.Helper()
		p.Call(typ, fmt.Sprintf(fields, args...)).Decode(t, &v)
		return v
	}
	const task = `{"env_name":"workspace","options":{"task":"add"}}`
	lost := ask(protocol.TypeEnvResetReq, task)
	if v := ask(protocol.TypeEnvStepReq, `{"episode_id":%q,"action":{"type":"submit"}}`, lost.Obs.EpisodeID); v.Obs.Reward != 0 || !v.Obs.Done {
		t.Fatalf("submitted as it was: %+v", v)
	}
	if m := p.Call(protocol.TypeEnvStepReq, fmt.Sprintf(`{"episode_id":%q,"action":{"type":"submit"}}`, lost.Obs.EpisodeID)); m.Get("/code") != string(protocol.CodeEpisodeDone) {
		t.Errorf("again: %s", m.Line)
	}
	v := ask(protocol.TypeEnvResetReq, task)
	id := v.Obs.EpisodeID
	if v.Obs.State.Task != "fix-add" || !slices.Equal(v.paths(), []string{"calc.py", "tests/test_seen.py"}) || v.Obs.State.Last != nil {
		t.Fatalf("the beginning: %+v", v)
	}
	v = ask(protocol.TypeEnvStepReq, `{"episode_id":%q,"action":{"type":"run_command","command":["python3","-B","tests/test_seen.py"]}}`, id)
	if last := v.Obs.State.Last; last == nil || last.Success || last.ExitCode == nil || *last.ExitCode != 1 {
		t.Fatalf("the test runs: %+v", v)
	}
	v = ask(protocol.TypeEnvStepReq, `{"episode_id":%q,"action":{"action_type":"tool","payload":{"tool_name":"read_file","arguments":{"path":"../../x"}}}}`, id)
	if v.Obs.State.Last.Success || v.Obs.State.Last.ErrorCode != string(protocol.CodeToolDenied) {
		t.Errorf("a way out: %+v", v)
	}
	for action, code := range map[string]protocol.ErrorCode{
		`{"type":"fly"}`: protocol.CodeUnknownAction, `{"type":"read_file"}`: protocol.CodeSchemaViolation, `{"type":"read_file","path":"a","nope":1}`: protocol.CodeSchemaViolation,
	} {
		if m := p.Call(protocol.TypeEnvStepReq, fmt.Sprintf(`{"episode_id":%q,"action":%s}`, id, action)); m.Get("/code") != string(code) {
			t.Errorf("%s: %s", action, m.Line)
		}
	}
	v = ask(protocol.TypeEnvStepReq, `{"episode_id":%q,"action":{"type":"edit_file","path":"calc.py","old":"a - b","new":"a + b"}}`, id)
	if v.Obs.StepNum != 3 || !v.Obs.State.Last.Success {
		t.Fatalf("the edit: %+v", v)
	}
	p.Close()

	p = taskHost(t, cfg) // the episode outlives the host
	defer p.Close()
	if v = ask(protocol.TypeEnvObserveReq, `{"episode_id":%q}`, id); v.Obs.StepNum != 3 || !slices.Equal(v.paths(), []string{"calc.py", "tests/test_seen.py"}) {
		t.Fatalf("after the restart: %+v", v)
	}
	v = ask(protocol.TypeEnvStepReq, `{"episode_id":%q,"action":{"type":"submit"}}`, id)
	if v.Obs.Reward != 1 || !v.Obs.Done || !v.Obs.State.Done {
		t.Fatalf("submitted: %+v", v)
	}
	var exp protocol.EnvExpListResponse
	p.Call(protocol.TypeEnvExpListReq, fmt.Sprintf(`{"episode_id":%q}`, id)).Decode(t, &exp)
	if n := len(exp.Episodes); n != 4 || exp.Episodes[n-1]["reward"] != 1.0 {
		t.Errorf("%d experiences: %v", n, exp.Episodes)
	}
	ask(protocol.TypeEnvCloseReq, `{"episode_id":%q}`, id)
	if _, err := os.Stat(filepath.Join(cfg.StateDir, "episodes", id)); !os.IsNotExist(err) {
		t.Errorf("its folder is still there: %v", err)
	}
}

// The tools of an episode see nothing of the tasks, whatever children.read says, and have
// the commands of the config.
func TestToolBox(t *testing.T) {
	tasks, folder, other := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{tasks, other} {
		if err := os.WriteFile(filepath.Join(dir, "note"), []byte("read me\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := load(t, fmt.Sprintf(`children: {read: [%q, %q]}
plugins:
  - name: tools
    type: tools
    metadata: {allowed_commands: [cat], commands: [{name: say, command: [echo, hello]}]}
`, other, tasks))
	box, err := plugins.NewToolBox(cfg, nil, zerolog.Nop(), host.ToolBoxOptions{Workspace: folder, Hidden: tasks, Deny: []string{"http_get"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := box.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for _, tc := range []struct {
		tool, args string
		ok         bool
	}{
		{"say", `{}`, true},
		{"run_command", `{"command":["cat","` + other + `/note"]}`, true},
		{"run_command", `{"command":["cat","` + tasks + `/note"]}`, false},
		{"run_command", `{"command":["sh","-c","true"]}`, false},
		{"http_get", `{"url":"http://localhost"}`, false},
		{"write_file", `{"path":"x","content":"y"}`, true},
	} {
		args, err := protocol.ParseObject([]byte(tc.args))
		if err != nil {
			t.Fatal(err)
		}
		res, err := box.Call(t.Context(), tc.tool, args)
		if ok := err == nil && res.Success; ok != tc.ok {
			t.Errorf("%s %s: %+v, %v", tc.tool, tc.args, res, err)
		}
	}
	if _, err := os.Stat(filepath.Join(folder, "x")); err != nil {
		t.Error(err)
	}
	if _, err := plugins.NewToolBox(cfg, nil, zerolog.Nop(), host.ToolBoxOptions{Workspace: folder, AllowedCommands: []string{"a/b"}}); err == nil {
		t.Error("a path was taken for the name of a program")
	}
}
