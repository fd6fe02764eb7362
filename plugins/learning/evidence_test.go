package learning

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"pgregory.net/rapid"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// at is the time of the tests' clocks.
var at = time.Unix(1_800_000_000, 0)

// TestExperiencesAddUp: each experience_id counts once, with its last values, for the component that acted, whatever
// experiences come, in whatever order and however often.
func TestExperiencesAddUp(t *testing.T) {
	s := stores.Memory(t, Part())
	defer s.Close()
	property.Check(t, func(rt *rapid.T) {
		must.OK(rt, s.Write(t.Context(), func(tx *store.Tx) error { return Part().Clear(t.Context(), tx) }))
		opts := DefaultOptions()
		opts.MaxExperiences = rapid.IntRange(1, 12).Draw(rt, "limit")
		p := newPlugin(t, s, opts, host.Env{Now: func() time.Time { return at }})
		kept, order := map[string]protocol.Experience{}, []string{}
		for range rapid.IntRange(1, 6).Draw(rt, "batches") {
			req := &protocol.LearnExperienceRequest{}
			for range rapid.IntRange(1, 6).Draw(rt, "size") {
				x := protocol.Experience{
					ExperienceID: rapid.StringMatching("[a-h]").Draw(rt, "id"),
					Reward:       rapid.SampledFrom([]float64{-1e9, -1, 0, 0.25, 7, 1e100, 1e101}).Draw(rt, "reward"),
					TS:           1_800_000_000 + rapid.Float64Range(-1e5, 100).Draw(rt, "age"),
				}
				must.OK(rt, json.Unmarshal([]byte(rapid.SampledFrom([]string{
					`{}`, `{"tool_name":"x"}`,
					`{"component_name":"y","input":{}}`, `{"model":7}`,
				}).Draw(rt, "action")), &x.Action))
				if _, there := kept[x.ExperienceID]; !there {
					order = append(order, x.ExperienceID)
				}
				kept[x.ExperienceID] = x
				req.Experiences = append(req.Experiences, x)
			}
			must.Get(p.experience(t.Context(), req, nil))(rt)
			for len(order) > opts.MaxExperiences {
				delete(kept, order[0])
				order = order[1:]
			}
			checkExperiences(rt, s, kept)
		}
	})
}

// checkExperiences checks the store against the reference.
func checkExperiences(rt *rapid.T, s store.Store, kept map[string]protocol.Experience) {
	want := map[string]*Component{}
	for _, x := range kept {
		of := actor(&x)
		if of.name == "" || math.Abs(x.Reward) > maxReward {
			continue
		}
		c := want[of.name]
		if c == nil {
			c = &Component{Kind: of.kind}
			want[of.name] = c
		}
		c.Experiences, c.toldSum = c.Experiences+1, c.toldSum+x.Reward
		c.scale = scale{min(c.scale.low, x.Reward), max(c.scale.high, x.Reward)}
	}
	var all []*Component
	must.OK(rt, s.Read(rt.Context(), func(tx *store.Tx) (err error) { all, err = components(tx, ""); return err }))
	if len(all) != len(want) {
		rt.Fatalf("there are %d components, should be %d", len(all), len(want))
	}
	for _, c := range all {
		x := want[c.Name]
		if x == nil || c.Kind != x.Kind || c.Experiences != x.Experiences || c.scale != x.scale ||
			math.Abs(c.toldSum-x.toldSum) > 1e-6*max(1, float64(x.Experiences)*max(-x.scale.low, x.scale.high)) {
			rt.Fatalf("%s has %+v, should have %+v", c.Name, c, x)
		}
	}
}

