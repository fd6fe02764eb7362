package fleetdb

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

const (
	sendAtOnce  = 64               // tasks that one statement puts into the queue
	sendBytes   = 4 << 20          // of those; one larger task goes alone
	sendTime    = 10 * time.Second // for a server that is away to come back, before a task is refused
	closeTime   = 3 * time.Second  // for it to take what was sent last, and what was cancelled, at the end
	lateResult  = 2 * time.Second  // for the result of a task whose time is up, which its worker knows too
	lookAtOnce  = 1000             // tasks whose end is looked for at once
	fetchAtOnce = 16               // results that are in memory together
	maxEarly    = 4096             // results that were told of before their tasks were known
)

// Task is a task for a fleet.
type Task struct {
	Dispatch fleet.Dispatch
	Model    string        // that its worker must announce; "" = any
	Tier     string        // likewise
	Fallback bool          // any worker may do it where none has that model or tier
	Retries  int           // how often it is begun again when its worker dies
	Timeout  time.Duration // that a worker may take; 0 = as that has it
}

// Sender puts tasks into the queue of a fleet and waits for their results.
type Sender struct {
	fleet *Fleet
	id    string
	log   zerolog.Logger
	stop  context.CancelFunc // of what listens
	cut   context.CancelFunc // of what sends
	goes  sync.WaitGroup
	bell  dialect.Bell // there is something to send
	news  dialect.Bell // something has ended, or may have

	mu      sync.Mutex // guards the fields below
	queue   []*sending // not in the queue yet
	back    []*sending // in the queue, and nobody waits for them any more
	closing bool
	pending map[int64]*sending
	told    []string       // of what has ended, by the server
	early   map[int64]bool // numbers that were told of and are not known, or not yet
	whole   bool           // any may have ended: the server was not heard for a while
}

// sending is a task on its way.
type sending struct {
	Task
	text, digest string
	until        time.Time    // when a server that is away is not waited for any longer
	due          string       // its deadline as the server reads it
	answer       chan *answer // takes one

	// Guarded by Sender.mu.
	number int64 // in the queue; 0 = it is not known to be there
	sent   bool  // it may be there
	gone   bool  // nobody waits for it
}

// answer is how a task ended.
type answer struct {
	result protocol.Object
	err    error
}

// NewSender begins to send.
func (f *Fleet) NewSender(log zerolog.Logger) *Sender {
	ctx, stop := context.WithCancel(context.Background())
	sends, cut := context.WithCancel(context.Background())
	s := &Sender{fleet: f, id: newID(), log: log, stop: stop, cut: cut, bell: dialect.NewBell(), news: dialect.NewBell(), pending: make(map[int64]*sending), early: make(map[int64]bool)}
	s.goes.Go(func() { s.sendAll(sends) })
	s.goes.Go(func() { f.listen(ctx, f.schema+"_"+s.id, log, s.hear) })
	s.goes.Go(func() { s.lookAll(ctx) })
	return s
}

// Close ends the sender; tasks that are in the queue stay there, but for those that were cancelled,
// as far as the server takes that before ctx ends, and within some seconds.
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

// Do has a task done by some worker of the fleet and returns its TASK_RESULT. The id of the task
// names it in the whole fleet: one that is there already with the same content is joined, or its
// result returned if it is done; with another content the result is blocked, as a duplicate. The
// end of ctx cancels the task, wherever it is. The error is store_unavailable where the server
// cannot be reached to take the task, schema_violation for one that it cannot take, or the cause
// of ctx.
func (s *Sender) Do(ctx context.Context, t Task) (protocol.Object, error) {
	one, err := newSending(t)
	if err != nil {
		return protocol.Object{}, err
	}
	s.mu.Lock()
	s.queue = append(s.queue, one)
	s.mu.Unlock()
	s.bell.Ring()
	select {
	case a := <-one.answer:
		return a.result, a.err
	case <-ctx.Done():
	}
	if context.Cause(ctx) == nil || !deadlined(ctx) {
		s.cancel(one)
		return protocol.Object{}, context.Cause(ctx)
	}
	late := time.NewTimer(lateResult)
	defer late.Stop()
	select {
	case a := <-one.answer:
		return a.result, a.err
	case <-late.C:
		s.cancel(one)
		return protocol.Object{}, context.Cause(ctx)
	}
}

// deadlined reports whether ctx has ended by its deadline.
func deadlined(ctx context.Context) bool {
	at, ok := ctx.Deadline()
	return ok && !time.Now().Before(at)
}

