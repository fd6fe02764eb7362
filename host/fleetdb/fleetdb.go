// Package fleetdb has a fleet of workers on many machines share one queue of tasks, which a
// PostgreSQL server keeps.
//
//	Sender ── tasks ──► table tasks ──► Worker ── TASK_DISPATCH ──► a host that speaks the fleet protocol
//	   ▲                    │  ▲                                        │
//	   └──── results ───────┘  └────────── TASK_RESULT ◄────────────────┘
//
//	fleetdb.go  a fleet by its URL, statements, notifications
//	tables.go   what the server keeps, what a worker asks of it, and who looks at it
//	send.go     a task from its sender to its result  work.go  a worker: its loops
//
// A worker takes a task by one statement that looks whether it can do it, and that no two
// workers take the same (FOR UPDATE SKIP LOCKED). It holds what it took for as long as its
// heartbeat goes on; of one that died the tasks go back into the queue. A task ends once: the
// first result that comes of it is the one that counts. Notifications make all of it quick and
// nothing depends on them: whoever waits looks again now and then.
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
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/rs/zerolog"

	"a2e/host/dialect"
	"a2e/host/store"
	"a2e/protocol"
)

const (
	defaultName  = "main"
	defaultLease = 10 * time.Second
	leastLease   = time.Second
	mostLease    = time.Hour

	queryTimeout = 10 * time.Second // for a server that does not answer

	maxAnswer = 2 * maxText // longest message that is taken from the server, in bytes: one row
)

// Example is a URL of a fleet, for help and errors.
const Example = "postgres://user@host:5432/database?fleet=team"

// Fleet is a fleet on a server. It is safe for concurrent use, and connects when it is first
// asked for something.
type Fleet struct {
	config *pgconn.Config
	name   string
	schema string        // that its tables are in, and its channel
	lease  time.Duration // how long a worker may be silent before its tasks go elsewhere

	existing bool // its tables must be there

	mu       sync.Mutex                              // held during a statement; guards the fields below
	conn     *pgconn.PgConn                          // nil = none
	prepared map[string]*pgconn.StatementDescription // on conn
	made     bool                                    // the tables are known to be there
}

// Open returns the fleet of a URL such as Example; password, certificates and the rest are as
// PostgreSQL's own clients have them, also from PGPASSWORD and ~/.pgpass. Of its parameters
// fleet names one of several fleets in a database, and lease (10s) is how long a worker may be
// silent. The error shows nothing of the URL.
func Open(text string) (*Fleet, error) {
	wrong := errors.New("the URL of a fleet should be such as " + Example)
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, wrong
	}
	f := &Fleet{name: defaultName, lease: defaultLease}
	query, err := store.Parameters(u, "fleet", "lease", "schema", "search_path")
	if err != nil {
		return nil, fmt.Errorf("the URL of a fleet %w", err)
	}
	if query.Has("fleet") {
		if f.name = query.Get("fleet"); !regexp.MustCompile(`^[a-z0-9_]{1,32}$`).MatchString(f.name) {
			return nil, errors.New("fleet in the URL of a fleet is its name: 1 to 32 small letters, digits and _")
		}
	}
	if query.Has("lease") {
		if f.lease, err = time.ParseDuration(query.Get("lease")); err != nil || f.lease < leastLease || f.lease > mostLease {
			return nil, fmt.Errorf("lease in the URL of a fleet is how long a worker may be silent: from %s to %s, such as 10s", leastLease, mostLease)
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
	if err != nil {
		return nil, wrong
	}
	f.config = &server.Config
	f.config.MaxProtocolMessageBodyLen = maxAnswer
	return f, nil
}

// Name is the name of the fleet.
func (f *Fleet) Name() string { return f.name }

// server names the server for errors: never who asks it, and by which password.
func (f *Fleet) server() string {
	return net.JoinHostPort(f.config.Host, strconv.Itoa(int(f.config.Port))) + "/" + f.config.Database
}

// Ping makes the fleet, unless it is there. The error says that the server cannot be reached, or
// refuses.
func (f *Fleet) Ping(ctx context.Context) error {
	_, err := f.query(ctx, "SELECT")
	return err
}

// Close ends the connection; the next statement makes a new one.
func (f *Fleet) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropLocked()
}

func (f *Fleet) dropLocked() {
	if f.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = f.conn.Close(ctx)
		f.conn = nil
	}
}

// row is what a statement returns of one row; nil is NULL.
type row [][]byte

func (r row) text(i int) string { return string(r[i]) }

func (r row) number(i int) int64 {
	n, _ := strconv.ParseInt(string(r[i]), 10, 64)
	return n
}

func (r row) truth(i int) bool { return string(r[i]) == "t" }

// query runs one statement, in which ~ stands for the schema of the fleet, and returns its rows.
// The error is store_unavailable while the server is away; what the statement asked for may be
// done all the same.
func (f *Fleet) query(ctx context.Context, sql string, args ...any) ([]row, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.connectLocked(ctx); err != nil {
		return nil, f.failure(err)
	}
	rows, err := f.runLocked(ctx, sql, args...)
	if err != nil && f.conn.IsClosed() {
		f.conn = nil
	}
	return rows, f.failure(err)
}

// connectLocked makes the connection and the tables, unless they are there.
func (f *Fleet) connectLocked(ctx context.Context) (err error) {
	if f.conn != nil && !f.conn.IsClosed() {
		return nil
	}
	if f.conn, err = pgconn.ConnectConfig(ctx, f.config); err != nil {
		return err
	}
	f.prepared = make(map[string]*pgconn.StatementDescription)
	if !f.made {
		if err = f.migrateLocked(ctx); err != nil {
			f.dropLocked()
			return err
		}
		f.made = true
	}
	return nil
}