// TestCallsOfAllHostsAddUp: hosts on one store add up the same sums, whatever the order in which their calls reach the
// store, and whatever their clocks say.
func TestCallsOfAllHostsAddUp(t *testing.T) {
	s := stores.Memory(t, Part())
	defer s.Close()
	property.Check(t, func(rt *rapid.T) {
		must.OK(rt, s.Write(t.Context(), func(tx *store.Tx) error { return Part().Clear(t.Context(), tx) }))
		var hosts [2]*Plugin
		for i, ahead := range []time.Duration{0, 20 * time.Minute} {
			hosts[i] = newPlugin(t, s, DefaultOptions(), host.Env{Now: func() time.Time { return at.Add(ahead) }})
		}
		var want sums
		for range rapid.IntRange(1, 10).Draw(rt, "calls") {
			ended := at.Add(-time.Duration(rapid.IntRange(-30, 600).Draw(rt, "minutes")) * time.Minute)
			ok, reward := rapid.Bool().Draw(rt, "ok"), rapid.Float64Range(-5, 5).Draw(rt, "reward")
			p := rapid.SampledFrom(hosts[:]).Draw(rt, "host")
			p.CountCall(host.CallOutcome{
				Kind: host.KindEnv, Component: "x", Success: ok, Ended: ended,
				Reward: &reward,
			})
			must.OK(rt, p.flush(t.Context()))
			one := sums{Calls: 1, Rewards: 1, rewardSum: reward}
			if ok {
				one.Successes = 1
			}
			want = want.plus(one)
		}
		var all []*Component
		must.OK(rt, s.Read(t.Context(), func(tx *store.Tx) (err error) { all, err = components(tx, "x"); return err }))
		got := all[0].sums
		if math.Abs(got.rewardSum-want.rewardSum) > 1e-9 {
			rt.Fatalf("there are %+v, should be %+v", got, want)
		}
		if got.rewardSum = want.rewardSum; got != want {
			rt.Fatalf("there are %+v, should be %+v", got, want)
		}
	})
}

// TestOldAndFaintEvidence: old evidence counts like new evidence, and evidence that is almost zero counts, too.
func TestOldAndFaintEvidence(t *testing.T) {
	now := at
	s := stageWith(t, newFile(t), DefaultOptions(), host.Env{Now: func() time.Time { return now }})
	past := func(name string, good bool, times int) {
		for range times {
			s.plugin.CountCall(host.CallOutcome{Kind: host.KindWorker, Component: name, Success: good, Ended: now})
		}
		score := map[bool]float64{true: 1, false: -1}[good]
		s.rate(turn("", name, score, 1, ""))
		s.ask(protocol.TypeLearnExperienceReq, fmt.Sprintf(`{"experiences":[{"action":{"worker":%q},"reward":%g}]}`,
			name, score), &struct{}{})
	}
	past("old", true, 50)
	past("new", false, 40)
	now = now.Add(20 * 365 * 24 * time.Hour)
	past("old", false, 9)
	past("new", true, 9)
	weights, _ := s.adapt("", "softmax")
	assert.That(t, weights["old"] > 1, "the weights are %v", weights)
	s.rate(turn("", "new", 5e-324, 1e-300, "")) // products of these numbers are rounded to 0
	s.ask(protocol.TypeLearnExperienceReq, `{"experiences":[{"action":{"worker":"new"},"reward":-5e-324}]}`,
		&struct{}{})
	if r := s.one("new"); r.Calls != 49 || r.Feedbacks != 3 || math.Abs(r.Score) > 1e-9 {
		t.Errorf("the record is %+v", r)
	}
}

