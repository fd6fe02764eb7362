package worker

import (
	"context"
	"testing"

	"a2e/host/hosttest/must"
	"a2e/protocol/fleet"
)

// BenchmarkOneshotToStarted measures the time from RunTask to the first line of a new process.
func BenchmarkOneshotToStarted(b *testing.B) {
	s := confinedStage(b, shell("w", "echo begun; read x"))
	for b.Loop() {
		begun := make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(context.Background())
		task := brief("id", "x")
		task.Output = func(string, string) { begun <- struct{}{} }
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = s.RunTask(ctx, task) // always an error: the task is cancelled
		}()
		<-begun
		b.StopTimer()
		cancel()
		<-ended
		b.StartTimer()
	}
}

// BenchmarkFleetRoundTrip measures the time from RunTask to the result of a child that already runs.
func BenchmarkFleetRoundTrip(b *testing.B) {
	s := newStage(b, fake(b, "w"))
	task := brief("id", "done")
	s.do(task)
	for b.Loop() {
		res, err := s.RunTask(context.Background(), task)
		must.That(b, err == nil && res.Status == fleet.StatusDone, "%v %v", res, err)
	}
}
