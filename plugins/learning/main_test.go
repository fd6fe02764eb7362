package learning

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"go.uber.org/goleak"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/sandbox"
	"a2e/host/store"
	"a2e/protocol"
)

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher() // children start through this test binary
	goleak.VerifyTestMain(m)
}

// worker is a plugin with components that do as they are told.
type worker struct{}

const typeWork protocol.Type = "work/req"

// work is one call of a component.
type work struct {
	Kind        string   `json:"kind"`
	Component   string   `json:"component"`
	Correlation string   `json:"correlation_id"`
	Fail        bool     `json:"fail"`
	Millis      float64  `json:"millis"`
	Reward      *float64 `json:"reward"`
	Times       int      `json:"times"` // 0 = 1
}

func (worker) Info() host.PluginInfo {
	return host.PluginInfo{Name: "work", Capability: protocol.CapTest}
}

func (worker) Routes() []host.Route {
	return []host.Route{host.Handle(typeWork, func(ctx context.Context, w *work, _ host.Emitter) (*struct{}, error) {
		for range max(w.Times, 1) {
			host.ServicesOf(ctx).Record(ctx, host.CallRecord{
				Kind: w.Kind, Component: w.Component, Correlation: w.Correlation, Success: !w.Fail, Duration: time.Duration(w.Millis * float64(time.Millisecond)), Reward: w.Reward,
			})
		}
		return &struct{}{}, nil
	})}
}

func (worker) Close(context.Context) error { return nil }

// openStore opens a store in a file, which the test closes.
func openStore(t testing.TB, path string) *store.SQLite {
	t.Helper()
	s, err := store.Open(t.Context(), path, store.Options{Parts: []store.Part{Part()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newFile names a store that is not there yet.
func newFile(t testing.TB) string { return filepath.Join(t.TempDir(), store.FileName) }

// newPlugin makes a plugin on a store.
func newPlugin(t testing.TB, s store.Store, opts Options, env Env) *Plugin {
	t.Helper()
	env.Store = func(context.Context) (store.Store, error) { return s, nil }
	p, err := New("learn", opts, env)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// stage is a host with a learning plugin, a worker and a session.
type stage struct {
	*hosttest.Pair
	t      testing.TB
	store  *store.SQLite
	plugin *Plugin
}

// newStage opens a host on the store in a file.
func newStage(t testing.TB, path string, opts Options) *stage {
	t.Helper()
	return stageWith(t, path, opts, Env{})
}

func stageWith(t testing.TB, path string, opts Options, env Env, more ...host.Plugin) *stage {
	t.Helper()
	s := &stage{t: t, store: openStore(t, path)}
	s.plugin = newPlugin(t, s.store, opts, env)
	s.Pair = hosttest.New(t, host.Options{Plugins: append([]host.Plugin{s.plugin, worker{}}, more...)})
	s.Handshake()
	return s
}

// work has a component called.
func (s *stage) work(w work) {
	s.t.Helper()
	if m := s.Call(typeWork, encode(s.t, w)); m.Type != "work/resp" {
		s.t.Fatalf("no work was done: %s", m)
	}
}

// calls has a tool called so many times with and without success.
func (s *stage) calls(tool string, successes, failures int) {
	s.t.Helper()
	if successes > 0 {
		s.work(work{Kind: host.KindTool, Component: tool, Times: successes})
	}
	if failures > 0 {
		s.work(work{Kind: host.KindTool, Component: tool, Times: failures, Fail: true})
	}
}

// ask sends a request, expects its response and reads it.
func (s *stage) ask(typ protocol.Type, fields string, resp any) {
	s.t.Helper()
	m := s.Call(typ, fields)
	if info, _ := protocol.Lookup(typ); m.Type != info.Response {
		s.t.Fatalf("%s %.500s was answered by %.1000s", typ, fields, m.Line)
	}
	m.Decode(s.t, resp)
}

// row is a component's record as answers have it.
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
	if resp.Components == nil {
		s.t.Fatal("the list of components is null")
	}
	return resp.Components
}

// one is stats for a component that there is once.
func (s *stage) one(component string) row {
	s.t.Helper()
	all := s.stats(component)
	if len(all) != 1 {
		s.t.Fatalf("there are %d of %s: %+v", len(all), component, all)
	}
	return all[0]
}

// adapt adapts weights and gives those updated, by name.
func (s *stage) adapt(component, strategy string) (weights map[string]float64, message string) {
	s.t.Helper()
	var resp struct {
		Updated []row  `json:"updated"`
		Message string `json:"message"`
	}
	s.ask(protocol.TypeLearnAdaptReq, encode(s.t, map[string]string{"component_name": component, "strategy": strategy}), &resp)
	if resp.Updated == nil || resp.Message == "" {
		s.t.Fatalf("answered by %+v", resp)
	}
	weights = make(map[string]float64)
	for _, r := range resp.Updated {
		weights[r.Component] = r.Weight
	}
	return weights, resp.Message
}

// rate sends feedbacks, all of which must be taken, and gives the score.
func (s *stage) rate(feedbacks ...string) *float64 {
	s.t.Helper()
	var resp protocol.LearnFeedbackResponse
	s.ask(protocol.TypeLearnFeedbackReq, batch(feedbacks...), &resp)
	return resp.NewScore
}

func batch(feedbacks ...string) string {
	out := `{"feedbacks":[`
	for i, f := range feedbacks {
		if i > 0 {
			out += ","
		}
		out += f
	}
	return out + "]}"
}

func encode(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
