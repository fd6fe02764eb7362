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

// hear takes notifications: the numbers of tasks that have ended. nil = some may have been missed, so all tasks must be
// checked.
func (s *Sender) hear(texts []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range texts {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && len(s.told) < maxTold {
			s.told[n] = true
		}
	}
	s.whole = s.whole || len(texts) == 0
	s.news.Ring()
}

// lookAll fetches results as they are reported, those reported meanwhile together. At intervals it looks for all
// results, because notifications may be late or lost.
func (s *Sender) lookAll(ctx context.Context) {
	var looked time.Time
	for ctx.Err() == nil {
		var numbers []int64
		s.mu.Lock()
		whole := s.whole || time.Since(looked) >= lookEvery
		if whole {
			looked, s.whole = time.Now(), false
			clear(s.told)
			numbers = slices.Collect(maps.Keys(s.pending))
		}
		for n := range s.told {
			if s.pending[n] != nil { // else the number is not known here yet
				numbers = append(numbers, n)
				delete(s.told, n)
			}
		}
		s.mu.Unlock()
		var err error
		if whole && len(numbers) > 0 {
			err = s.fleet.rescue(ctx) // there may be no worker that does this
		}
		if err == nil {
			s.fetch(ctx, numbers)
		}
		pause(ctx, s.news, lookEvery)
	}
}

// settle removes a task from those that wait for a result; nil = it does not wait.
func (s *Sender) settle(number int64) *sending {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.pending[number]
	delete(s.pending, number)
	return one
}

// end is how a task ended, as the tables have it.
type end struct {
	Number            int64
	Result            []byte
	Fate              string  // set if there is no result
	Name, Model, Tier *string // of its worker
}

// fetch answers the tasks of numbers that have ended.
func (s *Sender) fetch(ctx context.Context, numbers []int64) {
	for part := range slices.Chunk(numbers, fetchAtOnce) {
		_, err := ask(ctx, s.fleet, func(row pgx.CollectableRow) (none struct{}, err error) {
			e, err := pgx.RowToStructByPos[end](row)
			if one := s.settle(e.Number); one != nil {
				one.answer <- one.read(&e)
			}
			return none, err
		}, `SELECT n, t.result, coalesce(t.fate, CASE WHEN t.number IS NULL THEN
				'the task is not in the queue any more: it was taken out, or another dispatcher sent it again'
				ELSE 'the task ended without a result' END),
			w.name, w.model, w.tier FROM unnest($1::bigint[]) n
			LEFT JOIN ~.tasks t ON t.number = n LEFT JOIN ~.workers w ON w.id = t.worker
			WHERE t.number IS NULL OR t.state = 2`, part)
		if err != nil {
			return
		}
	}
}

// read makes the answer from a row. It checks the result, because a worker wrote it.
func (one *sending) read(e *end) *answer {
	failed := fleet.NewResult(one.ID, fleet.StatusError)
	if e.Result == nil {
		failed.Error = e.Fate
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
