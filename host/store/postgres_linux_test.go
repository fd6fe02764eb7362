package store_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
	"a2e/host/hosttest/postgres"
	"a2e/host/store"
)

func TestPostgres(t *testing.T) {
	server := postgres.Start(t)
	for name, test := range map[string]func(*testing.T, *postgres.Server){
		"shared": testShared, "many writers": testManyWriters, "refuses": testRefuses, "crowd": testCrowd, "hangs": testHangs,
	} {
		t.Run(name, func(t *testing.T) { test(t, server) })
	}
	t.Run("restarts", func(t *testing.T) { testRestarts(t, server) })
}

// testShared: hosts that share a schema see each other's writes at once, a text comes back as it
// was, and a failed write leaves nothing.
func testShared(t *testing.T, server *postgres.Server) {
	part := store.Part{Name: "notes", Migrations: []string{`
CREATE TABLE notes (number INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL UNIQUE, raw BLOB, weight REAL);`,
		"ALTER TABLE notes ADD COLUMN done INTEGER NOT NULL DEFAULT 0;"}}
	open := func(schema string) *store.Postgres {
		s := must.Get(store.OpenPostgres(server.URL("postgres")+"&schema="+schema+"&options=-c%20lock_timeout%3D7s", t.TempDir(), store.Options{Parts: []store.Part{part}}))(t)
		t.Cleanup(func() { must.OK(t, s.Close()) })
		return s
	}
	a, b, other := open("team"), open("team"), open("others")
	texts := []string{"plain", "nul\x00in", "bad \xff byte", "esc \U0010fffe 00", "\U0010fffe", "é ?'\"", `back\slash`, ""}
	var ids []int64
	for i, text := range texts {
		raw := any([]byte(text)) // what a column of bytes takes, as a string too
		if i%2 == 1 {
			raw = text
		}
		must.OK(t, a.Write(t.Context(), func(tx *store.Tx) error {
			id, err := tx.Insert("INSERT INTO notes (text, raw, weight, done) VALUES ($1, $2, $3, $4) RETURNING number", text, raw, 0.5, i%2 == 0)
			ids = append(ids, id)
			return err
		}))
		must.OK(t, b.Read(t.Context(), func(tx *store.Tx) error {
			var back string
			var raw []byte
			var weight float64
			var done bool
			there, err := tx.Get("SELECT text, raw, weight, done FROM notes WHERE number = $1 AND text = $2", []any{ids[i], text}, &back, &raw, &weight, &done)
			assert.That(t, there && back == text && string(raw) == text && weight == 0.5 && done == (i%2 == 0), "%q came back as %q, %q, %v, %v", text, back, raw, weight, done)
			return err
		}))
	}
	must.OK(t, b.Read(t.Context(), func(tx *store.Tx) error {
		list := `["plain","nul\u0000in","esc ` + "\U0010fffe" + ` 00","no\\u0000ne"]`
		var found []string
		err := tx.Each("SELECT text FROM notes WHERE text IN (SELECT value FROM json_each($1)) ORDER BY number", []any{list}, func(scan func(...any) error) error {
			var text string
			err := scan(&text)
			found = append(found, text)
			var n int
			_, err2 := tx.Get("SELECT count(*) FROM notes", nil, &n) // while rows still come in
			assert.Equal(t, n, len(texts))
			return errors.Join(err, err2)
		})
		assert.Slice(t, found, []string{"plain", "nul\x00in", "esc \U0010fffe 00"})
		return err
	}))
	err := a.Write(t.Context(), func(tx *store.Tx) error {
		if _, err := tx.Exec("INSERT INTO notes (text) VALUES ($1)", "gone"); err != nil {
			return err
		}
		return errors.New("no")
	})
	assert.That(t, err != nil && err.Error() == "no", "%v", err)
	must.OK(t, other.Read(t.Context(), func(tx *store.Tx) error {
		there, err := tx.Get("SELECT 1 FROM notes", nil, new(int))
		assert.That(t, !there, "another schema's rows are seen")
		return err
	}))
	must.OK(t, a.Read(t.Context(), func(tx *store.Tx) error {
		there, err := tx.Get("SELECT 1 FROM notes WHERE text = 'gone'", nil, new(int))
		assert.That(t, !there, "a failed write was kept")
		return err
	}))
}

