package fleetdb

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// maxText is the largest size of the message of a task, and of a result, in bytes.
const maxText = 8 << 20

// tables has the statements that bring the tables from each version to the next.
//
//go:embed tables/*.sql
var tables embed.FS

// latest is the version of the tables.
const latest = 2

// makeVersion makes the schema and the table with the version of the other tables.
const makeVersion = `CREATE SCHEMA IF NOT EXISTS ~; CREATE TABLE IF NOT EXISTS ~.version (version integer NOT NULL);
	INSERT INTO ~.version SELECT 0 WHERE NOT EXISTS (SELECT FROM ~.version)`

// migrate makes the tables of the fleet or brings them up to date. It refuses tables of a newer a2e.
func (f *Fleet) migrate(ctx context.Context, pool *pgxpool.Pool) error {
	version := 0
	look := f.named("SELECT version FROM ~.version")
	err := pool.QueryRow(ctx, look).Scan(&version)
	var said *pgconn.PgError
	none := errors.As(err, &said) && (said.Code == "3F000" || said.Code == "42P01") // no schema or no table
	switch {
	case none && f.existing:
		return protocol.Errorf(protocol.CodeRuntimeError, "there is no fleet %q on the server (%s): its first worker "+
			"or task makes it", f.name, f.server())
	case version > latest:
		return protocol.Errorf(protocol.CodeRuntimeError, "the fleet %q (%s) has tables of version %d, and this "+
			"a2e knows %d: use a newer a2e", f.name, f.server(), version, latest)
	case err == nil && version == latest, err != nil && !none:
		return err
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext('a2e fleet'))")
		if err == nil && none {
			_, err = tx.Exec(ctx, f.named(makeVersion))
		}
		if err == nil {
			err = tx.QueryRow(ctx, look).Scan(&version) // someone else may have made the tables meanwhile
		}
		for n := version + 1; err == nil && n <= latest; n++ {
			text, _ := tables.ReadFile(fmt.Sprintf("tables/%d.sql", n)) // cannot fail: it is embedded
			if _, err = tx.Exec(ctx, f.named(string(text))); err == nil {
				_, err = tx.Exec(ctx, f.named("UPDATE ~.version SET version = $1"), n)
			}
		}
		return err
	})
}

const (
	claimsAtOnce = 16 // tasks that one statement takes; their messages are in memory together
	maxRefusals  = 3  // when so many workers could not begin with a task, the answer of the last is its result
	maxAnnounce  = 1 << 20
	keepTasks    = 7 * 24 * time.Hour // after their end
	keepWorkers  = time.Hour          // after their lease
)

// claim is a task that a worker took.
type claim struct {
	Number, Claims int64
	ID             string
	Seconds        int64
	Dispatch       string
}

// exchange stores results and takes up to n tasks that the worker can do, the most urgent and oldest first, in one
// transaction. If the worker does not hold a task any more, its result still counts if the work is done and the task
// has not ended.
func (w *Worker) exchange(ctx context.Context, ended []*report, n int) (claims []claim, err error) {
	b := &batch{fleet: w.fleet}
	var told []notice
	if len(ended) > 0 {
		var numbers, tries []int64
		var status, texts []string
		for _, r := range ended {
			numbers, tries = append(numbers, r.Number), append(tries, r.Claims)
			status, texts = append(status, string(r.status)), append(texts, r.text)
		}
		queue(b, &told, pgx.RowToStructByPos[notice], `
			UPDATE ~.tasks t SET state = 2, status = g.status, result = g.result, worker = $1, ended = now()
			FROM unnest($2::bigint[], $3::integer[], $4::text[], $5::text[]) AS g (number, claims, status, result)
			WHERE t.number = g.number AND t.state <> 2
				AND (t.claims = g.claims AND t.state = 1 OR g.status IN ('done', 'partial'))
			RETURNING t.sender, t.number::text`, w.id, numbers, tries, status, texts)
	}
	if n > 0 {
		queue(b, &claims, pgx.RowToStructByPos[claim], "SELECT * FROM ~.claim($1, $2)", w.id, min(n, claimsAtOnce))
	}
	if b.Len() == 0 {
		return nil, nil
	}
	err = b.send(ctx)
	w.fleet.tell(told...)
	return claims, err
}

