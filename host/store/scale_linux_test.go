package store_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"a2e/host/hosttest/must"
	"a2e/host/hosttest/postgres"
	"a2e/host/store"
)

// BenchmarkHosts measures the acknowledged writes per second of hosts on one server that waits for its disk, on one
// schema or each on its own, of one and of 16 requests at once in each host. The figures of README.md are its.
func BenchmarkHosts(b *testing.B) {
	server := postgres.Start(b, "fsync=on", "full_page_writes=on")
	part := store.Part{Name: "notes", Migrations: []string{"CREATE TABLE notes (number INTEGER PRIMARY KEY, text TEXT NOT NULL);"}}
	for _, c := range []struct{ hosts, schemas, requests int }{{1, 1, 1}, {4, 1, 1}, {16, 1, 1}, {1, 1, 16}, {4, 1, 16}, {16, 1, 16}, {4, 4, 1}, {16, 16, 1}, {16, 16, 16}} {
		b.Run(fmt.Sprintf("hosts=%d/schemas=%d/requests=%d", c.hosts, c.schemas, c.requests), func(b *testing.B) {
			stores := make([]store.Store, c.hosts)
			for i := range stores {
				address := fmt.Sprintf("%s&schema=s%d", server.URL(postgres.Superuser), i%c.schemas)
				s := must.Get(store.OpenPostgres(address, b.TempDir(), store.Options{Parts: []store.Part{part}}))(b)
				defer s.Close()
				stores[i] = s
				must.OK(b, s.Read(b.Context(), func(*store.Tx) error { return nil }))
			}
			writes, start := 0, time.Now()
			for b.Loop() {
				var all sync.WaitGroup
				for _, s := range stores {
					for range c.requests {
						all.Go(func() {
							for range 10 {
								must.OK(b, s.Write(context.Background(), func(tx *store.Tx) error {
									_, err := tx.Exec("INSERT INTO notes (text) VALUES ($1)", "some text of a note")
									return err
								}))
							}
						})
					}
				}
				all.Wait()
				writes += 10 * c.hosts * c.requests
			}
			b.ReportMetric(float64(writes)/time.Since(start).Seconds(), "writes/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
