package fleetdb

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/rs/zerolog"
)

const (
	collectFor    = 10 * time.Millisecond // longest time to collect notifications that are sent together
	tellTime      = time.Second           // for the server to take them
	noticesAtOnce = 380                   // texts in one notification, up to 20 bytes each; PostgreSQL takes 8000 bytes
)

// notice is a notification. To names the sender whose task with the number Text has ended. To "" = it is for all
// workers: Text names one of them, or is "" if there are tasks.
type notice struct{ To, Text string }

// notices collects notifications. They are sent in transactions of their own, because PostgreSQL lets transactions that
// notify commit only one after the other.
type notices struct {
	goes sync.WaitGroup // the goroutine that sends

	mu      sync.Mutex // guards the fields below
	waiting []notice
	sending bool
}

// tell sends notifications soon: at once if none were sent for a while, else together with the next ones.
func (f *Fleet) tell(all ...notice) {
	n := &f.notices
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waiting = append(n.waiting, all...)
	if !n.sending && len(all) > 0 {
		n.sending = true
		n.goes.Go(f.tellAll)
	}
}

// tellAll sends notifications until there are none. Errors are ignored, because whoever misses one looks by itself.
func (f *Fleet) tellAll() {
	for {
		var channels, texts []string
		f.notices.mu.Lock()
		for _, n := range f.notices.waiting {
			channels, texts = append(channels, f.channel(n.To)), append(texts, n.Text)
		}
		f.notices.waiting, f.notices.sending = nil, len(channels) > 0
		f.notices.mu.Unlock()
		if len(channels) == 0 {
			return
		}
		begun := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), tellTime)
		_ = f.do(ctx, `SELECT pg_notify(c, string_agg(t, ',')) FROM (
			SELECT c, t, row_number() OVER (PARTITION BY c) / $3 FROM (
				SELECT DISTINCT c, t FROM unnest($1::text[], $2::text[]) AS n (c, t)) each) AS p (c, t, part)
			GROUP BY c, part`, channels, texts, noticesAtOnce)
		cancel()
		pause(context.Background(), nil, min(4*time.Since(begun), collectFor)) // longer if the server is busy
	}
}

// channel returns the channel of a sender; "" = that of the workers.
func (f *Fleet) channel(sender string) string {
	if sender == "" {
		return f.schema
	}
	return f.schema + "_" + sender
}

// changes runs a statement that returns notices of what it changed, and sends them. It returns their number.
func (f *Fleet) changes(ctx context.Context, sql string, args ...any) (int, error) {
	all, err := ask(ctx, f, pgx.RowToStructByPos[notice], sql, args...)
	f.tell(all...)
	return len(all), err
}

// listen passes the texts of notifications on a channel to take until ctx ends. It passes nil when some may have been
// missed. It has a connection of its own.
func (f *Fleet) listen(ctx context.Context, channel string, log zerolog.Logger, take func(texts []string)) {
	pace := newPace()
	for ctx.Err() == nil {
		err := f.hear(ctx, channel, func(texts []string) { pace.Reset(); take(texts) })
		if ctx.Err() == nil {
			log.Debug().Err(f.failure(err)).Msg("no notifications of the fleet's server for now")
			pause(ctx, nil, pace.NextBackOff())
		}
	}
}

// hear listens until the connection breaks or ctx ends.
func (f *Fleet) hear(ctx context.Context, channel string, take func(texts []string)) error {
	config := f.config.ConnConfig.Copy()
	// The end of a wait does not need a cancel request to the server.
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellTime)
		defer cancel()
		_ = conn.Close(last)
	}()
	within, cancel := context.WithTimeout(ctx, queryTimeout)
	_, err = conn.Exec(within, "LISTEN "+channel)
	cancel()
	if err != nil {
		return err
	}
	take(nil)
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		take(strings.Split(n.Payload, ","))
	}
}
