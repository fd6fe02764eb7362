package cli

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"a2e/protocol/fleet"
)

// board counts the tasks of a dispatch, and on a terminal shows them: a line for each
// worker and one for all, drawn anew when something happens and while something runs.
type board struct {
	now     func() time.Time
	total   int
	columns int
	most    int  // workers that are shown
	shared  bool // what is written goes to the same terminal
	stop    chan struct{}
	done    sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	canvas  *canvas    // nil = nothing is shown
	workers []*boardWorker
	byName  map[string]*boardWorker
	tasks   map[*dispatchTask]*boardTask // those that run
	all     tally
	begun   time.Time
	last    time.Time // when it was drawn
}

// boardWorker is a line of the board.
type boardWorker struct {
	name  string
	tally tally
	tasks []*boardTask // that it works on, the oldest first
}

// boardTask is a task that runs.
type boardTask struct {
	id    string
	at    *boardWorker
	begun time.Time
}

// tally counts tasks by how they ended.
type tally struct{ done, partial, blocked, failed int }

func (t *tally) add(status fleet.Status) {
	switch status {
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

// others reads "1 failed, 2 blocked": what is not done; "" = nothing.
func (t *tally) others() string {
	var parts []string
	for _, part := range []struct {
		n    int
		name string
	}{{t.failed, "failed"}, {t.blocked, "blocked"}, {t.partial, "partial"}} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.name))
		}
	}
	return strings.Join(parts, ", ")
}

// String reads "3 done, 1 failed".
func (t *tally) String() string {
	text := fmt.Sprintf("%d done", t.done)
	if bad := t.others(); bad != "" {
		text += ", " + bad
	}
	return text
}

// newBoard makes a board for workers; a nil canvas shows nothing.
func newBoard(c *canvas, names []string, total int, now func() time.Time, columns, most int) *board {
	b := &board{
		now: now, total: total, columns: columns, most: max(most, 1), stop: make(chan struct{}),
		canvas: c, byName: make(map[string]*boardWorker), tasks: make(map[*dispatchTask]*boardTask), begun: now(),
	}
	for _, name := range names {
		w := &boardWorker{name: name}
		b.workers = append(b.workers, w)
		b.byName[name] = w
	}
	return b
}

// tick draws while nothing happens, as time goes on, until close.
func (b *board) tick() {
	clock := time.NewTicker(liveEvery)
	defer clock.Stop()
	for {
		select {
		case <-clock.C:
			b.mu.Lock()
			b.drawLocked()
			b.mu.Unlock()
		case <-b.stop:
			return
		}
	}
}

// close draws the last picture, which stays.
func (b *board) close() {
	close(b.stop)
	b.done.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drawLocked()
}

// placed notes that a worker takes a task up, the next one where another has not done it.
// Any other name means that the task waits.
func (b *board) placed(t *dispatchTask, worker string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leaveLocked(t)
	if at := b.byName[worker]; at != nil {
		run := &boardTask{id: t.id, at: at, begun: b.now()}
		b.tasks[t] = run
		at.tasks = append(at.tasks, run)
	}
	b.changedLocked()
}

// ended notes the end of a task; a nil result is none.
func (b *board) ended(t *dispatchTask, res *fleet.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := b.leaveLocked(t)
	if res != nil {
		b.all.add(res.Status)
		if at != nil {
			at.tally.add(res.Status)
		}
	}
	b.changedLocked()
}

// leaveLocked takes a task from the worker that had it.
func (b *board) leaveLocked(t *dispatchTask) *boardWorker {
	run := b.tasks[t]
	if run == nil {
		return nil
	}
	delete(b.tasks, t)
	for i, other := range run.at.tasks {
		if other == run {
			run.at.tasks = append(run.at.tasks[:i], run.at.tasks[i+1:]...)
			break
		}
	}
	return run.at
}

// write has something written. Where that goes to the same terminal, the picture makes room.
func (b *board) write(do func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.canvas != nil && b.shared {
		b.canvas.erase()
		defer b.drawLocked()
	}
	return do()
}

