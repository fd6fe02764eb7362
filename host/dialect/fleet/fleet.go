// Package fleet is the worker's side of the fleet protocol 2.0 on the host's pipe: it takes
// tasks, checks what they need, has them done by the configured workers, and gives exactly
// one result for each. A task is one host.Work, which the host's scheduler runs up to three times:
//
//	TASK_DISPATCH ─ line by line: check ─┬─ unmet: TASK_RESULT blocked, at once
//	                                     ├─ a server is connecting: wait, one task after the other
//	                                     └─ place, by priority: worker pool ─ files from git ─ keep ─► TASK_RESULT
//	TASK_STEER, TASK_CANCEL ─ line by line ─► the task, wherever it is
//
//	fleet.go   the dialect                          announce.go  SESSION_ANNOUNCE, and what a task needs
//	intake.go  what came, and whether it can be done  results.go   results that are kept, what they carry
//	run.go     a task from its place to its result  isolation.go  a worktree for a task
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

// Options is what a Front gets from outside.
type Options struct {
	Worker    fleet.Worker // what it says of itself; what is empty is the default worker's
	AtStartup bool         // announce before any task
	MaxTasks  int          // at once; 0 = 1
	Tokens    auth.Tokens  // of which each dispatch must bring one as auth_token; none = open

	Workspace    string // the folder whose git state is announced, absolute
	StateDir     string // where worktrees are made, absolute
	Isolated     bool   // each task has a worktree of its own
	RequireClean bool   // refuse tasks that write while the workspace is not clean
	// Launcher starts git, made when it is first needed; it stays the caller's to close. nil
	// = nothing is asked of git.
	Launcher func() (*sandbox.Launcher, error)
	// Store keeps results over the end of the host; nil = none of them.
	Store store.Opener

	// Announced gets each announce, with all that a task may require of who does the work: tools,
	// toolkits, capabilities and Words. It must not wait. nil = nobody asks.
	Announced func(a *fleet.Announce, able []string)
	// results carry the changes themselves, for an orchestrator that has not this workspace, and that keeps the results
	// itself
	Carry bool
	Wall  *wall.Wall // around files that Carry leaves out; nil = none

	Log zerolog.Logger
	Now func() time.Time // nil = time.Now
}

// Front speaks the fleet protocol on the pipe. It implements host.Dialect.
type Front struct {
	opts    Options
	ctx     context.Context // of the host; ends also when what is left is cut off. Set by Open
	stop    context.CancelFunc
	out     host.Output
	places  *host.Places // of tasks at work
	guard   dialect.Guard
	begin   sync.Once                       // begins the session
	begun   atomic.Pointer[dialect.Session] // that all tasks share; nil = not yet
	context string                          // the context_id
	results results
	repo    *changes
	pace    pace
	open    sync.WaitGroup // what was taken and is not answered
	runs    sync.WaitGroup // workers at work; Add under mu for a task that is not answered
	goes    sync.WaitGroup

	opened  time.Time
	greeted chan struct{} // closed when the announce at the start, if there is one, is made
	trees   sync.Mutex    // held while git makes or removes a worktree
	telling sync.Mutex    // held while an announce is made and sent: the last one sent is the last one kept
	able    []string      // what a task may require, by the last announce; guarded by telling
	looking sync.Mutex    // held while what a task changed is told from what others did

	mu        sync.Mutex // guards the fields below, and those of tasks that say so
	tasks     map[string]*task
	texts     int             // bytes of texts for tasks that wait
	running   map[*task]bool  // those that are done in the workspace itself
	announced *fleet.Announce // the last one; nil = none yet
}

// pace is how patient the Front is; tests are in a hurry.
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

// session returns the host's session, begun once the plugins know what they serve.
func (f *Front) session() *dialect.Session {
	f.begin.Do(func() {
		dialect.AwaitPlugins(f.ctx)
		f.begun.Store(dialect.BeginSession(f.ctx, f.opts.Worker.AgentID))
	})
	return f.begun.Load()
}

// Open implements host.Dialect.
func (f *Front) Open(ctx context.Context, out host.Output) {
	f.ctx, f.stop = context.WithCancel(ctx)
	f.out, f.opened, f.places = out, time.Now(), host.NewPlaces(ctx, f.opts.MaxTasks)
	f.goes.Go(func() {
		if f.opts.AtStartup {
			f.announce(f.ctx, nil) // also where the input ends at once
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

// taskID reads the id of a dispatch that does not decode, as far as there is one.
func taskID(o protocol.Object) string {
	raw, _ := o.Get("task")
	var inner protocol.Line
	_ = inner.Scan(raw) // the id may be told all the same
	return inner.Object().Text("task_id")
}

// Broken implements host.Dialect: a task that cannot be read is blocked.
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

// refuseTask answers a dispatch that cannot be read. Its id may be that of a task under way.
func (f *Front) refuseTask(from origin, id, why string) {
	r := fleet.Blocked(id, why)
	f.mu.Lock()
	r.Duplicate = id != "" && f.tasks[id] != nil
	f.mu.Unlock()
	f.send(f.report(from, r))
}

// fail says what is wrong with a message that names no task.
func (f *Front) fail(err *protocol.Error) { f.send(f.failure(err)) }

// failure returns the line for that: the protocol has no other message for it than a result without a task.
func (f *Front) failure(err *protocol.Error) []byte {
	r := fleet.NewResult("", fleet.StatusError)
	r.Error = err.Message
	line := f.encode(r)
	host.Trail(f.ctx, event.Event{ErrorCode: string(err.Code), OutputBytes: len(line)}, nil)
	return line
}

// report returns the line of the result of a dispatch, and puts that into the audit trail.
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

// Drain implements host.Dialect. The host ends what is left when ctx ends.
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
