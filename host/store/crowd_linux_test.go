package store_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
	"a2e/host/hosttest/postgres"
	"a2e/host/store"
)

// testCrowd: hosts that are busy all the time leave connections for those that come later.
func testCrowd(t *testing.T, server *postgres.Server) {
	part := store.Part{Name: "notes", Migrations: []string{"CREATE TABLE notes (number INTEGER PRIMARY KEY);"}}
	server.Exec(t, "CREATE ROLE crowd LOGIN; GRANT CREATE ON DATABASE postgres TO crowd")
	use := func(ctx context.Context, s *store.Postgres) error {
		write := func(tx *store.Tx) error { _, err := tx.Exec("DELETE FROM notes"); return err }
		return errors.Join(s.Read(ctx, func(tx *store.Tx) error { _, err := tx.Get("SELECT 1 FROM notes", nil, new(int)); return err }), s.Write(ctx, write))
	}
	open := func() *store.Postgres {
		s := must.Get(store.OpenPostgres(server.URL("crowd")+"&schema=crowd", t.TempDir(), store.Options{Parts: []store.Part{part}}))(t)
		t.Cleanup(func() { must.OK(t, s.Close()) })
		return s
	}
	busy, end := context.WithCancel(t.Context())
	var hogs, late sync.WaitGroup
	defer hogs.Wait()
	defer end()
	for range 25 {
		s := open()
		for range 4 {
			hogs.Go(func() {
				for busy.Err() == nil {
					_ = use(busy, s) // the end comes at any time
				}
			})
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 35 {
		s := open()
		late.Go(func() {
			if err := use(ctx, s); err != nil {
				t.Errorf("a host that came later: %v", err)
			}
		})
	}
	late.Wait()
	poll.Within(t, 10*time.Second, "60 hosts have less than 90 connections", func() bool { // those that are being closed count as well
		return server.Exec(t, "SELECT count(*) < 90 FROM pg_stat_activity WHERE usename = 'crowd'") == "t"
	})
}
