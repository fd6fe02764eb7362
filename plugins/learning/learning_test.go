package learning

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"go.uber.org/goleak"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/sandbox"
	"a2e/host/state/store"
	"a2e/protocol"
)

func TestContract(t *testing.T) {
	recorded := func(t testing.TB, p *hosttest.Pair) { // records a feedback, so that there is something to learn from
		p.Call(protocol.TypeLearnFeedbackReq, batch(`{"feedback_id":"f","rated_turn":{"prompt":"p","response":"r","model":"m"},"polarity":"positive","score":1}`))
	}
	hosttest.Contract(t, func(t testing.TB) host.Plugin {
		return newPlugin(t, openStore(t, newFile(t)), DefaultOptions(), host.Env{})
	}, []hosttest.Sample{
		{Type: protocol.TypeLearnFeedbackReq, Fields: batch(`{"feedback_id":"f","correlation_id":"c","session_id":"s","rated_turn":{"prompt":"p","response":"r","model":"m","environment":{"a":[1]},"version":"v"},` +
			`"polarity":"corrective","score":-0.5,"dimension":"tone","confidence":0.5,"comment":"c","correction":"r","correction_span":[0,2],"source":"self","annotator_id":"a","ts":1.5}`)},
		{Name: "no feedback", Type: protocol.TypeLearnFeedbackReq, Fields: `{"feedbacks":[]}`},
		{
			Name: "about nothing", Type: protocol.TypeLearnFeedbackReq,
			Fields: batch(`{"rated_turn":null,"polarity":"neutral"}`),
		},
		{
			Name: "of the environment", Type: protocol.TypeLearnFeedbackReq,
			Fields: batch(`{"rated_turn":null,"polarity":"neutral","source":"env"}`),
		},
		{Type: protocol.TypeLearnExperienceReq, Fields: `{"experiences":[{"experience_id":"x","state":{"a":1},"action":{},"reward":0.5,"next_state":{},"done":true,"episode_id":"e","step":3,"ts":1.5},{}]}`},
		{Name: "no experience", Type: protocol.TypeLearnExperienceReq, Fields: `{}`},
		{Type: protocol.TypeLearnAdaptReq, Fields: `{"component_name":"","strategy":"ucb1"}`},
		{Name: "one component", Type: protocol.TypeLearnAdaptReq, Fields: `{"component_name":"x"}`},
		{
			Name: "unknown strategy", Type: protocol.TypeLearnAdaptReq, Fields: `{"strategy":"x"}`,
			Code: protocol.CodeSchemaViolation,
		},
		{
			Name: "no command", Type: protocol.TypeLearnAdaptReq, Fields: `{"strategy":"custom"}`,
			Code: protocol.CodeSchemaViolation,
		},
		{Type: protocol.TypeLearnStatsReq, Fields: `{"component_name":"x"}`},
		{Type: protocol.TypeRefinementPlanReq, Make: func(t testing.TB, p *hosttest.Pair) string {
			recorded(t, p)
			return `{"component_name":"m","scope":"local"}`
		}},
		{Type: protocol.TypeRefinementReviewReq, Fields: `{"proposal":{"edits":[]}}`},
		{Type: protocol.TypeRefinementApplyReq, Fields: `{"proposal":{"edits":[]}}`},
		{Type: protocol.TypeRefinementRollbackReq, Fields: `{"refinement_id":"x"}`},
		{Type: protocol.TypeRefinementHistoryReq, Fields: `{}`},
	})
}

func TestNewRefuses(t *testing.T) {
	open := func(context.Context) (store.Store, error) { return nil, errors.New("not now") }
	for name, c := range map[string]struct {
		opts func(*Options)
		env  host.Env
		want string
	}{
		"no store": {func(*Options) {}, host.Env{}, "store"},
		"a command and no starter": {
			func(o *Options) { o.CustomCommand = []string{"python3"} },
			host.Env{Store: open},
			"custom_command",
		},
		"custom without a command": {
			func(o *Options) { o.Strategy = "custom" },
			host.Env{Store: open},
			"custom_command",
		},
		"no room": {func(o *Options) { o.MaxFeedback = 0 }, host.Env{Store: open}, "max_feedback"},
	} {
		opts := DefaultOptions()
		c.opts(&opts)
		_, err := New("mine", opts, c.env)
		assert.That(t, err != nil && strings.Contains(err.Error(), c.want) && strings.Contains(err.Error(), `"mine"`),
			"%s: %v", name, err)
	}
}