// newSending checks a task.
func newSending(t Task) (*sending, error) {
	t.Dispatch.Type, t.Dispatch.ProtocolVersion, t.Dispatch.AuthToken = fleet.TypeDispatch, fleet.Version, ""
	text, err := protocol.AppendJSON(nil, &t.Dispatch)
	switch {
	case err != nil:
		return nil, protocol.Errorf(protocol.CodeSchemaViolation, "the task is not JSON: %w", err)
	case len(text) > maxText:
		return nil, protocol.Errorf(protocol.CodeSchemaViolation, "the task has %d bytes; the queue of a fleet takes %d: put long texts into a file", len(text), maxText)
	case strings.ContainsRune(t.Model+t.Tier+strings.Join(t.requires(), ""), 0):
		return nil, protocol.Errorf(protocol.CodeSchemaViolation, "what the task requires has a NUL character")
	}
	at, dated, err := t.Dispatch.DeadlineTime()
	if err != nil {
		return nil, err
	}
	due := ""
	if dated {
		due = at.UTC().Format(time.RFC3339Nano)
	}
	sum := sha256.Sum256(fmt.Appendf(text, "\n%q %q", t.Model, t.Tier))
	return &sending{Task: t, text: string(text), digest: hex.EncodeToString(sum[:16]), due: due, until: time.Now().Add(sendTime), answer: make(chan *answer, 1)}, nil
}

// requires lists what a worker must offer.
func (t *Task) requires() []string {
	need := &t.Dispatch.Requirements
	all := slices.Clone(need.RequiredCapabilities)
	for _, id := range need.RequiredMCP {
		all = append(all, serverPrefix+id)
	}
	return all
}

// sendAll puts tasks into the queue, as many at once as there are, and takes back those that
// nobody waits for. When the sender closes it does the latter alone.
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
		if err == nil && len(batch) > 0 {
			err = s.send(ctx, batch)
		}
		switch {
		case err == nil:
			pace.Reset()
			s.drop(batch)
		case unavailable(err):
			s.giveUp(batch, err)
			pause(ctx, nil, pace.NextBackOff())
		case len(batch) > 1: // one of them may be at fault
			for _, one := range batch {
				if err := s.send(ctx, []*sending{one}); err != nil {
					one.answer <- &answer{err: err}
				}
			}
			s.drop(batch)
		default:
			batch[0].answer <- &answer{err: err}
			s.drop(batch)
		}
	}
}

// next returns what goes into the queue by one statement, in which each id stands once, and what
// is taken back before; over = nothing more ever does.
func (s *Sender) next() (batch, back []*sending, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, s.back, len(s.back) == 0
	}
	size, ids := 0, make(map[string]bool)
	for _, one := range s.queue[:min(len(s.queue), sendAtOnce)] {
		id := one.Dispatch.Task.TaskID
		if size += len(one.text); len(batch) > 0 && size > sendBytes || ids[id] {
			break
		}
		ids[id], one.sent = true, true
		batch = append(batch, one)
	}
	return batch, s.back, false
}

// drop takes tasks off the list of those that are to be sent.
func (s *Sender) drop(batch []*sending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = slices.DeleteFunc(s.queue, func(one *sending) bool { return slices.Contains(batch, one) })
}

// giveUp refuses those for which the server was away for too long.
func (s *Sender) giveUp(batch []*sending, err error) {
	now := time.Now()
	late := slices.DeleteFunc(slices.Clone(batch), func(one *sending) bool { return now.Before(one.until) })
	for _, one := range late {
		one.answer <- &answer{err: err}
	}
	s.drop(late)
}

