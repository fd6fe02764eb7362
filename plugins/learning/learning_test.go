package learning

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/store"
	"a2e/protocol"
)

func TestContract(t *testing.T) {
	recorded := func(t testing.TB, p *hosttest.Pair) { // something to learn from
		p.Call(protocol.TypeLearnFeedbackReq, batch(`{"feedback_id":"f","rated_turn":{"prompt":"p","response":"r","model":"m"},"polarity":"positive","score":1}`))
	}
	hosttest.Contract(t, func(t testing.TB) host.Plugin {
		return newPlugin(t, openStore(t, newFile(t)), DefaultOptions(), Env{})
	}, []hosttest.Sample{
		{Type: protocol.TypeLearnFeedbackReq, Fields: batch(`{"feedback_id":"f","correlation_id":"c","session_id":"s","rated_turn":{"prompt":"p","response":"r","model":"m","environment":{"a":[1]},"version":"v"},` +
			`"polarity":"corrective","score":-0.5,"dimension":"tone","confidence":0.5,"comment":"c","correction":"r","correction_span":[0,2],"source":"self","annotator_id":"a","ts":1.5}`)},
		{Name: "no feedback", Type: protocol.TypeLearnFeedbackReq, Fields: `{"feedbacks":[]}`},
		{Name: "about nothing", Type: protocol.TypeLearnFeedbackReq, Fields: batch(`{"rated_turn":null,"polarity":"neutral"}`)},
		{Name: "of the environment", Type: protocol.TypeLearnFeedbackReq, Fields: batch(`{"rated_turn":null,"polarity":"neutral","source":"env"}`)},
		{Type: protocol.TypeLearnExperienceReq, Fields: `{"experiences":[{"experience_id":"x","state":{"a":1},"action":{},"reward":0.5,"next_state":{},"done":true,"episode_id":"e","step":3,"ts":1.5},{}]}`},
		{Name: "no experience", Type: protocol.TypeLearnExperienceReq, Fields: `{}`},
		{Type: protocol.TypeLearnAdaptReq, Fields: `{"component_name":"","strategy":"ucb1"}`},
		{Name: "one component", Type: protocol.TypeLearnAdaptReq, Fields: `{"component_name":"x"}`},
		{Name: "unknown strategy", Type: protocol.TypeLearnAdaptReq, Fields: `{"strategy":"x"}`, Code: protocol.CodeSchemaViolation},
		{Name: "no command", Type: protocol.TypeLearnAdaptReq, Fields: `{"strategy":"custom"}`, Code: protocol.CodeSchemaViolation},
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
		env  Env
		want string
	}{
		"no store":                 {func(*Options) {}, Env{}, "store"},
		"a command and no starter": {func(o *Options) { o.CustomCommand = []string{"python3"} }, Env{Store: open}, "custom_command"},
		"custom without a command": {func(o *Options) { o.Strategy = "custom" }, Env{Store: open}, "custom_command"},
		"no room":                  {func(o *Options) { o.MaxFeedback = 0 }, Env{Store: open}, "max_feedback"},
	} {
		opts := DefaultOptions()
		c.opts(&opts)
		if _, err := New("mine", opts, c.env); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"mine"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every call that plugins record is in the component's record, those of the last moment
// included.
func TestCallsAreCounted(t *testing.T) {
	s := newStage(t, newFile(t), DefaultOptions())
	if got := s.stats(""); len(got) != 0 {
		t.Errorf("before any call: %+v", got)
	}
	random := rand.New(rand.NewPCG(1, 2))
	var millis []float64
	sum, before := 0.0, time.Now()
	for i := range 600 { // more than wait to be added up
		d := math.Exp(random.NormFloat64()) * 20
		millis, sum = append(millis, d), sum+d
		s.work(work{Kind: host.KindTool, Component: "one", Fail: i%3 == 0, Millis: d})
	}
	for _, reward := range []float64{1, 2, 4, math.MaxFloat64} { // the last one has no square
		s.work(work{Kind: host.KindEnv, Component: "one", Reward: &reward})
	}
	got := s.stats("one")
	if len(got) != 2 || got[0].Kind != host.KindEnv || got[1].Kind != host.KindTool {
		t.Fatalf("the records are %+v", got)
	}
	if r := got[0]; r.Calls != 4 || r.Rewards != 3 || !near(r.Mean, 7.0/3) || !near(r.Variance, 7.0/3) {
		t.Errorf("of the environment: %+v", r)
	}
	slices.Sort(millis)
	r := got[1]
	if r.Calls != 600 || r.Successes != 400 || r.Failures != 200 || r.Weight != 1 || r.Score != 0 || r.Rewards != 0 {
		t.Errorf("of the tool: %+v", r)
	}
	if want := sum / 600; math.Abs(r.Avg-want) > 1e-3 {
		t.Errorf("average %g, should be %g", r.Avg, want)
	}
	if want := millis[95*599/100]; math.Abs(r.P95-want) > 0.011*want {
		t.Errorf("p95 %g, should be %g within 1 %%", r.P95, want)
	}
	if now := time.Now(); r.Last < inSeconds(before.UnixMicro()) || r.Last > inSeconds(now.UnixMicro()) {
		t.Errorf("last called at %f", r.Last)
	}
	if got := s.stats("two"); len(got) != 0 {
		t.Errorf("of an unknown component: %+v", got)
	}
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*(1+math.Abs(b)) }

// Several hosts on one store add up what they count, and what was counted is there
// after they have ended.
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
				h.work(work{Kind: host.KindTool, Component: "shared", Times: each, Fail: i == 0, Millis: float64(10 * (i + 1)), Reward: &reward})
				h.stats("") // has it flushed, beside the others
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
	if n := 3 * rounds * each; r.Calls != n || r.Successes != n*2/3 || r.Rewards != n || !near(r.Avg, 20) || !near(r.Mean, 1) {
		t.Errorf("together they have counted %+v", r)
	}
	if want := 2.0 / 3 * 1800 / 1799; math.Abs(r.Variance-want) > 1e-9 {
		t.Errorf("the variance is %g, should be %g", r.Variance, want)
	}
	if math.Abs(r.P95-30) > 0.31 {
		t.Errorf("p95 is %g", r.P95)
	}
	if r := after.one("last"); r.Calls != 7 {
		t.Errorf("of the calls before the end there are %d", r.Calls)
	}
}

// Calls go to the store by themselves within flushEvery of the first, without anybody
// asking, and an idle plugin does nothing.
func TestFlushByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := store.OpenMemory(t.Context(), Part())
		if err != nil {
			t.Fatal(err)
		}
		var opened atomic.Int32
		p, err := New("learn", DefaultOptions(), Env{Store: func(context.Context) (store.Store, error) {
			opened.Add(1)
			return s, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Start(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if opened.Load() != 0 {
			t.Error("the store was opened for nothing")
		}
		for i := range 3 {
			p.RecordCall(host.CallRecord{Kind: host.KindTool, Component: "x"})
			time.Sleep(flushEvery + time.Millisecond)
			synctest.Wait()
			if all, err := Stats(t.Context(), s, "x"); err != nil || len(all) != 1 || all[0].Calls != int64(i+1) {
				t.Errorf("after call %d: %+v, %v", i+1, all, err)
			}
		}
		time.Sleep(time.Hour)
		if n := opened.Load(); n != 3 {
			t.Errorf("the store was asked for %d times", n)
		}
		if err := errors.Join(p.Close(t.Context()), s.Close()); err != nil {
			t.Error(err)
		}
	})
}

// While the store fails calls are counted in memory, and nothing is lost or counted
// twice when it is well again.
func TestStoreThatFails(t *testing.T) {
	s := openStore(t, newFile(t))
	var broken atomic.Bool
	broken.Store(true)
	p, err := New("learn", DefaultOptions(), Env{Store: func(context.Context) (store.Store, error) {
		if broken.Load() {
			return nil, errors.New("no such disk")
		}
		return s, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	pair := hosttest.New(t, host.Options{Plugins: []host.Plugin{p, worker{}}})
	pair.Handshake()
	stage := &stage{Pair: pair, t: t, store: s, plugin: p}
	reward := 2.0
	for i, typ := range []protocol.Type{protocol.TypeLearnStatsReq, protocol.TypeLearnAdaptReq} {
		stage.work(work{Kind: host.KindTool, Component: "x", Correlation: fmt.Sprint("c", i), Times: 300, Millis: 5, Reward: &reward})
		if m := pair.Call(typ, `{}`); m.Code != protocol.CodeRuntimeError || !strings.Contains(m.Get("/message"), "no such disk") {
			t.Errorf("%s was answered by %s", typ, m.Line)
		}
	}
	if p.Weight(host.KindTool, "x") != 1 {
		t.Error("the weight without a store is not neutral")
	}
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
