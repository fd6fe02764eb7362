package env

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/store"
	"a2e/protocol"
)

// stage is a host with env plugins and a session.
type stage struct {
	*hosttest.Pair
	t testing.TB
}

func newStage(t testing.TB, plugins ...host.Plugin) *stage {
	t.Helper()
	s := &stage{hosttest.New(t, host.Options{Plugins: plugins, MaxParallel: 16}), t}
	s.Handshake(protocol.CapEnv)
	return s
}

// storeAt opens the store in a folder, until the test ends.
func storeAt(t testing.TB, dir string) func(context.Context) (store.Store, error) {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(dir, store.FileName), store.Options{Parts: []store.Part{Part()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(context.Context) (store.Store, error) { return s, nil }
}

// pluginOf returns a plugin called myenv.
func pluginOf(t testing.TB, opts Options, e Env) *Plugin {
	t.Helper()
	p, err := New("myenv", opts, e)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// reset begins an episode and gives what is seen of it.
func (s *stage) reset(fields string) protocol.EnvObservation {
	s.t.Helper()
	var resp protocol.EnvResetResponse
	m := s.Call(protocol.TypeEnvResetReq, fields)
	if m.Code != "" {
		s.t.Fatalf("reset: %s", m.Line)
	}
	m.Decode(s.t, &resp)
	return resp.Obs
}

// begin begins an episode of an environment and gives its id.
func (s *stage) begin(name string) string {
	return s.reset(fmt.Sprintf(`{"env_name":%q}`, name)).EpisodeID
}

func stepFields(id, action string) string {
	return fmt.Sprintf(`{"episode_id":%q,"action":%s}`, id, action)
}

// step takes one step of a type.
func (s *stage) step(id, action string) protocol.EnvObservation {
	s.t.Helper()
	var resp protocol.EnvStepResponse
	m := s.Call(protocol.TypeEnvStepReq, stepFields(id, fmt.Sprintf(`{"type":%q}`, action)))
	if m.Code != "" {
		s.t.Fatalf("step: %s", m.Line)
	}
	m.Decode(s.t, &resp)
	return resp.Obs
}

// refused makes a call that must fail with a code and a text that says all of these things.
func (s *stage) refused(typ protocol.Type, fields string, code protocol.ErrorCode, say ...string) hosttest.Message {
	s.t.Helper()
	m := s.Call(typ, fields)
	if m.Code != code {
		s.t.Errorf("%s %s was answered %s, want %s", typ, fields, m.Line, code)
	}
	for _, text := range say {
		if !strings.Contains(string(m.Line), text) {
			s.t.Errorf("%s does not say %q", m.Line, text)
		}
	}
	return m
}

// experiences lists them.
func (s *stage) experiences(fields string) []map[string]any {
	s.t.Helper()
	var resp protocol.EnvExpListResponse
	m := s.Call(protocol.TypeEnvExpListReq, fields)
	if m.Code != "" {
		s.t.Fatalf("list: %s", m.Line)
	}
	m.Decode(s.t, &resp)
	return resp.Episodes
}

func contractSamples(name, act string) []hosttest.Sample {
	episode := func(fields string) func(testing.TB, *hosttest.Pair) string {
		return func(t testing.TB, p *hosttest.Pair) string {
			return fmt.Sprintf(fields, (&stage{p, t}).begin(name))
		}
	}
	return []hosttest.Sample{
		{Type: protocol.TypeEnvResetReq, Fields: fmt.Sprintf(`{"env_name":%q,"seed":3,"options":{}}`, name)},
		{Name: "by the plugin's name", Type: protocol.TypeEnvResetReq, Fields: `{"env_name":"myenv"}`},
		{Name: "unknown env", Type: protocol.TypeEnvResetReq, Fields: `{"env_name":"chess"}`, Code: protocol.CodeUnknownEnv},
		{Type: protocol.TypeEnvSpaceReq, Fields: fmt.Sprintf(`{"env_name":%q}`, name)},
		{Name: "space of an unknown env", Type: protocol.TypeEnvSpaceReq, Fields: `{"env_name":"chess"}`, Code: protocol.CodeUnknownEnv},
		{Type: protocol.TypeEnvStepReq, Make: episode(`{"episode_id":%q,"action":{"type":"` + act + `"}}`)},
		{Name: "the other spelling", Type: protocol.TypeEnvStepReq, Make: episode(`{"episode_id":%q,"action":{"action_type":"` + act + `","payload":{}}}`)},
		{Name: "unknown action", Type: protocol.TypeEnvStepReq, Make: episode(`{"episode_id":%q,"action":{"type":"jump"}}`), Code: protocol.CodeUnknownAction},
		{Name: "no action", Type: protocol.TypeEnvStepReq, Make: episode(`{"episode_id":%q,"action":{}}`), Code: protocol.CodeUnknownAction},
		{Name: "unknown episode", Type: protocol.TypeEnvStepReq, Fields: stepFields("x", `{"type":"`+act+`"}`), Code: protocol.CodeUnknownEpisode},
		{Type: protocol.TypeEnvObserveReq, Make: episode(`{"episode_id":%q}`)},
		{Type: protocol.TypeEnvRenderReq, Make: episode(`{"episode_id":%q,"mode":"text"}`)},
		{Type: protocol.TypeEnvPlanReq, Make: episode(`{"episode_id":%q}`)},
		{Type: protocol.TypeEnvBatchStepReq, Make: episode(`{"episode_ids":[%[1]q,%[1]q],"actions":[{"type":"` + act + `"},{"type":"` + act + `"}]}`)},
		{Name: "uneven batch", Type: protocol.TypeEnvBatchStepReq, Make: episode(`{"episode_ids":[%q],"actions":[]}`), Code: protocol.CodeSchemaViolation},
		{Type: protocol.TypeEnvExpListReq, Fields: `{"limit":5}`},
		{Type: protocol.TypeEnvCloseReq, Make: episode(`{"episode_id":%q}`)},
	}
}

func TestContract(t *testing.T) {
	tasks := taskFolder(t, map[string]string{"a/task.yaml": fine, "a/files/x": "y", "a/check": "#!/bin/sh\nexit 0\n"})
	for name, act := range map[string]string{"counter": "inc", "gridworld": "up", "room": "say", "workspace": "list_dir"} {
		t.Run(name, func(t *testing.T) {
			hosttest.Contract(t, func(t testing.TB) host.Plugin {
				outside := workshop(t)
				outside.Store = storeAt(t, t.TempDir())
				if name == "room" {
					return newRoom(t, Options{}, outside).plugin
				}
				return pluginOf(t, Options{Env: name, Workspace: WorkspaceOptions{Tasks: tasks}}, outside)
			}, contractSamples(name, act))
		})
	}
}

func TestOptionsThatDoNotFit(t *testing.T) {
	negative := -1.0
	for _, tc := range []struct {
		opts Options
		say  string
	}{
		{Options{Env: "chess"}, "there are: counter, gridworld, workspace, exec"},
		{Options{Env: "gridworld", Gridworld: GridworldOptions{Width: 1}}, "2 to 64"},
		{Options{Env: "gridworld", Gridworld: GridworldOptions{Height: 65}}, "2 to 64"},
		{Options{Env: "gridworld", Gridworld: GridworldOptions{Slippery: 1.5}}, "probability"},
		{Options{Env: "gridworld", Gridworld: GridworldOptions{StepPenalty: &negative}}, "step_penalty"},
	} {
		if _, err := New("myenv", tc.opts, Env{}); err == nil || !strings.Contains(err.Error(), tc.say) || !strings.Contains(err.Error(), `"myenv"`) {
			t.Errorf("%+v: %v", tc.opts, err)
		}
	}
}

func TestCounterEndsAtFive(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{}, Env{}))
	id := s.begin("counter")
	for i, tc := range []struct {
		action string
		count  float64
		reward float64
		done   bool
	}{
		{"inc", 1, 0, false}, {"dec", 0, 0, false}, {"noop", 0, 0, false}, {"dec", -1, 0, false}, {"inc", 0, 0, false}, {"inc", 1, 0, false},
		{"inc", 2, 0, false}, {"inc", 3, 0, false}, {"inc", 4, 0, false}, {"inc", 5, 1, true},
	} {
		if o := s.step(id, tc.action); o.State["count"] != tc.count || *o.Reward != tc.reward || o.Done != tc.done || o.Truncated || o.StepNum != i+1 {
			t.Errorf("step %d, %s: %+v, want %+v", i+1, tc.action, o, tc)
		}
	}
	s.refused(protocol.TypeEnvStepReq, stepFields(id, `{"type":"inc"}`), protocol.CodeEpisodeDone, "after 10 steps")
	exp := s.experiences(fmt.Sprintf(`{"episode_id":%q,"limit":2}`, id))
	if len(exp) != 2 || exp[1]["reward"] != 1.0 || exp[1]["done"] != true || exp[0]["step"] != 9.0 || exp[0]["env"] != "counter" {
		t.Fatalf("experiences %v", exp)
	}
	if from, to := exp[1]["state"].(map[string]any)["count"], exp[1]["next_state"].(map[string]any)["count"]; from != 4.0 || to != 5.0 {
		t.Errorf("the last step went from %v to %v", from, to)
	}
}

func TestViewsOfCounter(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{}, Env{}))
	id := s.begin("counter")
	s.step(id, "inc")
	for _, tc := range []struct {
		typ    protocol.Type
		fields string
		at     string
		want   string
	}{
		{protocol.TypeEnvObserveReq, "", "/obs/state/count", "1"},
		{protocol.TypeEnvObserveReq, "", "/obs/step_num", "1"},
		{protocol.TypeEnvObserveReq, "", "/obs/reward", "0"},
		{protocol.TypeEnvRenderReq, "", "/render/text", "1 of 5"},
		{protocol.TypeEnvRenderReq, `,"mode":"rgb_array"`, "/render/mode", "text"},
		{protocol.TypeEnvPlanReq, "", "/suggested_actions/0/type", "inc"},
	} {
		if m := s.Call(tc.typ, fmt.Sprintf(`{"episode_id":%q%s}`, id, tc.fields)); m.Get(tc.at) != tc.want {
			t.Errorf("%s: %s is %q, want %q", m.Line, tc.at, m.Get(tc.at), tc.want)
		}
	}
	if m := s.Call(protocol.TypeEnvSpaceReq, `{"env_name":"counter"}`); m.Get("/action_space/properties/type/enum/1") != "dec" || m.Get("/state_schema/required/0") != "count" {
		t.Errorf("space: %s", m.Line)
	}
	s.refused(protocol.TypeEnvPlanReq, `{}`, protocol.CodeSchemaViolation, "/episode_id")
	if m := s.Call(protocol.TypeEnvCloseReq, fmt.Sprintf(`{"episode_id":%q}`, id)); m.Get("/closed") != "true" {
		t.Errorf("close: %s", m.Line)
	}
	for _, typ := range []protocol.Type{protocol.TypeEnvCloseReq, protocol.TypeEnvObserveReq, protocol.TypeEnvRenderReq, protocol.TypeEnvPlanReq} {
		s.refused(typ, fmt.Sprintf(`{"episode_id":%q}`, id), protocol.CodeUnknownEpisode)
	}
}

