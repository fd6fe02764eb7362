package worker

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// learner is a plugin that counts calls and knows weights.
type learner struct {
	begun  chan context.Context // takes that of Start, which names the host
	weight map[string]float64

	mu    sync.Mutex
	calls []host.CallRecord // guarded by mu
}

func (l *learner) Info() host.PluginInfo {
	return host.PluginInfo{Name: "learner", Capability: protocol.CapLearning}
}
func (l *learner) Routes() []host.Route          { return nil }
func (l *learner) Close(context.Context) error   { return nil }
func (l *learner) Weight(_, name string) float64 { return l.weight[name] }

func (l *learner) Start(ctx context.Context, _ *host.Services) error {
	l.begun <- ctx
	return nil
}

func (l *learner) RecordCall(r host.CallRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Duration = min(r.Duration, time.Nanosecond)
	l.calls = append(l.calls, r)
}

// Each task that ran counts once for the worker that did it, and weights choose among equals.
func TestTasksAreCounted(t *testing.T) {
	t.Parallel()
	l := &learner{begun: make(chan context.Context, 1), weight: map[string]float64{"good": 2, "fair": 1, "blocked": 3}}
	hosttest.New(t, host.Options{Plugins: []host.Plugin{l}})
	inHost := <-l.begun
	s := newStage(t, shell("fair", "exit 1"), shell("good", "true"), shell("blocked", `echo '{"status":"blocked"}'`))
	_ = s.Start(inHost, host.ServicesOf(inHost))
	for _, worker := range []string{"", "fair"} {
		task := brief("t"+worker, "")
		task.Worker = worker
		if _, err := s.RunTask(inHost, task); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(inHost)
	cancel()
	if _, err := s.RunTask(ctx, brief("no", "")); err == nil {
		t.Error("a task that nobody wants ran")
	}
	want := []host.CallRecord{
		{Kind: host.KindWorker, Component: "good", Correlation: "t", Success: true, Duration: 1},
		{Kind: host.KindWorker, Component: "fair", Correlation: "tfair", Duration: 1},
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if diff := cmp.Diff(want, l.calls); diff != "" {
		t.Error(diff)
	}
}
