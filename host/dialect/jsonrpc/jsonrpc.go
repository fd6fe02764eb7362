// Package jsonrpc is the JSON-RPC 2.0 side of the host's pipe: sessions of a user with a
// worker, commands that run tools, and what a user interface asks of a host.
//
//	Take ─ parse ─ host.Work ─ the host's scheduler ─ serve ─ method ─► answer
//	session.send ─ turn ─ worker pool ─► events, the history
//
//	jsonrpc.go  the dialect and its methods   turn.go     send, steer, interrupt, queue; a worker at work
//	call.go     what methods take, what waits watch.go    what it does, as events
//	            for what, one answer for each images.go   by path or data URL
//	session.go  sessions, what was said       store.go    the tables of what was said
//	server.go   handshake, lists, state       command.go  /help and the like, and /NAME key=value
//	models.go   the workers as models         questions.go  what the client is asked
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
	"a2e/host/dialect"
	"a2e/host/guard/auth"
	"a2e/host/guard/redact"
	"a2e/host/guard/wall"
	"a2e/host/state/store"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// Options say how the host serves JSON-RPC. The zero value of a field is its default.
type Options struct {
	Version   string       // of this program; "unknown"
	Tokens    auth.Tokens  // of which rpc.handshake must bring one as auth_token; none = open
	Store     store.Opener // keeps sessions over the end of the host
	Workspace string       // absolute folder that images are in; "" = there are no images
	StateDir  string       // of the keys of endpoints; "" = none are kept
	Secrets   *redact.Set  // gets those, and the history has none of them; nil = no others are known
	Wall      *wall.Wall   // around the host's own files; nil = none lie in the workspace
	Log       zerolog.Logger
	Now       func() time.Time // time.Now

	MaxKept    int // in the store; 10,000, the oldest go first
	MaxWaiting int // messages that wait in one session; 100
	MaxText    int // bytes of one message; 1 MiB
	MaxContext int // bytes of the history that a worker is told which is no model; 256 KiB

	StoreWait time.Duration // how long each access to the store waits for it; 5 s
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
	maxMessages    = 2000     // of one rollout; the oldest go first
	maxHistory     = 32 << 20 // bytes of those, with their images
	maxImages      = 16       // of one message
	maxImageBytes  = 8 << 20  // of one image
	maxAllImages   = 16 << 20 // bytes of all images of one message: with them it fits into the history
	maxTitle       = 80       // characters
	maxThought     = 4 << 10  // bytes of the end of a thought that are looked at for its title
	maxClient      = 200      // bytes of the client's name, or of a version in an error
	usualPage      = 100      // rollouts, where the client does not say
	callOverhead   = 512      // bytes that a request costs in memory beyond its line
	commandTimeout = 600      // seconds that a tool gets at most; an interrupt ends it sooner

	maxShutdown = time.Hour              // that running work may get to finish
	lastWait    = 800 * time.Millisecond // that the end waits for work that was stopped
)

// Names.
const (
	nameless         = "rpc"  // the agent of a client that does not say what it is
	anyRouting       = "any"  // what clients take for no choice among the providers behind an endpoint
	rolloutScheme    = "a2e:" // before the id of a rollout in its path: it is no file
	thinkingOff      = "OFF"
	settingModel     = "model.selected"
	settingOnboarded = "onboarding.completed_at" // says when the user was shown around
)

// Front is the dialect. It serves one client, on one host.
type Front struct {
	opts    Options
	methods map[string]method
	history history
	ctx     context.Context // of the host
	out     host.Output
	begun   time.Time
	guard   dialect.Guard
	work    sync.WaitGroup // requests without their answer, and turns
	ready   sync.Once      // the plugins know what they serve
	stop    context.CancelCauseFunc
	working context.Context // of the work; ends with stop
	debug   atomic.Bool
	lost    atomic.Int64 // the number of the last message that the store did not take, below 0

	mu       sync.Mutex     // guards the fields below
	open     map[*call]bool // without their answer
	came     int            // how many requests did
	cut      bool           // no turn begins any more
	admitted bool           // the token was right
	agent    string         // that it is for; "" = the client's name says
	client   string
	sessions map[string]*session
	none     session    // stands for none, in requests of plugins
	selected *selection // nil = it was not read from the store yet
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
	f.history.Options, f.history.folder = &f.opts, wall.PlaceIn(opts.Workspace, ".")
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
	case req.Answer: // this side asks nothing, so nobody waits for it
	case bad != nil:
		f.refuse(c, bad)
	case c.quiet && c.method == jsonrpc.CancelMethod:
		f.cancel(c)
	default:
		return f.workOf(c)
	}
	return nil
}

// refuse answers a line that is no request.
func (f *Front) refuse(c *call, why *jsonrpc.Error) {
	if line := f.answer(c, nil, why); line != nil {
		f.out.Send(line[:len(line)-1])
	}
}

// Broken implements host.Dialect. The id of the line is that of the answer, unless the line is an answer itself.
func (f *Front) Broken(line *protocol.Line, err *protocol.Error) {
	code := jsonrpc.CodeParse
	if err.Code == protocol.CodeInvalidMessage { // JSON, but no object, such as a batch; or too long
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

// nobody is for methods that only say that they are not supported.
func nobody(*Front) []host.WorkerInfo { return nil }
