package fleetdb

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

const (
	sendAtOnce  = 256              // tasks, or results, in one statement
	sendBytes   = 4 << 20          // bytes in one statement; a larger task or result goes alone
	sendTime    = 10 * time.Second // how long a task waits while the server is away, before it is refused
	closeTime   = 3 * time.Second  // how long Close waits until the server has taken the cancellations
	lateResult  = 2 * time.Second  // how long Do waits for a result after the deadline, which the worker knows, too
	fetchAtOnce = 256              // tasks whose results one statement fetches
	maxTold     = 1 << 16          // results that were reported but not fetched yet
)

// Task is a task for a fleet.
type Task struct {
	Dispatch fleet.Dispatch
	Model    string        // the model that its worker must announce; "" = any
	Tier     string        // the tier that its worker must announce; "" = any
	Fallback bool          // any worker may do it if none has that model and tier
	Retries  int           // how often it is begun again if its worker dies
	Timeout  time.Duration // how long a worker may take; 0 = as the worker's config says
}

// Sender puts tasks into the queue of a fleet and waits for their results.
type Sender struct {
	fleet *Fleet
	id    string
	log   zerolog.Logger
	stop  context.CancelFunc // stops the goroutines that listen and fetch
	cut   context.CancelFunc // stops the goroutine that sends
	goes  sync.WaitGroup
	bell  dialect.Bell // rings when there is something to send
	news  dialect.Bell // rings when tasks may have ended

	mu      sync.Mutex // guards the fields below
	queue   []*sending // tasks that are not sent yet
	back    []*sending // tasks that were sent, and that nobody waits for any more
	closing bool
	pending map[int64]*sending // tasks that wait for a result, by number
	told    map[int64]bool     // numbers of tasks that have ended, as the server reported
	whole   bool               // notifications may have been missed, so any task may have ended
}

// sending is a task on its way. The fields with JSON are its columns in the queue.
type sending struct {
	ID       string     `json:"task_id"`
	Digest   string     `json:"digest"`
	Rank     int        `json:"rank"`
	Requires []string   `json:"requires"`
	Model    string     `json:"model"`
	Tier     string     `json:"tier"`
	Dispatch string     `json:"dispatch"`
	Deadline *time.Time `json:"deadline"`
	Seconds  int        `json:"seconds"`
	Retries  int        `json:"retries"`
	Fallback bool       `json:"fallback"`

	until  time.Time    // how long it waits while the server is away
	answer chan *answer // has room for one

	// The fields below are guarded by Sender.mu.
	number int64 // in the queue; 0 = not known
	sent   bool  // it may be in the queue
	gone   bool  // nobody waits for it
}

// answer is how a task ended.
type answer struct {
	result protocol.Object
	err    error
}

// NewSender makes a sender and starts its goroutines.
func (f *Fleet) NewSender(log zerolog.Logger) *Sender {
	ctx, stop := context.WithCancel(context.Background())
	sends, cut := context.WithCancel(context.Background())
	s := &Sender{
		fleet: f, id: newID(), log: log, stop: stop, cut: cut, bell: dialect.NewBell(), news: dialect.NewBell(),
		pending: make(map[int64]*sending), told: make(map[int64]bool),
	}
	s.goes.Go(func() { s.sendAll(sends) })
	s.goes.Go(func() { f.listen(ctx, f.channel(s.id), log, s.hear) })
	s.goes.Go(func() { s.lookAll(ctx) })
	return s
}

// Close ends the sender. Tasks in the queue stay there, except those that were cancelled: the server gets some seconds,
// at most until ctx ends, to take the cancellations.
func (s *Sender) Close(ctx context.Context) {
	s.stop()
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.bell.Ring()
	defer time.AfterFunc(closeTime, s.cut).Stop()
	defer context.AfterFunc(ctx, s.cut)()
	s.goes.Wait()
	s.cut()
	s.fleet.Close()
}

// Do has some worker of the fleet do a task, and returns its TASK_RESULT. The id of the task is unique in the whole
// fleet. If there is a task with the same id and the same content, Do waits for its result, or returns it if it is
// done. If the content differs, the result is blocked, as a duplicate. The end of ctx cancels the task, wherever it is.
// The error is store_unavailable if the server cannot be reached to take the task, schema_violation if the queue cannot
// take the task, or the cause of ctx.
func (s *Sender) Do(ctx context.Context, t Task) (protocol.Object, error) {
	one, err := newSending(t)
	if err != nil {
		return protocol.Object{}, err
	}
	s.mu.Lock()
	s.queue = append(s.queue, one)
	s.mu.Unlock()
	s.bell.Ring()
	var late <-chan time.Time
	for ended := ctx.Done(); ; {
		select {
		case a := <-one.answer:
			return a.result, a.err
		case <-ended:
			if deadlined(ctx) {
				late, ended = time.After(lateResult), nil
				continue
			}
		case <-late:
		}
		s.cancel(one)
		return protocol.Object{}, context.Cause(ctx)
	}
}

