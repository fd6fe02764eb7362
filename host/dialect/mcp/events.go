package mcp

import (
	"context"
	"crypto/sha256"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/dialect"
	"a2e/protocol"
)

// levels are those of MCP, the least first. A level's number is its place here, from 1.
func levels() []string {
	return []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}
}

func levelNumber(name string) int64 { return int64(slices.Index(levels(), name) + 1) }

// setLevel answers logging/setLevel.
func (s *server) setLevel(r *request) (any, error) {
	level := textOf(member(r.params, "level"))
	n := levelNumber(level)
	if n == 0 {
		return nil, rpcErrorf(codeInvalidParams, "unknown level %.64q; the levels are %s", level,
			strings.Join(levels(), ", "))
	}
	s.level.Store(n)
	return encoded{result: noResult()}, nil
}

// emitter is the host.Emitter of one request. Its events become notifications.
type emitter struct {
	server *server
	of     *request
	logger string // whose log messages these are

	mu   sync.Mutex
	last float64 // progress told; it has to grow. Guarded by mu
	ends bool    // what was told is a part of 100. Guarded by mu
}

func (s *server) emitter(r *request, logger string) *emitter {
	return &emitter{server: s, of: r, logger: logger, last: -1}
}

// Streaming implements host.Emitter.
func (e *emitter) Streaming() bool { return e.of.token != nil || e.server.levelOf(e.of) > 0 }

// Progress implements host.Emitter.
func (e *emitter) Progress(pct float64, message string) {
	if !e.advance(min(pct, 100), true, message) && message != "" {
		e.Status(message)
	}
}

// advance tells of progress, up to 100 or, where the end is not known, one step further. It
// returns false where the client does not want it, or it is no more than before.
func (e *emitter) advance(to float64, ends bool, message string) bool {
	of := e.of.current()
	e.mu.Lock()
	defer e.mu.Unlock() // held while it is sent: the numbers have to grow
	if !ends {
		to = max(e.last, 0) + 1
	}
	if of.token == nil || !ends && e.ends || !(to > e.last) {
		return false
	}
	e.last, e.ends = to, ends
	params := append([]byte(`{"progressToken":`), of.token...)
	params = strconv.AppendFloat(append(params, `,"progress":`...), to, 'f', -1, 64)
	if ends {
		params = append(params, `,"total":100`...)
	}
	if message != "" || !ends {
		params = protocol.AppendString(append(params, `,"message":`...), message)
	}
	e.server.tell(of, notice(notifyProgress, append(params, '}')))
	return true
}

// exact tells of progress as an MCP server behind the host tells it.
func (e *emitter) exact(told protocol.Object) {
	of := e.of.current()
	e.mu.Lock()
	defer e.mu.Unlock() // held while it is sent
	if of.token == nil {
		return
	}
	if done, ok := told.Get("progress"); ok {
		e.last, _ = strconv.ParseFloat(string(done), 64) // it is a number
	}
	_, e.ends = told.Get("total")
	params := append([]byte(`{"progressToken":`), of.token...)
	for key, val := range told.All() {
		if string(key) != "progressToken" {
			params = append(append(protocol.AppendString(append(params, ','), key), ':'), val...)
		}
	}
	e.server.tell(of, notice(notifyProgress, append(params, '}')))
}

// Status implements host.Emitter.
func (e *emitter) Status(message string) { e.log("info", e.logger, message) }

// Log implements host.Emitter. A line of a program's output is a step of progress as well.
func (e *emitter) Log(level, message, stream string) {
	logger := e.logger
	if stream != "" {
		logger += "/" + stream
		e.advance(0, false, message)
	}
	e.log(levelName(level), logger, message)
}

// levelName returns MCP's name of a level that a plugin names.
func levelName(level string) string {
	switch level = strings.ToLower(level); level {
	case "trace":
		return "debug"
	case "warn":
		return "warning"
	case "fatal", "panic":
		return "critical"
	}
	if levelNumber(level) == 0 {
		return "info"
	}
	return level
}

func (e *emitter) log(level, logger, message string) {
	of := e.of.current()
	if least := e.server.levelOf(of); least > 0 && levelNumber(level) >= least {
		e.server.tell(of, logLine(level, logger, protocol.AppendString(nil, message), protocol.Object{}))
	}
}

