package learning

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/protocol"
)

// turn returns a feedback about a turn of a model; more has further members.
func turn(id, model string, score, confidence float64, more string) string {
	return fmt.Sprintf(`{"feedback_id":%q,"rated_turn":{"prompt":"p","response":"r","model":%q},"polarity":"positive","score":%g,"confidence":%g%s}`, id, model, score, confidence, more)
}

// TestWhatFeedbackIsAbout: a feedback is about the call with its correlation_id; without such a call, it is about the
// component that rated_turn names.
func TestWhatFeedbackIsAbout(t *testing.T) {
	path := newFile(t)
	s := stageWith(t, path, DefaultOptions(), host.Env{}, offering{})
	s.work(work{Kind: host.KindTool, Component: "grep", Correlation: "c1"})
	s.work(work{Kind: host.KindSkill, Component: "sql", Correlation: "c2"})
	s.work(work{Kind: host.KindTool, Component: "sql", Correlation: "again"})
	s.work(work{Kind: host.KindTool, Component: "find", Correlation: "again"})
	// The id of the request is its correlation.
	id := s.Go(typeWork, encode(t, work{Kind: host.KindTool, Component: "plain"}))
	s.Answer(id)
	other := stageWith(t, path, DefaultOptions(), host.Env{}, offering{})
	s.work(work{Kind: host.KindTool, Component: "grep", Correlation: strings.Repeat("x", maxCorrelation+1)})
	for _, c := range []struct{ name, feedback, want string }{
		{"a call", `"correlation_id":"c1","rated_turn":null`, "tool grep"},
		{"a call before its turn", `"correlation_id":"c1","rated_turn":{"prompt":"","response":"","model":"m","version":"v"}`, "tool grep"},
		{"the later of two calls", `"correlation_id":"again","rated_turn":null`, "tool find"},
		{"a call without a correlation", fmt.Sprintf(`"correlation_id":%q,"rated_turn":null`, id), "tool plain"},
		{"the version of its turn", `"correlation_id":"who","rated_turn":{"prompt":"","response":"","model":"","version":"v1"}`, "model v1"},
		{
			"the model of a version that nothing has",
			`"rated_turn":{"prompt":"","response":"","model":"m","version":"v2"}`, "model m",
		},
		{
			"a tool with its version", `"rated_turn":{"prompt":"","response":"","model":"m","version":"grep-v1.0"}`,
			"tool grep",
		},
		{"a tool as a model", `"rated_turn":{"prompt":"","response":"","model":"find","version":"v1"}`, "tool find"},
		{
			"a tool that was not called", `"rated_turn":{"prompt":"","response":"","model":"m","version":"offered"}`,
			"tool offered",
		},
		{
			"a skill that was not called", `"rated_turn":{"prompt":"","response":"","model":"m","version":"sing@2.1"}`,
			"skill sing",
		},
		{"a server", `"rated_turn":{"prompt":"","response":"","model":"hub"}`, "server hub"},
		{"a worker", `"rated_turn":{"prompt":"","response":"","model":"coder"}`, "worker coder"},
		{"an environment by its plugin", `"rated_turn":{"prompt":"","response":"","model":"worlds"}`, "env grid"},
		{"the model of its turn", `"rated_turn":{"prompt":"","response":"","model":"m1","version":""}`, "model m1"},
		{
			"a version that was called", `"rated_turn":{"prompt":"","response":"","model":"m","version":"sql"}`,
			"tool sql",
		},
		{"nothing", `"correlation_id":"who","rated_turn":null`, ""},
		{"a correlation too long to keep", fmt.Sprintf(`"correlation_id":%q,"rated_turn":null`,
			strings.Repeat("x", maxCorrelation+1)), ""},
	} {
		for i, host := range []*stage{s, other} { // the other host knows the call from the store
			score := host.rate(fmt.Sprintf(`{"feedback_id":"%s %d","polarity":"neutral","score":0.25,%s}`, c.name, i,
				c.feedback))
			var got string
			if err := EachFeedback(t.Context(), s.store, func(f *StoredFeedback) error {
				if f.FeedbackID == fmt.Sprint(c.name, " ", i) {
					got = strings.TrimSpace(f.Kind + " " + f.Component)
				}
				return nil
			}); err != nil || got != c.want {
				t.Errorf("%s: it is about %q, should be %q (%v)", c.name, got, c.want, err)
			}
			assert.That(t, (score == nil) == (c.want == "") && (score == nil || *score == 0.25), "%s: the score is %v",
				c.name, score)
		}
	}
}

