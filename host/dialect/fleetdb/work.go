package fleetdb

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"a2e/host/child"
	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// lookEvery is the interval at which tasks and results are looked for without a notification.
const lookEvery = 2 * time.Second

// lastReports is how long a worker that ends tries to deliver its results.
const lastReports = 5 * time.Second

// Host is a host that speaks the fleet protocol and nothing else.
type Host interface {
	Serve(in io.Reader, out io.Writer) error
	Interrupt() // makes it end at once, with a result for each task
}

// Worker passes the tasks of a fleet to a host, as a pipe would.
type Worker struct {
	fleet *Fleet
	id    string // of this process
	slots int
	log   zerolog.Logger

	feed io.Writer     // input of the host; set by Run
	take dialect.Bell  // rings when there may be tasks, slots or reports
	beat dialect.Bell  // rings when the next heartbeat is due at once
	done chan struct{} // closed when the worker is drained
	end  sync.Once     // closes done
	asks sync.Mutex    // held during an exchange of tasks, and during a heartbeat

	mu       sync.Mutex // guards the fields below
	said     *fleet.Announce
	offers   []string
	known    bool            // the server knows the worker
	draining bool            // it takes no more tasks
	ending   bool            // it gives back tasks that are not done
	held     map[string]*job // by the id of the task
	reports  []*report
	away     bool // the server was away when it was last asked
}

// job is a task that the worker holds until its result is on the server.
type job struct {
	claim
	lost     bool // another worker has it, or it was cancelled; the host is told to stop it
	reported bool // the host has answered
}

// report is a result on its way to the server.
type report struct {
	*job
	status fleet.Status
	text   string
	idle   bool // blocked, and no tokens were spent
}

// NewWorker makes a worker that does as many tasks at once as it has slots.
func (f *Fleet) NewWorker(slots int, log zerolog.Logger) *Worker {
	return &Worker{
		fleet: f, id: newID(), slots: max(slots, 1), log: log, done: make(chan struct{}), held: make(map[string]*job),
		take: dialect.NewBell(), beat: dialect.NewBell(),
	}
}

func newID() string {
	id := uuid.New()
	return hex.EncodeToString(id[:8])
}

// Announced takes an announce of the host, and what a task may require of it.
func (w *Worker) Announced(a *fleet.Announce, able []string) {
	offers := append([]string{}, able...) // not nil, which would be NULL
	for id, health := range a.MCPHealth {
		if health == fleet.HealthOK {
			offers = append(offers, serverPrefix+id)
		}
	}
	slices.Sort(offers)
	w.mu.Lock()
	w.said, w.offers = a, slices.Compact(offers)
	w.mu.Unlock()
	w.beat.Ring()
}

// serverPrefix marks MCP servers among the things that a task may require.
const serverPrefix = "mcp:"

// Run serves until ctx ends or the worker is drained. When ctx ends, it stops the running tasks and gives them back.
func (w *Worker) Run(ctx context.Context, h Host) error {
	switch err := w.fleet.Ping(ctx); {
	case ctx.Err() != nil:
		w.fleet.Close()
		return nil // ended before it began
	case err != nil && !unavailable(err):
		w.fleet.Close()
		return err
	}
	in, feed := io.Pipe()
	w.feed = feed
	served := make(chan error, 1)
	go func() {
		err := h.Serve(in, &child.Splitter{Max: math.MaxInt, Line: w.heard})
		_ = in.Close() // fails later writes to feed
		served <- err
	}()
	loops, stop := context.WithCancel(context.Background())
	var goes sync.WaitGroup
	goes.Go(func() { w.turning(loops) })
	goes.Go(func() { w.beating(loops) })
	goes.Go(func() { w.fleet.listen(loops, w.fleet.channel(""), w.log, w.notified) })
	var err error
	select {
	case <-ctx.Done():
	case <-w.done:
	case err = <-served:
		served <- nil
	}
	stop()
	goes.Wait()
	w.mu.Lock()
	w.ending = true
	w.mu.Unlock()
	if ctx.Err() != nil {
		h.Interrupt()
	}
	_ = feed.Close() // never fails
	err = errors.Join(err, <-served)
	last, enough := context.WithTimeout(context.Background(), lastReports)
	defer enough()
	w.turning(last)
	w.leave(last)
	w.fleet.Close()
	return err
}

// leave gives back the tasks and removes the worker from the server. If the server is away, the tasks go back when the
// lease is over.
func (w *Worker) leave(ctx context.Context) {
	err := w.giveBack(ctx)
	if err == nil {
		err = w.fleet.do(ctx, "DELETE FROM ~.workers WHERE id = $1", w.id)
	}
	if err != nil {
		w.log.Warn().Err(err).Msg("the server was not told that this worker ends; " +
			"its tasks go elsewhere when its lease is over")
	}
}

