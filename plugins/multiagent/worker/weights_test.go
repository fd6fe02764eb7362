package worker

import (
	"context"
	"sync/atomic"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
)

// slowLearner is a learner that looks whether the pool waits for it.
type slowLearner struct {
	*learner
	look func()
}

func (l slowLearner) Weight(string, string) float64 {
	l.look()
	return 1
}

// A learned weight may have to be read from the disk: all other tasks do not wait for that.
func TestNobodyWaitsForWeights(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("a", "true"), shell("b", "true"))
	var asked, held atomic.Int64
	l := slowLearner{&learner{begun: make(chan context.Context, 1)}, func() {
		if asked.Add(1); !s.mu.TryLock() {
			held.Add(1)
			return
		}
		s.mu.Unlock()
	}}
	hosttest.New(t, host.Options{Plugins: []host.Plugin{l}})
	inHost := <-l.begun
	_ = s.Start(inHost, host.ServicesOf(inHost))
	if _, err := s.RunTask(inHost, brief("t", "")); err != nil {
		t.Fatal(err)
	}
	if asked.Load() != 2 || held.Load() != 0 {
		t.Errorf("asked %d times, %d of them under the lock", asked.Load(), held.Load())
	}
}