// runLocked runs a statement, which the server plans once.
func (f *Fleet) runLocked(ctx context.Context, sql string, args ...any) ([]row, error) {
	values := make([][]byte, len(args))
	for i, arg := range args {
		values[i] = encode(arg)
	}
	known := f.prepared[sql]
	if known == nil {
		var err error
		if known, err = f.conn.Prepare(ctx, fmt.Sprintf("a2e%d", len(f.prepared)), strings.ReplaceAll(sql, "~", f.schema), nil); err != nil {
			return nil, err
		}
		f.prepared[sql] = known
	}
	res := f.conn.ExecStatement(ctx, known, values, nil, nil).Read()
	rows := make([]row, len(res.Rows))
	for i, r := range res.Rows {
		rows[i] = r
	}
	return rows, res.Err
}

// encode writes a parameter as PostgreSQL reads it from text; nil is NULL.
func encode(arg any) []byte {
	switch v := arg.(type) {
	case string:
		return []byte(v)
	case int:
		return strconv.AppendInt(nil, int64(v), 10)
	case int64:
		return strconv.AppendInt(nil, v, 10)
	case bool:
		return strconv.AppendBool(nil, v)
	case time.Duration: // as an interval
		return strconv.AppendFloat(nil, v.Seconds(), 'f', 3, 64)
	case []int64:
		texts := make([]string, len(v))
		for i, n := range v {
			texts[i] = strconv.FormatInt(n, 10)
		}
		return []byte("{" + strings.Join(texts, ",") + "}")
	case []string:
		var b strings.Builder
		b.WriteByte('{')
		for i, text := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteByte('"')
			_, _ = strings.NewReplacer(`\`, `\\`, `"`, `\"`).WriteString(&b, text)
			b.WriteByte('"')
		}
		b.WriteByte('}')
		return []byte(b.String())
	}
	return nil
}

// failure says what a statement failed with, and nothing of how the server is asked.
func (f *Fleet) failure(err error) error {
	var said *pgconn.PgError
	var own *protocol.Error
	switch {
	case err == nil, errors.As(err, &own):
		return err
	case errors.As(err, &said) && !away(said.Code):
		return protocol.Errorf(protocol.CodeRuntimeError, "the server of the fleet %q (%s) refuses: %s (%s)", f.name, f.server(), said.Message, said.Code)
	}
	return protocol.Errorf(protocol.CodeStoreUnavailable, "the server of the fleet %q (%s) cannot be used now: %s; try again later", f.name, f.server(), reason(err))
}

// reason is the innermost of a chain of errors of the network: the outer ones name the user.
func reason(err error) string {
	var said *pgconn.PgError
	var net *net.OpError
	switch {
	case errors.As(err, &said):
		return said.Message
	case errors.As(err, &net):
		return net.Err.Error()
	case errors.Is(err, context.DeadlineExceeded), pgconn.Timeout(err):
		return "no answer in time"
	}
	return "the connection broke"
}

// away reports whether a server that answers with this code is one that starts, ends, is full or had
// to break off a statement: the same one may succeed later.
func away(code string) bool {
	return strings.HasPrefix(code, "57P") || strings.HasPrefix(code, "40") || code == "55P03" || code == "57014" || strings.HasPrefix(code, "53") || strings.HasPrefix(code, "08") || code == "25006" // a standby that is not promoted yet
}

// unavailable reports whether an error is that of a server that is away.
func unavailable(err error) bool {
	var own *protocol.Error
	return errors.As(err, &own) && own.Code == protocol.CodeStoreUnavailable
}

// newPace is how long who found the server away waits before the next try.
func newPace() *backoff.ExponentialBackOff {
	pace := backoff.NewExponentialBackOff()
	pace.InitialInterval, pace.MaxInterval = 100*time.Millisecond, 5*time.Second
	return pace
}

// pause waits for a bell, or for a time.
func pause(ctx context.Context, bell dialect.Bell, most time.Duration) {
	clock := time.NewTimer(most)
	defer clock.Stop()
	select {
	case <-bell:
	case <-clock.C:
	case <-ctx.Done():
	}
}

// listen gives what comes on a channel to take, and nothing now and then, until ctx ends. It has
// a connection of its own.
func (f *Fleet) listen(ctx context.Context, channel string, log zerolog.Logger, take func(payloads []string)) {
	pace := newPace()
	for ctx.Err() == nil {
		var heard []string
		config := f.config.Copy()
		config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { heard = append(heard, n.Payload) }
		config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler { // to stop waiting is nothing to tell the server
			return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()}
		}
		conn, err := pgconn.ConnectConfig(ctx, config)
		if err == nil {
			within, cancel := context.WithTimeout(ctx, queryTimeout)
			err = conn.Exec(within, "LISTEN "+channel).Close()
			cancel()
		}
		for err == nil && ctx.Err() == nil {
			pace.Reset()
			take(heard)
			heard = nil
			within, cancel := context.WithTimeout(ctx, lookEvery)
			err = conn.WaitForNotification(within)
			if within.Err() != nil && pgconn.Timeout(err) && !conn.IsClosed() {
				err = nil
			}
			cancel()
		}
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
		if ctx.Err() == nil {
			log.Debug().Err(f.failure(err)).Msg("no notifications of the fleet's server for now")
			pause(ctx, nil, pace.NextBackOff())
		}
	}
}
