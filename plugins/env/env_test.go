package env

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image/png"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
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
	s.Handshake(protocol.CapEnv, protocol.FlagEnvPush)
	return s
}

// storeAt returns a function that opens the store in a folder. The store is closed at the end of the test.
func storeAt(t testing.TB, dir string) func(context.Context) (store.Store, error) {
	t.Helper()
	s := stores.Open(t, filepath.Join(dir, store.FileName), Part())
	t.Cleanup(func() { must.OK(t, s.Close()) })
	return func(context.Context) (store.Store, error) { return s, nil }
}

// pluginOf returns a plugin called myenv.
func pluginOf(t testing.TB, opts Options, e host.Env) *Plugin {
	t.Helper()
	return must.Get(New("myenv", opts, e))(t)
}

// reset begins an episode and returns its first observation.
func (s *stage) reset(fields string) protocol.EnvObservation {
	s.t.Helper()
	var resp protocol.EnvResetResponse
	m := s.Call(protocol.TypeEnvResetReq, fields)
	must.That(s.t, m.Code == "", "reset: %s", m.Line)
	m.Decode(s.t, &resp)
	return resp.Obs
}

// begin begins an episode of an environment and returns the episode's id.
func (s *stage) begin(name string) string {
	return s.reset(fmt.Sprintf(`{"env_name":%q}`, name)).EpisodeID
}

// about returns the fields of a request that only names an episode.
func about(id string) string { return fmt.Sprintf(`{"episode_id":%q}`, id) }

func stepFields(id, action string) string {
	return fmt.Sprintf(`{"episode_id":%q,"action":%s}`, id, action)
}

// step takes one step with an action of a type, and returns the observation.
func (s *stage) step(id, action string) protocol.EnvObservation {
	s.t.Helper()
	var resp protocol.EnvStepResponse
	m := s.Call(protocol.TypeEnvStepReq, stepFields(id, fmt.Sprintf(`{"type":%q}`, action)))
	must.That(s.t, m.Code == "", "step: %s", m.Line)
	m.Decode(s.t, &resp)
	return resp.Obs
}

// experiences returns the experiences that a list request finds.
func (s *stage) experiences(fields string) []map[string]any {
	s.t.Helper()
	var resp protocol.EnvExpListResponse
	m := s.Call(protocol.TypeEnvExpListReq, fields)
	must.That(s.t, m.Code == "", "list: %s", m.Line)
	m.Decode(s.t, &resp)
	return resp.Episodes
}

func contractSamples(name, act string) []hosttest.Sample {
	episode := func(fields string) func(testing.TB, *hosttest.Pair) string {
		return func(t testing.TB, p *hosttest.Pair) string { return fmt.Sprintf(fields, (&stage{p, t}).begin(name)) }
	}
	return []hosttest.Sample{
		{Type: protocol.TypeEnvResetReq, Fields: fmt.Sprintf(`{"env_name":%q,"seed":3,"options":{}}`, name)},
		{Name: "by the plugin's name", Type: protocol.TypeEnvResetReq, Fields: `{"env_name":"myenv"}`},
		{
			Name: "unknown env", Type: protocol.TypeEnvResetReq, Fields: `{"env_name":"chess"}`,
			Code: protocol.CodeUnknownEnv,
		},
		{Type: protocol.TypeEnvSpaceReq, Fields: fmt.Sprintf(`{"env_name":%q}`, name)},
		{
			Name: "space of an unknown env", Type: protocol.TypeEnvSpaceReq, Fields: `{"env_name":"chess"}`,
			Code: protocol.CodeUnknownEnv,
		},
		{Type: protocol.TypeEnvStepReq, Make: episode(`{"episode_id":%q,"action":{"type":"` + act + `"}}`)},
		{
			Name: "the other spelling", Type: protocol.TypeEnvStepReq,
			Make: episode(`{"episode_id":%q,"action":{"action_type":"` + act + `","payload":{}}}`),
		},
		{
			Name: "unknown action", Type: protocol.TypeEnvStepReq,
			Make: episode(`{"episode_id":%q,"action":{"type":"jump"}}`), Code: protocol.CodeUnknownAction,
		},
		{
			Name: "no action", Type: protocol.TypeEnvStepReq, Make: episode(`{"episode_id":%q,"action":{}}`),
			Code: protocol.CodeUnknownAction,
		},
		{
			Name: "unknown episode", Type: protocol.TypeEnvStepReq, Fields: stepFields("x", `{"type":"`+act+`"}`),
			Code: protocol.CodeUnknownEpisode,
		},
		{Type: protocol.TypeEnvObserveReq, Make: episode(`{"episode_id":%q}`)},
		{Type: protocol.TypeEnvRenderReq, Make: episode(`{"episode_id":%q,"mode":"text"}`)},
		{Type: protocol.TypeEnvPlanReq, Make: episode(`{"episode_id":%q}`)},
		{Type: protocol.TypeEnvBatchStepReq, Make: episode(`{"episode_ids":[%[1]q,%[1]q],"actions":[{"type":"` + act +
			`"},{"type":"` + act + `"}]}`)},
		{
			Name: "uneven batch", Type: protocol.TypeEnvBatchStepReq, Make: episode(`{"episode_ids":[%q],"actions":[]}`),
			Code: protocol.CodeSchemaViolation,
		},
		{Type: protocol.TypeEnvExpListReq, Fields: `{"limit":5}`},
		{Type: protocol.TypeEnvDataResetReq, Fields: `{"scope":"baseline"}`},
		{Type: protocol.TypeEnvDataAddReq, Fields: `{}`},
		{Type: protocol.TypeEnvDataGetReq, Fields: `{}`},
		{Type: protocol.TypeEnvCloseReq, Make: episode(`{"episode_id":%q}`)},
	}
}