// offering is a plugin with a component of each kind. Nobody has called these components.
type offering struct{ agent.WorkerPool }

func (offering) Info() host.PluginInfo {
	return host.PluginInfo{Name: "worlds", Capability: protocol.CapEnv, Also: []protocol.Capability{
		protocol.CapTools,
		protocol.CapSkill, protocol.CapMCP,
	}, Metadata: map[string]any{"env": "grid"}}
}

func (offering) Workers() []agent.WorkerInfo { return []agent.WorkerInfo{{Name: "coder"}} }

func (offering) Close(context.Context) error { return nil }

func (offering) Routes() []host.Route {
	return []host.Route{
		host.List(protocol.TypeToolListReq, func(context.Context, *protocol.ToolListRequest,
			host.Emitter,
		) (*protocol.ToolListResponse, error) {
			return &protocol.ToolListResponse{Tools: []protocol.ToolDefinition{{Name: "offered"}}}, nil
		}, protocol.MergeTools),
		host.List(protocol.TypeSkillDiscoverReq, func(context.Context, *protocol.SkillDiscoverRequest,
			host.Emitter,
		) (*protocol.SkillDiscoverResponse, error) {
			return &protocol.SkillDiscoverResponse{Skills: []protocol.SkillDefinition{
				{Name: "sing"},
				{Name: "offered"},
			}}, nil
		}, protocol.MergeSkills),
		host.List(protocol.TypeMCPServerListReq, func(context.Context, *protocol.MCPServerListRequest,
			host.Emitter,
		) (*protocol.MCPServerListResponse, error) {
			return &protocol.MCPServerListResponse{Servers: []map[string]any{{"server_id": "hub"}}}, nil
		}, protocol.MergeMCPServers),
	}
}

// TestWrongFeedback: a batch with mistakes is refused as a whole, and the refusal names the place of each mistake.
func TestWrongFeedback(t *testing.T) {
	s := newStage(t, newFile(t), DefaultOptions())
	good := turn("good", "m", 1, 1, "")
	long := strings.Repeat("x", maxID+1)
	for _, c := range []struct{ feedback, path, says string }{
		{turn("", "m", 1.01, 1, ""), "/score", "-1 to 1"},
		{turn("", "m", -1.01, 1, ""), "/score", "-1 to 1"},
		{turn("", "m", 1, 1.01, ""), "/confidence", "0 to 1"},
		{turn("", "m", 1, -0.01, ""), "/confidence", "0 to 1"},
		{`{"rated_turn":null,"polarity":"corrective","comment":"no"}`, "/correction", "text that would have been " +
			"right"},
		{`{"rated_turn":null}`, "/polarity", "is missing"},
		{`{"rated_turn":null,"polarity":"Positive"}`, "/polarity", `"positive"`},
		{`{"rated_turn":null,"polarity":"neutral","dimension":"speed"}`, "/dimension", "plan_quality"},
		{`{"rated_turn":null,"polarity":"neutral","source":"dog"}`, "/source", "human"},
		{`{"rated_turn":null,"polarity":"neutral","correction_span":[3,2]}`, "/correction_span", "begins and ends"},
		{`{"rated_turn":null,"polarity":"neutral","ts":-1}`, "/ts", "seconds since 1970"},
		{turn(long, "m", 1, 1, ""), "/feedback_id", "at most"},
		{turn("", long, 1, 1, ""), "/rated_turn", "at most"},
		{turn("", "m", 1, 1, `,"comment":"`+strings.Repeat("x", maxRow)+`"`), "", "at most"},
		{`{"rated_turn":null,"polarity":"neutral","score":"1"}`, "/score", "string"},
		{`{"rated_turn":{"prompt":1},"polarity":"neutral"}`, "/rated_turn/prompt", "number"},
	} {
		m := s.Call(protocol.TypeLearnFeedbackReq, batch(good, c.feedback, good))
		if m.Code != protocol.CodeSchemaViolation || m.Problem() != "/feedbacks/1"+c.path ||
			!strings.Contains(m.Get("/message"), c.says) {
			t.Errorf("%.200s was answered by %.500s", c.feedback, m.Line)
		}
	}
	m := s.Call(protocol.TypeLearnFeedbackReq, batch(turn("", "m", 2, 3, ""), good, `{"rated_turn":null}`))
	if got := m.Get("/detail/errors/0/path") + m.Get("/detail/errors/1/path") +
		m.Get("/detail/errors/2/path"); got != "/feedbacks/0/score/feedbacks/0/confidence/feedbacks/2/polarity" {
		t.Errorf("several mistakes: %s", m.Line)
	}
	if got := s.stats(""); len(got) != 0 {
		t.Errorf("something of it was kept: %+v", got)
	}
	s.rate(good)
	if got := s.one("m"); got.Feedbacks != 1 || got.Kind != "model" {
		t.Errorf("the good one alone: %+v", got)
	}
}

