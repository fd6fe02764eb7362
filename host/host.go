package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"a2e/host/guard/auth"
	"a2e/host/guard/redact"
	"a2e/host/observe/event"
	"a2e/host/observe/trace"
	"a2e/host/state/checkpoint"
	"a2e/protocol"
)

// Options is everything a Host needs from outside. A zero field means its default.
type Options struct {
	Plugins     []Plugin
	MaxParallel int         // requests of a session that run at once; 0 = 4
	Limits      Limits      // sizes; see Limits
	Namespaced  bool        // events of tools and skills go as tool/event and skill/event
	Tokens      auth.Tokens // a handshake must have one of these; none = no token is needed
	Log         zerolog.Logger
	Events      *event.Stream    // receives the events; nil = only the log does
	Secrets     *redact.Set      // no line of the output shows these; nil = none
	Now         func() time.Time // nil = time.Now
	IDs         io.Reader        // random bytes for ids; nil = a generator seeded from the system
	AgentID     string           // of every session, whatever the agent calls itself; "" = the agent's name
	Dialects    []Dialect        // other protocols on the pipe, asked before A2E
	Only        bool             // every line is for the first of Dialects: there is no A2E
	Uncounted   bool             // calls are not recorded
	Groups      Groups           // of tools
	Middleware  []Middleware     // around all requests, the outermost first
	Tracer      *trace.Tracer    // gets a span of each request; nil = nothing is traced
	Buffers     *sync.Pool       // for the output, shared by the hosts of a process; nil = the host has its own
	Closing     chan struct{}    // its size is how many hosts of a process may close at once; nil = all

	Checkpoints     *checkpoint.Keeper // of the workspace, made before requests that may change it; nil = none
	NeedCheckpoints bool               // such a request does not begin without one
}

// Host is one host on one pair of streams. Make one with New, run it with Serve.
type Host struct {
	opts        Options
	router      *router
	callCounter CallCounter // nil = nobody counts calls
	chooser     Chooser     // nil = nobody learns which one of several tools is the best
	groups      *groups     // of tools

	services *Services
	ids      *idSource
	begun    time.Time

	endBy   *deadline       // when everything is over; see drain.go
	drainBy *deadline       // when running requests are cut off
	ctx     context.Context // parent of all calls; it names the host
	cancel  context.CancelFunc
	out     *writer
	leader  atomic.Pointer[leader]
	goes    sync.WaitGroup

	watcherAsleep atomic.Bool
	wakeWatcher   chan struct{}

	spoken        Dialect               // of the last good line; nil = A2E; only the leader uses it
	heard         bool                  // there was a good line; only the leader uses it
	lineSequencer lineSequencer         // of the dialects
	stopping      atomic.Bool           // no further line is read
	wished        chan struct{}         // closed when the host is to end
	silent        chan struct{}         // closed when the peer writes no more
	hangUp        sync.Once             // closes silent
	broken        atomic.Pointer[error] // why the output, or the input, failed

	mu         sync.Mutex // guards the fields below
	session    *Session
	leaving    chan struct{} // closed when the plugins have ended the session; nil = the plugins do not know yet
	over       bool          // no request and no session begins any more
	failures   int           // failed handshakes in a row
	slots      []*Slots      // first those of max_parallel, then those of dialects
	order      order
	handshakes int           // handshakes running or queued
	abandoned  int           // handlers that did not stop when their time was up
	idle       chan struct{} // closed when draining and nothing is left
	draining   bool
	asked      map[string]chan protocol.Object // requests to the agent without an answer, by id
	streams    map[*Stream]struct{}
	pushed     *Stream // for the session's messages that belong to no request
}