func TestContract(t *testing.T) {
	tasks := taskFolder(t, map[string]string{"a/task.yaml": fine, "a/files/x": "y", "a/check": "#!/bin/sh\nexit 0\n"})
	for name, act := range map[string]string{
		"counter": "inc", "gridworld": "up", "room": "say",
		"workspace": "list_dir",
	} {
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
		_, err := New("myenv", tc.opts, host.Env{})
		assert.That(t, err != nil && strings.Contains(err.Error(), tc.say) && strings.Contains(err.Error(), `"myenv"`),
			"%+v: %v", tc.opts, err)
	}
}

func TestCounterEndsAtFive(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{}, host.Env{}))
	id := s.begin("counter")
	for i, tc := range []struct {
		action string
		count  float64
		reward float64
		done   bool
	}{
		{"inc", 1, 0, false},
		{"dec", 0, 0, false},
		{"noop", 0, 0, false},
		{"dec", -1, 0, false},
		{"inc", 0, 0, false},
		{"inc", 1, 0, false},
		{"inc", 2, 0, false},
		{"inc", 3, 0, false},
		{"inc", 4, 0, false},
		{"inc", 5, 1, true},
	} {
		o := s.step(id, tc.action)
		assert.That(t, o.State["count"] == tc.count && *o.Reward == tc.reward && o.Done == tc.done && !o.Truncated &&
			o.StepNum == i+1, "step %d, %s: %+v, want %+v", i+1, tc.action, o, tc)
	}
	s.Refused(protocol.TypeEnvStepReq, stepFields(id, `{"type":"inc"}`), protocol.CodeEpisodeDone, "after 10 steps")
	exp := s.experiences(fmt.Sprintf(`{"episode_id":%q,"limit":2}`, id))
	must.That(t, len(exp) == 2 && exp[1]["reward"] == 1.0 && exp[1]["done"] == true && exp[0]["step"] == 9.0 &&
		exp[0]["env"] == "counter", "experiences %v", exp)
	from, to := exp[1]["state"].(map[string]any)["count"], exp[1]["next_state"].(map[string]any)["count"]
	assert.That(t, from == 4.0 && to == 5.0, "the last step went from %v to %v", from, to)
}

func TestViewsOfCounter(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{}, host.Env{}))
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
		s.Call(tc.typ, fmt.Sprintf(`{"episode_id":%q%s}`, id, tc.fields)).Has(t, tc.at, tc.want)
	}
	s.Call(protocol.TypeEnvSpaceReq, `{"env_name":"counter"}`).Has(t, "/action_space/properties/type/enum/1", "dec",
		"/state_schema/required/0", "count")
	s.Refused(protocol.TypeEnvPlanReq, `{}`, protocol.CodeSchemaViolation, "/episode_id")
	s.Call(protocol.TypeEnvCloseReq, about(id)).Has(t, "/closed", "true")
	for _, typ := range []protocol.Type{
		protocol.TypeEnvCloseReq, protocol.TypeEnvObserveReq, protocol.TypeEnvRenderReq,
		protocol.TypeEnvPlanReq,
	} {
		s.Refused(typ, about(id), protocol.CodeUnknownEpisode)
	}
}

