package env

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestBatchKeepsOrder: the results of a batch are in the order of its request, even if one episode is in it twice.
func TestBatchKeepsOrder(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{}, host.Env{}))
	var ids, actions []string
	for range 50 {
		id := s.begin("counter")
		ids, actions = append(ids, id, id), append(actions, `{"type":"inc"}`, `{"type":"dec"}`)
	}
	var resp protocol.EnvBatchStepResponse
	s.Call(protocol.TypeEnvBatchStepReq, batchFields(t, ids, actions)).Decode(t, &resp)
	must.That(t, len(resp.Results) == len(ids), "%d results", len(resp.Results))
	for i, r := range resp.Results {
		assert.That(t, r.Type == protocol.TypeEnvStepResp && r.Obs.EpisodeID == ids[i] && r.Obs.StepNum == i%2+1 &&
			r.Obs.State["count"] == float64(1-i%2), "result %d: %+v", i, r.Obs)
	}
	exp := s.experiences(`{"limit":100}`)
	for i, x := range exp {
		assert.That(t, x["episode_id"] == ids[i] && x["step"] == float64(i%2+1), "experience %d: %v", i, x)
	}
}

func batchFields(t testing.TB, ids, actions []string) string {
	t.Helper()
	list := must.Get(json.Marshal(ids))(t)
	return fmt.Sprintf(`{"episode_ids":%s,"actions":[%s]}`, list, strings.Join(actions, ","))
}

// TestBatchTakesNoStepBeforeItIsChecked: errors of a batch are found before its first step.
func TestBatchTakesNoStepBeforeItIsChecked(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{MaxSteps: 1}, host.Env{}))
	ended := s.begin("counter")
	s.step(ended, "noop")
	open := s.begin("counter")
	inc := `{"type":"inc"}`
	for _, tc := range []struct {
		ids, actions []string
		code         protocol.ErrorCode
		say          string
	}{
		{[]string{open, "x"}, []string{inc, inc}, protocol.CodeUnknownEpisode, "x"},
		{[]string{open, open}, []string{inc, `{"type":"jump"}`}, protocol.CodeUnknownAction, "/actions/1"},
		{[]string{open, ended}, []string{inc, inc}, protocol.CodeEpisodeDone, "no step of the batch was taken"},
		{[]string{open, open}, []string{inc}, protocol.CodeSchemaViolation, "1 entry for 2"},
	} {
		s.Refused(protocol.TypeEnvBatchStepReq, batchFields(t, tc.ids, tc.actions), tc.code, tc.say)
	}
	// This error only shows during the steps: the first step ends the episode.
	m := s.Refused(protocol.TypeEnvBatchStepReq, batchFields(t, []string{open, open}, []string{inc, inc}),
		protocol.CodeEpisodeDone, "step 1 of the batch", "took 1 of 2 steps")
	assert.That(t, m.Get("/detail/failed/0") == "1", "failed: %s", m.Line)
	exp := s.experiences(about(open))
	assert.That(t, len(exp) == 1, "%d steps were taken", len(exp))
	m = s.Call(protocol.TypeEnvBatchStepReq, `{"episode_ids":[],"actions":[]}`)
	assert.That(t, strings.Contains(string(m.Line), `"results":[]`), "an empty batch: %s", m.Line)
}

// TestBatchStepsSideBySide: the slow steps of a batch run in parallel.
func TestBatchStepsSideBySide(t *testing.T) {
	r := newRoom(t, Options{}, host.Env{})
	s := newStage(t, r.plugin)
	var ids, actions []string
	for range 5 {
		ids, actions = append(ids, s.begin("room")), append(actions, `{"type":"wait"}`)
	}
	ids, actions = append(ids, ids[0]), append(actions, `{"type":"say","text":"after"}`)
	id := s.Go(protocol.TypeEnvBatchStepReq, batchFields(t, ids, actions))
	hosttest.Eventually(t, "five that wait", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.waiting == 5
	})
	close(r.gate)
	var resp protocol.EnvBatchStepResponse
	s.Answer(id).Decode(t, &resp)
	last := resp.Results[5].Obs
	assert.That(t, last.StepNum == 2 && fmt.Sprint(last.State["heard"]) == "[waited after]",
		"the second step of the first episode: %+v", last)
}

