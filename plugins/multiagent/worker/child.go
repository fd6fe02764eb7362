package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"a2e/host/lineio"
	"a2e/host/sandbox"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

const (
	maxFleetLine    = 16 << 20 // longest line from a child and to it, in bytes
	maxAnnounceLine = 1 << 20  // longest announce that is kept
	closeGrace      = time.Second
	shownBytes      = 200  // of a line in the log
	recentIDs       = 4096 // how many ids of tasks are remembered, and as many before
)

// errEnded is why a task did not get to a child.
var errEnded = errors.New("the worker has ended")

// child is one process that speaks the fleet protocol.
type child struct {
	runner  *runner
	log     zerolog.Logger
	started time.Time
	input   *lineio.Outbox
	kill    context.CancelCauseFunc
	proc    *sandbox.Process

	// Of the goroutine that reads stdout, then of the one that waits for the end.
	out   *lineio.Splitter
	line  protocol.Line
	noise lineio.Noise // of what is of no use
	spoke bool         // it sent a message
	gave  bool         // it sent a result that was waited for

	// Of the goroutine that reads stderr.
	errs  *lineio.Splitter
	words lineio.Tail

	greeted chan struct{} // closed when it has said what it is
	done    chan struct{} // closed when it has ended and all it wrote was read
	end     error         // why; set before done is closed

	mu      sync.Mutex      // guards the fields below
	jobs    map[string]*job // by the id that the child knows them by; nil = it has ended
	recent  map[string]bool // ids that it was given, at most recentIDs
	older   map[string]bool // those before
	renamed int             // tasks whose id it knows another way
	doomed  bool            // it is being killed and gets no task any more
}

// job is a task at a child.
type job struct {
	task   *task
	id     string               // that the child knows it by
	result chan protocol.Object // takes one
}

// dispatch gives the child a task. The error is errEnded, errClosed, or says that the child
// takes no more input.
func (c *child) dispatch(ctx context.Context, t *task) (*job, error) {
	c.mu.Lock()
	if c.jobs == nil || c.doomed {
		c.mu.Unlock()
		return nil, errEnded
	}
	j := &job{task: t, id: c.newIDLocked(t.Task.TaskID), result: make(chan protocol.Object, 1)}
	c.jobs[j.id] = j
	c.mu.Unlock()
	switch err := c.send(c.runner.dispatchOf(ctx, t, j.id)); {
	case err == nil:
		return j, nil
	case !c.forget(j):
		return nil, errEnded
	case errors.Is(err, lineio.ErrInputClosed):
		return nil, errClosed
	case errors.Is(err, lineio.ErrInputFull):
		return nil, fmt.Errorf("%w: %d MiB wait for it", err, lineio.MaxOutbox>>20)
	default:
		return nil, err
	}
}

// newIDLocked gives the id that the child shall know a task by. It is another one where the
// child has had such a task: what it says of that one must not be taken for this one's.
func (c *child) newIDLocked(id string) string {
	fresh := id
	for c.jobs[fresh] != nil || c.recent[fresh] || c.older[fresh] {
		c.renamed++
		fresh = fmt.Sprintf("%s~%d", id, c.renamed+1)
	}
	if c.recent == nil || len(c.recent) >= recentIDs {
		c.recent, c.older = make(map[string]bool), c.recent
	}
	c.recent[fresh] = true
	return fresh
}

// send puts a message into the child's input. The error is one of lineio, or that of a
// message which is no JSON or so long that a child would pass over it and give no result.
func (c *child) send(msg any) error {
	line, err := protocol.AppendJSON(nil, msg)
	if err != nil {
		return err
	}
	if len(line) > maxFleetLine {
		return fmt.Errorf("the message for worker %s would have %d bytes; it may have %d: put long texts into a file", c.runner.Name, len(line), maxFleetLine)
	}
	return c.input.Add(append(line, '\n'), false)
}

// forget has no result taken for a task any more. False means that the child has ended.
func (c *child) forget(j *job) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jobs[j.id] == j {
		delete(c.jobs, j.id)
	}
	return c.jobs != nil
}

// destroy kills the child and waits for its end.
func (c *child) destroy(cause error) {
	c.mu.Lock()
	c.doomed = true
	c.mu.Unlock()
	c.kill(cause)
	<-c.done
}

// idle tells whether the child has no task.
func (c *child) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.jobs) == 0
}

// only gives the task of the child if it has just one.
func (c *child) only() *task {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.jobs) == 1 {
		for _, j := range c.jobs {
			return j.task
		}
	}
	return nil
}

// receive takes a line of stdout.
func (c *child) receive(text []byte) {
	if len(bytes.TrimSpace(text)) == 0 {
		return
	}
	if err := c.line.Scan(text); err != nil {
		c.broken(text, err)
		return
	}
	switch protocol.Type(c.line.Type) {
	case fleet.TypeResult:
		c.settle(c.line.Object())
	case fleet.TypeAnnounce:
		c.announced(text)
	default:
		c.skip(text)
	}
}