// TestResetTellsItsSeed: a reset without a seed tells the seed that it took, so that the same episode can be played
// again.
func TestResetTellsItsSeed(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{Env: "gridworld"}, host.Env{}))
	first := s.reset(`{"env_name":"gridworld"}`)
	seed := int64(first.Metadata["seed"].(float64))
	again := s.reset(fmt.Sprintf(`{"env_name":"gridworld","seed":%d}`, seed))
	assert.That(t, fmt.Sprint(first.State) == fmt.Sprint(again.State), "%v and %v of the seed %d", first.State,
		again.State, seed)
	other := s.reset(`{"env_name":"gridworld"}`)
	assert.That(t, other.Metadata["seed"] != first.Metadata["seed"], "both have the seed %d", seed)
}

func TestMaxSteps(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{MaxSteps: 3}, host.Env{}))
	id := s.begin("counter")
	for i, want := range []bool{false, false, true} {
		o := s.step(id, "noop")
		assert.That(t, o.Truncated == want && !o.Done, "step %d: done %v, truncated %v", i+1, o.Done, o.Truncated)
	}
	s.Refused(protocol.TypeEnvStepReq, stepFields(id, `{"type":"inc"}`), protocol.CodeEpisodeDone, "truncated",
		"3 steps")
	m := s.Call(protocol.TypeEnvObserveReq, about(id))
	assert.That(t, m.Get("/obs/truncated") == "true" && m.Get("/obs/done") == "false", "observe: %s", m.Line)
	exp := s.experiences(`{"limit":1}`)
	assert.That(t, exp[0]["truncated"] == true && exp[0]["done"] == false, "experience %v", exp)
	s = newStage(t, pluginOf(t, Options{MaxSteps: 5}, host.Env{}))
	id = s.begin("counter")
	for range 4 {
		s.step(id, "inc")
	}
	o := s.step(id, "inc")
	assert.That(t, o.Done && !o.Truncated, "the end at the limit: done %v, truncated %v", o.Done, o.Truncated)
}

func TestEpisodesAreBounded(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{MaxEpisodes: 2}, host.Env{}))
	s.begin("counter")
	last := s.begin("counter")
	s.Refused(protocol.TypeEnvResetReq, `{"env_name":"counter"}`, protocol.CodeResetDenied, "2 episodes open",
		"max_episodes")
	s.Call(protocol.TypeEnvCloseReq, about(last))
	s.begin("counter")
}

// TestSeveralPlugins: several plugins can serve the capability: each request goes to the plugin that it means.
func TestSeveralPlugins(t *testing.T) {
	dir := t.TempDir()
	open := storeAt(t, dir)
	var plugins []host.Plugin
	for _, o := range []struct{ name, env string }{{"a", "counter"}, {"b", "counter"}, {"maze", "gridworld"}} {
		p := must.Get(New(o.name, Options{Env: o.env}, host.Env{Store: open}))(t)
		plugins = append(plugins, p)
	}
	s := newStage(t, plugins...)
	ids := map[string]string{"a": s.begin("a"), "b": s.begin("b"), "maze": s.begin("gridworld")}
	for name, id := range ids {
		action := "inc"
		if name == "maze" {
			action = "up"
		}
		o := s.step(id, action)
		assert.That(t, o.StepNum == 1, "%s: %+v", name, o)
	}
	s.Refused(protocol.TypeEnvStepReq, stepFields(ids["maze"], `{"type":"inc"}`), protocol.CodeUnknownAction,
		"up, down, left, right")
	s.Refused(protocol.TypeEnvStepReq, stepFields("none", `{"type":"inc"}`), protocol.CodeUnknownEpisode)
	s.Refused(protocol.TypeEnvResetReq, `{"env_name":"chess"}`, protocol.CodeUnknownEnv,
		"a, b, counter, gridworld, maze").Has(t, "/detail/known/4", "maze")
	two := `"actions":[{"type":"inc"},{"type":"up"}]`
	s.Call(protocol.TypeEnvBatchStepReq, fmt.Sprintf(`{"episode_ids":[%q,%q],%s}`, ids["a"], ids["maze"],
		two)).Has(t, "/results/0/obs/state/count", "2", "/results/1/obs/step_num", "2")
	s.Refused(protocol.TypeEnvBatchStepReq, fmt.Sprintf(`{"episode_ids":[%q,"nobodys"],%s}`, ids["maze"], two),
		protocol.CodeUnknownEpisode, `"nobodys"`)
	s.Refused(protocol.TypeEnvBatchStepReq, fmt.Sprintf(`{"episode_ids":[%q,%q],%s}`, ids["maze"], ids["a"], two),
		protocol.CodeUnknownAction, "up, down, left, right")
	exp := s.experiences(`{}`)
	assert.That(t, len(exp) == 5 && slices.IsSortedFunc(exp, func(a,
		b map[string]any,
	) int {
		return int(1e6 * (a["ts"].(float64) - b["ts"].(float64)))
	}), "experiences of all: %v",
		exp)
	exp = s.experiences(`{"limit":2}`)
	assert.That(t, len(exp) == 2, "%d of 2", len(exp))
}

