// Package jsonrpc is the JSON-RPC 2.0 side of the host's pipe: sessions in which a user talks to a worker, commands
// that run tools, and the requests of a user interface about the host.
//
//	Take ─ parse ─ host.Work ─ the host's scheduler ─ serve ─ method ─► answer
//	session.send ─ turn ─ worker pool ─► events, the history
//
//	jsonrpc.go  the dialect and its methods   turn.go     send, steer, interrupt, queue; a worker at work
//	call.go     parameters of methods, order  watch.go    what the worker does, as events
//	            of requests, their answers    images.go   by path or data URL
//	session.go  sessions and their history    store.go    the tables of the history
//	server.go   handshake, lists, state       command.go  /help and the like, and /NAME key=value
//	models.go   the workers as models         questions.go  questions to the client
//	compact.go  long conversations, summarised
package jsonrpc

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/dialect"
	"a2e/host/guard/auth"
	"a2e/host/guard/redact"
	"a2e/host/guard/wall"
	"a2e/host/state/store"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// Options say how the host serves JSON-RPC. A zero field means its default, which its comment names.
type Options struct {
	Version   string       // of this program; default "unknown"
	Tokens    auth.Tokens  // rpc.handshake must bring one as auth_token; none = open
	Store     store.Opener // keeps sessions beyond the end of the host
	Workspace string       // absolute folder from which images are read; "" = images by path are refused
	StateDir  string       // folder for the keys of endpoints; "" = keys are not stored
	Secrets   *redact.Set  // receives these keys; its secrets are removed from the history; nil = no secrets are known
	Wall      *wall.Wall   // protects the host's own files; nil = none lie in the workspace
	Log       zerolog.Logger
	Now       func() time.Time // default time.Now

	MaxKept    int // sessions and rollouts in the store, each; default 10,000; the oldest are deleted first
	MaxWaiting int // messages that wait in one session; default 100
	MaxText    int // bytes of one message; default 1 MiB
	MaxContext int // bytes of the history for a worker that is not a model; default 256 KiB

	StoreWait time.Duration // how long each access to the store may wait; default 5 s
}

func (o *Options) setDefaults() {
	o.Version = cmp.Or(o.Version, "unknown")
	if o.Now == nil {
		o.Now = time.Now
	}
	o.MaxKept = cmp.Or(o.MaxKept, 10_000)
	o.MaxWaiting = cmp.Or(o.MaxWaiting, 100)
	o.MaxText = cmp.Or(o.MaxText, 1<<20)
	o.MaxContext = cmp.Or(o.MaxContext, 256<<10)
	o.StoreWait = cmp.Or(o.StoreWait, 5*time.Second)
}

// Limits beside those of Options.
const (
	maxSessions    = 256      // in memory
	maxMessages    = 2000     // of one rollout; the oldest are deleted first
	maxHistory     = 32 << 20 // bytes of the messages of one rollout, with their images
	maxImages      = 16       // of one message
	maxImageBytes  = 8 << 20  // of one image
	maxAllImages   = 16 << 20 // bytes of all images of one message, which then fits into the history
	maxTitle       = 80       // characters
	maxThought     = 4 << 10  // bytes at the end of a thought in which its title is searched
	maxClient      = 200      // bytes of the client's name, or of a version in an error
	usualPage      = 100      // rollouts on a page if the client sets no limit
	callOverhead   = 512      // bytes that a request takes in memory beyond its line
	commandTimeout = 600      // seconds that a tool may run; an interrupt stops it sooner

	maxShutdown = time.Hour              // the longest time that rpc.shutdown may allow for running work
	lastWait    = 800 * time.Millisecond // how long Drain waits for work that it has stopped
)

// Names in requests, answers and the store.
const (
	nameless         = "rpc"  // the agent of a client without a client_name
	anyRouting       = "any"  // tells clients that no provider behind an endpoint was chosen
	rolloutScheme    = "a2e:" // precedes the id of a rollout in its path, which is not a file
	thinkingOff      = "OFF"
	settingModel     = "model.selected"
	settingOnboarded = "onboarding.completed_at" // when the user finished the onboarding
)

// Front is the host.Dialect. It serves one client, on one host.
type Front struct {
	opts    Options
	methods map[string]method
	history history
	ctx     context.Context // of the host
	out     host.Output
	begun   time.Time
	guard   dialect.Guard
	work    sync.WaitGroup // requests not answered yet, and turns
	ready   sync.Once      // waits for the plugins
	stop    context.CancelCauseFunc
	working context.Context // context of the work; stop ends it
	debug   atomic.Bool
	lost    atomic.Int64 // number of the last message that the store did not take; negative

	mu       sync.Mutex     // guards the fields below
	open     map[*call]bool // requests not answered yet
	came     int            // number of requests so far
	cut      bool           // no turn may begin any more
	admitted bool           // the token was right, or none is needed
	agent    string         // the agent that the token is for; "" = none; see inside
	client   string
	sessions map[string]*session
	none     session    // used in requests to plugins that belong to no session
	selected *selection // nil = not read from the store yet
	answers  []text     // the kinds of questions that the client answers
	asked    map[string]*question
}

// New makes the dialect.
func New(opts Options) *Front {
	opts.setDefaults()
	f := &Front{
		opts: opts, methods: methods(), admitted: len(opts.Tokens) == 0,
		open: make(map[*call]bool), sessions: make(map[string]*session), asked: make(map[string]*question),
	}
	f.history.Options, f.history.folder = &f.opts, wall.CanonicalIn(opts.Workspace, ".")
	return f
}