// settle hands a result to whoever waits for it. A second one, one that comes too late or
// one of a task that the child was not given is dropped.
func (c *child) settle(obj protocol.Object) {
	raw, _ := obj.Get("task_id")
	id, _ := raw.Str()
	c.mu.Lock()
	j := c.jobs[id]
	delete(c.jobs, id)
	c.mu.Unlock()
	c.spoke = true
	if j != nil {
		c.gave = true
		j.result <- obj.Clone()
		return
	}
	if hidden, ok := c.noise.Loud(c.runner.pool.env.Now()); ok {
		c.log.Warn().Bytes("task_id", c.shown([]byte(id))).Int("hidden", hidden).Msg("a worker gave a result that nobody waits for")
	}
}

// silent ends a child that has closed its stdout and stays: it can give no result any more.
func (c *child) silent() {
	time.AfterFunc(c.runner.pool.pace.end, func() { c.kill(errors.New("it closed its output")) })
}

// tooLong deals with a line that is longer than maxFleetLine.
func (c *child) tooLong(head []byte) {
	c.lose(head, fmt.Sprintf("longer than %d MiB", maxFleetLine>>20))
}

// broken deals with a line that cannot be read.
func (c *child) broken(text []byte, err error) {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		c.lose(text, fmt.Sprintf("not valid: %v", err))
		return
	}
	c.skip(text)
}

// lose deals with a line, or its begin, that is of no use. A result is lost, and its task
// shall not wait for it: the begin of the line tells whose it is.
func (c *child) lose(head []byte, why string) {
	_, id, named := bytes.Cut(head, []byte(`"task_id"`))
	var lost *job
	c.mu.Lock()
	for _, j := range c.jobs {
		if named && bytes.Contains(head, []byte(fleet.TypeResult)) && bytes.HasPrefix(bytes.TrimLeft(id, " \t:"), protocol.AppendString(nil, j.id)) {
			lost = j
			delete(c.jobs, j.id)
			break
		}
	}
	c.mu.Unlock()
	if lost == nil {
		c.skip(head)
		return
	}
	obj, err := protocol.ParseObject(append(protocol.AppendString([]byte(`{"status":"error","error":`), "the worker's result is "+why), '}'))
	if err == nil { // it is valid
		c.spoke, c.gave = true, true
		lost.result <- obj
	}
}

// announced keeps what the child says of itself.
func (c *child) announced(text []byte) {
	a := new(fleet.Announce)
	if len(text) > maxAnnounceLine || c.line.Object().Decode(a) != nil {
		c.skip(text)
		return
	}
	c.runner.hideIn([]*string{&a.Worker.AgentID, &a.Worker.Model, &a.Worker.ModelTier}, a.Capabilities.Tools, a.Capabilities.MCPServers)
	c.spoke = true
	p := c.runner.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.runner.child != c {
		return
	}
	if c.runner.health.announced == nil {
		close(c.greeted)
	}
	c.runner.health.announced = a
}

// skip passes over a line that is no message, or over the begin of one that is too long; the
// task that the child works on may show it.
func (c *child) skip(text []byte) {
	if hidden, ok := c.noise.Loud(c.runner.pool.env.Now()); ok {
		c.log.Warn().Bytes("line", c.shown(text)).Int("hidden", hidden).Msg("a worker wrote a line that is no message of the fleet protocol")
	}
	if t := c.only(); t != nil {
		t.out.say("stdout", c.runner.hide(text[:min(len(text), maxLine)]))
	}
}

// shown gives as much of a text as the log has.
func (c *child) shown(text []byte) []byte {
	text = c.runner.hide(text)
	return text[:min(len(text), shownBytes)]
}

// hear takes a line of stderr, or the begin of one that is too long.
func (c *child) hear(line []byte) {
	line = c.runner.hide(line)
	c.log.Debug().Bytes("stderr", line[:min(len(line), maxWords)]).Msg("a worker says")
	c.words.Add(line)
	if t := c.only(); t != nil {
		t.out.say("stderr", line)
	}
}

// wait waits for the end of the process and tells all that wait for its results.
func (c *child) wait() {
	state, err := c.proc.Wait()
	c.out.End()
	c.errs.End()
	var restart *restartError
	switch {
	case errors.As(err, &restart), errors.Is(err, errClosed):
		c.end = err
	case err != nil:
		c.end = errors.New(epitaph("the worker ended: "+err.Error(), &c.words))
	default:
		c.end = errors.New(epitaph("the worker ended: "+state.String(), &c.words))
	}
	c.mu.Lock()
	idle := len(c.jobs) == 0
	c.jobs = nil
	c.mu.Unlock()
	c.runner.ended(c, idle)
	close(c.done)
	c.kill(c.end)
	c.input.Close()
}

// ended notes the end of the child, before its tasks leave their places.
func (r *runner) ended(c *child, idle bool) {
	p := r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.env.Now()
	r.child = nil
	if restart := (*restartError)(nil); !errors.As(c.end, &restart) || !restart.unwanted {
		r.health.lost(now, c.end, now.Sub(c.started), c.spoke, c.gave, p.pace.rest)
	}
	switch {
	case p.closed:
		return
	case r.health.condition(now) == conditionDown:
		r.evictLocked()
	default:
		r.wakeLocked()
	}
	event := p.env.Log.Warn()
	if idle {
		event = p.env.Log.Info()
	}
	event.Str("worker", r.Name).Err(c.end).Msg("a worker has ended")
}
