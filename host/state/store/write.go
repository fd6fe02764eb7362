package store

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// maxGroup is the maximum number of writes in one commit.
const maxGroup = 64

// job is a write that waits for its turn.
type job struct {
	fn    func(*Tx) error
	taken atomic.Bool   // set by the goroutine that runs it, or by its own when it gives up
	after []func()      // functions to run after the commit
	err   error         // valid once done is closed
	done  chan struct{} // closed when it was committed or has failed
}

// writes are the writes that wait for the current writer.
type writes struct {
	writing chan struct{} // held by the writer

	mu    sync.Mutex
	queue []*job // guarded by mu
}

// do runs fn in a transaction. A caller that finds no other writer commits all waiting writes at once, because a commit
// takes much longer than its contents. An error of commit is the result of all jobs, unless a job has its own error.
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

// group contains the writes of one commit.
type group []*job

// take returns the waiting writes, at most maxGroup.
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

// end commits the writes and closes their done channels.
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

// connection is a connection that can run statements without arguments, also several in one text.
type connection interface {
	querier
	run(sql string) error
}

// writeAll runs the jobs in the current transaction of c, and ends it. A failed job does not affect
// the others. A returned error applies to all jobs.
func writeAll(ctx context.Context, c connection, jobs []*job, dir, commit string, explain func(error) error,
) (err error) {
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

// write runs a job, in a savepoint unless it is the only one. It returns an error if the whole transaction is lost.
func (j *job) write(ctx context.Context, c connection, dir string, alone bool, explain func(error) error) error {
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

// runGuarded turns a panic into an error, because fn may run in the goroutine of another request.
func runGuarded(fn func(*Tx) error, tx *Tx) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("a write panicked: %v", v)
		}
	}()
	return fn(tx)
}