// Open implements host.Dialect.
func (f *Front) Open(ctx context.Context, out host.Output) {
	f.ctx, f.out, f.begun = ctx, out, f.opts.Now()
	f.working, f.stop = context.WithCancelCause(ctx)
}

// Mine implements host.Dialect.
func (f *Front) Mine(line *protocol.Line) bool { return line.RPC }

// Take implements host.Dialect.
func (f *Front) Take(line *protocol.Line) *host.Work {
	req, bad := jsonrpc.Parse(line.Object())
	c := newCall(req, len(line.Raw()))
	switch {
	case req.Answer: // this side sends no requests, so nobody waits for answers
	case bad != nil:
		f.refuse(c, bad)
	case c.quiet && c.method == jsonrpc.CancelMethod:
		f.cancel(c)
	default:
		return f.workOf(c)
	}
	return nil
}

// refuse answers a line that is not a request.
func (f *Front) refuse(c *call, why *jsonrpc.Error) {
	if line := f.answer(c, nil, why); line != nil {
		f.out.Send(line[:len(line)-1])
	}
}

// Broken implements host.Dialect. The answer has the id of the line, unless the line is itself an answer.
func (f *Front) Broken(line *protocol.Line, err *protocol.Error) {
	code := jsonrpc.CodeParse
	if err.Code == protocol.CodeInvalidMessage { // valid JSON but not an object, such as a batch; or too long
		code = jsonrpc.CodeInvalidRequest
	}
	limit, tooLong := err.Detail["limit"]
	e := jsonrpc.Errorf(code, "%s", err.Message)
	switch {
	case tooLong:
		e.With("limit", limit)
	case errors.Is(err, protocol.ErrArray):
		e = jsonrpc.NoBatch()
	case code == jsonrpc.CodeInvalidRequest && errors.Unwrap(err) == nil:
		e.Message = "the line is valid JSON but not an object; send one request per line"
	}
	req, _ := jsonrpc.Parse(line.Object())
	c := newCall(req, len(line.Raw()))
	if c.quiet = false; req.Answer {
		c.id = nil
	}
	f.refuse(c, e)
}

// Drain implements host.Dialect.
func (f *Front) Drain(ctx context.Context) {
	ended := dialect.Over(f.work.Wait)
	select {
	case <-ended:
	case <-ctx.Done():
		f.mu.Lock()
		f.cut = true
		f.mu.Unlock()
		f.stop(errEnding())
		dialect.Await(ended, lastWait)
	}
	f.closeSessions()
	f.stop(nil)
}

func errEnding() *protocol.Error { return protocol.Errorf(protocol.CodeTimeout, "the host ends") }

func methods() map[string]method {
	return map[string]method{
		jsonrpc.Handshake:        {run: taking(handshake), lets: true, takes: optional},
		jsonrpc.Ping:             {run: ping, uses: nothing},
		jsonrpc.Shutdown:         {run: taking(shutdown), uses: aside, takes: optional},
		jsonrpc.StateGet:         {run: stateGet, uses: aList},
		jsonrpc.SessionCreate:    {run: taking(sessionCreate), takes: optional},
		jsonrpc.SessionGet:       {run: sessionGet, uses: aLook, takes: ofSession},
		jsonrpc.SessionSend:      {run: taking(sessionSend), takes: ofSession},
		jsonrpc.SessionSteer:     {run: taking(sessionSteer), takes: ofSession, texts: "text"},
		jsonrpc.SessionInterrupt: {run: sessionInterrupt, takes: ofSession},
		jsonrpc.SessionAnswer: {
			run: taking(sessionAnswer), uses: nothing, takes: ofSession, texts: "question_id action",
		},
		jsonrpc.QueueList:      {run: queueList, uses: aLook, takes: ofSession},
		jsonrpc.QueueClear:     {run: queueClear, takes: ofSession},
		jsonrpc.CommandExecute: {run: commandExecute, uses: aTool, takes: ofSession, texts: "raw_command"},
		jsonrpc.ToolsList:      {run: toolsList, uses: aList},
		jsonrpc.SkillsList:     {run: skillsList, uses: aList},
		jsonrpc.HistoryList:    {run: taking(historyList), uses: aLook, takes: optional},
		jsonrpc.HistoryGet:     {run: taking(historyGet), uses: aLook, takes: optional},
		jsonrpc.HistoryClear:   {run: historyClear, takes: ofSession},
		jsonrpc.LimitsGet:      {run: limitsGet, uses: aLook},
		jsonrpc.ModelList:      {run: taking(modelList), uses: aLook, takes: optional},
		jsonrpc.ModelSelect: {
			run: taking(modelSelect), takes: required, texts: "model_id provider thinking_level",
		},
		jsonrpc.AuthStatus:         {run: authStatus, uses: aside},
		jsonrpc.DebugSet:           {run: taking(debugSet), uses: aside, takes: required},
		jsonrpc.OnboardingStatus:   {run: onboardingStatus, uses: aLook},
		jsonrpc.OnboardingComplete: {run: onboardingComplete},
		jsonrpc.ConnectOpenAI:      {run: connect, uses: aside, works: nobody},
		jsonrpc.ConnectAntigravity: {run: connect, uses: aside, works: nobody},
		jsonrpc.SetExaKey:          {run: taking(setExaKey), takes: required, texts: "api_key"},
		jsonrpc.SetOpenRouterKey: {
			run: taking(setKey), lets: true, takes: required, texts: "api_key", works: (*Front).keyed,
		},
		jsonrpc.RoutingProviders: {
			run: taking(routingProviders), uses: aList, takes: required, texts: "model_id", works: (*Front).routed,
		},
	}
}

// nobody is the method.works of methods that only report that they are not supported.
func nobody(*Front) []agent.WorkerInfo { return nil }