func gridOf(t testing.TB, opts GridworldOptions, seed int64) *gridWorld {
	t.Helper()
	g := must.Get(newGridworld(opts))(t)
	w := must.Get(g.Reset(t.Context(), Reset{Seed: seed}))(t)
	return w.(*gridWorld)
}

// TestMazes: each cell of each maze can be reached, a wall exists on both of its sides, and the goal is not the first
// cell.
func TestMazes(t *testing.T) {
	shapes := map[string]bool{}
	for _, size := range [][2]int{{2, 2}, {2, 64}, {8, 8}, {64, 64}, {5, 3}} {
		for seed := range int64(20) {
			m := gridOf(t, GridworldOptions{Width: size[0], Height: size[1]}, seed).maze
			must.That(t, m.width == size[0] && m.height == size[1] && len(m.open) == size[0]*size[1] && m.goal != 0 &&
				m.distance[m.goal] == 0, "%v, seed %d: %+v", size, seed, m)
			for at := range m.open {
				assert.That(t, int(m.distance[at]) < len(m.open), "%v, seed %d: cell %d is %d from the goal", size,
					seed, at, m.distance[at])
				for d := up; d < directions; d++ {
					to := m.beside(at, d)
					assert.That(t, (to >= 0 || !m.isOpen(at, d)) && (to < 0 ||
						m.isOpen(at, d) == m.isOpen(to, d.back())), "%v, seed %d: cell %d, %v", size, seed, at, d)
				}
			}
			if size[0] == 8 {
				shapes[fmt.Sprint(m.open)] = true
			}
		}
	}
	assert.That(t, len(shapes) == 20, "20 seeds gave %d mazes", len(shapes))
}

// TestSuggestionsLeadToTheGoal: an agent that follows the suggestions reaches the goal by the shortest way.
func TestSuggestionsLeadToTheGoal(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{Env: "gridworld", Gridworld: GridworldOptions{Width: 12, Height: 9}},
		host.Env{}))
	for seed := range 5 {
		first := s.reset(fmt.Sprintf(`{"env_name":"gridworld","seed":%d}`, seed))
		id := first.EpisodeID
		want := int(gridOf(t, GridworldOptions{Width: 12, Height: 9}, int64(seed)).maze.distance[0])
		total, steps := 0.0, 0
		for done := false; !done; steps++ {
			m := s.Call(protocol.TypeEnvPlanReq, about(id))
			o := s.step(id, m.Get("/suggested_actions/0/type"))
			done, total = o.Done, total+*o.Reward
			assert.That(t, !done || fmt.Sprint(o.State["position"]) == fmt.Sprint(o.State["goal"]),
				"it ended at %v, the goal is %v", o.State["position"], o.State["goal"])
		}
		assert.That(t, steps == want && total >= 0.999-0.01*float64(want-1) && total <= 1.001-0.01*float64(want-1),
			"seed %d: %d steps of %d, reward %g", seed, steps, want, total)
		s.Call(protocol.TypeEnvPlanReq, about(id)).Has(t, "/suggested_actions/0/type", "")
	}
}

