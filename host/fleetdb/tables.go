package fleetdb

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// maxText is how long the message of a task may be, and that of a result, in bytes.
const maxText = 8 << 20

// migrations bring the tables from each version to the next.
func migrations() []string {
	return []string{`
CREATE TABLE ~.workers (
	id       text PRIMARY KEY,          -- of one process
	name     text NOT NULL,
	place    text NOT NULL,             -- the machine
	announce text NOT NULL,             -- its SESSION_ANNOUNCE
	offers   text[] NOT NULL,           -- what a task may require of it
	model    text NOT NULL,
	tier     text NOT NULL,
	places   integer NOT NULL,          -- tasks at once
	draining boolean NOT NULL DEFAULT false,
	begun    timestamptz NOT NULL DEFAULT now(),
	lease    timestamptz NOT NULL       -- what it took is its own until then
);
CREATE TABLE ~.tasks (
	number   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	task_id  text NOT NULL UNIQUE,
	digest   text NOT NULL,             -- tells tasks apart that have one id
	sender   text NOT NULL,             -- who waits for the result
	rank     smallint NOT NULL,         -- of its priority, 3 = urgent
	requires text[] NOT NULL,
	model    text NOT NULL,             -- '' = any
	tier     text NOT NULL,
	dispatch text NOT NULL CHECK (octet_length(dispatch) <= 8388608),
	deadline timestamptz,
	seconds  integer NOT NULL,          -- that a worker may take; 0 = as the worker has it
	retries  smallint NOT NULL,         -- how many workers may die of it, and it is begun again
	state    smallint NOT NULL DEFAULT 0, -- 0 waiting, 1 taken, 2 ended
	canceled boolean NOT NULL DEFAULT false,
	worker   text,                      -- that has it, or had it last
	claims   integer NOT NULL DEFAULT 0, -- how often it was taken: the latest alone may give it back
	losses   integer NOT NULL DEFAULT 0, -- workers that died of it
	refused  text[] NOT NULL DEFAULT '{}', -- workers that could not begin with it
	status   text,                      -- of the result
	result   text CHECK (octet_length(result) <= 8388608), -- the TASK_RESULT; NULL = see fate
	fate     text,                      -- why it ended without a worker's result
	created  timestamptz NOT NULL DEFAULT now(),
	taken    timestamptz,
	ended    timestamptz
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX ON ~.tasks (rank DESC, number) WHERE state = 0;
CREATE INDEX ON ~.tasks (worker) WHERE state = 1;
CREATE INDEX ON ~.tasks (deadline) WHERE state = 0 AND deadline IS NOT NULL;
CREATE INDEX ON ~.tasks (ended) WHERE state = 2;
CREATE FUNCTION ~.fits(t ~.tasks, w ~.workers) RETURNS boolean LANGUAGE sql STABLE AS $$
	SELECT t.requires <@ w.offers AND t.model IN ('', w.model) AND t.tier IN ('', w.tier) AND NOT w.id = ANY (t.refused)
$$;
-- a function, as its settings have the queue read in its order, however few tasks fit, and its
-- plan is made once for each connection
CREATE FUNCTION ~.claim(me text, most integer) RETURNS TABLE (number bigint, claims integer, task_id text, seconds integer, dispatch text)
LANGUAGE plpgsql SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE w ~.workers;
BEGIN
	SELECT * INTO w FROM ~.workers WHERE id = me AND NOT draining AND lease > now();
	RETURN QUERY WITH next AS (
		SELECT t.number FROM ~.tasks t
		WHERE t.state = 0 AND t.requires <@ w.offers AND t.model IN ('', w.model) AND t.tier IN ('', w.tier) AND NOT w.id = ANY (t.refused)
			AND (t.deadline IS NULL OR t.deadline > now())
		ORDER BY t.rank DESC, t.number LIMIT most FOR UPDATE SKIP LOCKED)
	UPDATE ~.tasks t SET state = 1, worker = me, claims = t.claims + 1, taken = now() FROM next WHERE t.number = next.number
	RETURNING t.number, t.claims, t.task_id, t.seconds, t.dispatch;
END $$;
`}
}

// lockName is that of the advisory lock under which tables are made.
const lockName = "a2e fleet"