// TestPipelinedStepsKeepTheirOrder: steps of one episode take effect in the order in which they were sent, however many
// wait. Steps of another episode do not wait for them.
func TestPipelinedStepsKeepTheirOrder(t *testing.T) {
	r := newRoom(t, Options{}, host.Env{})
	s := newStage(t, r.plugin)
	slow, quick := s.begin("room"), s.begin("room")
	first := s.Go(protocol.TypeEnvStepReq, stepFields(slow, `{"type":"wait"}`))
	var rest []string
	for i := range 4 {
		rest = append(rest, s.Go(protocol.TypeEnvStepReq, stepFields(slow,
			fmt.Sprintf(`{"type":"say","text":"%d"}`, i))))
	}
	batch := s.Go(protocol.TypeEnvBatchStepReq, batchFields(t, []string{slow}, []string{`{"type":"say","text":"b"}`}))
	look := s.Go(protocol.TypeEnvObserveReq, about(slow))
	o := s.step(quick, "say")
	assert.That(t, o.StepNum == 1, "the other episode: %+v", o)
	n := len(s.Answers(rest[0]))
	assert.That(t, n == 0, "a step overtook the one before it")
	close(r.gate)
	for i, id := range append([]string{first}, rest...) {
		s.Answer(id).Has(t, "/obs/step_num", fmt.Sprint(i+1))
	}
	s.Answer(batch).Has(t, "/results/0/obs/step_num", "6")
	s.Answer(look).Has(t, "/obs/state/heard/5", "b")
}

// TestConcurrentSteps: no step is lost when several clients take single steps and batches of many episodes at once.
func TestConcurrentSteps(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{}, host.Env{Store: storeAt(t, t.TempDir())}))
	const episodes, sides = 10, 6
	var ids []string
	for range episodes {
		ids = append(ids, s.begin("counter"))
	}
	var all sync.WaitGroup
	for range sides {
		all.Go(func() {
			for _, id := range ids {
				s.step(id, "noop")
				s.Call(protocol.TypeEnvObserveReq, about(id))
				s.Call(protocol.TypeEnvBatchStepReq, batchFields(t, ids,
					slices.Repeat([]string{`{"type":"noop"}`}, len(ids))))
			}
		})
	}
	all.Wait()
	const each = sides + sides*episodes
	for _, id := range ids {
		m := s.Call(protocol.TypeEnvObserveReq, about(id))
		assert.That(t, m.Get("/obs/step_num") == fmt.Sprint(each), "not %d steps: %s", each, m.Line)
	}
	exp := s.experiences(`{"limit":100000}`)
	assert.That(t, len(exp) == episodes*each, "%d experiences of %d", len(exp), episodes*each)
}

// TestStepsThatFail: each way in which a world can fail in a step has its error code, and either ends the episode or
// lets it go on.
func TestStepsThatFail(t *testing.T) {
	for _, tc := range []struct {
		action string
		code   protocol.ErrorCode
		say    string
		ended  string // part of the error of the next step; "" = the episode goes on
	}{
		{"fail", protocol.CodeRuntimeError, "the roof fell in", "the roof fell in"},
		{"nan", protocol.CodeRuntimeError, "not a number", "not a number"},
		{"panic", protocol.CodeRuntimeError, "panicked", "panicked"},
		{"deny", protocol.CodeUnknownAction, "not now", ""},
	} {
		t.Run(tc.action, func(t *testing.T) {
			s := newStage(t, newRoom(t, Options{}, host.Env{}).plugin)
			id := s.begin("room")
			s.step(id, "say")
			s.Refused(protocol.TypeEnvStepReq, stepFields(id, fmt.Sprintf(`{"type":%q}`, tc.action)), tc.code, tc.say)
			s.Call(protocol.TypeEnvObserveReq, about(id)).Has(t, "/obs/step_num", "1", "/obs/done",
				fmt.Sprint(tc.ended != ""))
			if tc.ended == "" {
				o := s.step(id, "say")
				assert.That(t, o.StepNum == 2, "after it: %+v", o)
				return
			}
			s.Refused(protocol.TypeEnvStepReq, stepFields(id, `{"type":"say"}`), protocol.CodeEpisodeDone, tc.ended)
			s.Call(protocol.TypeEnvCloseReq, about(id)).Has(t, "/closed", "true")
		})
	}
}

func TestResetThatIsDenied(t *testing.T) {
	r := newRoom(t, Options{MaxEpisodes: 1}, host.Env{})
	r.deny = true
	s := newStage(t, r.plugin)
	for range 3 { // a refused reset takes no place
		s.Refused(protocol.TypeEnvResetReq, `{"env_name":"room"}`, protocol.CodeResetDenied, "the room is closed")
	}
	r.deny = false
	s.begin("room")
}