// TestSourceEnv: feedback that an agent sends with the source env counts as its own (self), unless the config trusts
// it.
func TestSourceEnv(t *testing.T) {
	for trust, want := range map[bool]protocol.FeedbackSource{false: protocol.SourceSelf, true: protocol.SourceEnv} {
		opts := DefaultOptions()
		opts.TrustAgentEnv = trust
		s := newStage(t, newFile(t), opts)
		score := s.rate(turn("", "m", -1, 1, `,"source":"env"`))
		assert.That(t, score != nil && *score == -1, "the score is %v", score)
		var got []protocol.FeedbackSource
		err := EachFeedback(t.Context(), s.store, func(f *StoredFeedback) error {
			got = append(got,
				f.Source)
			return nil
		})
		assert.That(t, err == nil && slices.Equal(got, []protocol.FeedbackSource{want}), "trust_agent_env %t: %v, %q",
			trust, err, got)
	}
}

// TestFeedbackIsKeptAsItCame: feedback is stored as it came, with defaults for the missing members.
func TestFeedbackIsKeptAsItCame(t *testing.T) {
	s := newStage(t, newFile(t), DefaultOptions())
	s.rate(`{"rated_turn":{"prompt":"p\u0000é","response":"<r>","model":"m","environment":{"n":1e400,"l":[null]}},"polarity":"corrective","correction":"c","correction_span":[0,1],"comment":"\ud83d\ude00"}`)
	var got []*StoredFeedback
	err := EachFeedback(t.Context(), s.store, func(f *StoredFeedback) error { got = append(got, f); return nil })
	must.That(t, err == nil && len(got) == 1, "%v, %v", got, err)
	f := got[0]
	assert.That(t, f.FeedbackID != "" && f.TS >= 1e9 && f.Confidence == 1 &&
		f.Dimension == protocol.DimensionHelpfulness && f.Source == protocol.SourceHuman, "what was missing: %+v", f)
	if r := f.RatedTurn; r.Prompt != "p\x00é" || r.Response != "<r>" ||
		string(r.Environment) != `{"n":1e400,"l":[null]}` || r.Version != nil || f.Comment != "😀" ||
		*f.CorrectionSpan != [2]int{0, 1} {
		t.Errorf("what came: %+v %+v", f, r)
	}
}

// counts is what a feedback counts for in the reference.
type counts struct {
	about             string
	score, confidence float64
}

// TestScoresAreWeightedMeans: each feedback_id counts once, with its last values, whatever batches come, in whatever
// order and however often. The score of a component is the mean of its stored feedback, weighted by confidence.
func TestScoresAreWeightedMeans(t *testing.T) {
	s := stores.Memory(t, Part())
	defer s.Close()
	property.Check(t, func(rt *rapid.T) {
		must.OK(rt, s.Write(t.Context(), func(tx *store.Tx) error { return Part().Clear(t.Context(), tx) }))
		limit := rapid.IntRange(1, 12).Draw(rt, "limit")
		opts := DefaultOptions()
		opts.MaxFeedback = limit
		now := time.Unix(1_800_000_000, 0)
		p := newPlugin(t, s, opts, host.Env{Now: func() time.Time { return now }})
		kept, order := map[string]counts{}, []string{}
		for range rapid.IntRange(1, 6).Draw(rt, "batches") {
			var req protocol.LearnFeedbackRequest
			var distinct []string // ids in the order of their first appearance
			for range rapid.IntRange(1, 6).Draw(rt, "size") {
				f := protocol.Feedback{
					FeedbackID: rapid.StringMatching("[a-h]").Draw(rt, "id"), Polarity: protocol.PolarityNeutral,
					Dimension: protocol.DimensionTone, Source: protocol.SourceSelf,
					Score:      rapid.Float64Range(-1, 1).Draw(rt, "score"),
					Confidence: float64(rapid.IntRange(0, 4).Draw(rt, "confidence")) / 4,
				}
				about := rapid.SampledFrom([]string{"", "m", "n"}).Draw(rt, "about")
				if about != "" {
					f.RatedTurn = &protocol.RatedTurn{Model: about}
				}
				// -1 is from a clock that is ahead of ours.
				age := rapid.SampledFrom([]float64{-1, 0, 1, 2.5}).Draw(rt, "hours")
				f.TS = 1_800_000_000 - 3600*age
				req.Feedbacks = append(req.Feedbacks, f)
				if _, there := kept[f.FeedbackID]; !there {
					order = append(order, f.FeedbackID)
				}
				kept[f.FeedbackID] = counts{about, f.Score, f.Confidence}
				if !slices.Contains(distinct, f.FeedbackID) {
					distinct = append(distinct, f.FeedbackID)
				}
			}
			last := ""
			for _, id := range distinct {
				last = cmp.Or(kept[id].about, last)
			}
			for len(order) > limit {
				delete(kept, order[0])
				order = order[1:]
			}
			resp, err := p.feedback(t.Context(), &req, nil)
			if err != nil || resp.Recorded != len(distinct) {
				rt.Fatalf("%+v, %v", resp, err)
			}
			checkScores(rt, s, kept, last, resp.NewScore)
		}
	})
}