// A reset without a seed says which one it took: the episode can be had again.
func TestResetTellsItsSeed(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{Env: "gridworld"}, Env{}))
	first := s.reset(`{"env_name":"gridworld"}`)
	seed := int64(first.Metadata["seed"].(float64))
	again := s.reset(fmt.Sprintf(`{"env_name":"gridworld","seed":%d}`, seed))
	if fmt.Sprint(first.State) != fmt.Sprint(again.State) {
		t.Errorf("%v and %v of the seed %d", first.State, again.State, seed)
	}
	other := s.reset(`{"env_name":"gridworld"}`)
	if other.Metadata["seed"] == first.Metadata["seed"] {
		t.Errorf("both have the seed %d", seed)
	}
}

func TestMaxSteps(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{MaxSteps: 3}, Env{}))
	id := s.begin("counter")
	for i, want := range []bool{false, false, true} {
		if o := s.step(id, "noop"); o.Truncated != want || o.Done {
			t.Errorf("step %d: done %v, truncated %v", i+1, o.Done, o.Truncated)
		}
	}
	s.refused(protocol.TypeEnvStepReq, stepFields(id, `{"type":"inc"}`), protocol.CodeEpisodeDone, "cut short", "3 steps")
	if m := s.Call(protocol.TypeEnvObserveReq, fmt.Sprintf(`{"episode_id":%q}`, id)); m.Get("/obs/truncated") != "true" || m.Get("/obs/done") != "false" {
		t.Errorf("observe: %s", m.Line)
	}
	if exp := s.experiences(`{"limit":1}`); exp[0]["truncated"] != true || exp[0]["done"] != false {
		t.Errorf("experience %v", exp)
	}
	s = newStage(t, pluginOf(t, Options{MaxSteps: 5}, Env{}))
	id = s.begin("counter")
	for range 4 {
		s.step(id, "inc")
	}
	if o := s.step(id, "inc"); !o.Done || o.Truncated {
		t.Errorf("the end at the limit: done %v, truncated %v", o.Done, o.Truncated)
	}
}

