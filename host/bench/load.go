package bench

import (
	"fmt"
	"sync/atomic"
	"time"
)

// tally is what one load of requests came to.
type tally struct {
	answers int
	elapsed time.Duration
	cpu     time.Duration // of the host; <= 0 if the system does not tell
}

// load keeps a window of requests under way.
type load struct {
	c        *child
	b        *batch
	check    *checker
	window   int
	duration time.Duration
}

// probe is one exchange, verified in full.
func (c *child) probe(d *dialect, q request, b *batch) (*checker, error) {
	defer c.within(c.patience)()
	whole := c.answers.whole
	c.answers.whole = true
	defer func() { c.answers.whole = whole }()
	sent, _ := b.take(1)
	got, err := c.exchange(sent)
	if err != nil {
		return nil, err
	}
	if err := d.verify(sent, got); err != nil {
		return nil, err
	}
	return newChecker(q, got)
}

// run sends for the duration and waits for all answers. The first eighth is not
// counted: it warms up both sides.
func (l *load) run() (tally, error) {
	defer l.c.within(2*l.duration + l.c.patience)()
	l.c.answers.whole = false
	send, stop := l.sender()
	defer stop()
	begin := time.Now()
	from, until := begin.Add(l.duration/8), begin.Add(l.duration)
	var t tally
	var counted time.Time // zero until the warm-up is over
	var all int           // answers, those of the warm-up included
	atFirst := cpuTime(l.c.cmd)
	used := atFirst
	under := l.window // requests sent and not answered
	if err := send(under); err != nil {
		return t, l.c.explain(err)
	}
	for under > 0 {
		if err := l.c.answers.fill(); err != nil {
			return t, l.c.explain(err)
		}
		n, err := l.check.count(l.c.answers)
		if err != nil {
			return t, err
		}
		now := time.Now()
		t.answers += n
		all += n
		if counted.IsZero() && now.After(from) {
			counted, used, t.answers = now, cpuTime(l.c.cmd), 0
		}
		if now.After(until) {
			under -= n
			t.elapsed = now.Sub(counted)
		} else if err := send(n); err != nil {
			return t, l.c.explain(err)
		}
	}
	if under < 0 {
		return t, fmt.Errorf("%d answers more than requests", -under)
	}
	if t.answers == 0 { // a host so slow that all came at once, after the time: nothing is left out then
		t.answers, t.elapsed, used = all, time.Since(begin), atFirst
	}
	t.cpu = cpuTime(l.c.cmd) - used
	return t, nil
}

// sender gives the function that sends n more requests, and the one that ends
// it. What surely fits into the pipe is written at once, which costs the least;
// otherwise a goroutine writes, since a host that waits for its answers to be
// read may not read on.
func (l *load) sender() (send func(n int) error, stop func()) {
	if l.window*l.b.size <= pipeSize(l.c.in)/2 {
		return l.write, func() {}
	}
	var due atomic.Int64
	var failed atomic.Pointer[error]
	wake, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		for range wake {
			for n := due.Swap(0); n > 0; n = due.Swap(0) {
				if err := l.write(int(n)); err != nil {
					failed.Store(&err)
					return
				}
			}
		}
	}()
	send = func(n int) error {
		if err := failed.Load(); err != nil {
			return *err
		}
		due.Add(int64(n))
		select {
		case wake <- struct{}{}:
		default:
		}
		return nil
	}
	return send, func() { l.finish(wake, done) }
}

// finish ends the writing goroutine. If it still waits in a write, the load has
// failed, and only the end of the host lets it go.
func (l *load) finish(wake chan struct{}, done chan struct{}) {
	close(wake)
	timer := time.AfterFunc(time.Second, func() { killGroup(l.c.cmd) })
	<-done
	timer.Stop()
}

func (l *load) write(n int) error {
	for n > 0 {
		data, k := l.b.take(n)
		if _, err := l.c.in.Write(data); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// sequential sends one request after the other and gives how long each took.
func (l *load) sequential() ([]time.Duration, error) {
	defer l.c.within(2*l.duration + l.c.patience)()
	times := make([]time.Duration, 0, 1<<18)
	begin := time.Now()
	warm, until := begin.Add(l.duration/8), begin.Add(l.duration)
	for sent := begin; sent.Before(until) || len(times) == 0; {
		if err := l.write(1); err != nil {
			return nil, l.c.explain(err)
		}
		for n := 0; n == 0; {
			if err := l.c.answers.fill(); err != nil {
				return nil, l.c.explain(err)
			}
			var err error
			if n, err = l.check.count(l.c.answers); err != nil {
				return nil, err
			}
		}
		now := time.Now()
		if now.After(warm) {
			times = append(times, now.Sub(sent))
		}
		sent = now
	}
	return times, nil
}