// migrateLocked makes the tables of the fleet, or brings them up to date. It refuses those of a newer
// a2e.
func (f *Fleet) migrateLocked(ctx context.Context) error {
	all := migrations()
	version, err := f.versionLocked(ctx)
	if err != nil {
		return err
	}
	switch {
	case version == len(all):
		return nil
	case version == 0 && f.existing:
		return f.errNone()
	}
	do := func(sql string, args ...any) {
		if err == nil {
			_, err = f.runLocked(ctx, sql, args...)
		}
	}
	do("BEGIN")
	do("SELECT pg_advisory_xact_lock(hashtext($1))", lockName)
	if err == nil {
		version, err = f.versionLocked(ctx) // someone else may have made them meanwhile
	}
	if version == 0 {
		do("CREATE SCHEMA IF NOT EXISTS ~")
		do("CREATE TABLE IF NOT EXISTS ~.version (version integer NOT NULL)")
		do("INSERT INTO ~.version VALUES (0)")
	}
	for n := version; err == nil && n < len(all); n++ {
		err = f.conn.Exec(ctx, strings.ReplaceAll(all[n], "~", f.schema)).Close()
	}
	do("UPDATE ~.version SET version = $1", len(all))
	do("COMMIT")
	if err != nil {
		_, _ = f.runLocked(ctx, "ROLLBACK")
	}
	return err
}

