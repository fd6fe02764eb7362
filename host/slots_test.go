package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// desk is a dialect with slots. A line {"parrot":"NAME RANK"} is a work: it is first looked at in the order of the
// lines, then it waits for a slot. It gets one answer, which says how it ended. A line {"parrot":"stop NAME"} stops
// the work with that name.
type desk struct {
	parrot
	n     int             // number of slots
	hold  chan struct{}   // each run takes one token, and ends
	deaf  map[string]bool // names of works that do not end with their context
	slots *host.Slots
	open  sync.WaitGroup
	slow  time.Duration // how long Take takes for each line

	mu    sync.Mutex // guards the fields below
	works map[string]*host.Work
	begun []string
}

func newDesk(n int) *desk {
	return &desk{n: n, hold: make(chan struct{}), deaf: make(map[string]bool), works: make(map[string]*host.Work)}
}

var errStopped = errors.New("stopped")

func (d *desk) Open(ctx context.Context, out host.Output) {
	d.parrot.Open(ctx, out)
	d.slots = host.NewSlots(ctx, d.n)
}

func (d *desk) Take(line *protocol.Line) *host.Work {
	time.Sleep(d.slow)
	d.open.Add(1)
	word := line.Object().Text("parrot")
	name, rank, _ := strings.Cut(word, " ")
	w := &host.Work{
		Name: "line", Claims: []protocol.Claim{{Key: "desk/lines/", Access: protocol.Exclusive}}, NoSlot: true,
		Answered: d.open.Done,
		Answer: func(resp any, err error) []byte {
			return fmt.Appendf(nil, "{\"said\":\"%s: %v %v\"}\n", name, resp, err)
		},
	}
	if name == "stop" {
		w.Run = func(context.Context) (any, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			if of := d.works[rank]; of != nil {
				of.Stop(errStopped)
			}
			return "stopped " + rank, nil
		}
		return w
	}
	w.Run = func(context.Context) (any, error) {
		w.Claims, w.NoSlot, w.Slots = nil, false, d.slots
		_, _ = fmt.Sscan(rank, &w.Priority)
		w.Run = func(ctx context.Context) (any, error) { return d.run(ctx, name), nil }
		return w, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.works[name] = w
	return w
}

func (d *desk) run(ctx context.Context, name string) string {
	d.mu.Lock()
	d.begun = append(d.begun, name)
	d.mu.Unlock()
	ended := ctx.Done()
	if d.deaf[name] {
		ended = nil
	}
	select {
	case <-d.hold:
		return "done"
	case <-ended:
		return "cut off"
	}
}

func (d *desk) Drain(ctx context.Context) {
	d.open.Wait()
	d.parrot.Drain(ctx)
}

// has reports whether exactly these works have begun, in this order. order has their names, separated by spaces.
func (d *desk) has(order string) func() bool {
	return func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return strings.Join(d.begun, " ") == order
	}
}

func newDeskPipe(t *testing.T, d *desk, limits host.Limits) *rawPipe {
	return newRawPipe(t, host.Options{Dialects: []host.Dialect{d}, Only: true, Limits: limits})
}

// answers returns the answers so far, sorted by name.
func (p *rawPipe) answers() string {
	all := p.said()
	slices.Sort(all)
	return strings.NewReplacer(`{"said":"`, "", ` <nil>"}`, "", `"}`, "").Replace(strings.Join(all, ", "))
}

func parrots(words ...string) (lines []string) {
	for _, word := range words {
		lines = append(lines, fmt.Sprintf(`{"parrot":%q}`, word))
	}
	return lines
}

// TestSlots: as many works run at once as there are slots. The others begin by rank, and in order of arrival within
// a rank. A work that waits can be stopped, and its answer is sent at once.
func TestSlots(t *testing.T) {
	d := newDesk(2)
	p := newDeskPipe(t, d, host.Limits{})
	p.send(parrots("a 0")...)
	p.until("one runs", d.has("a"))
	p.send(parrots("b 0", "low 0", "top 2", "mid 1", "never 2", "top2 2", "stop never")...)
	p.wait("stop: stopped never")
	p.wait("never: <nil> stopped")
	p.until("two run", d.has("a b"))
	assert.Equal(t, d.slots.Taken(), 2, "slots taken")
	open, waiting := p.host.Load()
	assert.That(t, open == 6 && waiting == 4, "%d open, %d waiting", open, waiting)
	order := "a b"
	for _, next := range []string{"top", "top2", "mid", "low"} {
		d.hold <- struct{}{}
		order += " " + next
		p.until(order, d.has(order))
	}
	d.hold <- struct{}{}
	d.hold <- struct{}{}
	p.end()
	assert.Equal(t, p.answers(), "a: done, b: done, low: done, mid: done, never: <nil> stopped, "+
		"stop: stopped never, top2: done, top: done")
}

