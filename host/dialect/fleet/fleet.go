// Package fleet is the worker's side of the fleet protocol 2.0 on the host's pipe: it takes
// tasks, checks what they need, has them done by the configured workers, and gives exactly
// one result for each.
//
//	TASK_DISPATCH ─ intake ─ check ─┬─ unmet: TASK_RESULT blocked, at once
//	                                └─ queue by priority ─ place ─ worker pool ─ files from git ─ keep ─► TASK_RESULT
//	TASK_STEER, TASK_CANCEL ─ intake ─► the task, wherever it is
//
//	fleet.go     the dialect                 announce.go  SESSION_ANNOUNCE
//	intake.go    what came, one by one       results.go   results that are kept
//	check.go     whether a task can be done  changes.go   what git says of the workspace
//	needs.go     what a task needs           control.go   texts for a task, and its end
//	run.go       a task from its place       queue.go     who is next
package fleet

import (
	"context"
	"encoding/hex"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/audit"
	"a2e/host/auth"
	"a2e/host/sandbox"
	"a2e/host/store"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// Options is what a Front gets from outside.
type Options struct {
	Worker    fleet.Worker // what it says of itself; what is empty is the default worker's
	AtStartup bool         // announce before any task
	MaxTasks  int          // at once; 0 = 1
	Tokens    auth.Tokens  // of which each dispatch must bring one as auth_token; none = open

	Workspace string // the folder whose git state is announced, absolute
	// Launcher starts git, made when it is first needed; it stays the caller's to close. nil
	// = nothing is asked of git.
	Launcher func() (*sandbox.Launcher, error)
	// Store keeps results over the end of the host; nil = they are kept in memory.
	Store store.Opener

	MaxQueue      int // tasks that wait; 0 = 65,536
	MaxQueueBytes int // bytes of those; 0 = 32 MiB
	Log           zerolog.Logger
	Now           func() time.Time // nil = time.Now
}

// Front speaks the fleet protocol on the pipe. It implements host.Dialect.
type Front struct {
	opts    Options
	ctx     context.Context // of the host; ends also when what is left is cut off. Set by Open
	stop    context.CancelCauseFunc
	out     host.Output
	session func() *session // begun with the first need of it
	watched sync.Once       // begins watch
	context string          // the context_id
	results results
	repo    *changes
	pace    pace

	taken chan struct{} // tells intake of work
	idle  chan struct{} // closed when draining and nothing is left
	goes  sync.WaitGroup

	telling sync.Mutex // held while an announce is made and sent: the last one sent is the last one kept

	mu        sync.Mutex // guards the fields below, and those of tasks that say so
	incoming  []item     // not looked at yet, in order
	tasks     map[string]*task
	pending   []*task // that wait for MCP servers, in order
	waiting   queue
	bytes     int // of what is not done
	count     int // of those, and of the announce at the start
	active    int
	draining  bool
	cut       bool            // nothing starts any more
	announced *fleet.Announce // the last one; nil = none yet
	failures  int             // dispatches in a row with a wrong token
	begun     *session        // what the session func gave; nil = not yet
}

// pace is how patient the Front is; tests are in a hurry.
type pace struct {
	late    time.Duration // answerGrace
	connect time.Duration // connectGrace
	watch   time.Duration // watchEvery
}

// session is the host's session of the fleet.
type session struct {
	ctx context.Context
	end func()
}

// New makes the dialect.
func New(opts Options) *Front {
	if opts.MaxTasks <= 0 {
		opts.MaxTasks = 1
	}
	if opts.MaxQueue <= 0 {
		opts.MaxQueue = 65536
	}
	if opts.MaxQueueBytes <= 0 {
		opts.MaxQueueBytes = 32 << 20
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	id := uuid.New()
	f := &Front{
		opts: opts, context: hex.EncodeToString(id[:]), tasks: make(map[string]*task),
		taken: make(chan struct{}, 1), idle: make(chan struct{}), pace: pace{answerGrace, connectGrace, watchEvery},
	}
	f.results = results{workspace: opts.Workspace, store: opts.Store, log: opts.Log, room: room{maxRememberedBytes, maxKeptBytes}, patience: keepTimeout}
	f.repo = &changes{dir: opts.Workspace, launcher: opts.Launcher, log: opts.Log, patience: filesTimeout}
	f.session = sync.OnceValue(f.begin)
	return f
}

// begin begins the host's session that all tasks share, once the plugins know what they
// serve.
func (f *Front) begin() *session {
	ready, cancel := context.WithTimeout(f.ctx, maxReady)
	defer cancel()
	host.ServicesOf(f.ctx).Ready(ready)
	ctx, _, end := host.BeginSession(f.ctx, f.opts.Worker.AgentID, nil)
	begun := &session{ctx, end}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun = begun
	return begun
}

// maxReady is how long the first task waits for plugins that do not know yet what they serve.
const maxReady = 10 * time.Second

// Open implements host.Dialect.
func (f *Front) Open(ctx context.Context, out host.Output) {
	f.ctx, f.stop = context.WithCancelCause(ctx)
	f.out = out
	if f.opts.AtStartup {
		f.count++ // it is made also where the input ends at once
	}
	f.goes.Go(func() {
		if f.opts.AtStartup {
			f.announce(f.ctx, nil) // before any result
			f.release(0)
		}
		f.intake()
	})
}

// Mine implements host.Dialect.
func (f *Front) Mine(line *protocol.Line) bool {
	switch protocol.Type(line.Type) {
	case fleet.TypeAnnounce, fleet.TypeDispatch, fleet.TypeResult, fleet.TypeSteer, fleet.TypeCancel:
		return !line.RPC
	}
	return false
}

// Take implements host.Dialect. What it takes is looked at by intake.
func (f *Front) Take(line *protocol.Line) {
	from := origin{len(line.Raw()), time.Now()}
	it := item{size: from.bytes + itemOverhead}
	switch t := protocol.Type(line.Type); t {
	case fleet.TypeDispatch:
		it.task = &task{origin: from, size: it.size, place: -1, late: make(chan error, 1)}
		if err := protocol.Decode(line.Object(), nil, &it.task.Dispatch); err != nil {
			f.report(from, fleet.Blocked(taskID(line.Object()), "the dispatch does not fit the protocol: "+reason(err)))
			return
		}
	case fleet.TypeSteer, fleet.TypeCancel:
		it.control = new(fleet.Control)
		if err := protocol.Decode(line.Object(), nil, it.control); err != nil {
			f.Broken(protocol.Errorf(protocol.CodeSchemaViolation, "%s does not fit the protocol: %s", t, reason(err)))
			return
		}
	default:
		f.Broken(protocol.Errorf(protocol.CodeInvalidMessage, "a worker takes %s (fleet protocol %s), not messages of type %.64q", fleet.TypeDispatch, fleet.Version, t))
		return
	}
	if refused := f.accept(it); refused != "" {
		f.refuse(it, refused)
		return
	}
	select {
	case f.taken <- struct{}{}:
	default: // intake looks anyway
	}
}

// accept puts what came behind what waits for intake, or says why not.
func (f *Front) accept(it item) (refused string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.draining:
		return "the worker is ending; send the task to another one"
	case f.count >= f.opts.MaxQueue || f.bytes+it.size > f.opts.MaxQueueBytes:
		return "overloaded: too many tasks wait here; send it again later"
	}
	f.incoming = append(f.incoming, it)
	f.count++
	f.bytes += it.size
	return ""
}

// taskID reads the id of a dispatch that does not decode, as far as there is one.
func taskID(o protocol.Object) string {
	raw, _ := o.Get("task")
	inner, err := protocol.ParseObject(raw)
	if err != nil {
		return ""
	}
	val, _ := inner.Get("task_id")
	id, _ := val.Str()
	return id
}

// Broken implements host.Dialect: the protocol has no other message for it than a result
// without a task.
func (f *Front) Broken(err *protocol.Error) {
	r := fleet.NewResult("", fleet.StatusError)
	r.Error = err.Message
	line := f.encode(r)
	host.Audit(f.ctx, audit.Entry{ErrorCode: string(err.Code), OutputBytes: len(line)})
	f.send(line)
}

// report sends the result of a dispatch, and puts that into the audit trail.
func (f *Front) report(from origin, r *fleet.Result) {
	line := f.encode(r)
	e := audit.Entry{
		Type: string(fleet.TypeDispatch), ReqID: r.TaskID, Success: r.Status == fleet.StatusDone || r.Status == fleet.StatusPartial,
		Duration: time.Since(from.came), InputBytes: from.bytes, OutputBytes: len(line),
	}
	if !e.Success {
		e.ErrorCode = string(r.Status)
	}
	host.Audit(f.ctx, e)
	f.send(line)
}

// encode makes the line of a message; nil = it does not encode, which is logged.
func (f *Front) encode(message any) []byte {
	line, err := json.Marshal(message, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		f.opts.Log.Error().Err(err).Msg("a message of the fleet protocol does not encode")
		return nil
	}
	return line
}

func (f *Front) send(line []byte) {
	if line != nil {
		f.out.Send(line)
	}
}

// Drain implements host.Dialect.
func (f *Front) Drain(ctx context.Context) {
	f.mu.Lock()
	f.draining = true
	f.endedLocked()
	f.mu.Unlock()
	select {
	case <-f.idle:
	case <-ctx.Done():
		f.cutOff()
		<-f.idle
	}
	f.stop(errEnding)
	f.goes.Wait()
	f.mu.Lock()
	begun := f.begun
	f.mu.Unlock()
	if begun != nil {
		begun.end()
	}
}

// release forgets what a task, or another item, counted for.
func (f *Front) release(size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count--
	f.bytes -= size
	f.endedLocked()
}

// endedLocked closes idle once nothing is left to do.
func (f *Front) endedLocked() {
	if !f.draining || f.count > 0 {
		return
	}
	select {
	case <-f.idle:
	default:
		close(f.idle)
	}
}