// checkScores checks the store against the reference.
func checkScores(rt *rapid.T, s store.Store, kept map[string]counts, last string, score *float64) {
	var all []*Component
	must.OK(rt, s.Read(rt.Context(), func(tx *store.Tx) (err error) { all, err = components(tx, ""); return err }))
	got := map[string]*Component{}
	for _, c := range all {
		got[c.Name] = c
	}
	for _, name := range []string{"m", "n"} {
		n, sum, weight := 0, 0.0, 0.0
		for _, c := range kept {
			if c.about == name {
				n, sum, weight = n+1, sum+c.score*c.confidence, weight+c.confidence
			}
		}
		switch c := got[name]; {
		case n == 0 && c == nil:
		case n == 0 || c == nil || c.Feedbacks != int64(n) || math.Abs(c.ScoreWeight-weight) > 1e-6:
			rt.Fatalf("%s has %+v, should have %d feedbacks of weight %g", name, c, n, weight)
		case weight > 0 && math.Abs(c.Score-sum/weight) > 1e-6 || weight == 0 && c.Score != 0:
			rt.Fatalf("%s has the score %g, should be %g", name, c.Score, sum/weight)
		}
		if name == last && (weight == 0) != (score == nil) {
			rt.Fatalf("new_score of %s is %v, with a weight of %g", name, score, weight)
		}
		if name == last && score != nil && math.Abs(*score-sum/weight) > 1e-6 {
			rt.Fatalf("new_score of %s is %v, should be %g", name, *score, sum/weight)
		}
	}
	if last == "" && score != nil {
		rt.Fatalf("new_score is %v, about nothing", *score)
	}
}

// TestFeedbackAgain: the same batch again changes nothing, even if the calls that it is about are no longer known.
func TestFeedbackAgain(t *testing.T) {
	s := newStage(t, newFile(t), DefaultOptions())
	s.work(work{Kind: host.KindTool, Component: "grep", Correlation: "c"})
	same := []string{`{"feedback_id":"1","correlation_id":"c","rated_turn":null,"polarity":"neutral","score":0.1,"confidence":0.3}`, turn("2", "m", -0.7, 0.9, "")}
	s.rate(same...)
	before := s.stats("")
	must.OK(t, s.store.Write(t.Context(), func(tx *store.Tx) error {
		_,
			err := tx.Exec("DELETE FROM learning_calls")
		return err
	}))
	for range 3 {
		s.rate(same...)
	}
	after := s.stats("")
	assert.That(t, slices.Equal(before, after) && len(after) == 2 && after[1].Score == 0.1, "before %+v, after %+v",
		before, after)
	s.rate(`{"feedback_id":"1","correlation_id":"c","rated_turn":null,"polarity":"neutral","score":-1,"confidence":0.3}`)
	if r := s.one("grep"); r.Score != -1 || r.Feedbacks != 1 {
		t.Errorf("after a change of mind: %+v", r)
	}
	s.rate(`{"feedback_id":"1","correlation_id":"who","rated_turn":null,"polarity":"neutral"}`)
	if r := s.one("grep"); r.Score != 0 || r.Feedbacks != 0 {
		t.Errorf("after it was about nothing any more: %+v", r)
	}
}