// counts is a plugin that records calls.
type counts struct {
	mu  sync.Mutex
	all []host.CallOutcome
}

func (c *counts) Info() host.PluginInfo {
	return host.PluginInfo{Name: "counts", Capability: protocol.CapTest}
}
func (*counts) Routes() []host.Route        { return nil }
func (*counts) Close(context.Context) error { return nil }

func (c *counts) CountCall(r host.CallOutcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, r)
}

// TestStepsAreCounted: each step is recorded for learning, once.
func TestStepsAreCounted(t *testing.T) {
	c := &counts{}
	s := newStage(t, newRoom(t, Options{}, host.Env{}).plugin, c)
	id := s.begin("room")
	s.step(id, "say")
	s.Call(protocol.TypeEnvBatchStepReq, batchFields(t, []string{id, id}, []string{
		`{"type":"say"}`,
		`{"type":"fail"}`,
	}))
	s.Call(protocol.TypeEnvStepReq, stepFields(id, `{"type":"say"}`)) // refused: the episode has ended
	s.Call(protocol.TypeEnvStepReq, stepFields(id, `{"type":"jump"}`))
	s.Call(protocol.TypeEnvObserveReq, about(id))
	c.mu.Lock()
	defer c.mu.Unlock()
	must.That(t, len(c.all) == 3, "%d records: %+v", len(c.all), c.all)
	for i, r := range c.all {
		good := i < 2
		assert.That(t, r.Kind == host.KindEnv && r.Component == "room" && r.Success == good && r.Duration > 0 &&
			good == (r.Reward != nil) && (!good || *r.Reward == float64(i+1)) && r.Correlation != "", "record %d: %+v",
			i, r)
	}
}

// TestIdleEpisodesAreReaped: an idle episode is closed, and a later request for it is told why. An episode that is used
// stays open.
func TestIdleEpisodesAreReaped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t, Options{IdleTimeout: 60, MaxEpisodes: 2}, host.Env{})
		s := &stage{hosttest.Start(t, host.Options{Plugins: []host.Plugin{r.plugin}, MaxParallel: 4}), t}
		s.Handshake(protocol.CapEnv)
		idle, busy := s.begin("room"), s.begin("room")
		for range 10 {
			time.Sleep(20 * time.Second)
			s.Call(protocol.TypeEnvObserveReq, about(busy))
		}
		n := r.count(&r.closed)
		assert.That(t, n == 1 && r.closed[0] == idle, "closed: %v", r.closed)
		s.Refused(protocol.TypeEnvStepReq, stepFields(idle, `{"type":"say"}`), protocol.CodeUnknownEpisode, "idle",
			"1m0s")
		slow := s.Go(protocol.TypeEnvStepReq, stepFields(busy, `{"type":"wait"}`))
		time.Sleep(200 * time.Second) // an episode is not idle while it takes a long step
		if s.begin("room"); r.count(&r.closed) != 1 {
			t.Error("the episode was closed in its step")
		}
		close(r.gate)
		m := s.Answer(slow)
		assert.That(t, m.Code == "", "the slow step: %s", m.Line)
		time.Sleep(200 * time.Second)
		assert.Equal(t, r.count(&r.closed), 3, "closed in the end")
		s.Close()
	})
}

// TestExperiencesInMemoryAreBounded: without a store, memory keeps the newest experiences, and no state that is too
// long.
func TestExperiencesInMemoryAreBounded(t *testing.T) {
	for most, want := range map[int]int{100: 100, 100_000: recentExperiences} {
		s, batches := newStage(t, pluginOf(t, Options{MaxExperiences: most}, host.Env{})), want/1000+1
		ids := slices.Repeat([]string{s.begin("counter")}, 1000)
		for range batches {
			s.Call(protocol.TypeEnvBatchStepReq, batchFields(t, ids, slices.Repeat([]string{`{"type":"noop"}`}, 1000)))
		}
		exp := s.experiences(`{"limit":1000000}`)
		assert.That(t, len(exp) == want && exp[want-1]["step"] == float64(1000*batches) &&
			exp[0]["step"] == float64(1000*batches+1-want), "of %d: %d kept", most, len(exp))
	}
	const size = 1 << 20 // bytes of an action
	r := newRoom(t, Options{}, host.Env{})
	close(r.gate)
	s := newStage(t, r.plugin)
	id, long := s.begin("room"), strings.Repeat("x", size)
	s.Call(protocol.TypeEnvStepReq, stepFields(id, `{"action_type":"say","payload":{"text":"`+long+`"}}`))
	again := move{taken: true, action: Action{Whole: must.Get(protocol.ParseObject([]byte(`{"text":"` + long +
		`"}`)))(t)}, seen: observation{state: []byte(`"` + long + `"`)}}
	for range recentBytes/size + 5 {
		r.plugin.recent.add([]move{again})
	}
	exp, _ := r.plugin.recent.last("", 1000)
	assert.That(t, len(exp) >= 1 && len(exp) < recentBytes/size, "%d experiences of %d bytes", len(exp), size)
	assert.That(t, strings.Contains(string(exp[0].raw), `"next_state":{"omitted_bytes":`),
		"a state that is too long is there")
}