// testManyWriters: of writes of several hosts at once, in which some fail, all that were
// acknowledged are kept, and nothing else.
func testManyWriters(t *testing.T, server *postgres.Server) {
	part := store.Part{Name: "notes", Migrations: []string{"CREATE TABLE notes (text TEXT PRIMARY KEY) WITHOUT ROWID;"}}
	var stores []*store.Postgres
	for range 3 {
		s := must.Get(store.OpenPostgres(server.URL("postgres")+"&schema=writers", t.TempDir(), store.Options{Parts: []store.Part{part}}))(t)
		t.Cleanup(func() { must.OK(t, s.Close()) })
		stores = append(stores, s)
	}
	const each = 20
	done := make(chan error)
	for i := range 4 * len(stores) {
		go func() {
			var err error
			for k := range each {
				fails := k%5 == 4
				text := fmt.Sprintf("%d-%d", i, k)
				got := stores[i%len(stores)].Write(context.Background(), func(tx *store.Tx) error {
					_, err := tx.Exec("INSERT INTO notes VALUES ($1)", text)
					if fails && err == nil {
						_, err = tx.Exec("INSERT INTO notes VALUES ($1)", text) // it is there
					}
					return err
				})
				if (got != nil) != fails {
					err = fmt.Errorf("%s: %w", text, got)
				}
			}
			done <- err
		}()
	}
	for range 4 * len(stores) {
		must.OK(t, <-done)
	}
	must.OK(t, stores[0].Read(t.Context(), func(tx *store.Tx) error {
		var n int
		_, err := tx.Get("SELECT count(*) FROM notes", nil, &n)
		assert.Equal(t, n, 4*len(stores)*each*4/5)
		return err
	}))
}

// testRefuses: what cannot be the state's schema is said, and left as it is.
func testRefuses(t *testing.T, server *postgres.Server) {
	for address, says := range map[string]string{
		"mysql://x": "is not an address of PostgreSQL", "postgres://u:secret@h/d?schema=Team": "names the schema \"Team\"",
		"postgres://u:secret@h:99999999/d": "can be used", "postgres://u:secret@h/d?schema=pg_x": "names the schema",
		`postgres://u:secret@h/d?schema=a";DROP`:            "parameters that cannot be read",
		"postgres://u:secret@h/d?schema=a;sslmode=require":  "parameters that cannot be read",
		"postgres://u:secret@h/d?sslmode=require;&schema=a": "parameters that cannot be read",
		"postgres://u:secret@h/d?schema=%zz":                "parameters that cannot be read",
		"postgres://u:secret@h/d?schema=a%22":               "names the schema",
		"postgres://u:secret@h/d?sch%65ma=B":                "names the schema",
		"postgres://u:secret@h/d?schema=":                   "names the schema",
		"postgres://u:secret@h/d?schema":                    "names the schema",
		"postgres://u:secret@h/d?schema=a&schema=b":         "\"schema\" twice",
		"postgres://u:secret@h/d?Schema=a":                  "should it be schema",
		"postgres://u:secret@h/d?search_path=a":             "search_path",
		"postgres://u:secret@h/d#?schema=a":                 "has a #",
		"postgres://u:secret@h/d?schema=a#b":                "has a #",
		"postgres://u:secret@h/d?=a":                        "without a name",
	} {
		_, err := store.OpenPostgres(address, "", store.Options{})
		assert.That(t, err != nil && strings.Contains(err.Error(), says) && !strings.Contains(err.Error(), "secret"), "%s: %v", address, err)
	}
	server.Exec(t, "CREATE SCHEMA foreigners; CREATE TABLE foreigners.t (x int)")
	part := store.Part{Name: "notes", Migrations: []string{"CREATE TABLE notes (text TEXT PRIMARY KEY);", "ALTER TABLE notes ADD COLUMN more TEXT NOT NULL DEFAULT '';"}}
	use := func(address string, part store.Part) error {
		s := must.Get(store.OpenPostgres(address, "", store.Options{Parts: []store.Part{part}}))(t)
		defer s.Close()
		return s.Write(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec("INSERT INTO notes VALUES ('a')")
			return err
		})
	}
	assert.Is(t, use(server.URL("postgres")+"&schema=foreigners", part), store.ErrForeign)
	must.OK(t, use(server.URL("postgres"), part))
	older := part
	older.Migrations = slices.Clone(part.Migrations[:1])
	assert.Is(t, use(server.URL("postgres"), older), store.ErrNewer)
	assert.Is(t, use("postgres://nobody@/postgres?host="+t.TempDir(), part), store.ErrUnavailable)
	assert.Is(t, use(server.URL("nosuchrole"), part), store.ErrRefused)
	server.Exec(t, "CREATE ROLE owner LOGIN; CREATE SCHEMA owned AUTHORIZATION owner")
	must.OK(t, use(server.URL("owner")+"&schema=owned", part)) // without the right to make a schema
	assert.Is(t, use(server.URL("owner"), part), store.ErrRefused)
}