func TestEpisodesAreBounded(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{MaxEpisodes: 2}, Env{}))
	s.begin("counter")
	last := s.begin("counter")
	s.refused(protocol.TypeEnvResetReq, `{"env_name":"counter"}`, protocol.CodeResetDenied, "2 episodes are open", "max_episodes")
	s.Call(protocol.TypeEnvCloseReq, fmt.Sprintf(`{"episode_id":%q}`, last))
	s.begin("counter")
}

// Several plugins share the capability: each request finds the one that it means.
func TestSeveralPlugins(t *testing.T) {
	dir := t.TempDir()
	open := storeAt(t, dir)
	var plugins []host.Plugin
	for _, o := range []struct{ name, env string }{{"a", "counter"}, {"b", "counter"}, {"maze", "gridworld"}} {
		p, err := New(o.name, Options{Env: o.env}, Env{Store: open})
		if err != nil {
			t.Fatal(err)
		}
		plugins = append(plugins, p)
	}
	s := newStage(t, plugins...)
	ids := map[string]string{"a": s.begin("a"), "b": s.begin("b"), "maze": s.begin("gridworld")}
	for name, id := range ids {
		action := "inc"
		if name == "maze" {
			action = "up"
		}
		if o := s.step(id, action); o.StepNum != 1 {
			t.Errorf("%s: %+v", name, o)
		}
	}
	s.refused(protocol.TypeEnvStepReq, stepFields(ids["maze"], `{"type":"inc"}`), protocol.CodeUnknownAction, "up, down, left, right")
	s.refused(protocol.TypeEnvStepReq, stepFields("none", `{"type":"inc"}`), protocol.CodeUnknownEpisode)
	if m := s.refused(protocol.TypeEnvResetReq, `{"env_name":"chess"}`, protocol.CodeUnknownEnv, "a, b, counter, gridworld, maze"); m.Get("/detail/known/4") != "maze" {
		t.Errorf("known: %s", m.Line)
	}
	exp := s.experiences(`{}`)
	if len(exp) != 3 || !slices.IsSortedFunc(exp, func(a, b map[string]any) int { return int(1e6 * (a["ts"].(float64) - b["ts"].(float64))) }) {
		t.Errorf("experiences of all: %v", exp)
	}
	if exp := s.experiences(`{"limit":2}`); len(exp) != 2 {
		t.Errorf("%d of 2", len(exp))
	}
}