// TestCallsAreCounted: every call that plugins record is in the component's record, even a call of the last moment.
func TestCallsAreCounted(t *testing.T) {
	s := newStage(t, newFile(t), DefaultOptions())
	if got := s.stats(""); len(got) != 0 {
		t.Errorf("before any call: %+v", got)
	}
	random := rand.New(rand.NewPCG(1, 2))
	var millis []float64
	sum, before := 0.0, time.Now()
	for i := range 600 { // more calls than may wait to be added up
		d := math.Exp(random.NormFloat64()) * 20
		millis, sum = append(millis, d), sum+d
		s.work(work{Kind: host.KindTool, Component: "one", Fail: i%3 == 0, Millis: d})
	}
	for _, reward := range []float64{1, 2, 4, math.MaxFloat64} { // the square of the last one is infinite
		s.work(work{Kind: host.KindEnv, Component: "one", Reward: &reward})
	}
	got := s.stats("one")
	for i := range 11 { // with a rank that is rounded down, the p95 was below the mean
		s.work(work{Kind: host.KindTool, Component: "outlier", Millis: []float64{1, 1000}[i/10]})
	}
	o := s.one("outlier")
	assert.That(t, math.Abs(o.P95-1000) <= 10 && o.P95 > o.Avg, "p95 %g with the mean %g", o.P95, o.Avg)
	must.That(t, len(got) == 2 && got[0].Kind == host.KindEnv && got[1].Kind == host.KindTool, "the records are %+v",
		got)
	if r := got[0]; r.Calls != 4 || r.Rewards != 3 || !near(r.Mean, 7.0/3) || !near(r.Variance, 7.0/3) {
		t.Errorf("of the environment: %+v", r)
	}
	slices.Sort(millis)
	r := got[1]
	assert.That(t, r.Calls == 600 && r.Successes == 400 && r.Failures == 200 && r.Weight == 1 && r.Score == 0 &&
		r.Rewards == 0, "of the tool: %+v", r)
	if want := sum / 600; math.Abs(r.Avg-want) > 1e-3 {
		t.Errorf("average %g, should be %g", r.Avg, want)
	}
	if want := millis[95*599/100]; math.Abs(r.P95-want) > 0.011*want {
		t.Errorf("p95 %g, should be %g within 1 %%", r.P95, want)
	}
	now := time.Now()
	assert.That(t, r.Last >= inSeconds(before.UnixMicro()) && r.Last <= inSeconds(now.UnixMicro()), "last called at %f",
		r.Last)
	if got := s.stats("two"); len(got) != 0 {
		t.Errorf("of an unknown component: %+v", got)
	}
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*(1+math.Abs(b)) }

// TestHostsCountTogether: several hosts on one store add up their counts, and the counts are still there after the
// hosts have ended.
func TestHostsCountTogether(t *testing.T) {
	path := newFile(t)
	var hosts [3]*stage
	for i := range hosts {
		hosts[i] = newStage(t, path, DefaultOptions())
	}
	const rounds, each = 20, 30
	var all sync.WaitGroup
	for i, h := range hosts {
		all.Go(func() {
			for range rounds {
				reward := float64(i)
				h.work(work{
					Kind: host.KindTool, Component: "shared", Times: each, Fail: i == 0,
					Millis: float64(10 * (i + 1)), Reward: &reward,
				})
				h.stats("") // makes the host flush while the others do, too
			}
		})
	}
	all.Wait()
	hosts[1].work(work{Kind: host.KindTool, Component: "last", Times: 7})
	for _, h := range hosts {
		h.Close()
	}
	after := newStage(t, path, DefaultOptions())
	r := after.one("shared")
	n := 3 * rounds * each
	assert.That(t, r.Calls == n && r.Successes == n*2/3 && r.Rewards == n && near(r.Avg, 20) && near(r.Mean, 1),
		"together they have counted %+v", r)
	want := 2.0 / 3 * 1800 / 1799
	assert.That(t, math.Abs(r.Variance-want) <= 1e-9, "the variance is %g, should be %g", r.Variance, want)
	assert.That(t, math.Abs(r.P95-30) <= 0.31, "p95 is %g", r.P95)
	if r := after.one("last"); r.Calls != 7 {
		t.Errorf("of the calls before the end there are %d", r.Calls)
	}
}

