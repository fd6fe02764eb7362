package fleetdb_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/postgres"
)

// BenchmarkFleet measures the queue alone: the workers do nothing. All b.N tasks are sent at once; tasks/s counts the
// time from the first task sent to the last result. latency sends one task after the other.
func BenchmarkFleet(b *testing.B) {
	server := postgres.Start(b)
	for _, workers := range []int{1, 16} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			url := server.URL(postgres.Superuser) + fmt.Sprintf("&fleet=b%d_%d", workers, b.N)
			for i := range workers {
				works(b, url, fmt.Sprint(i), workers, done)
			}
			s := sends(b, url)
			_ = must.Get(s.Do(context.Background(), task("first")))(b)
			b.ResetTimer()
			var all sync.WaitGroup
			for i := range b.N {
				all.Go(func() { _, err := s.Do(context.Background(), task(fmt.Sprint(i))); assert.OK(b, err) })
			}
			all.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
		})
		b.Run(fmt.Sprintf("latency/workers=%d", workers), func(b *testing.B) {
			url := server.URL(postgres.Superuser) + fmt.Sprintf("&fleet=l%d_%d", workers, b.N)
			for i := range workers {
				works(b, url, fmt.Sprint(i), 1, done)
			}
			s := sends(b, url)
			times := make([]time.Duration, b.N)
			for i := range times {
				begun := time.Now()
				_ = must.Get(s.Do(context.Background(), task(fmt.Sprint(i))))(b)
				times[i] = time.Since(begun)
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[b.N/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(times[b.N*99/100].Microseconds()), "p99-µs")
		})
	}
}