// logLine makes a log message, with further members of its params; data is JSON.
func logLine(level, logger string, data []byte, more protocol.Object) []byte {
	params := protocol.AppendString([]byte(`{"level":`), level)
	params = protocol.AppendString(append(params, `,"logger":`...), logger)
	params = append(append(append(params, `,"data":`...), data...), '}')
	for key, val := range more.All() {
		if name := string(key); name != "level" && name != "logger" && name != "data" {
			params = withLast(params, name, val)
		}
	}
	return notice(notifyMessage, params)
}

// Pushed implements host.PushTaker: news of an MCP server behind the host are for the
// client as well; its log goes under the server's id.
func (s *server) Pushed(_ protocol.Type, body any) {
	push, ok := body.(*protocol.MCPServerPush)
	if !ok || !s.isOpen.Load() {
		return
	}
	switch push.Method {
	case notifyMessage:
		s.logged(push)
	case notifyUpdated:
		s.updated(push)
	case notifyFilesChanged:
		s.notifyChanged(push.Method)
	case notifyElicited:
		s.out.Send(notice(push.Method, push.Params.Raw()))
	case notifyToolsChanged:
		s.watch.tools.poke.Ring()
	case notifyPromptsChanged:
		s.watch.prompts.poke.Ring()
	}
}

// logged passes on a log message of an MCP server.
func (s *server) logged(push *protocol.MCPServerPush) {
	name := levelName(push.Params.Text("level"))
	if least := s.level.Load(); least == 0 || levelNumber(name) < least {
		return
	}
	logger, data := push.ServerID, []byte("null")
	if text := push.Params.Text("logger"); text != "" {
		logger += "/" + text
	}
	if val, there := push.Params.Get("data"); there {
		data = val
	}
	s.out.Send(logLine(name, logger, data, push.Params))
}

// Artifact implements host.Emitter. MCP has no files on the way; the result names them.
func (e *emitter) Artifact(string, string, []byte, bool) {}

// firstLook is how soon after a list the watch looks again; each further look without a
// change comes after twice the time.
const firstLook = 250 * time.Millisecond

// watch tells the client when lists that it has seen have changed: plugins learn of new
// tools and skills while they run, and have no way to say so.
type watch struct {
	server         *server
	tools, prompts *seenList
	poke           dialect.Bell // the client has listed something
	goes           sync.WaitGroup
}

// digest tells two lists apart.
type digest = [sha256.Size]byte

// seenList is a list that the client may have seen.
type seenList struct {
	changed string                                 // the notification
	list    func(context.Context) (*digest, error) // of what there is now
	poke    dialect.Bell
	digest  atomic.Pointer[digest]
}

func newWatch(s *server) *watch {
	w := &watch{server: s, poke: dialect.NewBell()}
	list := func(changed string, list func(context.Context) (*digest, error)) *seenList {
		return &seenList{changed: changed, poke: w.poke, list: list}
	}
	w.tools = list(notifyToolsChanged, func(ctx context.Context) (*digest, error) {
		all, err := s.tools(ctx)
		if err != nil {
			return nil, err
		}
		return &all.digest, nil
	})
	w.prompts = list(notifyPromptsChanged, func(ctx context.Context) (*digest, error) {
		all, err := s.prompts(ctx)
		return digestOf(all), err
	})
	return w
}

// saw notes what the client gets to see.
func (l *seenList) saw(what *digest) {
	l.digest.Store(what)
	l.poke.Ring()
}

// digestOf returns the digest of a list; nil when it does not encode.
func digestOf(all any) *digest {
	raw, err := json.Marshal(all, json.Deterministic(true))
	if err != nil {
		return nil
	}
	sum := sha256.Sum256(raw)
	return &sum
}

// start watches until ctx ends.
func (w *watch) start(ctx context.Context) { w.goes.Go(func() { w.run(ctx) }) }

func (w *watch) run(ctx context.Context) {
	most := w.server.opts.Refresh
	var every time.Duration
	var next <-chan time.Time // nil = the client has listed nothing yet
	for {
		select {
		case <-next:
			w.look(ctx, w.tools)
			w.look(ctx, w.prompts)
			every = min(2*every, most)
		case <-w.poke:
			every = min(firstLook, most)
		case <-ctx.Done():
			return
		}
		next = time.After(every)
	}
}

// look tells of a list that is not what the client has seen, once.
func (w *watch) look(ctx context.Context, l *seenList) {
	seen := l.digest.Load()
	if seen == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	now, err := l.list(ctx)
	if err == nil && now != nil && *now != *seen && ctx.Err() == nil && l.digest.CompareAndSwap(seen, now) {
		w.server.notifyChanged(l.changed)
	}
}