// TestEvidenceOfOlderBuilds: a store of the previous version keeps its content, and that counts, even if it comes as an
// export.
func TestEvidenceOfOlderBuilds(t *testing.T) {
	path := newFile(t)
	older := stores.Older(t, Part(), 2)
	s := stores.Open(t, path, older)
	must.OK(t, s.Write(t.Context(), func(tx *store.Tx) error {
		for _, q := range []string{
			"INSERT INTO learning_components (kind, name, calls, successes, last_called, rewards, reward_mean, " +
				"reward_m2, feedbacks, score_sum, score_weight) VALUES ('env', 'grid', 4, 4, 1800000000000000, 4, " +
				"0.5, 1, 1, 500000000, 1000000000), ('env', 'maze', 4, 3, 1700000000000000, 0, 0, 0, 0, 0, 0)",
			`INSERT INTO learning_feedback (id, component, score, confidence, size, record) VALUES ('f', 1, 0.5, 1, 10, '{"feedback_id":"f","ts":1800000000.5}')`,
			`INSERT INTO learning_experiences (id, size, record) VALUES ('x', 10, '{"experience_id":"x","action":{"component_name":"maze"},"reward":2,"ts":1700000000}'), ('y', 10, '` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `')`,
			"INSERT INTO learning_totals VALUES ('feedback', 1, 10), ('experiences', 2, 20)",
		} {
			if _, err := tx.Exec(q); err != nil {
				return err
			}
		}
		return nil
	}), s.Close())
	opts := DefaultOptions()
	check := func(s *stage) {
		t.Helper()
		must.OK(t, s.store.Read(t.Context(), func(tx *store.Tx) error {
			all, err := components(tx, "")
			if len(all) != 2 {
				return fmt.Errorf("there are %d, %w", len(all), err)
			}
			grid, maze := all[0], all[1]
			if grid.Calls != 4 || grid.Rewards != 4 || grid.rewardSum != 2 || grid.scale != (scale{-0.5, 1.5}) ||
				!near(grid.Score, 0.5) || !near(grid.ScoreWeight, 1) {
				t.Errorf("of the one there is %+v", grid)
			}
			assert.That(t, maze.Calls == 4 && maze.Experiences == 1 && maze.ExperienceMean == 2 && maze.scale.high == 2,
				"of the other there is %+v", maze)
			return err
		}))
	}
	upgraded := newStage(t, path, opts)
	check(upgraded)
	other := newStage(t, newFile(t), opts)
	must.OK(t, imported(t, other.store, exportOf(`{"kind":"learning.component","record":{"kind":"env","component":"grid","calls":4,"successes":4,"duration_ns":0,"last_called":1800000000,"rewards":4,"reward_mean":0.5,"reward_m2":1,"durations":""}}
{"kind":"learning.component","record":{"kind":"env","component":"maze","calls":4,"successes":3,"duration_ns":0,"last_called":1700000000,"rewards":0,"reward_mean":0,"reward_m2":0,"durations":""}}
{"kind":"learning.feedback","record":{"kind":"env","component":"grid","feedback":{"feedback_id":"f","rated_turn":null,"polarity":"positive","score":0.5,"ts":1800000000.5}}}
{"kind":"learning.experience","record":{"experience_id":"x","action":{"component_name":"maze"},"reward":2,"ts":1700000000}}`), store.Merge))
	check(other)
	again := newStage(t, newFile(t), opts)
	must.OK(t, imported(t, again.store, exported(t, other.store), store.Replace))
	check(again)
	component := `{"kind":"learning.component","record":{"kind":"env","component":"grid","calls":4,"successes":4,"duration_ns":0,` +
		`"last_called":1800000000,"rewards":4,"reward_mean":0.5,"reward_m2":1,"durations":"","reward_min":%s,"reward_max":1.5,` +
		`"aged_calls":0.1,"aged_successes":0.1,"aged_rewards":0.1,"aged_reward_sum":0.05,"aged_at":1800000000}}`
	take := func(least string) error {
		return imported(t, again.store, exportOf(fmt.Sprintf(component, least)), store.Merge)
	}
	must.OK(t, take("-0.5")) // from a build with a half-life, whose aged sums have no effect any more
	check(again)
	if err := take("2"); err == nil || !strings.Contains(err.Error(), "bounds of the rewards") {
		t.Errorf("a smallest reward above the greatest: %v", err)
	}
}

// machines is a plugin with tools of which only good succeeds. Tools whose names begin with wait wait until gate is
// closed.
type machines struct {
	*tools.Set
	begun chan string
	gate  chan struct{}
}

func newMachines(t *testing.T, names ...string) *machines {
	m := &machines{
		Set: tools.NewSet(tools.SetOptions{Name: "machines"}), begun: make(chan string, 16),
		gate: make(chan struct{}),
	}
	var all []tools.Tool
	for _, name := range names {
		all = append(all, tools.Tool{
			Def: protocol.ToolDefinition{Name: name, Version: "1.0.0"},
			Call: func(ctx context.Context, _ protocol.Object, _ host.Emitter) (*tools.Outcome, error) {
				if strings.HasPrefix(name, "wait") {
					m.begun <- name
					<-m.gate
				}
				return &tools.Outcome{Data: name, Failed: name != "good", Failure: "bad luck"}, nil
			},
		})
	}
	must.OK(t, m.Replace(all))
	return m
}

func (m *machines) Info() host.PluginInfo {
	return host.PluginInfo{Name: "machines", Capability: protocol.CapTools}
}

// play returns a host on a store with a group of tools, and the plugin of these tools.
func play(t *testing.T, path string, opts Options, names ...string) (*hosttest.Pair, *machines) {
	m := newMachines(t, names...)
	h := hosttest.New(t, host.Options{
		Plugins: []host.Plugin{newPlugin(t, openStore(t, path), opts, host.Env{}), m},
		Groups:  host.Groups{"win": names}, MaxParallel: 16,
	})
	h.Handshake(protocol.CapTools, protocol.CapLearning)
	return h, m
}