// TestFlushByItself: calls go to the store within flushEvery of the first one without any request, and an idle plugin
// does nothing.
func TestFlushByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stores.Memory(t, Part())
		var opened atomic.Int32
		p := must.Get(New("learn", DefaultOptions(), host.Env{Store: func(context.Context) (store.Store, error) {
			opened.Add(1)
			return s, nil
		}}))(t)
		must.OK(t, p.Start(t.Context(), nil))
		time.Sleep(time.Hour)
		assert.That(t, opened.Load() == 0, "the store was opened for nothing")
		for i := range 3 {
			p.CountCall(host.CallOutcome{Kind: host.KindTool, Component: "x"})
			time.Sleep(flushEvery + time.Millisecond)
			synctest.Wait()
			if all, err := Stats(t.Context(), s, "x"); err != nil || len(all) != 1 || all[0].Calls != int64(i+1) {
				t.Errorf("after call %d: %+v, %v", i+1, all, err)
			}
		}
		time.Sleep(time.Hour)
		n := opened.Load()
		assert.That(t, n == 3, "the store was asked for %d times", n)
		if err := errors.Join(p.Close(t.Context()), s.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestStoreThatFails: while the store fails, calls are counted in memory. Afterwards nothing is lost or counted twice.
func TestStoreThatFails(t *testing.T) {
	s := openStore(t, newFile(t))
	var broken atomic.Bool
	broken.Store(true)
	p := must.Get(New("learn", DefaultOptions(), host.Env{Store: func(context.Context) (store.Store, error) {
		if broken.Load() {
			return nil, errors.New("no such disk")
		}
		return s, nil
	}}))(t)
	pair := hosttest.New(t, host.Options{Plugins: []host.Plugin{p, worker{}}})
	pair.Handshake()
	stage := &stage{Pair: pair, t: t, store: s, plugin: p}
	reward := 2.0
	for i, typ := range []protocol.Type{protocol.TypeLearnStatsReq, protocol.TypeLearnAdaptReq} {
		stage.work(work{
			Kind: host.KindTool, Component: "x", Correlation: fmt.Sprint("c", i), Times: 300, Millis: 5,
			Reward: &reward,
		})
		pair.Refused(typ, `{}`, protocol.CodeRuntimeError, "no such disk")
	}
	assert.That(t, p.Weight(host.KindTool, "x") == 1, "the weight without a store is not neutral")
	broken.Store(false)
	stage.work(work{Kind: host.KindTool, Component: "x", Millis: 5, Reward: &reward})
	if r := stage.one("x"); r.Calls != 601 || r.Rewards != 601 || !near(r.Mean, 2) || !near(r.Avg, 5) {
		t.Errorf("in the end there are %+v", r)
	}
	stage.rate(`{"correlation_id":"c0","rated_turn":null,"polarity":"positive","score":1}`)
	if r := stage.one("x"); r.Feedbacks != 1 {
		t.Errorf("the correlation of a call before was lost: %+v", r)
	}
}

// TestFlushIsTriedAgain: calls that were counted while the store failed are in it soon after it works again, without
// further calls or requests.
func TestFlushIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := openStore(t, newFile(t))
	var works atomic.Bool
	var refused, opened atomic.Int64
	p := must.Get(New("learn", DefaultOptions(), host.Env{Store: func(context.Context) (store.Store, error) {
		if works.Load() {
			opened.Add(1)
			return s, nil
		}
		refused.Add(1)
		return nil, errors.New("no such disk")
	}}))(t)
	pair := hosttest.New(t, host.Options{Plugins: []host.Plugin{p, worker{}}})
	pair.Handshake()
	refused.Store(0)
	(&stage{Pair: pair, t: t, store: s, plugin: p}).work(work{Kind: host.KindTool, Component: "x", Millis: 5})
	hosttest.Eventually(t, "the first try", func() bool { return refused.Load() > 0 })
	works.Store(true)
	hosttest.Eventually(t, "the next one", func() bool { return opened.Load() > 0 })
}

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher() // children start through this test binary
	goleak.VerifyTestMain(m)
}

