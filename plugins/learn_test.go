package plugins_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/plugins"
	"a2e/protocol"
)

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
// check passes, and what that taught moves the weights of the tools.
func TestTheLoopThatMakesAnAgentBetter(t *testing.T) {
	root, err := hosttest.Root()
	if err != nil {
		t.Fatal(err)
	}
	cfg := load(t, fmt.Sprintf(`plugins:
  - {name: tasks, type: env, metadata: {env: workspace, workspace: {tasks: %q, task: add}}}
  - {name: learn, type: learning}
`, filepath.Join(root, "testdata", "tasks")))
	made, err := plugins.New(cfg, plugins.Deps{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	p := hosttest.New(t, host.Options{Plugins: made})
	p.Handshake(protocol.CapEnv, protocol.CapLearning)
	known := func() map[string]component {
		var resp struct {
			Components []component `json:"components"`
		}
		p.Call(protocol.TypeLearnStatsReq, `{}`).Decode(t, &resp)
		return byName(resp.Components)
	}
	if before := known(); len(before) != 0 {
		t.Fatalf("before anything there is %v", before)
	}
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
	if v.Obs.Reward != 1 || !v.Obs.Done {
		t.Fatalf("the check gave %+v", v)
	}
	after := known()
	if env := after["env workspace"]; env.Calls != 4 || env.Success != 4 || env.Reward != 0.25 {
		t.Errorf("the environment: %+v", env)
	}
	if run, edit := after["tool run_command"], after["tool edit_file"]; run.Calls != 2 || run.Success != 1 || edit.Calls != 1 || edit.Success != 1 || run.Weight != 1 || edit.Weight != 1 {
		t.Errorf("the tools: %+v, %+v", run, edit)
	}
	var adapted struct {
		Updated []component `json:"updated"`
	}
	p.Call(protocol.TypeLearnAdaptReq, `{"strategy":"softmax"}`).Decode(t, &adapted)
	now := known()
	if run, edit := now["tool run_command"].Weight, now["tool edit_file"].Weight; edit <= 1 || run >= 1 {
		t.Errorf("the tool that always worked weighs %v, the other one %v", edit, run)
	}
	if got := byName(adapted.Updated)["tool edit_file"].Weight; got != now["tool edit_file"].Weight {
		t.Errorf("adapt says %v, stats %v", got, now["tool edit_file"].Weight)
	}
}

// Who only looks at tools leaves no store behind.
func TestLookingAtToolsMakesNoStore(t *testing.T) {
	cfg := load(t, "plugins: [{name: tools, type: tools}, {name: learn, type: learning}]\n")
	made, err := plugins.New(cfg, plugins.Deps{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	p := hosttest.New(t, host.Options{Plugins: made})
	p.Handshake(protocol.CapTools)
	for _, query := range []string{"", "read a file"} {
		var resp protocol.ToolListResponse
		p.Call(protocol.TypeToolListReq, fmt.Sprintf(`{"query":%q}`, query)).Decode(t, &resp)
		if len(resp.Tools) == 0 {
			t.Errorf("%q found no tool", query)
		}
	}
	p.Close()
	if _, err := os.Stat(plugins.StatePath(cfg)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a store: %v", err)
	}
}

func byName(all []component) map[string]component {
	named := make(map[string]component)
	for _, c := range all {
		named[c.Kind+" "+c.Name] = c
	}
	return named
}