// New makes a host. The error says which options do not fit.
func New(opts Options) (*Host, error) {
	if opts.Only && len(opts.Dialects) == 0 {
		return nil, errors.New("a host that speaks only another protocol needs its dialect")
	}
	opts.Limits.setDefaults()
	if opts.MaxParallel <= 0 {
		opts.MaxParallel = 4
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Events == nil {
		opts.Events = event.New(opts.Secrets).WithLog(opts.Log)
	}
	if opts.Buffers == nil {
		opts.Buffers = new(sync.Pool)
	}
	if opts.Closing == nil {
		opts.Closing = make(chan struct{}, 1)
	}
	opts.Plugins = slices.Clone(opts.Plugins)
	slices.SortStableFunc(opts.Plugins, func(a, b Plugin) int {
		return cmp.Compare(b.Info().Priority,
			a.Info().Priority)
	})
	h := &Host{
		opts:        opts,
		router:      newRouter(opts.Plugins),
		groups:      newGroups(opts.Groups),
		ids:         newIDSource(opts.IDs),
		wakeWatcher: make(chan struct{}, 1),
		wished:      make(chan struct{}),
		silent:      make(chan struct{}),
		idle:        make(chan struct{}),
		asked:       make(map[string]chan protocol.Object),
		streams:     make(map[*Stream]struct{}),
	}
	h.services = newServices(h)
	h.chooser = First[Chooser](h.services)
	h.router.own(h.router.at(protocol.TypeToolCallReq)).groups = h.groups
	for _, d := range h.router.all() {
		h.wrap(d)
	}
	if !opts.Uncounted {
		h.callCounter = First[CallCounter](h.services)
	}
	h.endBy = newDeadline(context.WithValue(context.Background(), hostKey{}, h))
	h.drainBy = newDeadline(h.endBy)
	h.ctx, h.cancel = context.WithCancel(h.endBy)
	h.addSlotsLocked(opts.MaxParallel)
	return h, nil
}

// Serve reads requests from in and answers on out until the input ends, a shutdown is asked for, or in or out
// fails. It lets running requests finish first and closes the plugins last. The error says which plugin did not
// start or which stream failed; it is ErrOutputClosed if the reader of the answers has gone. Serve is called once.
func (h *Host) Serve(in io.Reader, out io.Writer) error {
	h.begun = time.Now()
	h.out = newWriter(out, &h.opts, &h.goes, h.outputFailed)
	defer h.endBy.cancel()
	if err := h.startPlugins(); err != nil {
		return err
	}
	for _, d := range h.opts.Dialects {
		d.Open(h.ctx, h.out)
	}
	first := &leader{lines: &lines{src: in, max: h.opts.Limits.LineBytes}, line: new(protocol.Line)}
	h.leader.Store(first)
	done := make(chan struct{})
	h.goes.Go(func() { h.watch(done) })
	h.goes.Go(func() {
		growStack("")
		h.read(first)
	})

	h.awaitWish(done)
	h.drain()
	h.cancel()
	h.out.unbound() // a peer that does not read must not hold up the end
	h.closePlugins()
	h.out.waitWritten()
	h.out.close()
	close(done)
	h.waitGoroutines()
	if why := h.broken.Load(); why != nil {
		return *why
	}
	return nil
}

// Shutdown ends Serve: no further line is read, and running requests get at most
// timeout to finish. A later call can only shorten that.
func (h *Host) Shutdown(timeout time.Duration) {
	h.drainBy.within(timeout)
	if !h.stopping.Swap(true) {
		close(h.wished)
	}
}

// Interrupt ends Serve within 1.5 seconds, as the parent expects after a SIGTERM.
func (h *Host) Interrupt() {
	h.endBy.within(signalDrain + signalClose)
	h.Shutdown(signalDrain)
}

// InputClosed tells the host that the writer of the input has gone, for a caller that knows this before the input
// is read to its end. The host still reads and answers what was sent before, as long as the peer reads. If answers
// wait and the peer has read none for DrainTimeout, the host drops the output and Serve ends.
func (h *Host) InputClosed() { h.hangUp.Do(func() { close(h.silent) }) }

// inputEnded ends Serve at the end of the input. If reading failed, Serve returns that error, because requests may
// be lost.
func (h *Host) inputEnded(err error) {
	if err != io.EOF && !errors.Is(err, os.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) &&
		!errors.Is(err, io.ErrClosedPipe) {
		err = fmt.Errorf("the input failed: %w", err)
		h.broken.CompareAndSwap(nil, &err)
	}
	h.Shutdown(DrainTimeout)
}

// OutputClosed ends Serve because nobody can read the answers any more. It is for a caller that knows this before
// the next write fails.
func (h *Host) OutputClosed() { h.outputFailed(ErrOutputClosed) }

func (h *Host) outputFailed(err error) {
	h.opts.Log.Info().Err(err).Msg("the output is closed; the host ends")
	h.broken.CompareAndSwap(nil, &err)
	h.Shutdown(0)
}

func (h *Host) startPlugins() error {
	for _, p := range h.opts.Plugins {
		if s, ok := As[Starter](p); ok {
			if err := start(h.ctx, s, h.services); err != nil {
				h.Interrupt()
				h.closePlugins()
				return errors.Join(errors.New("plugin "+p.Info().Name+" did not start"), err)
			}
		}
	}
	return nil
}

// start calls a plugin's Start and turns a panic into an error.
func start(ctx context.Context, s Starter, services *Services) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("it panicked: %v", v)
		}
	}()
	return s.Start(ctx, services)
}

// eachPlugin calls f for all plugins side by side, and waits for them until ctx
// ends.
func (h *Host) eachPlugin(ctx context.Context, what string, f func(Plugin) error) {
	var all sync.WaitGroup
	for _, p := range h.opts.Plugins {
		all.Go(func() {
			defer h.guard(what + p.Info().Name)
			if err := f(p); err != nil {
				h.opts.Log.Warn().Err(err).Str("plugin", p.Info().Name).Msg("the plugin did not close cleanly")
			}
		})
	}
	waitOrDone(&all, ctx.Done())
}

// guard keeps a panic of a plugin's code from ending the host.
func (h *Host) guard(where string) {
	if v := recover(); v != nil {
		h.logPanic(where, v)
	}
}

// waitOrDone waits for all, or until done is closed.
func waitOrDone(all *sync.WaitGroup, done <-chan struct{}) {
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-done:
	}
}
