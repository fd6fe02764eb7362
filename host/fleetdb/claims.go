package fleetdb

import (
	"context"
	"os"
	"time"

	"a2e/protocol/fleet"
)

const (
	claimsAtOnce = 16 // tasks that one statement takes: their messages are in memory together
	maxRefusals  = 3  // workers that cannot begin with a task, before the last one's answer is its result
	maxAnnounce  = 1 << 20
	keepTasks    = 7 * 24 * time.Hour // that have ended
	keepWorkers  = time.Hour          // after their lease
)

// claim is a task that a worker took.
type claim struct {
	number, claims int64
	id             string
	seconds        int64
	dispatch       string
}

// claim takes up to n tasks that the worker can do, the most urgent and oldest first.
func (w *Worker) claim(ctx context.Context, n int) ([]claim, error) {
	rows, err := w.fleet.query(ctx, "SELECT * FROM ~.claim($1, $2)", w.id, min(n, claimsAtOnce))
	claims := make([]claim, len(rows))
	for i, r := range rows {
		claims[i] = claim{r.number(0), r.number(1), r.text(2), r.number(3), r.text(4)}
	}
	return claims, err
}

// register says what the worker is, and that it lives. It returns whether it shall drain.
func (w *Worker) register(ctx context.Context, a *fleet.Announce, text string, offers []string) (draining bool, err error) {
	place, _ := os.Hostname()
	rows, err := w.fleet.query(ctx, `INSERT INTO ~.workers (id, name, place, announce, offers, model, tier, places, lease)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now() + make_interval(secs => $9))
		ON CONFLICT (id) DO UPDATE SET announce = excluded.announce, offers = excluded.offers, model = excluded.model, tier = excluded.tier, lease = excluded.lease
		RETURNING draining`, w.id, a.Worker.AgentID, place, text, offers, a.Worker.Model, a.Worker.ModelTier, w.places, w.fleet.lease)
	return err == nil && rows[0].truth(0), err
}

// own returns the tasks that the server has as this worker's, and whether they are to be
// cancelled. Of those that it does it takes back what it lost and nobody has taken since.
func (w *Worker) own(ctx context.Context, does []int64) (map[int64]bool, error) {
	if _, err := w.fleet.query(ctx, "UPDATE ~.tasks SET state = 1 WHERE number = ANY ($2) AND worker = $1 AND state = 0", w.id, does); err != nil {
		return nil, err
	}
	rows, err := w.fleet.query(ctx, "SELECT number, canceled FROM ~.tasks WHERE worker = $1 AND state = 1", w.id)
	all := make(map[int64]bool, len(rows))
	for _, r := range rows {
		all[r.number(0)] = r.truth(1)
	}
	return all, err
}

// rescue puts the tasks of workers whose lease is over back into the queue, or ends those that
// have had their tries, and ends what waited beyond its deadline. Workers have the time of a
// lease to say that they live when the server was away itself.
func (f *Fleet) rescue(ctx context.Context) error {
	_, err := f.query(ctx, `WITH gone AS (
		SELECT number FROM ~.tasks t WHERE state = 1 AND now() > pg_postmaster_start_time() + make_interval(secs => $1)
		AND NOT EXISTS (SELECT FROM ~.workers w WHERE w.id = t.worker AND w.lease > now())
		LIMIT 1000 FOR UPDATE SKIP LOCKED),
	back AS (
		UPDATE ~.tasks t SET losses = losses + 1, state = CASE WHEN canceled OR losses >= retries THEN 2 ELSE 0 END,
			status = CASE WHEN canceled OR losses >= retries THEN 'error' END, ended = CASE WHEN canceled OR losses >= retries THEN now() END,
			fate = CASE WHEN canceled THEN 'cancelled' WHEN losses >= retries THEN 'no worker lived to end the task (tries: ' || losses + 1 || ')' END
		FROM gone WHERE t.number = gone.number RETURNING t.number, t.sender, t.state),
	late AS (
		UPDATE ~.tasks SET state = 2, status = 'error', fate = 'deadline', ended = now() WHERE state = 0 AND deadline < now() RETURNING number, sender, state),
	told AS (SELECT * FROM back UNION ALL SELECT * FROM late)
	SELECT CASE state WHEN 0 THEN pg_notify('~', '') ELSE pg_notify('~_' || sender, number::text) END FROM told`, f.lease)
	return err
}

// prune takes out what is of no use any more.
func (f *Fleet) prune(ctx context.Context) error {
	_, err := f.query(ctx, "DELETE FROM ~.tasks WHERE state = 2 AND ended < now() - make_interval(secs => $1)", keepTasks)
	if err == nil {
		_, err = f.query(ctx, "DELETE FROM ~.workers WHERE lease < now() - make_interval(secs => $1)", keepWorkers)
	}
	return err
}

// finish ends tasks with results. One that the worker does not hold any more it ends all the
// same if the work is done, and nobody has ended it.
func (w *Worker) finish(ctx context.Context, all []*report) error {
	var numbers, claims []int64
	var status, texts []string
	for _, r := range all {
		numbers, claims = append(numbers, r.number), append(claims, r.claims)
		status, texts = append(status, string(r.status)), append(texts, r.text)
	}
	_, err := w.fleet.query(ctx, `WITH ended AS (
		UPDATE ~.tasks t SET state = 2, status = g.status, result = g.result, worker = $1, ended = now()
		FROM unnest($2::bigint[], $3::integer[], $4::text[], $5::text[]) AS g (number, claims, status, result)
		WHERE t.number = g.number AND t.state <> 2 AND (t.claims = g.claims AND t.state = 1 OR g.status IN ('done', 'partial'))
		RETURNING t.number, t.sender)
		SELECT pg_notify('~_' || sender, number::text) FROM ended`, w.id, numbers, claims, status, texts)
	return err
}

// refuse gives a task that the worker could not begin with to another one; false = there is
// none, or too many could not.
func (w *Worker) refuse(ctx context.Context, r *report) (bool, error) {
	rows, err := w.fleet.query(ctx, `UPDATE ~.tasks t SET state = 0, worker = NULL, refused = refused || $1::text
		WHERE number = $2 AND claims = $3 AND state = 1 AND cardinality(refused) < $4 AND NOT canceled
		AND EXISTS (SELECT FROM ~.workers w WHERE w.id <> $1 AND NOT w.draining AND w.lease > now() AND ~.fits(t, w))
		RETURNING pg_notify('~', '')`, w.id, r.number, r.claims, maxRefusals-1)
	return len(rows) > 0, err
}

// giveBack puts tasks back into the queue that the worker holds and does not do, or all where
// none is named; what nobody wants any more ends.
func (w *Worker) giveBack(ctx context.Context, numbers ...int64) error {
	_, err := w.fleet.query(ctx, `WITH back AS (
		UPDATE ~.tasks SET worker = NULL, state = CASE WHEN canceled THEN 2 ELSE 0 END, status = CASE WHEN canceled THEN 'error' END,
			fate = CASE WHEN canceled THEN 'cancelled' END, ended = CASE WHEN canceled THEN now() END
		WHERE worker = $1 AND state = 1 AND ($2 OR number = ANY ($3)) RETURNING number, sender, state)
		SELECT CASE state WHEN 0 THEN pg_notify('~', '') ELSE pg_notify('~_' || sender, number::text) END FROM back`, w.id, len(numbers) == 0, numbers)
	return err
}