// TestEndBehindASlowLine: a line that its dialect still looks at when the input ends is answered like any other
// request.
func TestEndBehindASlowLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(1)
		d.slow = time.Second
		p := newDeskPipe(t, d, host.Limits{})
		p.send(parrots("a 0")...)
		close(d.hold) // every run now ends at once
		p.end()
		assert.Equal(t, p.answers(), "a: done")
	})
}

// TestSlotIsFreeWithTheAnswer: the slot of a work is free before its answer is written, so a peer that has read the
// answer can rely on it.
func TestSlotIsFreeWithTheAnswer(t *testing.T) {
	d := newDesk(1)
	p := newDeskPipe(t, d, host.Limits{})
	p.send(parrots("a 0")...)
	p.until("it runs", d.has("a"))
	stuck := make(chan struct{})
	p.mu.Lock()
	p.stuck = stuck
	p.mu.Unlock()
	d.hold <- struct{}{}
	p.until("the slot is free", func() bool { return d.slots.Taken() == 0 })
	p.mu.Lock()
	p.stuck = nil
	p.mu.Unlock()
	close(stuck)
	p.wait("a: done")
}

// TestSlotOfOneThatDoesNotStop: a stopped work that runs on is answered at once, but it keeps its slot until it
// ends. Its own result is then dropped.
func TestSlotOfOneThatDoesNotStop(t *testing.T) {
	d := newDesk(1)
	d.deaf["deaf"] = true
	p := newDeskPipe(t, d, host.Limits{})
	p.send(parrots("deaf 0", "next 0", "stop deaf")...)
	p.wait("deaf: <nil> stopped")
	p.send(parrots("last 0", "stop last")...)
	p.wait("last: <nil> stopped")
	p.until("it began alone", d.has("deaf"))
	d.hold <- struct{}{}
	p.until("the next began", d.has("deaf next"))
	d.hold <- struct{}{}
	p.end()
	assert.Equal(t, p.answers(), "deaf: <nil> stopped, last: <nil> stopped, next: done, "+
		"stop: stopped deaf, stop: stopped last")
}

// TestSlotsAreBounded: a work for which the queue has no room is answered as overloaded.
func TestSlotsAreBounded(t *testing.T) {
	d := newDesk(1)
	p := newDeskPipe(t, d, host.Limits{Queue: 1})
	for _, name := range []string{"runs", "waits", "refused"} {
		p.send(parrots(name+" 0", "stop none"+name)...)
		p.wait("none" + name)
	}
	p.wait("refused: <nil> overloaded")
	close(d.hold)
	p.end()
}

// TestSlotsAtTheEnd: works that are cut off while they run may answer with what they did. Works that still wait
// never begin.
func TestSlotsAtTheEnd(t *testing.T) {
	d := newDesk(1)
	p := newDeskPipe(t, d, host.Limits{})
	p.send(parrots("runs 0", "waits 0", "waits2 3")...)
	p.until("one waits for the other", func() bool { _, waiting := p.host.Load(); return waiting == 2 })
	p.host.Shutdown(0)
	p.ended()
	assert.That(t, d.has("runs")(), "more began")
	assert.Equal(t, p.answers(), fmt.Sprintf("runs: cut off, waits2: <nil> %[1]v, waits: <nil> %[1]v",
		host.ErrShutdown))
}

// TestStopBetweenTwoRuns: a work that is stopped between its first run and its second is stopped too, and is answered
// once.
func TestStopBetweenTwoRuns(t *testing.T) {
	d := newDesk(1)
	p := newDeskPipe(t, d, host.Limits{})
	p.send(parrots("holds 0")...)
	p.until("the slot is taken", d.has("holds"))
	const works = 300
	var stops sync.WaitGroup
	for i := range works {
		name := fmt.Sprint("w", i)
		p.send(parrots(name + " 0")...)
		stops.Go(func() {
			for stopped := false; !stopped; {
				d.mu.Lock()
				w := d.works[name]
				d.mu.Unlock()
				if stopped = w != nil; stopped {
					w.Stop(errStopped)
				}
			}
		})
	}
	stops.Wait()
	p.until("all are answered", func() bool { return strings.Count(p.answers(), "stopped") == works })
	d.hold <- struct{}{}
	p.end()
	assert.That(t, d.has("holds")(), "one began")
	assert.Equal(t, len(p.said()), works+1, "answers")
}
