// Package jsonrpc is the JSON-RPC 2.0 side of the host's pipe: sessions of a user with a
// worker, commands that run tools, and what a user interface asks of a host.
//
//	Take ─ parse ─ queue (bounded) ─ loop ─┬─ quick: answered in order; some overtake one that waits
//	                                       └─ slow: a goroutine each, bounded ─► answer
//	session.send ─ turn ─ worker pool ─► events, the history
//
//	jsonrpc.go  the dialect and its methods   turn.go     send, steer, interrupt, queue; a worker at work
//	call.go     what methods take; one answer watch.go    what it does, as events
//	            for each                      images.go   by path or data URL
//	lane.go     what runs beside what         store.go    the tables of what was said
//	session.go  sessions, what was said       command.go  /help and the like, and /NAME key=value
//	server.go   handshake, lists, state       models.go   the workers as models
package jsonrpc

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/auth"
	"a2e/host/dialect"
	"a2e/host/redact"
	"a2e/host/store"
	"a2e/host/wall"
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

	MaxSessions   int // in memory; 256
	MaxKept       int // in the store; 10,000, the oldest go first
	MaxParallel   int // commands that run at once; 16
	MaxLine       int // bytes of one line, as the host takes them: only shown; 16 MiB
	MaxQueue      int // requests without their answer; 65,536
	MaxQueueBytes int // bytes of those; 32 MiB
	MaxWaiting    int // messages that wait in one session; 100
	MaxText       int // bytes of one message; 1 MiB
	MaxContext    int // bytes of the history that a worker is told; 256 KiB

	StoreWait time.Duration // how long requests wait for the store, and a turn for each message; 5 s
}

func (o *Options) setDefaults() {
	o.Version = cmp.Or(o.Version, "unknown")
	if o.Now == nil {
		o.Now = time.Now
	}
	o.MaxSessions = cmp.Or(o.MaxSessions, 256)
	o.MaxKept = cmp.Or(o.MaxKept, 10_000)
	o.MaxParallel = cmp.Or(o.MaxParallel, 16)
	o.MaxLine = cmp.Or(o.MaxLine, 16<<20)
	o.MaxQueue = cmp.Or(o.MaxQueue, 65536)
	o.MaxQueueBytes = cmp.Or(o.MaxQueueBytes, 32<<20)
	o.MaxWaiting = cmp.Or(o.MaxWaiting, 100)
	o.MaxText = cmp.Or(o.MaxText, 1<<20)
	o.MaxContext = cmp.Or(o.MaxContext, 256<<10)
	o.StoreWait = cmp.Or(o.StoreWait, 5*time.Second)
}

// Front is the dialect. It serves one client, on one host.
type Front struct {
	opts    Options
	methods map[string]method
	history history
	ctx     context.Context // of the host
	out     host.Output
	begun   time.Time
	guard   dialect.Guard
	room    *dialect.Room  // of the requests without their answer, or in a list yet
	work    sync.WaitGroup // the loop, slow requests and turns
	wake    dialect.Bell   // tells the loop of news
	ready   sync.Once      // the plugins know what they serve
	stop    context.CancelCauseFunc
	working context.Context // of the work; ends with stop

	mu        sync.Mutex         // guards the fields below
	incoming  []*call            // that did not begin, in order
	open      map[*call]struct{} // those in room
	byID      map[string][]*call // of those that have an id, by their key
	limiters  [lanes]limiter
	draining  bool
	cut       bool   // nothing begins any more
	admitted  bool   // the token was right
	agent     string // that it is for; "" = the client's name says
	client    string
	sessions  map[string]*session
	selected  selection
	knows     bool  // selected was read from the store
	lost      int64 // the number of the last message that the store did not take, below 0
	debug     bool
	inSession *dialect.Session // for what belongs to no session; nil = not begun
}

// New makes the dialect.
func New(opts Options) *Front {
	opts.setDefaults()
	f := &Front{
		opts: opts, methods: methods(), wake: dialect.NewBell(),
		room: dialect.NewRoom(opts.MaxQueue, opts.MaxQueueBytes), history: history{store: opts.Store,
			maxKept: opts.MaxKept, secrets: opts.Secrets, folder: wall.PlaceIn(opts.Workspace, ".")},
		open: make(map[*call]struct{}), byID: make(map[string][]*call), sessions: make(map[string]*session),
	}
	f.admitted = len(opts.Tokens) == 0
	return f
}

// Open implements host.Dialect.
func (f *Front) Open(ctx context.Context, out host.Output) {
	f.ctx, f.out, f.begun = ctx, out, f.opts.Now()
	f.working, f.stop = context.WithCancelCause(ctx)
	f.work.Go(f.loop)
}

// Mine implements host.Dialect.
func (f *Front) Mine(line *protocol.Line) bool { return line.RPC }

