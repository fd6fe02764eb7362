package fleetdb

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// hear takes what the server tells: what has ended, or nothing, when it is time to look.
func (s *Sender) hear(texts []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told, s.whole = append(s.told, texts...), s.whole || len(texts) == 0
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
		rows, err := ask(ctx, s.fleet, pgx.RowToStructByPos[struct {
			Number int64
			Gone   bool
		}], `SELECT n, t.number IS NULL FROM unnest($1::bigint[]) n LEFT JOIN ~.tasks t ON t.number = n
			WHERE t.number IS NULL OR t.state = 2`, part)
		if err != nil {
			break
		}
		for _, r := range rows {
			if !r.Gone {
				all = append(all, r.Number)
			} else if one := s.settle(r.Number); one != nil {
				gone := fleet.NewResult(one.ID, fleet.StatusError)
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

// end is how a task ended, as the server has it.
type end struct {
	Number            int64
	ID                string
	Fate              *string
	Result            []byte
	Name, Model, Tier *string // of its worker
}

// fetch answers tasks with their results.
func (s *Sender) fetch(ctx context.Context, numbers []int64) error {
	for part := range slices.Chunk(numbers, fetchAtOnce) {
		_, err := ask(ctx, s.fleet, func(row pgx.CollectableRow) (none struct{}, err error) {
			e, err := pgx.RowToStructByPos[end](row)
			if one := s.settle(e.Number); one != nil {
				one.answer <- one.read(&e)
			}
			return none, err
		}, `SELECT t.number, t.task_id, t.fate, t.result, w.name, w.model, w.tier
			FROM ~.tasks t LEFT JOIN ~.workers w ON w.id = t.worker WHERE t.number = ANY ($1) AND t.state = 2`, part)
		if err != nil {
			return err
		}
	}
	return nil
}

// read makes the answer of a row: what a worker wrote there is checked as any other.
func (one *sending) read(e *end) *answer {
	failed := fleet.NewResult(e.ID, fleet.StatusError)
	if e.Result == nil {
		failed.Error = "the task ended without a result"
		if e.Fate != nil {
			failed.Error = *e.Fate
		}
		return resultOf(failed)
	}
	obj, err := protocol.ParseObject(e.Result)
	if err != nil {
		failed.Error = "the result in the queue is not a JSON object"
		return resultOf(failed)
	}
	differs := func(wanted string, has *string) bool { return wanted != "" && wanted != *has }
	if one.Fallback && e.Name != nil && (differs(one.Model, e.Model) || differs(one.Tier, e.Tier)) {
		var res fleet.Result
		if obj.Decode(&res) == nil {
			res.NextSteps = append(res.NextSteps, fmt.Sprintf("no worker with the wanted model was available: "+
				"worker %s got the task instead, which has %q of tier %q", *e.Name, *e.Model, *e.Tier))
			return resultOf(&res)
		}
	}
	return &answer{result: obj}
}

func resultOf(r *fleet.Result) *answer {
	text, err := protocol.AppendJSON(nil, r)
	if err != nil {
		return &answer{err: err}
	}
	obj, err := protocol.ParseObject(text)
	return &answer{result: obj, err: err}
}
