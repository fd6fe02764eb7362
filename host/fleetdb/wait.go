package fleetdb

import (
	"bytes"
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/rs/zerolog"

	"a2e/host/dialect"
)

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

// lineWriter takes whole lines out of what is written to it.
type lineWriter struct {
	rest []byte
	take func(line []byte)
}

// Write implements io.Writer.
func (l *lineWriter) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			l.rest = bytes.Clone(line)
			return len(p), nil
		}
		l.take(line)
		l.rest = rest
	}
}
