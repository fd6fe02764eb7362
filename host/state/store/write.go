package store

import (
	"context"
	"fmt"
	"sync"
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

// writes are those that wait for the one who writes.
type writes struct {
	writing chan struct{} // held by that one

	mu    sync.Mutex
	queue []*job // guarded by mu
}

// do has fn written. Whoever finds nobody writing commits all that wait at once: a commit
// costs far more than what is in it. The error of commit is that of all, unless a job has one.
func (w *writes) do(ctx context.Context, fn func(*Tx) error, commit func([]*job) error) error {
	j := &job{fn: fn, done: make(chan struct{})}
	w.mu.Lock()
	w.queue = append(w.queue, j)
	w.mu.Unlock()
	for {
		select {
		case <-j.done:
			return j.err
		default:
		}
		select {
		case w.writing <- struct{}{}:
			w.take().end(commit)
			<-w.writing
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

// group is the writes of one commit.
type group []*job

// take returns the writes that wait, up to a group of them.
func (w *writes) take() (g group) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) > 0 && len(g) < maxGroup {
		if j := w.queue[0]; j.taken.CompareAndSwap(false, true) {
			g = append(g, j)
		}
		w.queue = w.queue[1:]
	}
	return g
}

// end commits the writes and says so.
func (g group) end(commit func([]*job) error) {
	if len(g) == 0 {
		return
	}
	err := commit(g)
	for _, j := range g {
		if err != nil {
			j.err = err
		}
		if j.err == nil {
			for _, fn := range j.after {
				fn()
			}
		}
		close(j.done)
	}
}

// session is a connection that can run statements without arguments, several in one text too.
type session interface {
	querier
	run(sql string) error
}

// writeAll runs jobs in the transaction that c is in, and ends it. One that fails takes nothing
// of the others with it. An error is that of all.
func writeAll(ctx context.Context, c session, jobs []*job, dir, commit string, explain func(error) error) (err error) {
	kept := 0
	for _, j := range jobs {
		if err = j.write(ctx, c, dir, len(jobs) == 1, explain); err != nil {
			break
		}
		if j.err == nil {
			kept++
		}
	}
	if err == nil && kept > 0 {
		if err = c.run(commit); err == nil {
			return nil
		}
	}
	_ = c.run("ROLLBACK") // it may have been done already
	return err
}

// write runs a job, within a savepoint unless it is alone. It returns an error when the whole
// transaction is lost.
func (j *job) write(ctx context.Context, c session, dir string, alone bool, explain func(error) error) error {
	if !alone {
		if err := c.run("SAVEPOINT job"); err != nil {
			return err
		}
	}
	tx := &Tx{db: c, ctx: ctx, dir: dir}
	j.err = explain(runGuarded(j.fn, tx))
	j.after = tx.after
	if alone {
		return nil
	}
	if j.err != nil {
		if err := c.run("ROLLBACK TO job"); err != nil {
			return fmt.Errorf("%w (%w)", j.err, err)
		}
	}
	return c.run("RELEASE job")
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