// TestActions: an action may have either spelling of its type, and is checked against a schema if the environment has
// one.
func TestActions(t *testing.T) {
	for _, tc := range []struct {
		env, action string
		code        protocol.ErrorCode
		path        string // path of the first problem; "" = no path
		say         string
	}{
		{env: "counter", action: `{"type":"inc"}`},
		{env: "counter", action: ` { "type" : "i\u006ec" } `},
		{env: "counter", action: `{"action_type":"inc"}`},
		{env: "counter", action: `{"action_type":"inc","payload":{"x":[1]}}`},
		{env: "counter", action: `{"type":"inc","action_type":"inc"}`},
		{env: "counter", action: `{"type":"inc","note":"more than asked for"}`},
		{"counter", `{"type":"jump"}`, protocol.CodeUnknownAction, "", "inc, dec, noop"},
		{"counter", `{"action_type":"jump"}`, protocol.CodeUnknownAction, "", `"jump`},
		{"counter", `{}`, protocol.CodeUnknownAction, "", `no \"type\"`},
		{"counter", `{"payload":{}}`, protocol.CodeUnknownAction, "", "inc, dec, noop"},
		{"counter", `{"type":3}`, protocol.CodeSchemaViolation, "/action/type", "string"},
		{"counter", `{"type":null}`, protocol.CodeSchemaViolation, "/action/type", "string"},
		{
			"counter", `{"type":"inc","action_type":"dec"}`, protocol.CodeSchemaViolation, "/action/action_type",
			"other spelling",
		},
		{"counter", `{"type":"inc","payload":[]}`, protocol.CodeSchemaViolation, "/action/payload", "object"},
		{"counter", `"inc"`, protocol.CodeSchemaViolation, "/action", "object"},
		{env: "room", action: `{"type":"say","text":"hello"}`},
		{env: "room", action: `{"action_type":"say","payload":{"text":"hello, all of you"}}`},
		{"room", `{"type":"jump"}`, protocol.CodeUnknownAction, "", "say, wait, push"},
		{"room", `{"text":"hello"}`, protocol.CodeUnknownAction, "", "say, wait, push"},
		{"room", `{"type":"say","text":"longer than ten"}`, protocol.CodeSchemaViolation, "/action/text", "maxLength"},
		{"room", `{"type":"push","n":0}`, protocol.CodeSchemaViolation, "/action/n", "minimum"},
		{"room", `{"type":"push","n":1.5}`, protocol.CodeSchemaViolation, "/action/n", "integer"},
		{"room", `{"type":"say","a/b~c":1}`, protocol.CodeSchemaViolation, "/action/a~1b~0c", "is not known"},
		{"room", `{"type":"say","payload":3}`, protocol.CodeSchemaViolation, "/action/payload", "object"},
		{"room", `{"type":"say","payload":{"text":3}}`, protocol.CodeSchemaViolation, "/action/payload/text", "string"},
	} {
		t.Run(tc.env+tc.action, func(t *testing.T) {
			s := newStage(t, pluginOf(t, Options{}, host.Env{}), newRoom(t, Options{}, host.Env{}).plugin)
			id := s.begin(tc.env)
			for typ, fields := range map[protocol.Type]string{
				protocol.TypeEnvStepReq:      stepFields(id, tc.action),
				protocol.TypeEnvBatchStepReq: fmt.Sprintf(`{"episode_ids":[%q],"actions":[%s]}`, id, tc.action),
			} {
				m := s.Call(typ, fields)
				path := tc.path
				if typ == protocol.TypeEnvBatchStepReq {
					path = strings.Replace(path, "/action", "/actions/0", 1)
				}
				assert.That(t, m.Code == tc.code && m.Problem() == path && strings.Contains(string(m.Line), tc.say),
					"%s, want %s at %q saying %q", m.Line, tc.code, path, tc.say)
			}
		})
	}
}