// worker is a plugin that records the calls that a request asks for.
type worker struct{}

const typeWork protocol.Type = "work/req"

// work describes a call of a component.
type work struct {
	Kind        string   `json:"kind"`
	Component   string   `json:"component"`
	Correlation string   `json:"correlation_id"`
	Fail        bool     `json:"fail"`
	Millis      float64  `json:"millis"`
	Reward      *float64 `json:"reward"`
	Times       int      `json:"times"` // number of calls; 0 = 1
}

func (worker) Info() host.PluginInfo {
	return host.PluginInfo{Name: "work", Capability: protocol.CapTest}
}

func (worker) Routes() []host.Route {
	return []host.Route{host.Handle(typeWork, func(ctx context.Context, w *work, _ host.Emitter) (*struct{}, error) {
		for range max(w.Times, 1) {
			host.ServicesOf(ctx).CountCall(ctx, host.CallOutcome{
				Kind: w.Kind, Component: w.Component, Correlation: w.Correlation, Success: !w.Fail,
				Duration: time.Duration(w.Millis * float64(time.Millisecond)), Reward: w.Reward,
			})
		}
		return &struct{}{}, nil
	})}
}

func (worker) Close(context.Context) error { return nil }

// openStore opens the store in a file. The test closes it.
func openStore(t testing.TB, path string) store.Store {
	t.Helper()
	s := stores.Open(t, path, Part())
	t.Cleanup(func() { must.OK(t, s.Close()) })
	return s
}

// newFile returns the path of a store that does not exist yet.
func newFile(t testing.TB) string { return filepath.Join(t.TempDir(), store.FileName) }

// newPlugin makes a plugin on a store.
func newPlugin(t testing.TB, s store.Store, opts Options, env host.Env) *Plugin {
	t.Helper()
	env.Store = func(context.Context) (store.Store, error) { return s, nil }
	return must.Get(New("learn", opts, env))(t)
}

// stage is a host with a learning plugin, a worker and a session.
type stage struct {
	*hosttest.Pair
	t      testing.TB
	store  store.Store
	plugin *Plugin
}

// newStage returns a host on the store in a file.
func newStage(t testing.TB, path string, opts Options) *stage {
	t.Helper()
	return stageWith(t, path, opts, host.Env{})
}

func stageWith(t testing.TB, path string, opts Options, env host.Env, more ...host.Plugin) *stage {
	t.Helper()
	s := &stage{t: t, store: openStore(t, path)}
	s.plugin = newPlugin(t, s.store, opts, env)
	s.Pair = hosttest.New(t, host.Options{
		Plugins: append([]host.Plugin{s.plugin, worker{}}, more...),
		Groups:  host.Groups{"work": {"bad", "good"}, "age": {"new", "old"}},
	})
	s.Handshake()
	return s
}

// work records a call of a component.
func (s *stage) work(w work) {
	s.t.Helper()
	m := s.Call(typeWork, encode(s.t, w))
	must.That(s.t, m.Type == "work/resp", "no work was done: %s", m)
}

// calls records so many successful and failed calls of a tool.
func (s *stage) calls(tool string, successes, failures int) {
	s.t.Helper()
	if successes > 0 {
		s.work(work{Kind: host.KindTool, Component: tool, Times: successes})
	}
	if failures > 0 {
		s.work(work{Kind: host.KindTool, Component: tool, Times: failures, Fail: true})
	}
}