// TestCorrelationsAreBounded: the number of correlations in a store is bounded, and the last ones are kept.
func TestCorrelationsAreBounded(t *testing.T) {
	s := newStage(t, newFile(t), DefaultOptions())
	next := 0
	known := func(calls map[int]bool) {
		t.Helper()
		for i, want := range calls {
			score := s.rate(fmt.Sprintf(`{"correlation_id":"%d","rated_turn":null,"polarity":"neutral"}`, i))
			assert.That(t, (score != nil) == want, "call %d of %d: %v", i, next, score)
		}
	}
	for range 5 { // each round is flushed at once, and is removed at once
		for range maxCorrelations * 2 / 5 {
			s.plugin.CountCall(host.CallOutcome{Kind: host.KindTool, Component: "x", Correlation: fmt.Sprint(next)})
			next++
		}
		s.stats("")
	}
	known(map[int]bool{next - 1: true, next - maxCorrelations: true, 0: false})
	for range maxCorrelations + 3 { // more than memory keeps
		s.plugin.CountCall(host.CallOutcome{Kind: host.KindTool, Component: "x", Correlation: fmt.Sprint(next)})
		next++
	}
	r := s.one("x")
	assert.That(t, r.Calls == next, "counted %d of %d", r.Calls, next)
	known(map[int]bool{next - 1: true, next - maxCorrelations: true, next - maxCorrelations - 1: false, 0: false})
}

// TestExperiences: of many experiences the last ones stay. An experience that comes again replaces itself.
func TestExperiences(t *testing.T) {
	opts := DefaultOptions()
	opts.MaxExperiences = 5
	s := newStage(t, newFile(t), opts)
	stored := 0
	send := func(experiences string) {
		t.Helper()
		var resp protocol.LearnExperienceResponse
		s.ask(protocol.TypeLearnExperienceReq, `{"experiences":[`+experiences+`]}`, &resp)
		stored = resp.Stored
	}
	for i := range 9 {
		send(fmt.Sprintf(`{"experience_id":"x%d","state":{"n":9007199254740993},"action":{"component_name":"grep","input":{}},"reward":%d,"episode_id":"e","step":%d}`, i, i, i))
	}
	send(`{"experience_id":"x6","reward":-1},{"experience_id":"x9","done":true,"ts":7},{}`)
	assert.That(t, stored == 3, "stored %d", stored)
	var ids []string
	if err := EachExperience(t.Context(), s.store, func(x *protocol.Experience) error {
		ids = append(ids, fmt.Sprintf("%.2s:%g", x.ExperienceID, x.Reward))
		if x.ExperienceID == "x7" && (string(x.State.Raw()) != `{"n":9007199254740993}` || x.Step != 7 ||
			x.EpisodeID != "e" || x.TS < 1e9) {
			t.Errorf("it became %+v, state %s", x, x.State.Raw())
		}
		assert.That(t, x.ExperienceID != "x9" || x.TS == 7 && x.Done && string(x.Action.Raw()) == "{}", "it became %+v",
			x)
		return nil
	}); err != nil || len(ids) != 5 || strings.Join(ids[:4], " ") != "x6:-1 x7:7 x8:8 x9:0" {
		t.Errorf("there are %v, %v", ids, err)
	}
	for _, wrong := range []string{
		`{"experience_id":"` + strings.Repeat("x", maxID+1) + `"}`, `{"ts":-5}`,
		`{"state":{"a":"` + strings.Repeat("x", maxRow) + `"}}`,
	} {
		m := s.Call(protocol.TypeLearnExperienceReq, `{"experiences":[{},`+wrong+`]}`)
		assert.That(t, m.Code == protocol.CodeSchemaViolation && m.Problem() == "/experiences/1",
			"%.100s was answered by %.300s", wrong, m.Line)
	}
}

// TestScoresOverTime: each point of the history has the mean of the feedback up to then, of one component or of all.
func TestScoresOverTime(t *testing.T) {
	s := newStage(t, newFile(t), DefaultOptions())
	rate := func(id, component string, score, confidence, ts float64) {
		s.rate(fmt.Sprintf(`{"feedback_id":%q,"polarity":"neutral","score":%g,"confidence":%g,"ts":%g,"rated_turn":{"prompt":"","response":"","model":%q,"version":""}}`, id, score, confidence, ts, component))
	}
	assert.Equal(t, len(s.history("")), 0, "points of an empty store")
	rate("1", "x", 1, 1, 100)
	rate("3", "x", -1, 0.5, 300)
	rate("2", "y", 0.25, 1, 200)
	got := func(component string) (text string) {
		for _, p := range s.history(component) {
			text += fmt.Sprintf("%g %s %.2f ", p.TS, p.Component, *p.Score)
		}
		return text
	}
	assert.Equal(t, got(""), "100 x 1.00 200 y 0.25 300 x 0.33 ", "")
	assert.Equal(t, got("x"), "100 x 1.00 300 x 0.33 ", "")
}