// pull calls the group and returns the tool that ran.
func pull(t *testing.T, h *hosttest.Pair) string {
	t.Helper()
	m := h.Call(protocol.TypeToolCallReq, `{"tool_name":"win","arguments":{}}`)
	must.That(t, m.Get("/group") == "win", "answered by %s", m)
	return m.Get("/data/tool_name")
}

// TestChoose: the host first chooses the tools of a group that were never called. With each strategy it learns to
// choose the tool that succeeds, without learn/adapt in between. Another host on the same store knows this at once.
func TestChoose(t *testing.T) {
	for _, strategy := range []string{"ppo", "ucb1", "epsilon_greedy", "softmax", "thompson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			opts := DefaultOptions()
			opts.Strategy = strategy
			path := newFile(t)
			h, _ := play(t, path, opts, "bad", "good", "worse")
			first := []string{pull(t, h), pull(t, h), pull(t, h)}
			if slices.Sort(first); !slices.Equal(first, []string{"bad", "good", "worse"}) {
				t.Errorf("the first calls were of %v", first)
			}
			won := map[string]int{}
			for i := range 400 {
				if name := pull(t, h); i >= 200 {
					won[name]++
				}
			}
			assert.That(t, won["good"] >= 150, "the last 200 calls were of %v", won)
			next := first
			// By chance a new host may call each tool once, too, but a host that knows nothing always does.
			for try := 0; try < 3 && slices.Equal(next,
				first); try++ {
				h.Close()
				h, _ = play(t, path, opts, "bad", "good", "worse")
				next = []string{pull(t, h), pull(t, h), pull(t, h)}
				slices.Sort(next)
			}
			assert.That(t, slices.Contains(next, "good") && !slices.Equal(next, first), "another host called %v", next)
		})
	}
}

// TestChooseAtOnce: calls at the same time go to different tools, and feedback counts at the next choice.
func TestChooseAtOnce(t *testing.T) {
	opts := DefaultOptions()
	opts.Strategy, opts.EpsilonGreedy.Constant = "epsilon_greedy", 1e-9
	names := []string{"wait1", "wait2", "wait3"}
	h, m := play(t, newFile(t), opts, names...)
	var ids []string
	for range names {
		ids = append(ids, h.Go(protocol.TypeToolCallReq, `{"tool_name":"win","arguments":{}}`))
	}
	begun := []string{<-m.begun, <-m.begun, <-m.begun}
	if slices.Sort(begun); !slices.Equal(begun, names) {
		t.Errorf("calls at once were of %v", begun)
	}
	close(m.gate)
	rated := ""
	for _, id := range ids {
		rated = h.Answer(id).Get("/data/tool_name")
	}
	fields := batch(fmt.Sprintf(`{"correlation_id":%q,"rated_turn":null,"polarity":"positive","score":1}`,
		ids[len(ids)-1]))
	if m := h.Call(protocol.TypeLearnFeedbackReq, fields); m.Get("/recorded") != "1" {
		t.Fatalf("%s", m)
	}
	for range 5 {
		name := pull(t, h)
		assert.That(t, name == rated, "after good feedback for %s the call was of %s", rated, name)
	}
}

// TestStrangersDoNotCompete: a weight that a version without groups learned by comparing unrelated tools becomes
// neutral again. A weight that was set by a refinement stays.
func TestStrangersDoNotCompete(t *testing.T) {
	s := newStage(t, newFile(t), DefaultOptions())
	for _, tool := range []string{"echo", "http_get", "set"} {
		s.calls(tool, 5, 5)
	}
	must.OK(t, s.store.Write(t.Context(), func(tx *store.Tx) error {
		return errors.Join(weightOf(host.KindTool, "echo").write(tx, &setting{Weight: new(1.4), Strategy: "ucb1"}),
			weightOf(host.KindTool, "set").write(tx, &setting{Weight: new(3.0), Strategy: refinementStrategy}))
	}))
	weights, message := s.adapt("", "ucb1")
	if weights["echo"] != 1 || weights["http_get"] != 1 || weights["set"] != 3 ||
		!strings.Contains(message, "3 in no group") || !strings.Contains(message, "neutral again") {
		t.Errorf("%v, %s", weights, message)
	}
	if again, message := s.adapt("", "ucb1"); again["echo"] != 1 || !strings.Contains(message, "stay as they are") {
		t.Errorf("again: %v, %s", again, message)
	}
}
