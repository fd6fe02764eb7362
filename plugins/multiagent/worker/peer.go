package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"a2e/host/child"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

const (
	maxFleetLine    = 16 << 20 // longest line from a child and to it, in bytes
	maxAnnounceLine = 1 << 20  // longest announce that is kept
	closeGrace      = time.Second
	recentIDs       = 4096 // how many ids of tasks are remembered, and as many before
)

// errEnded is why a task did not get to a child.
var errEnded = errors.New("the worker has ended")

// peer is one process that speaks the fleet protocol.
type peer struct {
	*child.Process
	runner  *runner
	log     zerolog.Logger
	jobs    child.Pending[string, *job] // by the id that the child knows them by
	greeted chan struct{}               // closed when it has said what it is
	begun   time.Time

	// Guarded by Pool.mu.
	met    bool // it has said what it is
	late   bool // it took too long for that
	others int  // tasks that it had of others when it last announced itself

	// Of the goroutine that reads stdout, then of the one that waits for the end.
	line  protocol.Line
	spoke bool // it sent a message
	gave  bool // it sent a result that was waited for

	mu      sync.Mutex      // guards the fields below
	recent  map[string]bool // ids that it was given, at most recentIDs
	older   map[string]bool // those before
	renamed int             // tasks whose id it knows another way
}

// job is a task at a child.
type job struct {
	task   *task
	id     string               // that the child knows it by
	result chan protocol.Object // takes one
}

// running returns the child that runs, and starts one if none does.
func (r *runner) running(ctx context.Context) (*peer, error) {
	r.starts.Lock()
	defer r.starts.Unlock()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p := r.pool
	p.mu.Lock()
	c := r.child
	p.mu.Unlock()
	if c != nil {
		return c, nil
	}
	policy, err := r.policy(nil, p.env.Agent, "")
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		if policy.DirFile != nil {
			policy.DirFile.Close()
		}
		return nil, errClosed
	}
	p.goes.Add(1)
	defer p.goes.Done()
	c = r.newPeer()
	r.child = c // before it starts, so that its first words are heard
	p.mu.Unlock()
	if err := c.Start(p.env.Launcher, policy); err != nil {
		p.mu.Lock()
		r.child = nil
		p.mu.Unlock()
		return nil, err
	}
	return c, nil
}

func (r *runner) newPeer() *peer {
	p := r.pool
	c := &peer{
		runner: r, log: p.env.Log.With().Str("worker", r.Name).Logger(), greeted: make(chan struct{}),
		begun: time.Now(),
	}
	c.Process = child.New(p.ctx, child.Options{
		Name: "the worker", Line: c.receive, Long: c.tooLong, MaxLine: maxFleetLine, Silent: c.silent,
		Stderr: func(line []byte) { c.say("stderr", line) }, MaxStderr: maxStderr, Level: zerolog.DebugLevel,
		Ended: c.ended, Go: p.goes.Go, Grace: p.pace.end, Log: c.log, Secrets: r.secrets, Now: p.env.Now,
	})
	return c
}

// dispatch returns the child a task. The error is errEnded, errClosed, or says that the child
// takes no more input.
func (c *peer) dispatch(ctx context.Context, t *task) (*job, error) {
	j := &job{task: t, id: c.newID(t.Task.TaskID), result: make(chan protocol.Object, 1)}
	if c.Context().Err() != nil { // it is being killed
		return nil, errEnded
	}
	if _, ok := c.jobs.Add(j.id, j); !ok {
		return nil, errEnded
	}
	err := c.send(c.runner.dispatchOf(ctx, t, j.id))
	switch {
	case err == nil:
		return j, nil
	case !c.jobs.Drop(j.id):
		return nil, errEnded
	case errors.Is(err, child.ErrInputClosed):
		return nil, errClosed
	}
	return nil, err
}

// newID returns the id that the child shall know a task by. It is another one where the
// child has had such a task: what it says of that one must not be taken for this one's.
func (c *peer) newID(id string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := func(id string) bool {
		_, open := c.jobs.Get(id)
		return open || c.recent[id] || c.older[id]
	}
	fresh := id
	for known(fresh) {
		c.renamed++
		fresh = fmt.Sprintf("%s~%d", id, c.renamed+1)
	}
	if c.recent == nil || len(c.recent) >= recentIDs {
		c.recent, c.older = make(map[string]bool), c.recent
	}
	c.recent[fresh] = true
	return fresh
}