// TestWhatAWorldGets: a world gets the type and the payload of an action, however the action is spelled.
func TestWhatAWorldGets(t *testing.T) {
	for _, tc := range []struct {
		types                 []string
		action, kind, payload string
	}{
		{[]string{"go"}, `{"type":"go"}`, "go", `{}`},
		{[]string{"go"}, `{"type":"go","payload":{"a":1}}`, "go", `{"a":1}`},
		{[]string{"go"}, `{"action_type":"go","payload":{}}`, "go", `{}`},
		{[]string{"go"}, `{"x":[1,2],"type":"go","\u0079":"\n"}`, "go", `{"x":[1,2],"y":"\n"}`},
		{nil, `{"force":0.5}`, "", `{"force":0.5}`},
		{nil, `{"type":"go","force":0.5}`, "", `{"type":"go","force":0.5}`},
		{nil, `{"payload":{"force":0.5}}`, "", `{"force":0.5}`},
		{nil, `{}`, "", `{}`},
	} {
		s := &actionSpace{types: tc.types}
		obj := must.Get(protocol.ParseObject([]byte(tc.action)))(t)
		a, wrong := s.parse(obj, -1)
		assert.That(t, wrong == nil && a.Type == tc.kind && string(a.Payload.Raw()) == tc.payload &&
			string(a.Whole.Raw()) == tc.action, "%s: %q %s %s %+v", tc.action, a.Type, a.Payload.Raw(), a.Whole.Raw(),
			wrong)
	}
}

// TestAutoreset: with autoreset, a batch begins new episodes in place of those that have ended, at once or with the
// next action.
func TestAutoreset(t *testing.T) {
	for _, name := range []string{"counter", "room"} {
		for _, mode := range []string{"next_step", "same_step"} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				plugin := pluginOf(t, Options{}, host.Env{Store: storeAt(t, t.TempDir())})
				act, most := `{"type":"inc"}`, 5
				if name == "room" {
					r := newRoom(t, Options{MaxSteps: 2, MaxEpisodes: 2}, host.Env{})
					r.places = 2
					plugin, act, most = r.plugin, `{"type":"say","text":"a"}`, 2
				}
				testAutoreset(t, newStage(t, plugin), name, mode, act, most)
			})
		}
	}
}

func testAutoreset(t *testing.T, s *stage, name, mode, act string, most int) {
	first := s.reset(fmt.Sprintf(`{"env_name":%q,"seed":7}`, name))
	ids, ends, seeds := []string{first.EpisodeID, s.begin(name)}, 0, map[any]bool{}
	for range 4 * most {
		before := ids[0]
		var resp protocol.EnvBatchStepResponse
		m := s.Call(protocol.TypeEnvBatchStepReq, fmt.Sprintf(`{"episode_ids":[%q,%q],"actions":[%s,%s],"autoreset":%q}`, ids[0], ids[1], act, act, mode))
		m.Decode(t, &resp)
		must.That(t, len(resp.Results) == 2, "%s", m.Line)
		o := resp.Results[0].Obs
		ids[0], ids[1] = o.EpisodeID, resp.Results[1].Obs.EpisodeID
		final, _ := o.Metadata["final_obs"].(map[string]any)
		switch ended := o.Done || o.Truncated; {
		case before == ids[0] && (o.Metadata["autoreset"] != nil || ended != (o.StepNum == most)):
			t.Fatalf("%s", m.Line)
		case before == ids[0]:
			continue
		case o.StepNum != 0 || o.Metadata["ended_episode_id"] != before || seeds[o.Metadata["seed"]]:
			t.Fatalf("another episode began as %s", m.Line)
		case mode == "next_step" && (ended || final != nil || *o.Reward != 0):
			t.Fatalf("%s", m.Line)
		case mode == "same_step" && (!ended || final["step_num"] != float64(most) || final["episode_id"] != before ||
			*o.Reward != final["reward"]):
			t.Fatalf("%s", m.Line)
		}
		seeds[o.Metadata["seed"]] = true
		ends++
		s.Refused(protocol.TypeEnvObserveReq, about(before), protocol.CodeUnknownEpisode)
	}
	want := map[string]int{"next_step": 4 * most / (most + 1), "same_step": 4}[mode]
	assert.That(t, ends == want, "%d episodes ended, should be %d", ends, want)
	exp := s.experiences(about(first.EpisodeID))
	assert.That(t, len(exp) == most && exp[most-1]["step"] == float64(most), "the experiences of the first episode: %v",
		exp)
	twice := fmt.Sprintf(`{"episode_ids":[%[1]q,%[1]q],"actions":[%[2]s,%[2]s],"autoreset":"next_step"}`, ids[0], act)
	s.Refused(protocol.TypeEnvBatchStepReq, twice, protocol.CodeSchemaViolation, "/episode_ids/1")
	s.Refused(protocol.TypeEnvBatchStepReq, `{"episode_ids":[],"actions":[],"autoreset":"always"}`,
		protocol.CodeSchemaViolation, "/autoreset")
}