// Take implements host.Dialect.
func (f *Front) Take(line *protocol.Line) *host.Work {
	req, bad := jsonrpc.Parse(line.Object())
	switch {
	case req.Answer: // this side asks nothing, so nobody waits for it
		return nil
	case bad != nil:
		f.answer(newCall(req, len(line.Raw())), nil, bad)
		return nil
	}
	c := newCall(req, len(line.Raw()))
	if c.quiet && c.method == jsonrpc.CancelMethod {
		f.cancel(c)
		return nil
	}
	if !f.room.Take(c.size) {
		f.answer(c, nil, protocol.Errorf(protocol.CodeOverloaded, "too many requests have no answer yet; send it again later"))
		return nil
	}
	c.span = host.Trace(f.ctx, c.method, "", c.parent)
	f.mu.Lock()
	f.open[c] = struct{}{}
	if !c.quiet {
		f.byID[c.key()] = append(f.byID[c.key()], c)
	}
	f.incoming, c.waits = append(f.incoming, c), true
	f.mu.Unlock()
	f.wake.Ring()
	return nil
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
	f.answer(c, nil, e)
}

// Drain implements host.Dialect.
func (f *Front) Drain(ctx context.Context) {
	f.mu.Lock()
	f.draining = true
	f.mu.Unlock()
	f.room.Drain()
	f.wake.Ring()
	ended := dialect.Over(f.work.Wait)
	select {
	case <-ended:
	case <-ctx.Done():
		f.cutOff()
		dialect.Await(ended, lastWait)
	}
	f.closeSessions()
	f.stop(nil)
}

// lastWait is how long the end waits for work that was stopped.
const lastWait = 800 * time.Millisecond

// cutOff stops what runs and answers what has no answer.
func (f *Front) cutOff() {
	f.mu.Lock()
	f.cut = true
	left := make([]*call, 0, len(f.open))
	for c := range f.open {
		left = append(left, c)
	}
	f.mu.Unlock()
	f.stop(errEnding())
	f.wake.Ring()
	for _, c := range left {
		f.answer(c, nil, errEnding())
	}
}

// errSlow is the answer to a request that waits for the store for too long.
func errSlow(wait time.Duration) *protocol.Error {
	return protocol.Errorf(protocol.CodeTimeout, "the store was not free within %s; send it again later", wait)
}

func errEnding() *protocol.Error { return protocol.Errorf(protocol.CodeTimeout, "the host ends") }

// Load returns how many requests have no answer yet, and how many of those wait to begin.
func (f *Front) Load() (open, waiting int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.open), len(f.incoming)
}

func methods() map[string]method {
	return map[string]method{
		jsonrpc.Handshake:          {run: taking(handshake), takes: optional},
		jsonrpc.Ping:               {run: ping, at: free},
		jsonrpc.Shutdown:           {run: taking(shutdown), at: free, takes: optional},
		jsonrpc.StateGet:           {run: stateGet, at: asking},
		jsonrpc.SessionCreate:      {run: taking(sessionCreate), takes: optional},
		jsonrpc.SessionGet:         {run: onSession(sessionGet), takes: required},
		jsonrpc.SessionSend:        {run: onSession(sessionSend), takes: required},
		jsonrpc.SessionSteer:       {run: onSession(sessionSteer, "text"), takes: required},
		jsonrpc.SessionInterrupt:   {run: onSession(sessionInterrupt), takes: required},
		jsonrpc.QueueList:          {run: onSession(queueList), takes: required},
		jsonrpc.QueueClear:         {run: onSession(queueClear), takes: required},
		jsonrpc.CommandExecute:     {run: onSession(commandExecute, "raw_command"), at: running, takes: required},
		jsonrpc.ToolsList:          {run: toolsList, at: asking},
		jsonrpc.SkillsList:         {run: skillsList, at: asking},
		jsonrpc.HistoryList:        {run: taking(historyList), takes: optional},
		jsonrpc.HistoryGet:         {run: taking(historyGet), takes: optional},
		jsonrpc.HistoryClear:       {run: onSession(historyClear), takes: required},
		jsonrpc.LimitsGet:          {run: limitsGet},
		jsonrpc.ModelList:          {run: taking(modelList), takes: optional},
		jsonrpc.ModelSelect:        {run: taking(modelSelect, "model_id", "provider", "thinking_level"), takes: required},
		jsonrpc.AuthStatus:         {run: authStatus, at: free},
		jsonrpc.DebugSet:           {run: taking(debugSet), at: free, takes: required},
		jsonrpc.OnboardingStatus:   {run: onboardingStatus},
		jsonrpc.OnboardingComplete: {run: onboardingComplete},
		jsonrpc.ConnectOpenAI:      {run: connect, at: free, works: never},
		jsonrpc.ConnectAntigravity: {run: connect, at: free, works: never},
		jsonrpc.SetOpenRouterKey:   {run: taking(setKey, "api_key"), takes: required, works: (*Front).takesKey},
		jsonrpc.RoutingProviders:   {run: taking(routingProviders, "model_id"), at: asking, takes: required, works: (*Front).tellsRouting},
		jsonrpc.SetExaKey:          {run: taking(setExaKey, "api_key"), takes: required},
	}
}

// never is for methods that only say that they are not supported.
func never(*Front) bool { return false }

func (f *Front) logger() *zerolog.Logger { return &f.opts.Log }