// register tells the server what the worker is, that it is alive, and which tasks it does. It returns whether the
// worker must drain, and which tasks the server has as the worker's own (number -> cancelled). It takes back tasks that
// the worker does, has lost, and nobody has taken since. This is one statement: with two, a task that is lost between
// them would be neither own nor taken back.
func (w *Worker) register(ctx context.Context, a *fleet.Announce, text string, offers []string, does []int64) (
	draining bool, own map[int64]bool, err error,
) {
	type task struct {
		Number   int64
		Canceled bool
	}
	var drains []bool
	var tasks []task
	place, _ := os.Hostname()
	b := &batch{fleet: w.fleet}
	queue(b, &drains, pgx.RowTo[bool], `
		INSERT INTO ~.workers (id, name, place, announce, offers, model, tier, places, lease)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now() + $9::interval)
		ON CONFLICT (id) DO UPDATE SET announce = excluded.announce, offers = excluded.offers,
			model = excluded.model, tier = excluded.tier, lease = excluded.lease
		RETURNING draining`,
		w.id, a.Worker.AgentID, place, text, offers, a.Worker.Model, a.Worker.ModelTier, w.slots, w.fleet.lease)
	queue(b, &tasks, pgx.RowToStructByPos[task], `WITH back AS (
			UPDATE ~.tasks SET state = 1 WHERE number = ANY ($2) AND worker = $1 AND state = 0
			RETURNING number, canceled)
		SELECT * FROM back UNION ALL SELECT number, canceled FROM ~.tasks WHERE worker = $1 AND state = 1`, w.id, does)
	if err = b.send(ctx); err != nil {
		return false, nil, err
	}
	own = make(map[int64]bool, len(tasks))
	for _, t := range tasks {
		own[t.Number] = t.Canceled
	}
	return drains[0], own, nil
}

// rescue puts the tasks of workers whose lease is over back into the queue. It ends those that have no tries left or
// were cancelled, and those that waited beyond their deadline. After a restart of the server, workers have the time of
// a lease to report that they are alive.
func (f *Fleet) rescue(ctx context.Context) error {
	_, err := f.changes(ctx, `WITH gone AS (
		SELECT number, canceled OR losses >= retries AS over
		FROM ~.tasks t WHERE state = 1 AND now() > pg_postmaster_start_time() + $1::interval
			AND NOT EXISTS (SELECT FROM ~.workers w WHERE w.id = t.worker AND w.lease > now())
		LIMIT 1000 FOR UPDATE SKIP LOCKED),
	back AS (
		UPDATE ~.tasks t SET losses = losses + 1, state = CASE WHEN over THEN 2 ELSE 0 END,
			status = CASE WHEN over THEN 'error' END, ended = CASE WHEN over THEN now() END,
			fate = CASE WHEN canceled THEN 'cancelled'
				WHEN over THEN 'no worker lived to end the task (tries: ' || losses + 1 || ')' END
		FROM gone WHERE t.number = gone.number RETURNING t.number, t.sender, t.state),
	late AS (
		UPDATE ~.tasks SET state = 2, status = 'error', fate = 'deadline', ended = now()
		WHERE state = 0 AND deadline < now() RETURNING number, sender, state),
	told AS (SELECT * FROM back UNION ALL SELECT * FROM late)
	SELECT `+noticeOf+` FROM told`, f.lease)
	return err
}

// noticeOf is the part of a statement that makes the notice of a task that has ended or waits again.
const noticeOf = "CASE state WHEN 0 THEN '' ELSE sender END, CASE state WHEN 0 THEN '' ELSE number::text END"

// prune deletes old ended tasks and workers.
func (f *Fleet) prune(ctx context.Context) error {
	return f.do(ctx, `WITH old AS (DELETE FROM ~.tasks WHERE state = 2 AND ended < now() - $1::interval)
		DELETE FROM ~.workers WHERE lease < now() - $2::interval`, keepTasks, keepWorkers)
}

// refuse passes a task that the worker could not begin with to another worker; false = there is none, or too many
// workers could not begin.
func (w *Worker) refuse(ctx context.Context, r *report) (bool, error) {
	n, err := w.fleet.changes(ctx, `
		UPDATE ~.tasks t SET state = 0, worker = NULL, refused = refused || $1::text
		WHERE number = $2 AND claims = $3 AND state = 1 AND cardinality(refused) < $4 AND NOT canceled
			AND EXISTS (SELECT FROM ~.workers w
				WHERE w.id <> $1 AND NOT w.draining AND w.lease > now() AND ~.fits(t, w))
		RETURNING '', ''`, w.id, r.Number, r.Claims, maxRefusals-1)
	return n > 0, err
}

// giveBack puts tasks that the worker holds back into the queue, or all of them if no number is given. Cancelled tasks
// end.
func (w *Worker) giveBack(ctx context.Context, numbers ...int64) error {
	_, err := w.fleet.changes(ctx, `
		UPDATE ~.tasks SET worker = NULL, state = CASE WHEN canceled THEN 2 ELSE 0 END,
			status = CASE WHEN canceled THEN 'error' END, fate = CASE WHEN canceled THEN 'cancelled' END,
			ended = CASE WHEN canceled THEN now() END
		WHERE worker = $1 AND state = 1 AND ($2 OR number = ANY ($3))
		RETURNING `+noticeOf, w.id, len(numbers) == 0, numbers)
	return err
}