// versionLocked returns that of the tables; 0 = there are none. The error says that they are of a
// newer a2e.
func (f *Fleet) versionLocked(ctx context.Context) (int, error) {
	// not by to_regclass, which may remember under the lock what it found before
	there, err := f.runLocked(ctx, "SELECT count(*) > 0 FROM pg_catalog.pg_tables WHERE schemaname = '~' AND tablename = 'version'")
	if err != nil || !there[0].truth(0) {
		return 0, err
	}
	rows, err := f.runLocked(ctx, "SELECT version FROM ~.version")
	var version int
	if err == nil && len(rows) > 0 {
		version, err = strconv.Atoi(rows[0].text(0))
	}
	switch {
	case err != nil:
		return 0, err
	case len(rows) == 0:
		return 0, errors.New("the table of the version is empty")
	case version > len(migrations()):
		return 0, protocol.Errorf(protocol.CodeRuntimeError, "the fleet %q (%s) has tables of version %d, and this a2e knows %d: use a newer a2e", f.name, f.server(), version, len(migrations()))
	}
	return version, nil
}

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
// cancelled. Of those that it does it takes back what it lost and nobody has taken since: in one
// statement, as what is lost between two would be neither its own nor taken back.
func (w *Worker) own(ctx context.Context, does []int64) (map[int64]bool, error) {
	rows, err := w.fleet.query(ctx, `WITH back AS (
		UPDATE ~.tasks SET state = 1 WHERE number = ANY ($2) AND worker = $1 AND state = 0 RETURNING number, canceled)
		SELECT * FROM back UNION ALL SELECT number, canceled FROM ~.tasks WHERE worker = $1 AND state = 1`, w.id, does)
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

// The states of a worker.
const (
	WorkerReady    = "ready"
	WorkerDraining = "draining" // it takes no more tasks, and ends
	WorkerLost     = "lost"     // its lease is over
)

// WorkerState is what is known of a worker.
type WorkerState struct {
	ID        string         `json:"id"` // of its process
	Name      string         `json:"name"`
	Host      string         `json:"host"`
	Model     string         `json:"model"`
	ModelTier string         `json:"model_tier"`
	MaxTasks  int            `json:"max_tasks"`
	Active    int            `json:"active_tasks"`
	State     string         `json:"state"`
	Begun     string         `json:"started_at"` // RFC 3339, as all times
	Announce  jsontext.Value `json:"announce"`   // its SESSION_ANNOUNCE
}

// Workers lists the workers, by name.
func (f *Fleet) Workers(ctx context.Context) ([]WorkerState, error) {
	rows, err := f.query(ctx, `SELECT w.id, w.name, w.place, w.model, w.tier, w.places, (SELECT count(*) FROM ~.tasks t WHERE t.worker = w.id AND t.state = 1),
		CASE WHEN lease < now() THEN 'lost' WHEN draining THEN 'draining' ELSE 'ready' END, `+stamp("begun")+`, w.announce FROM ~.workers w ORDER BY w.name, w.begun LIMIT 10000`)
	all := make([]WorkerState, len(rows))
	for i, r := range rows {
		all[i] = WorkerState{r.text(0), r.text(1), r.text(2), r.text(3), r.text(4), int(r.number(5)), int(r.number(6)), r.text(7), r.text(8), valid(r[9])}
	}
	return all, err
}

// QueueState is how many tasks of a priority there are.
type QueueState struct {
	Priority string `json:"priority"`
	Waiting  int    `json:"waiting"`
	Unfit    int    `json:"unfit"` // of those, the ones that no worker here can do
	Oldest   int    `json:"oldest_seconds"`
	Running  int    `json:"running"`
	Done     int    `json:"done"` // within the last hour, as the rest
	Failed   int    `json:"failed"`
}

// Queue tells what waits, runs and has ended lately, the highest priority first.
func (f *Fleet) Queue(ctx context.Context) ([]QueueState, error) {
	rows, err := f.query(ctx, `SELECT (ARRAY['low','normal','high','urgent'])[rank + 1], count(*) FILTER (WHERE state = 0),
		count(*) FILTER (WHERE state = 0 AND NOT EXISTS (SELECT FROM ~.workers w WHERE w.lease > now() AND NOT w.draining AND ~.fits(t, w))),
		coalesce(extract(epoch FROM now() - min(created) FILTER (WHERE state = 0)), 0)::bigint,
		count(*) FILTER (WHERE state = 1), count(*) FILTER (WHERE state = 2 AND status = 'done'), count(*) FILTER (WHERE state = 2 AND status <> 'done')
		FROM ~.tasks t WHERE state < 2 OR ended > now() - interval '1 hour' GROUP BY rank ORDER BY rank DESC`)
	all := make([]QueueState, len(rows))
	for i, r := range rows {
		all[i] = QueueState{r.text(0), int(r.number(1)), int(r.number(2)), int(r.number(3)), int(r.number(4)), int(r.number(5)), int(r.number(6))}
	}
	return all, err
}

// TaskState is what is known of a task.
type TaskState struct {
	TaskID   string         `json:"task_id"`
	State    string         `json:"state"`  // waiting, running, or the status of its result
	Worker   string         `json:"worker"` // that has it, or had it last; "" = none
	Losses   int            `json:"lost_workers"`
	Created  string         `json:"created_at"`
	Taken    string         `json:"started_at"`
	Ended    string         `json:"ended_at"`
	Error    string         `json:"error"`    // why it ended without a worker's result
	Dispatch jsontext.Value `json:"dispatch"` // its TASK_DISPATCH
	Result   jsontext.Value `json:"result"`   // its TASK_RESULT; null = there is none
}

// Task returns a task by its id; nil = there is none.
func (f *Fleet) Task(ctx context.Context, id string) (*TaskState, error) {
	rows, err := f.query(ctx, `SELECT task_id, CASE state WHEN 0 THEN 'waiting' WHEN 1 THEN 'running' ELSE status END, coalesce(w.name, t.worker, ''), losses,
		`+stamp("created")+`, `+stamp("taken")+`, `+stamp("ended")+`, coalesce(fate, ''), dispatch, result
		FROM ~.tasks t LEFT JOIN ~.workers w ON w.id = t.worker WHERE task_id = $1`, strings.ReplaceAll(id, "\x00", ""))
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	r := rows[0]
	return &TaskState{r.text(0), r.text(1), r.text(2), int(r.number(3)), r.text(4), r.text(5), r.text(6), r.text(7), valid(r[8]), valid(r[9])}, nil
}

// Drain has workers take no more tasks, and end when they have done those they have: the one
// with this id, all with this name, or "" = all. It returns their names.
func (f *Fleet) Drain(ctx context.Context, who string) ([]string, error) {
	rows, err := f.query(ctx, `WITH off AS (UPDATE ~.workers SET draining = true WHERE lease > now() AND ($1 IN ('', id, name)) RETURNING id, name)
		SELECT name, pg_notify('~', id) FROM off ORDER BY name`, who)
	names := make([]string, len(rows))
	for i, r := range rows {
		names[i] = r.text(0)
	}
	return names, err
}

// Existing has the fleet be one that is there: to look at it makes no tables.
func (f *Fleet) Existing() *Fleet {
	f.existing = true
	return f
}

// errNone says that there is no such fleet.
func (f *Fleet) errNone() error {
	return protocol.Errorf(protocol.CodeRuntimeError, "there is no fleet %q on the server (%s): its first worker or task makes it", f.name, f.server())
}

// stamp is a time in a statement, as RFC 3339; "" = it is not set.
func stamp(column string) string {
	return "coalesce(to_char(" + column + ` AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), '')`
}

// valid returns JSON that others wrote; null where it is none.
func valid(text []byte) jsontext.Value {
	if v := jsontext.Value(text); v.IsValid() {
		return v
	}
	return jsontext.Value("null")
}