// TestAutoresetThatIsDenied: the reward of a last step is not lost if the automatic reset is refused.
func TestAutoresetThatIsDenied(t *testing.T) {
	r := newRoom(t, Options{MaxSteps: 1}, host.Env{})
	s := newStage(t, r.plugin)
	batch := fmt.Sprintf(`{"episode_ids":[%q],"actions":[{"type":"say"}],"autoreset":"same_step"}`, s.begin("room"))
	r.deny = true
	var resp protocol.EnvBatchStepResponse
	m := s.Call(protocol.TypeEnvBatchStepReq, batch)
	m.Decode(t, &resp)
	assert.That(t, len(resp.Results) == 1 && *resp.Results[0].Obs.Reward == 1 && resp.Results[0].Obs.Truncated &&
		resp.Results[0].Obs.Metadata["autoreset"] == false && resp.Results[0].Obs.Metadata["heard"] == 1.0, "%s",
		m.Line)
	s.Refused(protocol.TypeEnvBatchStepReq, batch, protocol.CodeUnknownEpisode)
}

// TestResetOptions: the maze and the slips have seeds of their own, and unknown options are refused.
func TestResetOptions(t *testing.T) {
	s := newStage(t, pluginOf(t, Options{Env: "gridworld", Gridworld: GridworldOptions{Slippery: 0.5}}, host.Env{}))
	play := func(options string) (maze, way string) {
		o := s.reset(`{"env_name":"gridworld","seed":5,"options":` + options + `}`)
		maze = string(s.Call(protocol.TypeEnvRenderReq, fmt.Sprintf(`{"episode_id":%q,"mode":"text"}`,
			o.EpisodeID)).Get("/render/text"))
		for range 30 {
			for _, d := range []string{"right", "down"} {
				if o = s.step(o.EpisodeID, d); o.Done {
					return maze, way
				}
				way += fmt.Sprint(o.State["position"])
			}
		}
		return maze, way
	}
	plain, walk := play(`{}`)
	m, w := play(`{"layout_seed":5}`)
	assert.That(t, m == plain && w != walk, "layout_seed as the seed made another maze, or the slips that its own "+
		"numbers make")
	one, first := play(`{"layout_seed":9,"dynamics_seed":1}`)
	two, second := play(`{"layout_seed":9,"dynamics_seed":2}`)
	assert.That(t, one == two && first != second, "another dynamics_seed changed the maze, or no slip")
	if two, second := play(`{"layout_seed":9.0,"dynamics_seed":1}`); one != two || first != second || one == plain {
		t.Error("equal seeds gave another episode, or layout_seed changed nothing")
	}
	for options, want := range map[string]string{
		`{"layout_sed":1}`:    "layout_seed",
		`{"layout_seed":1.5}`: "/options/layout_seed", `{"dynamics_seed":"a"}`: "/options/dynamics_seed",
		`{"layout_seed":1e300}`: "/options/layout_seed",
	} {
		s.Refused(protocol.TypeEnvResetReq, `{"env_name":"gridworld","options":`+options+`}`,
			protocol.CodeSchemaViolation, want)
	}
	s.Call(protocol.TypeEnvSpaceReq, `{"env_name":"gridworld"}`).Has(t, "/reset_options/properties/layout_seed/type",
		"integer")
	s = newStage(t, pluginOf(t, Options{}, host.Env{}))
	s.Refused(protocol.TypeEnvResetReq, `{"env_name":"counter","options":{"goal":3}}`, protocol.CodeSchemaViolation,
		"/options/goal")
}
