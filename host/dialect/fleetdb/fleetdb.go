// Package fleetdb lets a fleet of workers on many machines share one queue of tasks, which a PostgreSQL server keeps.
//
//	Sender ── tasks ──► table tasks ──► Worker ── TASK_DISPATCH ──► a host that speaks the fleet protocol
//	   ▲                    │  ▲                                        │
//	   └──── results ───────┘  └────────── TASK_RESULT ◄────────────────┘
//
//	fleetdb.go  a fleet by its URL, statements  notify.go  notifications
//	tables.go   the tables (tables/*.sql), and the statements of a worker  look.go  the state of a fleet
//	send.go     tasks of a sender  result.go  their results  work.go  a worker: its loops
//
// A worker takes tasks by one statement, which selects tasks that the worker can do and makes sure that no two workers
// take the same one (FOR UPDATE SKIP LOCKED). The same transaction stores the results of tasks that it has done. A
// worker holds its tasks as long as its heartbeat goes on; the tasks of a worker that died go back into the queue. A
// task ends once, with the first result. Notifications only make this quick: whoever waits also looks at intervals.
package fleetdb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"a2e/host/dialect"
	"a2e/host/state/store"
	"a2e/host/state/store/pg"
	"a2e/protocol"
)

const (
	defaultName  = "main"
	defaultLease = 10 * time.Second
	leastLease   = time.Second
	mostLease    = time.Hour

	queryTimeout = 10 * time.Second // for the answer of the server

	connections = 2           // of a process, beside the one that listens
	maxAnswer   = 2 * maxText // longest message that is accepted from the server (one row), in bytes
)

// Example is the URL of a fleet, for help texts and errors.
const Example = "postgres://user@host:5432/database?fleet=team"

// Fleet is a fleet on a server. It is safe for concurrent use. It connects when it is first used.
type Fleet struct {
	config *pgxpool.Config
	name   string
	schema string        // of its tables; also the name of its channel
	lease  time.Duration // how long a worker may be silent before its tasks go to others

	existing bool // its tables must exist

	mu   sync.Mutex    // held while the tables are made; guards the fields below
	pool *pgxpool.Pool // nil = not connected
	made bool          // the tables are known to exist

	notices notices
}

// Open returns the fleet of a URL such as Example. Password, certificates and other settings work as in PostgreSQL's
// own clients, also from PGPASSWORD and ~/.pgpass. The parameter fleet names one of several fleets in a database; lease
// (10s) is how long a worker may be silent. The error contains nothing of the URL.
func Open(text string) (*Fleet, error) {
	wrong := errors.New("the URL of a fleet should be such as " + Example)
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, wrong
	}
	f := &Fleet{name: defaultName, lease: defaultLease}
	query, err := pg.Parameters(u, "fleet", "lease", "schema", "search_path")
	if err != nil {
		return nil, fmt.Errorf("the URL of a fleet %w", err)
	}
	if query.Has("fleet") {
		if f.name = query.Get("fleet"); !regexp.MustCompile(`^[a-z0-9_]{1,32}$`).MatchString(f.name) {
			return nil, errors.New("fleet in the URL of a fleet is its name: 1 to 32 small letters, digits and _")
		}
	}
	if query.Has("lease") {
		f.lease, err = time.ParseDuration(query.Get("lease"))
		if err != nil || f.lease < leastLease || f.lease > mostLease {
			return nil, fmt.Errorf("lease in the URL of a fleet is how long a worker may be silent: "+
				"from %s to %s, such as 10s", leastLease, mostLease)
		}
	}
	f.schema = "a2e_fleet_" + f.name
	query.Del("fleet")
	query.Del("lease")
	u.RawQuery = query.Encode()
	if query.Has("schema") || query.Has("search_path") {
		return nil, errors.New("the URL of a fleet has no schema and no search_path: fleet names it")
	}
	server, _, _, err := store.PostgresConfig(u.String())
	if err == nil {
		f.config, err = pgxpool.ParseConfig(server.ConnString())
	}
	if err != nil {
		return nil, wrong
	}
	server.MaxProtocolMessageBodyLen = maxAnswer
	f.config.ConnConfig, f.config.MaxConns, f.config.AfterConnect = server, connections, setUp
	return f, nil
}

// setUp makes a connection plan each statement for its values: a plan that was made while the tables were empty would
// always read them from end to end. It is a statement because pgbouncer would refuse it as a parameter of the
// connection.
func setUp(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SET plan_cache_mode = force_custom_plan")
	return err
}

// Name returns the name of the fleet.
func (f *Fleet) Name() string { return f.name }