// notified takes notifications: that there is a task, or the id of a worker that must ask the server.
func (w *Worker) notified(texts []string) {
	if slices.Contains(texts, w.id) {
		w.beat.Ring()
	}
	w.take.Ring()
}

// turning delivers results, however long the server is away, and takes tasks while there are free slots. It ends with
// ctx, or, when the worker ends, after the last result.
func (w *Worker) turning(ctx context.Context) {
	pace := newPace()
	for ctx.Err() == nil {
		n, err := w.turn(ctx)
		if err != nil {
			pause(ctx, nil, w.trouble(ctx, err, pace))
			continue
		}
		pace.Reset()
		if n > 0 {
			continue
		}
		w.mu.Lock()
		over := w.ending && len(w.reports) == 0
		w.mu.Unlock()
		if over {
			return
		}
		pause(ctx, w.take, lookEvery)
	}
}

// turn delivers as many results as go together, and takes tasks for the free slots. It returns the number of both.
func (w *Worker) turn(ctx context.Context) (int, error) {
	w.asks.Lock()
	defer w.asks.Unlock()
	w.mu.Lock()
	reports, free := some(w.reports), w.freeLocked()
	w.mu.Unlock()
	ended, err := w.passOn(ctx, reports)
	if err != nil {
		return 0, err
	}
	claims, err := w.exchange(ctx, ended, free)
	if err != nil {
		return 0, err
	}
	w.delivered(reports)
	for i := range claims {
		w.hand(&job{claim: claims[i]})
	}
	return len(reports) + len(claims), nil
}

// freeLocked returns how many tasks the worker can take.
func (w *Worker) freeLocked() int {
	free := w.slots
	for _, j := range w.held {
		if j.lost && !j.reported {
			return 0 // the next task might be the one that is just being stopped
		}
		if !j.reported {
			free--
		}
	}
	if !w.known || w.draining || w.ending {
		return 0
	}
	return free
}

// hand passes a task to the host. If the host has the task already, because it was lost and taken again before the
// worker noticed, it goes on.
func (w *Worker) hand(j *job) {
	w.mu.Lock()
	if has := w.held[j.ID]; has != nil && has.Number == j.Number && !has.lost {
		if !has.reported { // else its result is on its way
			has.Claims = j.Claims
		}
		w.mu.Unlock()
		return
	}
	w.held[j.ID] = j
	w.mu.Unlock()
	var d fleet.Dispatch
	obj, err := protocol.ParseObject([]byte(j.Dispatch))
	if err == nil {
		err = protocol.Decode(obj, []string{"task"}, &d)
	}
	j.Dispatch = ""
	if err == nil && j.ID == "" {
		err = errors.New("it has no task_id") // so its result could have none either
	}
	if err != nil {
		w.answered(fleet.Blocked(j.ID, "the task in the queue does not fit the protocol: "+err.Error()), nil)
		return
	}
	d.Type, d.ProtocolVersion, d.AuthToken, d.Task.TaskID = fleet.TypeDispatch, fleet.Version, "", j.ID
	if j.Seconds > 0 {
		due := time.Now().Add(time.Duration(j.Seconds) * time.Second)
		if at, dated, err := d.DeadlineTime(); err == nil && (!dated || due.Before(at)) {
			d.Deadline = due.UTC().Format(time.RFC3339Nano)
		}
	}
	w.send(&d)
}

// send writes a message to the host. A failed write is only logged, because the worker of a host that has ended gives
// its tasks back.
func (w *Worker) send(message any) {
	line, err := protocol.AppendJSON(nil, message)
	if err == nil {
		_, err = w.feed.Write(append(line, '\n'))
	}
	if err != nil {
		w.log.Debug().Err(err).Msg("a message does not reach the host")
	}
}

// heard takes a line that the host writes.
func (w *Worker) heard(text []byte) {
	var line protocol.Line
	if line.Scan(text) != nil || protocol.Type(line.Type) != fleet.TypeResult {
		return
	}
	result := new(fleet.Result)
	if err := line.Object().Decode(result); err != nil || result.TaskID == "" {
		w.log.Warn().Str("error", result.Error).Msg("the host rejects a message of the fleet")
		return
	}
	w.answered(result, bytes.TrimSpace(text))
}

