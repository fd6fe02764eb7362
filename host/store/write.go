package store

import (
	"context"
	"fmt"
	"sync/atomic"
)

// maxGroup is how many writes are committed together at most.
const maxGroup = 64

// job is a write that waits for its turn.
type job struct {
	fn    func(*Tx) error
	taken atomic.Bool   // by the one who runs it, or by its owner who gave up
	after []func()      // to do once it was committed
	err   error         // valid once done is closed
	done  chan struct{} // closed when it was committed or has failed
}

// Write implements Store. Whoever finds nobody writing writes for all that wait,
// in one commit: a commit costs far more than what is in it.
func (s *SQLite) Write(ctx context.Context, fn func(*Tx) error) error {
	j := &job{fn: fn, done: make(chan struct{})}
	s.mu.Lock()
	s.queue = append(s.queue, j)
	s.mu.Unlock()
	for {
		select {
		case <-j.done:
			return j.err
		default:
		}
		select {
		case s.turn <- struct{}{}:
			s.writeQueued()
			<-s.turn
		case <-j.done:
			return j.err
		case <-ctx.Done():
			if j.taken.CompareAndSwap(false, true) {
				return context.Cause(ctx)
			}
			<-j.done
			return j.err
		}
	}
}

// take gives the writes that wait, up to a group of them.
func (s *SQLite) take() []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	var group []*job
	for len(s.queue) > 0 && len(group) < maxGroup {
		if j := s.queue[0]; j.taken.CompareAndSwap(false, true) {
			group = append(group, j)
		}
		s.queue = s.queue[1:]
	}
	return group
}

// writeQueued runs one group. Its caller has the turn.
func (s *SQLite) writeQueued() {
	group := s.take()
	if len(group) == 0 {
		return
	}
	err := ErrClosed
	if s.writer != nil {
		err = s.inPlace()
	}
	if err == nil {
		err = s.writeGroup(group)
	}
	for _, j := range group {
		if err != nil {
			j.err = explain(s.path, err)
		}
		if j.err == nil {
			for _, fn := range j.after {
				fn()
			}
		}
		close(j.done)
	}
}

// writeGroup runs each write within a savepoint of its own, so that one that
// fails takes nothing of the others with it. An error is that of all.
func (s *SQLite) writeGroup(group []*job) error {
	if err := s.writer.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	for _, j := range group {
		if err := s.writeOne(j); err != nil {
			_ = s.writer.exec("ROLLBACK") // SQLite may have done it already
			return err
		}
	}
	if err := s.writer.exec("COMMIT"); err != nil {
		_ = s.writer.exec("ROLLBACK")
		return err
	}
	return nil
}

// writeOne gives an error when the whole transaction is lost.
func (s *SQLite) writeOne(j *job) error {
	if err := s.writer.exec("SAVEPOINT job"); err != nil {
		return err
	}
	tx := &Tx{conn: s.writer, ctx: context.Background()}
	j.err = explain(s.path, runGuarded(j.fn, tx))
	j.after = tx.after
	if j.err != nil {
		if err := s.writer.exec("ROLLBACK TO job"); err != nil {
			return fmt.Errorf("%w (%w)", j.err, err)
		}
	}
	return s.writer.exec("RELEASE job")
}

// runGuarded turns a panic into an error: fn may run on the goroutine of another
// request.
func runGuarded(fn func(*Tx) error, tx *Tx) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("a write panicked: %v", v)
		}
	}()
	return fn(tx)
}
