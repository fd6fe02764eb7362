package plugins_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/plugins"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// workspaceConfig returns a config whose env plugin has the tasks of testdata/tasks.
func workspaceConfig(t *testing.T) *config.Config {
	t.Helper()
	root := must.Get(hosttest.Root())(t)
	return load(t, fmt.Sprintf(`plugins:
  - name: tasks
    type: env
    metadata: {env: workspace, workspace: {tasks: %q}}
`, filepath.Join(root, "testdata", "tasks")))
}

// taskHost returns a host with the config's plugins, after the handshake.
func taskHost(t *testing.T, cfg *config.Config) *hosttest.Pair {
	t.Helper()
	made := must.Get(plugins.New(cfg, plugins.Deps{Log: zerolog.Nop()}))(t)
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

// TestTaskIsSolved: an episode whose check fails at first is solved by tools, across a restart of the host. Then its
// check passes, and its experiences can be listed.
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
	if v := ask(protocol.TypeEnvStepReq, `{"episode_id":%q,"action":{"type":"submit"}}`,
		lost.Obs.EpisodeID); v.Obs.Reward != 0 || !v.Obs.Done {
		t.Fatalf("submitted as it was: %+v", v)
	}
	m := p.Call(protocol.TypeEnvStepReq, fmt.Sprintf(`{"episode_id":%q,"action":{"type":"submit"}}`,
		lost.Obs.EpisodeID))
	assert.Equal(t, m.Get("/code"), string(protocol.CodeEpisodeDone), "again: %s", m.Line)
	v := ask(protocol.TypeEnvResetReq, task)
	id := v.Obs.EpisodeID
	must.That(t, v.Obs.State.Task == "fix-add" && slices.Equal(v.paths(), []string{"calc.py", "tests/test_seen.py"}) &&
		v.Obs.State.Last == nil, "the beginning: %+v", v)
	v = ask(protocol.TypeEnvStepReq, `{"episode_id":%q,"action":{"type":"run_command","command":["python3","-B","tests/test_seen.py"]}}`, id)
	last := v.Obs.State.Last
	must.That(t, last != nil && !last.Success && last.ExitCode != nil && *last.ExitCode == 1, "the test runs: %+v", v)
	v = ask(protocol.TypeEnvStepReq, `{"episode_id":%q,"action":{"action_type":"tool","payload":{"tool_name":"read_file","arguments":{"path":"../../x"}}}}`, id)
	assert.That(t, !v.Obs.State.Last.Success && v.Obs.State.Last.ErrorCode == string(protocol.CodeToolDenied),
		"a way out: %+v", v)
	for action, code := range map[string]protocol.ErrorCode{
		`{"type":"fly"}`: protocol.CodeUnknownAction, `{"type":"read_file"}`: protocol.CodeSchemaViolation,
		`{"type":"read_file","path":"a","nope":1}`: protocol.CodeSchemaViolation,
	} {
		m := p.Call(protocol.TypeEnvStepReq, fmt.Sprintf(`{"episode_id":%q,"action":%s}`, id, action))
		assert.Equal(t, m.Get("/code"), string(code), "%s: %s", action, m.Line)
	}
	v = ask(protocol.TypeEnvStepReq, `{"episode_id":%q,"action":{"type":"edit_file","path":"calc.py","old":"a - b","new":"a + b"}}`, id)
	must.That(t, v.Obs.StepNum == 3 && v.Obs.State.Last.Success, "the edit: %+v", v)
	p.Close()

	p = taskHost(t, cfg) // the episode outlives the host
	defer p.Close()
	if v = ask(protocol.TypeEnvObserveReq, `{"episode_id":%q}`, id); v.Obs.StepNum != 3 ||
		!slices.Equal(v.paths(), []string{"calc.py", "tests/test_seen.py"}) {
		t.Fatalf("after the restart: %+v", v)
	}
	v = ask(protocol.TypeEnvStepReq, `{"episode_id":%q,"action":{"type":"submit"}}`, id)
	must.That(t, v.Obs.Reward == 1 && v.Obs.Done && v.Obs.State.Done, "submitted: %+v", v)
	var exp protocol.EnvExpListResponse
	p.Call(protocol.TypeEnvExpListReq, fmt.Sprintf(`{"episode_id":%q}`, id)).Decode(t, &exp)
	n := len(exp.Episodes)
	assert.That(t, n == 4 && exp.Episodes[n-1]["reward"] == 1.0, "%d experiences: %v", n, exp.Episodes)
	ask(protocol.TypeEnvCloseReq, `{"episode_id":%q}`, id)
	_, err := os.Stat(filepath.Join(cfg.StateDir, "episodes", id))
	assert.That(t, os.IsNotExist(err), "its folder is still there: %v", err)
}