// ask sends a request and decodes its response, which must not be an error.
func (s *stage) ask(typ protocol.Type, fields string, resp any) {
	s.t.Helper()
	m := s.Call(typ, fields)
	info, _ := protocol.Lookup(typ)
	must.That(s.t, m.Type == info.Response, "%s %.500s was answered by %.1000s", typ, fields, m.Line)
	m.Decode(s.t, resp)
}

// row is a component's record as it stands in answers.
type row struct {
	Component string  `json:"component_name"`
	Kind      string  `json:"kind"`
	Calls     int     `json:"calls_total"`
	Successes int     `json:"calls_success"`
	Failures  int     `json:"calls_failed"`
	Avg       float64 `json:"avg_duration_ms"`
	P95       float64 `json:"p95_duration_ms"`
	Last      float64 `json:"last_called"`
	Score     float64 `json:"avg_score"`
	Feedbacks int     `json:"feedback_count"`
	Rewards   int     `json:"reward_count"`
	Mean      float64 `json:"reward_mean"`
	Variance  float64 `json:"reward_variance"`
	Weight    float64 `json:"routing_weight"`
}

// stats asks for the records of a component, or of all.
func (s *stage) stats(component string) []row {
	s.t.Helper()
	var resp struct {
		Components []row `json:"components"`
	}
	s.ask(protocol.TypeLearnStatsReq, fmt.Sprintf(`{"component_name":%q}`, component), &resp)
	must.That(s.t, resp.Components != nil, "the list of components is null")
	return resp.Components
}

// point is an entry in the history of weights and scores.
type point struct {
	TS        float64  `json:"ts"`
	Kind      string   `json:"kind"`
	Component string   `json:"component_name"`
	Weight    *float64 `json:"routing_weight"`
	Worth     *float64 `json:"worth"`
	Score     *float64 `json:"avg_score"`
	Strategy  string   `json:"strategy"`
}

func (s *stage) history(component string) []point {
	s.t.Helper()
	var resp struct {
		History []point `json:"history"`
	}
	s.ask(protocol.TypeLearnStatsReq, fmt.Sprintf(`{"component_name":%q,"history":true}`, component), &resp)
	assert.That(s.t, resp.History != nil, "no history came")
	return resp.History
}

// one returns the record of a component, which must exist once.
func (s *stage) one(component string) row {
	s.t.Helper()
	all := s.stats(component)
	must.That(s.t, len(all) == 1, "there are %d of %s: %+v", len(all), component, all)
	return all[0]
}

// adapt adapts the weights, and returns the updated weights by name, and the message.
func (s *stage) adapt(component, strategy string) (weights map[string]float64, message string) {
	s.t.Helper()
	var resp struct {
		Updated []row  `json:"updated"`
		Message string `json:"message"`
	}
	s.ask(protocol.TypeLearnAdaptReq, encode(s.t, map[string]string{"component_name": component, "strategy": strategy}),
		&resp)
	must.That(s.t, resp.Updated != nil && resp.Message != "", "answered by %+v", resp)
	weights = make(map[string]float64)
	for _, r := range resp.Updated {
		weights[r.Component] = r.Weight
	}
	return weights, resp.Message
}

// rate sends feedback, all of which must be accepted, and returns the new score.
func (s *stage) rate(feedbacks ...string) *float64 {
	s.t.Helper()
	var resp protocol.LearnFeedbackResponse
	s.ask(protocol.TypeLearnFeedbackReq, batch(feedbacks...), &resp)
	return resp.NewScore
}

func batch(feedbacks ...string) string {
	return `{"feedbacks":[` + strings.Join(feedbacks, ",") + "]}"
}

// rateTurns gives n feedbacks on turns of a component, with the ids from, from+1 and so on.
func (s *stage) rateTurns(component string, from, n int, score float64) {
	s.t.Helper()
	var all []string
	for i := range n {
		all = append(all, turn(fmt.Sprint(from+i), component, score, 1, ""))
	}
	s.rate(all...)
}

func encode(t testing.TB, v any) string {
	t.Helper()
	b := must.Get(json.Marshal(v))(t)
	return string(b)
}