// answered stores the result of a task as a report. text is its JSON; nil = it is encoded here.
func (w *Worker) answered(result *fleet.Result, text []byte) {
	if len(text) > maxText { // leave out the files and the patch
		result.Artifacts.Patch, result.Artifacts.Files, text = "", nil, nil
		result.NextSteps = append(result.NextSteps, "fetch the changes from the worker's workspace: they are too "+
			"large for the queue")
	}
	if text == nil {
		text, _ = protocol.AppendJSON(nil, result) // cannot fail: it came as JSON
	}
	if len(text) > maxText {
		result = fleet.NewResult(result.TaskID, fleet.StatusError)
		result.Error = fmt.Sprintf("the result has %d bytes; the queue takes %d", len(text), maxText)
		text, _ = protocol.AppendJSON(nil, result)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	j := w.held[result.TaskID]
	if j == nil || j.reported {
		return
	}
	j.reported = true
	idle := result.Status == fleet.StatusBlocked && result.TokensSpent == 0
	w.reports = append(w.reports, &report{j, result.Status, string(text), idle})
	w.take.Ring()
}

// some returns the first reports, as many as one statement can deliver in time.
func some(all []*report) []*report {
	size := 0
	for i, r := range all[:min(len(all), sendAtOnce)] {
		if size += len(r.text); i > 0 && size > sendBytes {
			return all[:i]
		}
	}
	return all[:min(len(all), sendAtOnce)]
}

// passOn passes tasks to other workers: those that are not done when this worker ends, and those that it could not
// begin with. It returns the other reports.
func (w *Worker) passOn(ctx context.Context, reports []*report) (ended []*report, err error) {
	for _, r := range reports {
		w.mu.Lock()
		unfit := r.idle && !r.lost
		back := w.ending && !r.lost && r.status != fleet.StatusDone && r.status != fleet.StatusPartial
		w.mu.Unlock()
		gone := back
		switch {
		case back:
			err = w.giveBack(ctx, r.Number)
		case unfit:
			gone, err = w.refuse(ctx, r)
		}
		if err != nil {
			return nil, err
		}
		if !gone {
			ended = append(ended, r)
		}
	}
	return ended, nil
}

// delivered removes reports that the server has.
func (w *Worker) delivered(all []*report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range all {
		if w.held[r.ID] == r.job {
			delete(w.held, r.ID)
		}
	}
	w.reports = slices.Delete(w.reports, 0, len(all))
	w.checkDrainedLocked()
}

// checkDrainedLocked ends a worker that drains and holds no task.
func (w *Worker) checkDrainedLocked() {
	if w.draining && len(w.held) == 0 {
		w.end.Do(func() { close(w.done) })
	}
}

// beating sends the heartbeat, at the latest after a third of the lease. It also rescues lost tasks and prunes the
// tables.
func (w *Worker) beating(ctx context.Context) {
	pace := newPace()
	pruned := time.Time{}
	for ctx.Err() == nil {
		rest := w.fleet.lease / 3
		err := w.heartbeat(ctx)
		if err == nil && time.Since(pruned) > time.Hour {
			pruned, err = time.Now(), w.fleet.prune(ctx)
		}
		if err == nil {
			err = w.fleet.rescue(ctx)
		}
		if err != nil {
			rest = min(rest, w.trouble(ctx, err, pace))
		} else {
			pace.Reset()
		}
		pause(ctx, w.beat, rest)
	}
}

func (w *Worker) heartbeat(ctx context.Context) error {
	w.asks.Lock()
	defer w.asks.Unlock()
	w.mu.Lock()
	said, offers := w.said, w.offers
	var does []int64
	for _, j := range w.held {
		if !j.lost {
			does = append(does, j.Number)
		}
	}
	w.mu.Unlock()
	if said == nil {
		return nil
	}
	text, err := protocol.AppendJSON(nil, said)
	if err != nil || len(text) > maxAnnounce {
		return protocol.Errorf(protocol.CodeRuntimeError, "the announce of the worker has %d bytes; it may have %d",
			len(text), maxAnnounce)
	}
	draining, own, err := w.register(ctx, said, string(text), offers, does)
	if err != nil {
		return err
	}
	w.mu.Lock()
	fresh := !w.known
	if w.away {
		w.log.Warn().Msg("the server is back")
	}
	w.known, w.draining, w.away = true, draining, false
	var stop []*fleet.Control
	for id, j := range w.held {
		canceled, mine := own[j.Number]
		if delete(own, j.Number); (canceled || !mine) && !j.lost && !j.reported {
			j.lost = true
			stop = append(stop, &fleet.Control{Type: fleet.TypeCancel, ProtocolVersion: fleet.Version, TaskID: id})
		}
	}
	w.checkDrainedLocked()
	w.mu.Unlock()
	for _, c := range stop {
		w.send(c)
	}
	if fresh {
		w.take.Ring()
	}
	if len(own) == 0 {
		return nil
	}
	return w.giveBack(ctx, slices.Collect(maps.Keys(own))...) // taken by a statement whose answer was lost
}

// trouble logs an error of the server, once until the server is back, and returns how long to wait.
func (w *Worker) trouble(ctx context.Context, err error, pace *backoff.ExponentialBackOff) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.away && ctx.Err() == nil {
		w.away = true
		w.log.Warn().Err(err).Msg("the worker waits for the server; what runs goes on")
	}
	return pace.NextBackOff()
}