// deadlined reports whether ctx has ended by its deadline.
func deadlined(ctx context.Context) bool {
	at, ok := ctx.Deadline()
	return ok && !time.Now().Before(at)
}

// newSending checks a task and returns it with its columns.
func newSending(t Task) (*sending, error) {
	d := &t.Dispatch
	d.Type, d.ProtocolVersion, d.AuthToken = fleet.TypeDispatch, fleet.Version, ""
	requires := append([]string{}, d.Requirements.RequiredCapabilities...)
	for _, id := range d.Requirements.RequiredMCP {
		requires = append(requires, serverPrefix+id)
	}
	text, err := protocol.AppendJSON(nil, d)
	switch {
	case err != nil:
		return nil, protocol.Errorf(protocol.CodeSchemaViolation, "the task is not JSON: %w", err)
	case len(text) > maxText:
		return nil, protocol.Errorf(protocol.CodeSchemaViolation, "the task has %d bytes; the queue of a fleet "+
			"takes %d: put long texts into a file", len(text), maxText)
	case strings.ContainsRune(t.Model+t.Tier+strings.Join(requires, ""), 0):
		return nil, protocol.Errorf(protocol.CodeSchemaViolation, "what the task requires has a NUL character")
	}
	one := &sending{
		ID: d.Task.TaskID, Rank: cmp.Or(d.Task.Priority, fleet.PriorityNormal).Rank(), Requires: requires,
		Model: t.Model, Tier: t.Tier, Dispatch: string(text), Retries: min(t.Retries, math.MaxInt16),
		Seconds:  int(min((t.Timeout+time.Second-1)/time.Second, math.MaxInt32)),
		Fallback: t.Fallback, until: time.Now().Add(sendTime), answer: make(chan *answer, 1),
	}
	at, dated, err := d.DeadlineTime()
	if dated {
		one.Deadline = &at
	}
	sum := sha256.Sum256(fmt.Appendf(text, "\n%q %q", t.Model, t.Tier))
	one.Digest = hex.EncodeToString(sum[:16])
	return one, err
}

// sendAll puts tasks into the queue, many at once, and takes back those that nobody waits for. When the sender closes,
// it only takes back.
func (s *Sender) sendAll(ctx context.Context) {
	pace := newPace()
	for ctx.Err() == nil {
		batch, back, over := s.next()
		if over {
			return
		}
		if len(batch)+len(back) == 0 {
			pause(ctx, s.bell, time.Hour)
			continue
		}
		err := s.takeBack(ctx, back)
		if err == nil {
			err = s.sendSome(ctx, batch)
		}
		if err == nil {
			pace.Reset()
			continue
		}
		s.keep(batch, err)
		pause(ctx, nil, pace.NextBackOff())
	}
}

// sendSome puts tasks into the queue. A task that the server refuses is answered with that error. The returned error
// says that the server is away.
func (s *Sender) sendSome(ctx context.Context, batch []*sending) error {
	if len(batch) == 0 {
		return nil
	}
	err := s.send(ctx, batch)
	switch {
	case err == nil, unavailable(err):
		return err
	case len(batch) == 1:
		batch[0].answer <- &answer{err: err}
		return nil
	}
	for _, one := range batch { // only one of them may be the reason
		if err := s.send(ctx, []*sending{one}); err != nil {
			one.answer <- &answer{err: err}
		}
	}
	return nil
}

// next returns the tasks for the next statement, without two of the same id, and the tasks to take back before. over =
// there will be no more of either.
func (s *Sender) next() (batch, back []*sending, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, s.back, len(s.back) == 0
	}
	size, ids := 0, make(map[string]bool)
	for len(s.queue) > 0 && len(batch) < sendAtOnce {
		one := s.queue[0]
		if size += len(one.Dispatch); len(batch) > 0 && size > sendBytes || ids[one.ID] {
			break
		}
		s.queue[0], s.queue = nil, s.queue[1:] // nil frees the task, which may be large
		if !one.gone {
			ids[one.ID], one.sent = true, true
			batch = append(batch, one)
		}
	}
	return batch, s.back, false
}

// keep puts tasks back that a server that is away may not have. It refuses those that have waited too long.
func (s *Sender) keep(batch []*sending, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.queue = append(slices.DeleteFunc(batch, func(one *sending) bool {
		late := !now.Before(one.until)
		if late {
			one.answer <- &answer{err: err}
		}
		return late || one.gone
	}), s.queue...)
}

