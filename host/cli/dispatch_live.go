package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// dispatchBoard counts the tasks of a dispatch and shows them: a line for each worker, and one for all.
type dispatchBoard struct {
	*board
	total   int
	most    int // maximal number of workers that are shown
	workers []*boardWorker
	tasks   map[*dispatchTask]*boardWorker // running tasks with their workers
	tried   map[*dispatchTask]bool         // tasks that were given to a worker
	again   int                            // how often a task was given to another worker
	all     tally
}

// boardWorker is a line of the board.
type boardWorker struct {
	name  string
	tally tally
	tasks []boardTask // tasks in work, the oldest first
}

// boardTask is a running task.
type boardTask struct {
	*dispatchTask
	begun time.Time
}

// tally counts tasks by how they ended, and their tokens.
type tally struct{ done, partial, blocked, failed, tokens int }

func (t *tally) add(res *fleet.Result) {
	t.tokens += res.TokensSpent
	switch res.Status {
	case fleet.StatusDone:
		t.done++
	case fleet.StatusPartial:
		t.partial++
	case fleet.StatusBlocked:
		t.blocked++
	default:
		t.failed++
	}
}

func (t *tally) ended() int { return t.done + t.partial + t.blocked + t.failed }

// String returns text such as "3 done, 1 failed, 1.2k tokens".
func (t *tally) String() string {
	parts := []string{fmt.Sprintf("%d done", t.done)}
	for _, part := range []struct {
		n    int
		name string
	}{{t.failed, "failed"}, {t.blocked, "blocked"}, {t.partial, "partial"}} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.name))
		}
	}
	if t.tokens > 0 {
		parts = append(parts, tokens(t.tokens))
	}
	return strings.Join(parts, ", ")
}

// tokens returns text such as "812 tokens", "1.2k tokens" or "3.4M tokens".
func tokens(n int) string {
	switch {
	case n < 1000:
		return protocol.Count(n, "token")
	case n < 999_950:
		return fmt.Sprintf("%.1fk tokens", float64(n)/1e3)
	}
	return fmt.Sprintf("%.1fM tokens", float64(n)/1e6)
}

// newDispatchBoard creates the board of the workers with these names.
func newDispatchBoard(b *board, names []string, total, most int) *dispatchBoard {
	d := &dispatchBoard{
		board: b, total: total, most: max(most, 1), tasks: make(map[*dispatchTask]*boardWorker),
		tried: make(map[*dispatchTask]bool),
	}
	for _, name := range names {
		d.workers = append(d.workers, &boardWorker{name: name})
	}
	b.picture = d.lines
	return d
}

// placed notes that a worker takes a task. If the task was already given to a worker, it counts as
// tried again. A name of no worker means that the task waits.
func (d *dispatchBoard) placed(t *dispatchTask, worker string) {
	d.change(func() {
		d.take(t)
		if i := slices.IndexFunc(d.workers, func(w *boardWorker) bool { return w.name == worker }); i >= 0 {
			d.tasks[t] = d.workers[i]
			d.workers[i].tasks = append(d.workers[i].tasks, boardTask{t, d.now()})
			if d.tried[t] {
				d.again++
			}
			d.tried[t] = true
		}
	})
}

// ended notes the end of a task; res is nil if the task has no result.
func (d *dispatchBoard) ended(t *dispatchTask, res *fleet.Result) {
	d.change(func() {
		at := d.take(t)
		if res == nil {
			return
		}
		d.all.add(res)
		if at != nil {
			at.tally.add(res)
		}
	})
}

// take removes a running task from its worker and returns the worker, or nil if none had the task.
func (d *dispatchBoard) take(t *dispatchTask) *boardWorker {
	at := d.tasks[t]
	if at != nil {
		at.tasks = slices.DeleteFunc(at.tasks, func(run boardTask) bool { return run.dispatchTask == t })
	}
	delete(d.tasks, t)
	return at
}

// lines returns the picture.
func (d *dispatchBoard) lines() []string {
	shown := d.workers[:min(len(d.workers), d.most)]
	wide := len("all")
	for _, w := range shown {
		wide = max(wide, min(textWidth(w.name), 24))
	}
	var lines []string
	for _, w := range shown {
		text := w.tally.String()
		if n := len(w.tasks); n > 0 {
			first := w.tasks[0]
			text += columnGap + "▶ " + oneLine(first.id) + " " + d.since(first.begun) + " " +
				cut(oneLine(strings.Join(strings.Fields(first.Brief[:min(len(first.Brief), 200)]), " ")), 40)
			if n > 1 {
				text += fmt.Sprintf(", +%d", n-1)
			}
		}
		lines = append(lines, d.line(padded(oneLine(w.name), wide), &w.tally, text))
	}
	if hidden := len(d.workers) - len(shown); hidden > 0 {
		lines = append(lines, d.fit(fmt.Sprintf("… and %s more", protocol.Count(hidden, "worker")), 0))
	}
	return append(lines, d.line(padded("all", wide), &d.all, d.progress()))
}

// maxETA is the longest remaining time that is shown.
const maxETA = 1000 * time.Hour

// progress returns the state of all tasks, the most important part first, as the rest may be cut.
func (d *dispatchBoard) progress() string {
	parts := []string{strings.Replace(d.all.String(), " done", fmt.Sprintf(" of %d done", d.total), 1)}
	ended := d.all.ended()
	perSecond := float64(ended) / max(d.now().Sub(d.begun).Seconds(), 1e-3)
	if left := d.total - ended; left == 0 || ended == 0 {
		parts = append(parts, d.since(d.begun))
	} else {
		eta := time.Duration(min(float64(left)/perSecond, maxETA.Seconds()) * float64(time.Second))
		parts = append(parts, "ETA "+shortDuration(eta.Round(time.Second)))
	}
	if n := len(d.tasks); n > 0 {
		parts = append(parts, fmt.Sprintf("%d running", n))
	}
	if d.again > 0 {
		parts = append(parts, fmt.Sprintf("%d tried again", d.again))
	}
	if ended > 0 {
		parts = append(parts, rate(perSecond))
	}
	return strings.Join(parts, ", ")
}

// rate returns text such as "4.1/s", or "7.5/min" for slow rates.
func rate(perSecond float64) string {
	switch {
	case perSecond >= 10:
		return fmt.Sprintf("%.0f/s", perSecond)
	case perSecond >= 1:
		return fmt.Sprintf("%.1f/s", perSecond)
	}
	return fmt.Sprintf("%.1f/min", perSecond*60)
}

// line returns a name, a bar and a text. The bar shows which part of all tasks ended well and which
// part otherwise, so that the bars of all workers add up to the last one.
func (d *dispatchBoard) line(name string, t *tally, text string) string {
	wide := min(max(d.columns/5, 8), 32)
	well, ended := t.done*wide/d.total, t.ended()*wide/d.total
	bar := "\x1b[32m" + strings.Repeat("█", well) + "\x1b[31m" + strings.Repeat("█", ended-well) +
		"\x1b[0m\x1b[2m" + strings.Repeat("░", wide-ended) + "\x1b[0m"
	return name + columnGap + bar + columnGap + d.fit(text, textWidth(name)+wide+2*len(columnGap))
}