// testHangs: Close ends a write whose server does not answer any more.
func testHangs(t *testing.T, server *postgres.Server) {
	dir := must.Get(os.MkdirTemp("/tmp", "pg"))(t) // the path of a socket is short
	t.Cleanup(func() { must.OK(t, os.RemoveAll(dir)) })
	way := must.Get(net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432")))(t)
	t.Cleanup(func() { must.OK(t, way.Close()) })
	var hangs atomic.Bool
	go func() {
		for {
			client, err := way.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", filepath.Join(server.Dir, ".s.PGSQL.5432"))
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(client, far) }()
			go func() {
				defer far.Close()
				defer client.Close()
				for buf := make([]byte, 4096); ; {
					n, err := client.Read(buf)
					if err != nil {
						return
					}
					if !hangs.Load() {
						_, _ = far.Write(buf[:n])
					}
				}
			}()
		}
	}()
	part := store.Part{Name: "notes", Migrations: []string{"CREATE TABLE notes (text TEXT PRIMARY KEY);"}}
	s := must.Get(store.OpenPostgres("postgres://postgres@/postgres?schema=hangs&host="+dir, "", store.Options{Parts: []store.Part{part}}))(t)
	began, written, closed := make(chan bool), make(chan error, 1), make(chan error, 1)
	go func() {
		written <- s.Write(context.Background(), func(tx *store.Tx) error {
			hangs.Store(true)
			close(began)
			_, err := tx.Exec("INSERT INTO notes VALUES ('a')")
			return err
		})
	}()
	<-began
	go func() { closed <- s.Close() }()
	poll.Eventually(t, "both end", func() bool { return len(written)+len(closed) == 2 })
	assert.That(t, <-written != nil, "a write without an answer was kept")
}

// testRestarts: while the server is away requests are refused, afterwards they are served again; what was
// acknowledged is there, and nothing twice.
func testRestarts(t *testing.T, server *postgres.Server) {
	part := store.Part{Name: "notes", Migrations: []string{"CREATE TABLE notes (number INTEGER PRIMARY KEY, text TEXT NOT NULL);"}}
	s := must.Get(store.OpenPostgres(server.URL("postgres")+"&schema=restarts", t.TempDir(), store.Options{Parts: []store.Part{part}}))(t)
	defer func() { must.OK(t, s.Close()) }()
	var mu sync.Mutex
	acknowledged := map[string]bool{}
	stop, done := make(chan struct{}), make(chan error, 3)
	for w := range 3 {
		go func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				text := fmt.Sprintf("%d-%d", w, n)
				err := s.Write(context.Background(), func(tx *store.Tx) error {
					_, err := tx.Exec("INSERT INTO notes (text) VALUES ($1)", text)
					return err
				})
				if err != nil && !errors.Is(err, store.ErrUnavailable) {
					done <- err
					return
				}
				if err != nil && strings.Contains(err.Error(), "it is unknown") {
					continue // the server was away for longer than the host asks it: the write may be there
				}
				mu.Lock()
				acknowledged[text] = err == nil
				mu.Unlock()
			}
		}()
	}
	count := func(kept bool) (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, k := range acknowledged {
			if k == kept {
				n++
			}
		}
		return n
	}
	for range 4 {
		kept, refused := count(true), count(false)
		poll.Eventually(t, "writes are acknowledged", func() bool { return count(true) > kept+20 })
		server.Crash()
		poll.Eventually(t, "writes are refused", func() bool { return count(false) > refused })
		server.Begin(t)
	}
	kept := count(true)
	poll.Eventually(t, "writes are acknowledged again", func() bool { return count(true) > kept })
	close(stop)
	for range 3 {
		must.OK(t, <-done)
	}
	times := map[string]int{}
	must.OK(t, s.Read(t.Context(), func(tx *store.Tx) error {
		return tx.Each("SELECT text FROM notes", nil, func(scan func(...any) error) error {
			var text string
			err := scan(&text)
			times[text]++
			return err
		})
	}))
	for text, was := range acknowledged {
		assert.That(t, times[text] == 1 == was && times[text] < 2, "%s: acknowledged %v, there %d times", text, was, times[text])
	}
}
