package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// value is one measured number.
type value struct {
	measure string // what was measured: "rate", "p50", …
	unit    string // "ms", "us", "/s" or "MB"
	number  float64
}

// sample is the result of one round of one case; nil = the round failed.
type sample []value

// benchCase is one case to measure. Each of its rounds starts a new process.
type benchCase struct {
	name   string
	about  string
	short  bool // included in Options.Short
	starts bool // repeated Options.Starts times instead of Options.Rounds
	run    func(ctx context.Context, t *target, d time.Duration) (sample, error)
}

// The sizes of the texts in an echo, as in the names of cases.
const (
	text100 = "100B"
	text10K = "10KB"
	text1M  = "1MB"
)

// allCases lists every case in the order it is run.
func allCases() []benchCase {
	list := []benchCase{
		{name: "start", about: "spawn to the first answer", short: true, starts: true, run: startUp},
		{
			name: "memory", about: "resident memory: after the handshake, and its peak under echo of 100 B, window 1024",
			short: true, run: memory,
		},
		{name: "seq-ping", about: "sequential pings", run: sequential("")},
		{name: "seq-echo-100B", about: "sequential echo calls of 100 B", short: true, run: sequential(text100)},
	}
	if !tellsMemory {
		list = slices.DeleteFunc(list, func(c benchCase) bool { return c.name == "memory" })
	}
	for _, w := range []int{1, 8, 64, 1024} {
		list = append(list, pipelined("ping", "", w, w == 1024))
	}
	for _, w := range []int{1, 8, 64, 1024} {
		list = append(list, pipelined("echo-100B", text100, w, w == 64))
	}
	for _, w := range []int{1, 8, 64, 1024} {
		list = append(list, pipelined("echo-10KB", text10K, w, w == 64))
	}
	for _, w := range []int{1, 8} {
		list = append(list, pipelined("echo-1MB", text1M, w, w == 8))
	}
	return list
}

// payload returns a text of a size, in plain ASCII that needs no escapes.
func payload(size string) string {
	bytes := map[string]int{text100: 100, text10K: 10_000, text1M: 1_000_000}[size]
	const words = "the quick brown fox jumps over the lazy dog and runs on; "
	return strings.Repeat(words, bytes/len(words)+1)[:bytes]
}

// ask returns the request of a case; size "" is a ping.
func ask(d *dialect, size string) request {
	if size == "" {
		return d.ping
	}
	return d.echo(payload(size))
}

// startUp measures from before the spawn to the first line of the host. The
// opening line is sent as soon as the process runs.
func startUp(ctx context.Context, t *target, _ time.Duration) (sample, error) {
	begin := time.Now()
	c, err := t.start(ctx)
	if err != nil {
		return nil, err
	}
	defer c.kill()
	stop := c.within(c.patience)
	answer, err := c.exchange([]byte(t.dialect.hello))
	took := time.Since(begin)
	stop()
	if err != nil {
		return nil, err
	}
	if err := t.dialect.ready(answer); err != nil {
		return nil, err
	}
	return sample{{"first answer", "ms", took.Seconds() * 1e3}}, c.close()
}

// settle is how long a host may continue to start before it counts as idle.
const settle = 200 * time.Millisecond

// memory measures the memory of the idle host, and its peak under a deep window
// of small calls.
func memory(ctx context.Context, t *target, d time.Duration) (sample, error) {
	idle, err := t.idle(ctx)
	if err != nil {
		return nil, err
	}
	var peak float64
	_, err = t.session(ctx, text100, 1024, d, func(l *load) error {
		_, err := l.run()
		peak = megabytes(l.c, "VmHWM")
		return err
	})
	if err != nil {
		return nil, err
	}
	return sample{{"idle", "MB", idle}, {"peak", "MB", peak}}, nil
}

// idle returns the resident memory of a host after the handshake.
func (t *target) idle(ctx context.Context) (float64, error) {
	c, err := t.start(ctx)
	if err != nil {
		return 0, err
	}
	defer c.kill()
	if err := c.greet(t.dialect); err != nil {
		return 0, err
	}
	time.Sleep(settle)
	return megabytes(c, "VmRSS"), c.close()
}

// sequential measures single round trips.
func sequential(size string) func(context.Context, *target, time.Duration) (sample, error) {
	return func(ctx context.Context, t *target, d time.Duration) (sample, error) {
		var times []time.Duration
		_, err := t.session(ctx, size, 1, d, func(l *load) (err error) {
			times, err = l.sequential()
			return err
		})
		if err != nil {
			return nil, err
		}
		slices.Sort(times)
		at := func(share int) float64 { return float64(times[len(times)*share/100].Nanoseconds()) / 1e3 }
		return sample{{"p50", "us", at(50)}, {"p99", "us", at(99)}}, nil
	}
}

// pipelined measures how many requests the host answers per second, and its
// processor time for each.
func pipelined(name, size string, window int, short bool) benchCase {
	c := benchCase{name: fmt.Sprintf("%s-w%d", name, window), short: short, about: "pipelined pings, " +
		fmt.Sprint(window) + " under way"}
	if size != "" {
		c.about = fmt.Sprintf("pipelined echo calls of %s, %d under way", size, window)
	}
	c.run = func(ctx context.Context, t *target, d time.Duration) (sample, error) {
		var got tally
		whole, err := t.session(ctx, size, window, d, func(l *load) (err error) {
			got, err = l.run()
			return err
		})
		if err != nil {
			return nil, err
		}
		s := sample{{"rate", "/s", float64(got.answers) / got.elapsed.Seconds()}}
		cpu := float64(got.cpu.Nanoseconds()) / 1e3 / float64(got.answers)
		if got.cpu <= 0 {
			cpu = float64(whole.Nanoseconds()) / 1e3 / float64(got.answers)
		}
		return append(s, value{"cpu", "us", cpu}), nil
	}
	return c
}

// session runs one load in a new process, between two verified
// exchanges. It returns the processor time of the whole process, from its start.
func (t *target) session(ctx context.Context, size string, window int, d time.Duration,
	work func(*load) error,
) (time.Duration, error) {
	c, err := t.start(ctx)
	if err != nil {
		return 0, err
	}
	defer c.kill()
	if err := c.greet(t.dialect); err != nil {
		return 0, err
	}
	q := ask(t.dialect, size)
	l := &load{c: c, b: newBatch(q, window), window: window, duration: d}
	if l.check, err = c.probe(t.dialect, q, l.b); err != nil {
		return 0, err
	}
	if err := work(l); err != nil {
		return 0, err
	}
	if _, err := c.probe(t.dialect, q, l.b); err != nil {
		return 0, fmt.Errorf("after the load: %w", err)
	}
	if err := c.close(); err != nil {
		return 0, err
	}
	return c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime(), nil
}