// put is the row that the queue returns for a task that it takes or already has.
type put struct {
	Number int64
	ID     string
	State  int
}

// send puts tasks into the queue. A task replaces an earlier one with its id that another sender sent and that has
// ended without being done.
func (s *Sender) send(ctx context.Context, tasks []*sending) error {
	text, err := protocol.AppendJSON(nil, tasks)
	if err != nil {
		return err // does not happen: a task is text
	}
	var ids []string
	for _, one := range tasks {
		ids = append(ids, one.ID)
	}
	var there []put
	b := &batch{fleet: s.fleet}
	b.Queue(s.fleet.named("DELETE FROM ~.tasks WHERE task_id = ANY ($1) AND state = 2 AND status <> 'done' "+
		"AND sender <> $2"), ids, s.id)
	queue(b, &there, pgx.RowToStructByPos[put], `
		INSERT INTO ~.tasks (sender, task_id, digest, rank, requires, model, tier, dispatch, deadline, seconds, retries)
		SELECT $2, task_id, digest, rank, requires, CASE WHEN free THEN '' ELSE model END,
			CASE WHEN free THEN '' ELSE tier END, dispatch, deadline, seconds, retries
		FROM json_to_recordset($1) AS g (task_id text, digest text, rank smallint, requires text[], model text,
				tier text, dispatch text, deadline timestamptz, seconds integer, retries smallint, fallback boolean),
			LATERAL (SELECT g.fallback AND NOT EXISTS (SELECT FROM ~.workers w
				WHERE w.lease > now() AND g.model IN ('', w.model) AND g.tier IN ('', w.tier)) AS free) f
		ON CONFLICT (task_id) DO UPDATE SET sender = excluded.sender WHERE tasks.digest = excluded.digest
		RETURNING number, task_id, state`, text, s.id)
	if err := b.send(ctx); err != nil {
		return err
	}
	if len(there) > 0 {
		s.fleet.tell(notice{})
	}
	s.taken(tasks, there)
	return nil
}

// taken stores the numbers of the tasks that the queue has taken. The others have an id that is in use with another
// content.
func (s *Sender) taken(tasks []*sending, all []put) {
	there := make(map[string]put, len(all))
	for _, p := range all {
		there[p.ID] = p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range tasks {
		id := one.ID
		p, ok := there[id]
		if !ok {
			refused := fleet.Blocked(id, fmt.Sprintf("the fleet has a task %.64q already, with another content; "+
				"give this one an id of its own", id))
			refused.Duplicate = true
			one.answer <- resultOf(refused)
			continue
		}
		if one.number = p.Number; !one.gone {
			s.pending[one.number] = one
		}
		if p.State == 2 {
			s.told[p.Number] = true
		}
	}
	s.news.Ring()
}

// cancel takes back a task that nobody waits for any more, wherever it is.
func (s *Sender) cancel(one *sending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one.gone = true
	delete(s.pending, one.number)
	if one.sent {
		s.back = append(s.back, one)
		s.bell.Ring()
	}
}

// takeBack ends tasks of this sender that wait, and notifies the workers of those that run. The error says that the
// server is away.
func (s *Sender) takeBack(ctx context.Context, all []*sending) error {
	if len(all) == 0 {
		return nil
	}
	var ids, digests []string // the digests are needed because another task may have the id
	for _, one := range all {
		ids, digests = append(ids, one.ID), append(digests, one.Digest)
	}
	_, err := s.fleet.changes(ctx, `WITH mine AS (
			SELECT number FROM ~.tasks
			WHERE (task_id, digest) IN (SELECT * FROM unnest($1::text[], $2::text[])) AND state <> 2 AND sender = $3
			ORDER BY number FOR UPDATE),
		off AS (
			UPDATE ~.tasks t SET canceled = true, status = CASE state WHEN 0 THEN 'error' END,
				fate = CASE state WHEN 0 THEN 'cancelled' END, ended = CASE state WHEN 0 THEN now() END,
				state = CASE state WHEN 0 THEN 2 ELSE state END
			FROM mine WHERE t.number = mine.number RETURNING worker)
		SELECT DISTINCT '', worker FROM off WHERE worker IS NOT NULL`, ids, digests, s.id)
	if err != nil {
		s.log.Warn().Err(err).Int("tasks", len(all)).Msg("tasks could not be cancelled; they go on until their " +
			"deadlines")
		if unavailable(err) {
			return err // sendAll tries again
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back = slices.Delete(s.back, 0, len(all))
	return nil
}
