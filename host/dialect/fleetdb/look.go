package fleetdb

import (
	"context"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
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
	State     string         `json:"state"`      // ready, draining (it takes no more), or lost (its lease is over)
	Begun     string         `json:"started_at"` // RFC 3339, as all times here
	Announce  jsontext.Value `json:"announce"`   // its SESSION_ANNOUNCE
}

// Workers returns the workers, sorted by name.
func (f *Fleet) Workers(ctx context.Context) ([]WorkerState, error) {
	all, err := ask(ctx, f, pgx.RowToStructByPos[WorkerState], `SELECT w.id, w.name, w.place, w.model, w.tier, w.places,
		(SELECT count(*) FROM ~.tasks t WHERE t.worker = w.id AND t.state = 1),
		CASE WHEN lease < now() THEN 'lost' WHEN draining THEN 'draining' ELSE 'ready' END,
		`+stamp("begun")+`, w.announce FROM ~.workers w ORDER BY w.name, w.begun LIMIT 10000`)
	for i := range all {
		all[i].Announce = valid(all[i].Announce)
	}
	return all, err
}

// QueueState is the number of tasks of one priority.
type QueueState struct {
	Priority string `json:"priority"`
	Waiting  int    `json:"waiting"`
	Unfit    int    `json:"unfit"` // waiting tasks that no worker can do now
	Oldest   int    `json:"oldest_seconds"`
	Running  int    `json:"running"`
	Done     int    `json:"done"` // within the last hour, as Failed
	Failed   int    `json:"failed"`
}

// Queue returns the numbers of waiting, running and recently ended tasks, the highest priority first.
func (f *Fleet) Queue(ctx context.Context) ([]QueueState, error) {
	return ask(ctx, f, pgx.RowToStructByPos[QueueState], `
		SELECT (ARRAY['low','normal','high','urgent'])[rank + 1], count(*) FILTER (WHERE state = 0),
			count(*) FILTER (WHERE state = 0 AND NOT EXISTS (
				SELECT FROM ~.workers w WHERE w.lease > now() AND NOT w.draining AND ~.fits(t, w))),
			coalesce(extract(epoch FROM now() - min(created) FILTER (WHERE state = 0)), 0)::bigint,
			count(*) FILTER (WHERE state = 1), count(*) FILTER (WHERE state = 2 AND status = 'done'),
			count(*) FILTER (WHERE state = 2 AND status <> 'done')
		FROM ~.tasks t WHERE state < 2 OR ended > now() - interval '1 hour' GROUP BY rank ORDER BY rank DESC`)
}

// TaskState is what is known of a task.
type TaskState struct {
	TaskID   string         `json:"task_id"`
	State    string         `json:"state"`  // waiting, running, or the status of its result
	Worker   string         `json:"worker"` // the worker that has it, or had it last; "" = none
	Losses   int            `json:"lost_workers"`
	Created  string         `json:"created_at"`
	Taken    string         `json:"started_at"`
	Ended    string         `json:"ended_at"`
	Error    string         `json:"error"`    // why it ended without a worker's result
	Dispatch jsontext.Value `json:"dispatch"` // its TASK_DISPATCH
	Result   jsontext.Value `json:"result"`   // its TASK_RESULT; null = none
}

// Task returns the task with an id, or nil if there is none.
func (f *Fleet) Task(ctx context.Context, id string) (*TaskState, error) {
	all, err := ask(ctx, f, pgx.RowToAddrOfStructByPos[TaskState], `SELECT task_id,
			CASE state WHEN 0 THEN 'waiting' WHEN 1 THEN 'running' ELSE status END, coalesce(w.name, t.worker, ''),
			losses, `+stamp("created")+`, `+stamp("taken")+`, `+stamp("ended")+`, coalesce(fate, ''), dispatch, result
		FROM ~.tasks t LEFT JOIN ~.workers w ON w.id = t.worker WHERE task_id = $1`, strings.ReplaceAll(id, "\x00", ""))
	if err != nil || len(all) == 0 {
		return nil, err
	}
	t := all[0]
	t.Dispatch, t.Result = valid(t.Dispatch), valid(t.Result)
	return t, nil
}

// Drain makes workers take no more tasks, and end when they have done those that they have. who is the id of one
// worker, the name of some, or "" for all. Drain returns their names.
func (f *Fleet) Drain(ctx context.Context, who string) ([]string, error) {
	type worker struct{ Name, ID string }
	all, err := ask(ctx, f, pgx.RowToStructByPos[worker], `WITH off AS (
			UPDATE ~.workers SET draining = true WHERE lease > now() AND ($1 IN ('', id, name)) RETURNING id, name)
		SELECT name, id FROM off ORDER BY name`, who)
	names := make([]string, len(all))
	for i, w := range all {
		names[i] = w.Name
		f.tell(notice{Text: w.ID})
	}
	return names, err
}

// Existing makes f use only tables that exist, so that looking at a fleet does not make any. It returns f.
func (f *Fleet) Existing() *Fleet {
	f.existing = true
	return f
}

// stamp returns the SQL for a time column as RFC 3339; "" = the time is not set.
func stamp(column string) string {
	return "coalesce(to_char(" + column + ` AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), '')`
}

// valid returns JSON from the tables, or null if it is not valid.
func valid(text jsontext.Value) jsontext.Value {
	if text.IsValid() {
		return text
	}
	return jsontext.Value("null")
}