// server returns the address of the server and the database for errors, without user and password.
func (f *Fleet) server() string {
	c := f.config.ConnConfig
	return net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))) + "/" + c.Database
}

// Ping makes the tables of the fleet if there are none. The error says that the server cannot be reached, or that it
// refuses.
func (f *Fleet) Ping(ctx context.Context) error { return f.do(ctx, "SELECT") }

// Close closes the connections. The next statement opens new ones.
func (f *Fleet) Close() {
	f.notices.goes.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pool != nil {
		f.pool.Close()
		f.pool = nil
	}
}

// ready returns the connections. It first makes sure that the tables exist.
func (f *Fleet) ready(ctx context.Context) (pool *pgxpool.Pool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pool == nil {
		if f.pool, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), f.config); err != nil {
			return nil, err
		}
	}
	if !f.made {
		if err = f.migrate(ctx, f.pool); err != nil {
			return nil, err
		}
		f.made = true
	}
	return f.pool, nil
}

// batch has statements that go to the server together, in one transaction.
type batch struct {
	pgx.Batch
	fleet *Fleet
}

// queue adds a statement, in which ~ stands for the schema of the fleet. Its rows are read into to.
func queue[T any](b *batch, to *[]T, read pgx.RowToFunc[T], sql string, args ...any) {
	b.Queue(b.fleet.named(sql), args...).Query(func(rows pgx.Rows) (err error) {
		*to, err = pgx.CollectRows(rows, read)
		return err
	})
}

// send runs the statements. The error is store_unavailable while the server is away; the statements may have taken
// effect all the same.
func (b *batch) send(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	pool, err := b.fleet.ready(ctx)
	if err == nil {
		err = pool.SendBatch(ctx, &b.Batch).Close()
	}
	return b.fleet.failure(err)
}

// ask runs one statement and returns its rows.
func ask[T any](ctx context.Context, f *Fleet, read pgx.RowToFunc[T], sql string, args ...any) (all []T, err error) {
	b := &batch{fleet: f}
	queue(b, &all, read, sql, args...)
	err = b.send(ctx)
	return all, err
}

// do runs a statement whose rows do not matter.
func (f *Fleet) do(ctx context.Context, sql string, args ...any) error {
	_, err := ask(ctx, f, func(pgx.CollectableRow) (none struct{}, err error) { return none, nil }, sql, args...)
	return err
}

// named replaces ~ in a statement by the schema of the fleet.
func (f *Fleet) named(sql string) string { return strings.ReplaceAll(sql, "~", f.schema) }

// failure converts the error of a statement to one that reveals nothing of the connection. Of a network error it shows
// only the innermost text, because the outer ones contain the user.
func (f *Fleet) failure(err error) error {
	var said *pgconn.PgError
	var own *protocol.Error
	var net *net.OpError
	reason := "the connection broke"
	switch {
	case err == nil, errors.As(err, &own):
		return err
	case errors.As(err, &said) && !away(said.Code):
		return protocol.Errorf(protocol.CodeRuntimeError, "the server of the fleet %q (%s) refuses: %s (%s)",
			f.name, f.server(), said.Message, said.Code)
	case said != nil:
		reason = said.Message
	case errors.As(err, &net):
		reason = net.Err.Error()
	case errors.Is(err, context.DeadlineExceeded), pgconn.Timeout(err):
		reason = "no answer in time"
	}
	return protocol.Errorf(protocol.CodeStoreUnavailable,
		"the server of the fleet %q (%s) cannot be used now: %s; try again later", f.name, f.server(), reason)
}

// away reports whether the code of a server's answer says that the same statement may succeed later: the server starts,
// ends, is full, had to break off the statement, or is a standby that is not promoted yet.
func away(code string) bool {
	switch code[:min(len(code), 2)] {
	case "08", "40", "53":
		return true
	}
	return strings.HasPrefix(code, "57P") || code == "55P03" || code == "57014" || code == "25006"
}

// unavailable reports whether an error says that the server is away.
func unavailable(err error) bool {
	own, ok := errors.AsType[*protocol.Error](err)
	return ok && own.Code == protocol.CodeStoreUnavailable
}

// newPace returns the waiting times between tries while the server is away.
func newPace() *backoff.ExponentialBackOff {
	pace := backoff.NewExponentialBackOff()
	pace.InitialInterval, pace.MaxInterval = 100*time.Millisecond, 5*time.Second
	return pace
}

// pause waits for a bell, at most for the time most or until ctx ends.
func pause(ctx context.Context, bell dialect.Bell, most time.Duration) {
	clock := time.NewTimer(most)
	defer clock.Stop()
	select {
	case <-bell:
	case <-clock.C:
	case <-ctx.Done():
	}
}