func (b *board) changedLocked() {
	if b.now().Sub(b.last) >= liveLeast {
		b.drawLocked()
	}
}

func (b *board) drawLocked() {
	if b.canvas == nil {
		return
	}
	b.last = b.now()
	b.canvas.draw(b.pictureLocked())
}

// pictureLocked gives the lines.
func (b *board) pictureLocked() []string {
	shown := b.workers[:min(len(b.workers), b.most)]
	names := len("all")
	for _, w := range shown {
		names = max(names, min(textWidth(w.name), 24))
	}
	var lines []string
	for _, w := range shown {
		text := w.tally.String()
		switch n := len(w.tasks); {
		case n == 1:
			text += columnGap + "▶ " + oneLine(w.tasks[0].id) + " " + b.since(w.tasks[0].begun)
		case n > 1:
			text += columnGap + fmt.Sprintf("▶ %d tasks, %s %s", n, oneLine(w.tasks[0].id), b.since(w.tasks[0].begun))
		}
		lines = append(lines, b.line(names, w.name, &w.tally, text))
	}
	if hidden := len(b.workers) - len(shown); hidden > 0 {
		lines = append(lines, cut(fmt.Sprintf("… and %s more", plural(hidden, "worker")), max(b.columns-1, leastColumns)))
	}
	return append(lines, b.line(names, "all", &b.all, b.progressLocked()))
}

// progressLocked tells where the whole stands, what matters most first: the rest may be cut.
func (b *board) progressLocked() string {
	parts := []string{fmt.Sprintf("%d of %d done", b.all.done, b.total)}
	if bad := b.all.others(); bad != "" {
		parts = append(parts, bad)
	}
	ended, took := b.all.ended(), b.now().Sub(b.begun)
	perSecond := float64(ended) / max(took.Seconds(), 1e-3)
	if left := b.total - ended; left == 0 || ended == 0 {
		parts = append(parts, b.since(b.begun))
	} else {
		eta := time.Duration(min(float64(left)/perSecond, maxETA.Seconds()) * float64(time.Second))
		parts = append(parts, "ETA "+shortDuration(eta.Round(time.Second)))
	}
	if n := len(b.tasks); n > 0 {
		parts = append(parts, fmt.Sprintf("%d running", n))
	}
	if ended > 0 {
		parts = append(parts, rate(perSecond))
	}
	return strings.Join(parts, ", ")
}

// maxETA is the longest wait that is shown.
const maxETA = 1000 * time.Hour

// rate reads "4.1/s", or "7.5/min" where that says more.
func rate(perSecond float64) string {
	switch {
	case perSecond >= 10:
		return fmt.Sprintf("%.0f/s", perSecond)
	case perSecond >= 1:
		return fmt.Sprintf("%.1f/s", perSecond)
	}
	return fmt.Sprintf("%.1f/min", perSecond*60)
}

func (b *board) since(at time.Time) string {
	return shortDuration(b.now().Sub(at).Truncate(100 * time.Millisecond))
}

// line gives a line: a name, a bar and a text. The bar of a worker is its share of all
// tasks, so that the bars of all workers make up the last one.
func (b *board) line(names int, name string, t *tally, text string) string {
	name = cut(oneLine(name), names)
	bar := min(max(b.columns/5, 8), 32)
	used := names + bar + 2*len(columnGap)
	return name + strings.Repeat(" ", names-textWidth(name)) + columnGap + b.bar(t, bar) + columnGap + cut(text, max(b.columns-1-used, leastColumns))
}

// bar draws how many of all tasks ended well, and how many otherwise.
func (b *board) bar(t *tally, wide int) string {
	well := t.done * wide / b.total
	ended := t.ended() * wide / b.total
	return "\x1b[32m" + strings.Repeat("█", well) + "\x1b[31m" + strings.Repeat("█", ended-well) +
		"\x1b[0m\x1b[2m" + strings.Repeat("░", wide-ended) + "\x1b[0m"
}
