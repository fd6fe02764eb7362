// Package fleet is the worker's side of the fleet protocol 2.0 on the host's pipe. It takes
// tasks, checks what they need, has the configured workers do them, and sends exactly one
// result for each. A task is one host.Work, which the host's scheduler runs up to three times:
//
//	TASK_DISPATCH ─ line by line: check ─┬─ unmet: TASK_RESULT blocked, at once
//	                                     ├─ a server is connecting: wait, one task after the other
//	                                     └─ slot, by priority: worker pool ─ files from git ─ keep ─► TASK_RESULT
//	TASK_STEER, TASK_CANCEL ─ line by line ─► the task, wherever it is
//
//	fleet.go    the dialect                          announce.go   SESSION_ANNOUNCE, and what a task needs
//	intake.go   messages, checks of a task           results.go    stored results, files and patches in them
//	run.go      a task from its slot to its result  isolation.go  a worktree for a task
//	changes.go  what git says of the workspace
package fleet

import (
	"context"
	"encoding/hex"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/host/guard/auth"
	"a2e/host/guard/wall"
	"a2e/host/observe/event"
	"a2e/host/sandbox"
	"a2e/host/state/store"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// Options say how a Front serves.
type Options struct {
	Worker    fleet.Worker // what it announces of itself; empty model fields are those of the default worker
	AtStartup bool         // announce at the start, before any task
	MaxTasks  int          // at once; 0 = 1
	Tokens    auth.Tokens  // each dispatch must bring one as auth_token; none = open

	Workspace    string // absolute folder whose git state is announced
	StateDir     string // absolute folder for worktrees
	Isolated     bool   // each task has a worktree of its own
	RequireClean bool   // refuse tasks that write while the workspace has uncommitted changes
	// Launcher returns what starts git. It is called when git is first needed, and the caller closes the launcher. nil
	// = git is not used.
	Launcher func() (*sandbox.Launcher, error)
	// Store keeps results beyond the end of the host; nil = they are kept in memory only.
	Store store.Opener

	// Announced receives each announce, with all that a task may require: tools, toolkits, capabilities and
	// fleet.Words. It must not wait. nil = not called.
	Announced func(a *fleet.Announce, able []string)
	// results carry the changes themselves, for an orchestrator without this workspace; it also keeps the results
	// itself, so Store is not used
	Carry bool
	Wall  *wall.Wall // protects files, which Carry leaves out; nil = none

	Log zerolog.Logger
	Now func() time.Time // nil = time.Now
}

// Front speaks the fleet protocol on the pipe. It implements host.Dialect.
type Front struct {
	opts    Options
	ctx     context.Context // made from the host's by Open; also ends when Drain stops what is left
	stop    context.CancelFunc
	out     host.Output
	slots   *host.Slots // for tasks under way
	guard   dialect.Guard
	begin   sync.Once                             // begins the session
	begun   atomic.Pointer[dialect.PluginSession] // shared by all tasks; nil = not begun yet
	context string                                // the context_id
	results results
	repo    *changes
	pace    pace
	open    sync.WaitGroup // messages that are not answered yet
	runs    sync.WaitGroup // workers under way; Add is called under mu for a task that is not answered
	goes    sync.WaitGroup

	opened  time.Time
	greeted chan struct{} // closed after the announce at the start, or at once if there is none
	trees   sync.Mutex    // held while git makes or removes a worktree
	telling sync.Mutex    // held while an announce is made and sent, so that announced is the last one sent
	able    []string      // what a task may require, by the last announce; guarded by telling
	looking sync.Mutex    // held while the changes of one task are told from those of others

	mu        sync.Mutex // guards the fields below, and those of tasks that say so
	tasks     map[string]*task
	texts     int             // bytes of TASK_STEER texts for tasks that have not started
	running   map[*task]bool  // tasks under way in the workspace itself
	announced *fleet.Announce // the last one; nil = none yet
}

// pace has the time limits of a Front. Tests shorten them.
type pace struct {
	late    time.Duration // answerGrace
	connect time.Duration // connectGrace
	watch   time.Duration // watchEvery
}

// New makes the dialect.
func New(opts Options) *Front {
	opts.MaxTasks = max(opts.MaxTasks, 1)
	if opts.Now == nil {
		opts.Now = time.Now
	}
	id := uuid.New()
	return &Front{
		opts: opts, greeted: make(chan struct{}), pace: pace{answerGrace, connectGrace, watchEvery},
		context: hex.EncodeToString(id[:]), tasks: make(map[string]*task), running: make(map[*task]bool),
		results: results{
			workspace: opts.Workspace, store: opts.Store, log: opts.Log,
			room: room{maxRememberedBytes, maxKeptBytes}, patience: keepTimeout, off: opts.Carry,
		},
		repo: &changes{dir: opts.Workspace, launcher: opts.Launcher, log: opts.Log, patience: filesTimeout},
	}
}

// session returns the host's session. The first call waits until the plugins know what they serve, and begins it.
func (f *Front) session() *dialect.PluginSession {
	f.begin.Do(func() {
		dialect.AwaitPlugins(f.ctx)
		f.begun.Store(dialect.BeginSession(f.ctx, f.opts.Worker.AgentID))
	})
	return f.begun.Load()
}

// Open implements host.Dialect.
func (f *Front) Open(ctx context.Context, out host.Output) {
	f.ctx, f.stop = context.WithCancel(ctx)
	f.out, f.opened, f.slots = out, time.Now(), host.NewSlots(ctx, f.opts.MaxTasks)
	f.goes.Go(func() {
		if f.opts.AtStartup {
			f.announce(f.ctx, nil) // even if the input ends at once
		}
		close(f.greeted)
		if f.opts.StateDir != "" && f.repo.there() {
			f.sweep()
		}
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

// Take implements host.Dialect.
func (f *Front) Take(line *protocol.Line) *host.Work {
	from := origin{bytes: len(line.Raw()), came: time.Now()}
	switch t := protocol.Type(line.Type); t {
	case fleet.TypeDispatch:
		from.span = host.Trace(f.ctx, string(t), "", func() string { text, _ := line.CorrelationID.Str(); return text })
		it := &task{origin: from}
		if err := protocol.Decode(line.Object(), nil, &it.Dispatch); err != nil {
			f.refuseTask(from, taskID(line.Object()), "the dispatch does not fit the protocol: "+reason(err))
			return nil
		}
		it.unread = it.ReadInline()
		return f.workOf(it)
	case fleet.TypeSteer, fleet.TypeCancel:
		c := new(fleet.Control)
		if err := protocol.Decode(line.Object(), nil, c); err != nil {
			f.cannot(t, line.Object().Text("task_id"), "the message does not fit the protocol: "+reason(err))
			return nil
		}
		return f.controlOf(c, from.bytes)
	default:
		f.fail(protocol.Errorf(protocol.CodeInvalidMessage,
			"a worker takes %s (fleet protocol %s), not messages of type %.64q", fleet.TypeDispatch, fleet.Version, t))
	}
	return nil
}

// taskID returns the task_id of a dispatch that does not decode; "" = it cannot be read.
func taskID(o protocol.Object) string {
	raw, _ := o.Get("task")
	var inner protocol.Line
	_ = inner.Scan(raw) // the id may be readable even if this fails
	return inner.Object().Text("task_id")
}

// Broken implements host.Dialect. The result of a task that cannot be read is blocked.
func (f *Front) Broken(line *protocol.Line, err *protocol.Error) {
	t, id := protocol.Type(line.Type), line.Object().Text("task_id")
	switch of := taskID(line.Object()); {
	case t == fleet.TypeDispatch && of != "":
		f.refuseTask(origin{bytes: len(line.Raw()), came: time.Now()}, of, err.Message)
	case (t == fleet.TypeSteer || t == fleet.TypeCancel) && id != "":
		f.cannot(t, id, err.Message)
	default:
		f.fail(err)
	}
}

// refuseTask answers a dispatch that cannot be read. If a task with its id is under way, the result is marked as a
// duplicate.
func (f *Front) refuseTask(from origin, id, why string) {
	r := fleet.Blocked(id, why)
	f.mu.Lock()
	r.Duplicate = id != "" && f.tasks[id] != nil
	f.mu.Unlock()
	f.send(f.report(from, r))
}

// fail reports what is wrong with a message that names no task.
func (f *Front) fail(err *protocol.Error) { f.send(f.failure(err)) }

// failure returns the line that reports an error: a result without a task, because the protocol has no other message
// for this.
func (f *Front) failure(err *protocol.Error) []byte {
	r := fleet.NewResult("", fleet.StatusError)
	r.Error = err.Message
	line := f.encode(r)
	host.Trail(f.ctx, event.Event{ErrorCode: string(err.Code), OutputBytes: len(line)}, nil)
	return line
}

// report returns the line of the result of a dispatch, and records it in the audit trail.
func (f *Front) report(from origin, r *fleet.Result) []byte {
	line := f.encode(r)
	e := event.Event{
		Type: string(fleet.TypeDispatch), ReqID: r.TaskID,
		Duration: time.Since(from.came), InputBytes: from.bytes, OutputBytes: len(line),
	}
	if r.Status != fleet.StatusDone && r.Status != fleet.StatusPartial {
		e.ErrorCode = string(r.Status)
	}
	host.Trail(f.ctx, e, from.span)
	return line
}

// encode returns the line of a message; nil = it does not encode, which is logged.
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

// Drain implements host.Dialect. When ctx ends, it stops the workers that are left.
func (f *Front) Drain(ctx context.Context) {
	defer context.AfterFunc(ctx, f.stop)()
	<-f.greeted
	f.open.Wait()
	f.runs.Wait()
	f.stop()
	f.goes.Wait()
	if begun := f.begun.Load(); begun != nil {
		begun.End()
	}
}