// send puts a message into the child's input. The error is one of child.Send, or that of a
// message which is no JSON or so long that a child would pass over it and give no result.
func (c *peer) send(msg any) error {
	line, err := protocol.AppendJSON(nil, msg)
	if err != nil {
		return err
	}
	if len(line) > maxFleetLine {
		return fmt.Errorf("the message for worker %s would have %d bytes; it may have %d: put long texts into a file",
			c.runner.Name, len(line), maxFleetLine)
	}
	return c.Send(append(line, '\n'), false)
}

// destroy kills the child and waits for its end.
func (c *peer) destroy(cause error) {
	c.Kill(cause)
	<-c.Done()
}

// say shows a line to whoever listens to the task of the child, if it has just one.
func (c *peer) say(stream string, line []byte) {
	if c.jobs.Len() != 1 {
		return
	}
	for _, j := range c.jobs.Requests() {
		j.task.out.say(stream, line)
	}
}

// receive takes a line of stdout.
func (c *peer) receive(text []byte) {
	if len(bytes.TrimSpace(text)) == 0 {
		return
	}
	if err := c.line.Scan(text); err != nil {
		c.lose(text, fmt.Sprintf("not valid: %v", err))
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
func (c *peer) settle(obj protocol.Object) {
	c.spoke = true
	if j, ok := c.jobs.Take(obj.Text("task_id")); ok {
		c.gave = true
		j.result <- obj.Clone()
		return
	}
	c.Complain(zerolog.WarnLevel, obj.Raw(), "the worker gave a result that nobody waits for")
}

// silent ends a child that has closed its stdout and stays: it can give no result any more.
func (c *peer) silent() {
	time.AfterFunc(c.runner.pool.pace.end, func() { c.Kill(errors.New("it closed its output")) })
}

// tooLong deals with a line that is longer than maxFleetLine.
func (c *peer) tooLong(head []byte) {
	c.lose(head, fmt.Sprintf("longer than %d MiB", maxFleetLine>>20))
}

// lose deals with a line, or its begin, that is of no use. A result is lost, and its task
// shall not wait for it: the begin of the line tells whose it is.
func (c *peer) lose(head []byte, why string) {
	_, id, named := bytes.Cut(head, []byte(`"task_id"`))
	named = named && bytes.HasPrefix(bytes.TrimSpace(head), []byte("{")) && bytes.Contains(head,
		[]byte(fleet.TypeResult))
	for _, j := range c.jobs.Requests() {
		if !named || !bytes.HasPrefix(bytes.TrimLeft(id, " \t:"), protocol.AppendString(nil, j.id)) {
			continue
		}
		obj, err := protocol.ParseObject(append(protocol.AppendString([]byte(`{"status":"error","error":`),
			"the worker's result is "+why), '}'))
		if _, ok := c.jobs.Take(j.id); ok && err == nil { // it is valid
			c.spoke, c.gave = true, true
			j.result <- obj
			return
		}
	}
	c.skip(head)
}

// announced keeps what the child says of itself.
func (c *peer) announced(text []byte) {
	a := new(fleet.Announce)
	if len(text) > maxAnnounceLine || c.line.Object().Decode(a) != nil {
		c.skip(text)
		return
	}
	c.runner.hideIn([]*string{&a.Worker.AgentID, &a.Worker.Model, &a.Worker.ModelTier}, a.Capabilities.Tools,
		a.Capabilities.MCPServers)
	c.spoke = true
	p := c.runner.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.runner.child != c {
		return
	}
	if !c.met {
		c.met = true
		close(c.greeted)
	}
	close(c.runner.pool.news)
	c.runner.pool.news = make(chan struct{})
	c.runner.health.announced, c.others = a, max(0, a.Session.ActiveTasks-c.jobs.Len())
}

// skip passes over a line that is no message, or over the begin of one that is too long; the
// task that the child works on may show it.
func (c *peer) skip(text []byte) {
	c.Skip(text)
	c.say("stdout", c.runner.secrets.Bytes(text[:min(len(text), maxLine)]))
}

// why says how the child ended.
func (c *peer) why() error {
	e := c.End()
	if restart := (*restartError)(nil); errors.As(e.Cause, &restart) || errors.Is(e.Cause, errClosed) {
		return e.Cause
	}
	return e
}

// ended notes the end of the child, before its tasks leave their places.
func (c *peer) ended(e *child.Ended) {
	idle := len(c.jobs.End()) == 0
	r, p := c.runner, c.runner.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.env.Now()
	r.child = nil
	if restart := (*restartError)(nil); !errors.As(e.Cause, &restart) || !restart.unwanted {
		r.health.lost(now, c.why(), e.Lived, c.spoke, c.gave, p.pace.rest)
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
	event.Str("worker", r.Name).Err(c.why()).Msg("a worker has ended")
}