// TestToolBox: the tools of an episode cannot read the folder of the tasks, whatever children.read allows, and they
// include the commands of the config.
func TestToolBox(t *testing.T) {
	tasks, folder, other := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{tasks, other} {
		must.OK(t, os.WriteFile(filepath.Join(dir, "note"), []byte("read me\n"), 0o600))
	}
	cfg := load(t, fmt.Sprintf(`children: {read: [%q, %q]}
plugins:
  - name: tools
    type: tools
    metadata: {allowed_commands: [cat], commands: [{name: say, command: [echo, hello]}]}
`, other, tasks))
	box := must.Get(plugins.NewToolBox(cfg, nil, zerolog.Nop(), host.ToolBoxOptions{
		Workspace: folder, Hidden: tasks,
		Deny: []string{"http_get"},
	}))(t)
	defer func() {
		assert.OK(t, box.Close(t.Context()))
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
		args := must.Get(protocol.ParseObject([]byte(tc.args)))(t)
		res, err := box.Call(t.Context(), tc.tool, args)
		ok := err == nil && res.Success
		assert.Equal(t, ok, tc.ok, "%s %s: %+v, %v", tc.tool, tc.args, res, err)
	}
	_, err := os.Stat(filepath.Join(folder, "x"))
	assert.That(t, err == nil, "%v", err)
	_, err = plugins.NewToolBox(cfg, nil, zerolog.Nop(), host.ToolBoxOptions{
		Workspace:       folder,
		AllowedCommands: []string{"a/b"},
	})
	assert.That(t, err != nil, "a path was taken for the name of a program")
}

// scoped starts a host for a child agent. It returns the host after the handshake, and the capabilities that are on.
func scoped(t *testing.T, agent *fleet.Agent) (*hosttest.Pair, []string) {
	t.Helper()
	cfg := load(t, "{}")
	cfg.Agent = agent
	made := must.Get(plugins.New(cfg, plugins.Deps{Log: zerolog.Nop()}))(t)
	p := hosttest.Start(t, host.Options{Plugins: made, AgentID: agent.AgentID})
	var resp protocol.HandshakeResponse
	p.Handshake().Decode(t, &resp)
	var has []string
	for _, row := range resp.AcceptedCaps {
		if row.Enabled {
			has = append(has, string(row.Capability))
		}
	}
	slices.Sort(has)
	return p, has
}

// toolNames returns the sorted names of the tools that the host lists.
func toolNames(t *testing.T, p *hosttest.Pair) (names []string) {
	t.Helper()
	var resp protocol.ToolListResponse
	p.Call(protocol.TypeToolListReq, `{"include_deferred":true}`).Decode(t, &resp)
	for _, def := range resp.Tools {
		names = append(names, def.Name)
	}
	slices.Sort(names)
	return names
}

func echo(p *hosttest.Pair, tool string) hosttest.Message {
	return p.Call(protocol.TypeToolCallReq, fmt.Sprintf(`{"tool_name":%q,"arguments":{"text":"hi"}}`, tool))
}

// TestScopeRestricted: a restricted child agent has memory and the tools and capabilities that its scope names, and no
// way around that.
func TestScopeRestricted(t *testing.T) {
	p, has := scoped(t, &fleet.Agent{
		AgentID: "child", ToolScope: protocol.ToolsRestricted,
		Capabilities: []string{"echo", "read_file", "planning"}, MaxSteps: 2,
	})
	assert.Slice(t, has, []string{"memory", "planning", "tools"}, "it")
	assert.Slice(t, toolNames(t, p), []string{"echo", "read_file"}, "its tools")
	for _, refused := range []string{"write_file", "run_command", "no_such_tool"} {
		m := echo(p, refused)
		assert.That(t, m.Get("/code") == string(protocol.CodeToolDenied) && strings.Contains(m.Get("/message"),
			refused), "%s: %s", refused, m)
	}
	p.Call(protocol.TypeProcSpawnReq, `{"cmd":["ls"]}`).Has(t, "/code", string(protocol.CodeCapabilityMissing))
	for range 2 {
		echo(p, "echo").Has(t, "/data/success", "true")
	}
	m := echo(p, "echo")
	assert.That(t, m.Get("/code") == string(protocol.CodeToolDenied) && strings.Contains(m.Get("/message"),
		"max_steps of 2"), "a third step: %s", m)
}

// TestScopeIsolated: an isolated child agent has its memory and nothing else, whatever its scope names.
func TestScopeIsolated(t *testing.T) {
	_, has := scoped(t, &fleet.Agent{
		AgentID: "child", ToolScope: protocol.ToolsIsolated,
		Capabilities: []string{"echo", "tools"},
	})
	assert.Slice(t, has, []string{"memory"}, "it")
}

// TestScopeShared: a shared child agent has all tools and capabilities, up to its number of steps. Its memory belongs
// to its own agent id, whatever a second handshake says.
func TestScopeShared(t *testing.T) {
	p, has := scoped(t, &fleet.Agent{AgentID: "child", ToolScope: protocol.ToolsShared, MaxSteps: 1})
	assert.That(t, len(has) >= 10, "it has %v", has)
	names := toolNames(t, p)
	assert.That(t, slices.Contains(names, "run_command"), "its tools are %v", names)
	a, b := echo(p, "echo"), echo(p, "echo")
	assert.That(t, a.Get("/data/success") == "true" && b.Get("/code") == string(protocol.CodeToolDenied),
		"two calls with one step: %s, %s", a, b)
	open := func() string { return p.Call(protocol.TypeMemoryInitReq, `{"namespace":"n"}`).Get("/memory_id") }
	stored := p.Call(protocol.TypeMemoryStoreReq, fmt.Sprintf(`{"memory_id":%q,"entries":[{"key":{"k":1},"content":"v","tier":"episodic"}]}`, open()))
	must.That(t, len(stored.Get("/stored/0")) != 0, "store: %s", stored)
	p.Call(protocol.TypeHandshakeReq, `{"agent_id":"somebody else","agent_caps":["memory"]}`)
	p.Call(protocol.TypeMemoryRetrieveReq, fmt.Sprintf(`{"memory_id":%q,"keys":[{"k":1}],"tier":"episodic"}`,
		open())).Has(t, "/total", "1")
}