// TestSlippery: with slippery, the agent slips to each side as often as the option says.
func TestSlippery(t *testing.T) {
	w := gridOf(t, GridworldOptions{Slippery: 0.3, Width: 3, Height: 3}, 4)
	for i := range w.maze.open { // a maze without inner walls
		w.maze.open[i] = 0
		for d := up; d < directions; d++ {
			if w.maze.beside(i, d) >= 0 {
				w.maze.open[i] |= 1 << d
			}
		}
	}
	w.maze.goal = -1
	went := map[int]int{}
	for range 10_000 {
		w.at = 4
		must.Get(w.Step(t.Context(), Action{Type: "up"}))(t)
		went[w.at]++
	}
	assert.That(t, went[1] >= 6_700 && went[1] <= 7_300 && went[3] >= 1_300 && went[5] >= 1_300 && went[7] == 0,
		"up led to %v", went)
}

func TestGridRender(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{Env: "gridworld", Gridworld: GridworldOptions{Width: 4, Height: 3}},
		host.Env{}))
	id := s.reset(`{"env_name":"gridworld","seed":7}`).EpisodeID
	for mode, text := range map[string]*regexp.Regexp{
		"text": regexp.MustCompile(`^┌─[─┬]{14}┐\n│ ● (?s:.*)★(?s:.*)┘\n$`),
		"ansi": regexp.MustCompile(`^(\+---){4}\+\n\| A (?s:.*)G(?s:.*)(\+---){4}\+\n$`),
	} {
		m := s.Call(protocol.TypeEnvRenderReq, fmt.Sprintf(`{"episode_id":%q,"mode":%q}`, id, mode))
		got := m.Get("/render/text")
		assert.That(t, m.Get("/render/mode") == mode && text.MatchString(got) && strings.Count(got, "\n") == 7,
			"%s:\n%s", mode, got)
	}
	for _, mode := range []string{"", `,"mode":"rgb_array"`, `,"mode":"hologram"`} {
		m := s.Call(protocol.TypeEnvRenderReq, fmt.Sprintf(`{"episode_id":%q%s}`, id, mode))
		raw, err := base64.StdEncoding.DecodeString(m.Get("/render/data"))
		must.OK(t, err)
		img, err := png.Decode(bytes.NewReader(raw))
		must.That(t, err == nil && m.Get("/render/mime") == "image/png", "%v: %.200s", err, m.Line)
		b := img.Bounds()
		assert.That(t, b.Dx() == 4*cellPixels+1 && b.Dy() == 3*cellPixels+1, "%v", b)
		red, _, blue, _ := img.At(cellPixels/2, cellPixels/2).RGBA()
		assert.That(t, blue>>8 == 0xd6 && red>>8 == 0x1f, "no agent in the first cell: %x %x", red, blue)
	}
}

// TestAMazeOfOld: the maze of a seed is the same in every build, so that what an agent learned with one build holds
// with the next.
func TestAMazeOfOld(t *testing.T) {
	w := gridOf(t, GridworldOptions{Width: 5, Height: 4}, 42)
	got := "\n" + w.draw(asciiLetters())
	assert.That(t, got == mazeOf42, "the maze of seed 42 is now%s", got)
}

// TestBrokenSavedMazes: a saved maze that is not valid is refused.
func TestBrokenSavedMazes(t *testing.T) {
	g := must.Get(newGridworld(GridworldOptions{}))(t)
	seed := int64(1)
	good := must.Get(gridOf(t, GridworldOptions{}, seed).Save())(t)
	must.Get(g.Restore(t.Context(), Reset{Seed: seed}, good))(t)
	for _, change := range [][2]string{
		{`"at":0`, `"at":64`},
		{`"at":0`, `"at":-1`},
		{`"width":8`, `"width":1000000`},
		{`"chance":"`, `"chance":"x`},
		{`{`, `[`},
	} {
		bad := strings.Replace(string(good), change[0], change[1], 1)
		must.That(t, bad != string(good), "%s has no %s", good, change[0])
		_, err := g.Restore(t.Context(), Reset{Seed: seed}, []byte(bad))
		assert.That(t, err != nil, "%s was taken", bad)
	}
}

const mazeOf42 = `
+---+---+---+---+---+
| A     |     G     |
+---+   +   +---+   +
|   |   |       |   |
+   +   +---+   +   +
|       |           |
+   +---+   +---+   +
|           |       |
+---+---+---+---+---+
`