// send puts tasks into the queue. One that has its id from an earlier try that came to nothing
// takes its place.
func (s *Sender) send(ctx context.Context, batch []*sending) error {
	cols := make([][]string, 10)
	for _, one := range batch {
		d := &one.Dispatch
		for i, text := range []string{
			d.Task.TaskID, one.digest, strconv.Itoa(cmp.Or(d.Task.Priority, fleet.PriorityNormal).Rank()), string(encode(one.requires())), one.Model, one.Tier,
			one.text, one.due, strconv.Itoa(int((one.Timeout + time.Second - 1) / time.Second)), strconv.Itoa(one.Retries),
		} {
			cols[i] = append(cols[i], text)
		}
	}
	fallback := make([]string, len(batch))
	for i, one := range batch {
		fallback[i] = strconv.FormatBool(one.Fallback)
	}
	if _, err := s.fleet.query(ctx, "DELETE FROM ~.tasks WHERE task_id = ANY ($1) AND state = 2 AND status <> 'done' AND sender <> $2", cols[0], s.id); err != nil {
		return err
	}
	rows, err := s.fleet.query(ctx, `WITH given AS (
		SELECT * FROM unnest($2::text[], $3::text[], $4::smallint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::integer[], $11::smallint[], $12::boolean[])
			WITH ORDINALITY AS g (task_id, digest, rank, requires, model, tier, dispatch, deadline, seconds, retries, fallback, place)),
	put AS (
		INSERT INTO ~.tasks (sender, task_id, digest, rank, requires, model, tier, dispatch, deadline, seconds, retries)
		SELECT $1, task_id, digest, rank, requires::text[], CASE WHEN free THEN '' ELSE model END, CASE WHEN free THEN '' ELSE tier END, dispatch,
			nullif(deadline, '')::timestamptz, seconds, retries
		FROM given g, LATERAL (SELECT g.fallback AND NOT EXISTS (
			SELECT FROM ~.workers w WHERE w.lease > now() AND g.model IN ('', w.model) AND g.tier IN ('', w.tier)) AS free) f
		ORDER BY place
		ON CONFLICT (task_id) DO UPDATE SET sender = excluded.sender WHERE tasks.digest = excluded.digest
		RETURNING number, task_id, state)
	SELECT number, task_id, state FROM put UNION ALL (SELECT NULL, pg_notify('~', '')::text, NULL FROM put LIMIT 1)`,
		s.id, cols[0], cols[1], cols[2], cols[3], cols[4], cols[5], cols[6], cols[7], cols[8], cols[9], fallback)
	if err != nil {
		return err
	}
	_ = s.fetch(ctx, s.taken(batch, rows)) // what it does not get is looked for again
	return nil
}

