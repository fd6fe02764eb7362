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
	maxAnnounceLine = 1 << 20  // longest announce that is accepted, in bytes
	closeGrace      = time.Second
	recentIDs       = 4096 // size of each of the two sets of remembered task ids
)

// errEnded is the error for a task that did not reach its child.
var errEnded = errors.New("the worker has ended")

// peer is one process that speaks the fleet protocol.
type peer struct {
	*child.Process
	runner  *runner
	log     zerolog.Logger
	jobs    child.Pending[string, *job] // by the child's id for the task
	greeted chan struct{}               // closed when the child has announced itself
	begun   time.Time

	// Guarded by Pool.mu.
	met    bool // it has announced itself
	late   bool // it took too long to announce itself
	others int  // tasks from others that it had at its last announce

	// Used by the goroutine that reads stdout, then by the one that waits for the end.
	line  protocol.Line
	spoke bool // it sent a message
	gave  bool // it sent a result that a task waited for

	mu      sync.Mutex      // guards the fields below
	recent  map[string]bool // the last ids that it got, at most recentIDs
	older   map[string]bool // the ids before those
	renamed int             // tasks that it got under another id
}

// job is a task at a child.
type job struct {
	task   *task
	id     string               // the child's id for it
	result chan protocol.Object // has a buffer for one
}

// running returns the running child, and starts one if there is none.
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
	r.child = c // before it starts, so that its first lines are handled
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

// dispatch sends a task to the child. The error is errEnded, errClosed, or says that the child
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

// newID returns the id under which the child gets a task. It differs from id if the
// child has had a task with that id, so that a late result of that task is not taken for this one's.
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

// send writes a message to the child. It returns an error of child.Send, or an error for a
// message that cannot be encoded or is longer than maxFleetLine, which a child would ignore.
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

// say passes a line to the listener of the child's task, if the child has exactly one.
func (c *peer) say(stream string, line []byte) {
	if c.jobs.Len() != 1 {
		return
	}
	for _, j := range c.jobs.Requests() {
		j.task.out.say(stream, line)
	}
}

// receive handles a line of stdout.
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

// settle passes a result to the task that waits for it. It drops a second result, a late one, and
// one for a task that the child does not have.
func (c *peer) settle(obj protocol.Object) {
	c.spoke = true
	if j, ok := c.jobs.Take(obj.Text("task_id")); ok {
		c.gave = true
		j.result <- obj.Clone()
		return
	}
	c.Complain(zerolog.WarnLevel, obj.Raw(), "the worker gave a result that nobody waits for")
}

// silent ends a child that has closed its stdout but still runs, as it cannot send a result any more.
func (c *peer) silent() {
	time.AfterFunc(c.runner.pool.pace.end, func() { c.Kill(errors.New("it closed its output")) })
}

// tooLong handles a line that is longer than maxFleetLine.
func (c *peer) tooLong(head []byte) {
	c.lose(head, fmt.Sprintf("longer than %d MiB", maxFleetLine>>20))
}

// lose handles an unusable line, or its beginning. If the line looks like the result of a task, the
// task gets an error as its result, so that it does not wait.
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
		if _, ok := c.jobs.Take(j.id); ok && err == nil { // err is always nil
			c.spoke, c.gave = true, true
			j.result <- obj
			return
		}
	}
	c.skip(head)
}

// announced stores the announce of the child.
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

// skip ignores a line that is not a message, or the beginning of a too long one. The
// listener of the child's task gets it.
func (c *peer) skip(text []byte) {
	c.Skip(text)
	c.say("stdout", c.runner.secrets.Bytes(text[:min(len(text), maxLine)]))
}

// why returns how the child ended.
func (c *peer) why() error {
	e := c.End()
	if restart := (*restartError)(nil); errors.As(e.Cause, &restart) || errors.Is(e.Cause, errClosed) {
		return e.Cause
	}
	return e
}

// ended records the end of the child, before its tasks release their places.
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