// taken notes what the queue has taken: the others are there already, with another content. It
// returns those that have ended already.
func (s *Sender) taken(batch []*sending, rows []row) (ended []int64) {
	there := make(map[string]row, len(rows))
	for _, r := range rows {
		if r[0] != nil {
			there[r.text(1)] = r
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range batch {
		id := one.Dispatch.Task.TaskID
		r, ok := there[id]
		if !ok {
			refused := fleet.Blocked(id, fmt.Sprintf("the fleet has a task %.64q already, with another content; give this one an id of its own", id))
			refused.Duplicate = true
			one.answer <- resultOf(refused)
			continue
		}
		if one.number = r.number(0); !one.gone {
			s.pending[one.number] = one
		}
		if r.text(2) == "2" || s.early[one.number] {
			delete(s.early, one.number)
			ended = append(ended, one.number)
		}
	}
	return ended
}

func resultOf(r *fleet.Result) *answer {
	text, err := protocol.AppendJSON(nil, r)
	if err != nil {
		return &answer{err: err}
	}
	obj, err := protocol.ParseObject(text)
	return &answer{result: obj, err: err}
}

// cancel takes back what nobody waits for any more, wherever it is.
func (s *Sender) cancel(one *sending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one.gone = true
	s.queue = slices.DeleteFunc(s.queue, func(other *sending) bool { return other == one })
	delete(s.pending, one.number)
	if one.sent {
		s.back = append(s.back, one)
		s.bell.Ring()
	}
}

// takeBack ends tasks of this sender that wait, and tells the workers of those that run. The error
// is that of a server that is away.
func (s *Sender) takeBack(ctx context.Context, all []*sending) error {
	if len(all) == 0 {
		return nil
	}
	var ids, digests []string // another task may have the id
	for _, one := range all {
		ids, digests = append(ids, one.Dispatch.Task.TaskID), append(digests, one.digest)
	}
	_, err := s.fleet.query(ctx, `WITH mine AS (
		SELECT number FROM ~.tasks WHERE (task_id, digest) IN (SELECT * FROM unnest($1::text[], $2::text[])) AND state <> 2 AND sender = $3 ORDER BY number FOR UPDATE),
	off AS (
		UPDATE ~.tasks t SET canceled = true, status = CASE state WHEN 0 THEN 'error' END, fate = CASE state WHEN 0 THEN 'cancelled' END,
			ended = CASE state WHEN 0 THEN now() END, state = CASE state WHEN 0 THEN 2 ELSE state END
		FROM mine WHERE t.number = mine.number RETURNING worker)
		SELECT pg_notify('~', worker) FROM off WHERE worker IS NOT NULL`, ids, digests, s.id)
	if err != nil {
		s.log.Warn().Err(err).Int("tasks", len(all)).Msg("tasks could not be cancelled; they go on until their " +
			"deadlines")
		if unavailable(err) {
			return err // it is tried again
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back = s.back[len(all):]
	return nil
}

// hear takes what the server tells: what has ended, or nothing, when it is time to look.
func (s *Sender) hear(payloads []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told, s.whole = append(s.told, payloads...), s.whole || len(payloads) == 0
	s.news.Ring()
}

// lookAll fetches results as they come, those that have come meanwhile together.
func (s *Sender) lookAll(ctx context.Context) {
	var looked time.Time
	for ctx.Err() == nil {
		s.mu.Lock()
		told, whole := s.told, s.whole || time.Since(looked) >= lookEvery // notifications may be late or lost
		s.told, s.whole = nil, false
		var numbers, rest []int64
		for _, text := range told {
			switch n, err := strconv.ParseInt(text, 10, 64); {
			case err != nil:
			case s.pending[n] != nil:
				numbers = append(numbers, n)
			case len(s.early) < maxEarly:
				s.early[n] = true
			}
		}
		if whole {
			looked = time.Now()
			clear(s.early) // what is pending by now is looked for here
			rest = slices.Collect(maps.Keys(s.pending))
		}
		s.mu.Unlock()
		err := s.fetch(ctx, numbers)
		if err == nil && len(rest) > 0 {
			_ = s.fetch(ctx, s.ended(ctx, rest)) // what it does not get is looked for again
		}
		pause(ctx, s.news, lookEvery)
	}
}

// ended returns which tasks have, and rescues others: there may be no worker that does.
func (s *Sender) ended(ctx context.Context, numbers []int64) (all []int64) {
	if err := s.fleet.rescue(ctx); err != nil {
		return nil
	}
	for part := range slices.Chunk(numbers, lookAtOnce) {
		rows, err := s.fleet.query(ctx, "SELECT n, t.number IS NULL FROM unnest($1::bigint[]) n LEFT JOIN ~.tasks t ON t.number = n WHERE t.number IS NULL OR t.state = 2", part)
		if err != nil {
			break
		}
		for _, r := range rows {
			if !r.truth(1) {
				all = append(all, r.number(0))
			} else if one := s.settle(r.number(0)); one != nil {
				gone := fleet.NewResult(one.Dispatch.Task.TaskID, fleet.StatusError)
				gone.Error = "the task is not in the queue any more: it was taken out, or another dispatcher sent " +
					"it again"
				one.answer <- resultOf(gone)
			}
		}
	}
	return all
}

// settle takes a task off the list of those that are waited for; nil = it is not on it.
func (s *Sender) settle(number int64) *sending {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.pending[number]
	delete(s.pending, number)
	return one
}

// fetch answers tasks with their results.
func (s *Sender) fetch(ctx context.Context, numbers []int64) error {
	for part := range slices.Chunk(numbers, fetchAtOnce) {
		rows, err := s.fleet.query(ctx, `SELECT t.number, t.task_id, t.fate, t.result, w.name, w.model, w.tier FROM ~.tasks t LEFT JOIN ~.workers w ON w.id = t.worker
			WHERE t.number = ANY ($1) AND t.state = 2`, part)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if one := s.settle(r.number(0)); one != nil {
				one.answer <- one.read(r)
			}
		}
	}
	return nil
}

// read makes the answer of a row: what a worker wrote there is checked as any other.
func (one *sending) read(r row) *answer {
	failed := fleet.NewResult(r.text(1), fleet.StatusError)
	if r[3] == nil {
		failed.Error = "the task ended without a result"
		if r[2] != nil {
			failed.Error = r.text(2)
		}
		return resultOf(failed)
	}
	obj, err := protocol.ParseObject(r[3])
	if err != nil {
		failed.Error = "the result in the queue is not a JSON object"
		return resultOf(failed)
	}
	if other := r[4] != nil && (one.Model != "" && one.Model != r.text(5) || one.Tier != "" && one.Tier != r.text(6)); other && one.Fallback {
		var res fleet.Result
		if obj.Decode(&res) == nil {
			res.NextSteps = append(res.NextSteps, fmt.Sprintf("no worker with the wanted model was available: "+
				"worker %s got the task instead, which has %q of tier %q", r.text(4), r.text(5), r.text(6)))
			return resultOf(&res)
		}
	}
	return &answer{result: obj}
}
