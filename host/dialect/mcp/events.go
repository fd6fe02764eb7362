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

// levels returns the log levels of MCP, the lowest first. The number of a level is its place here, from 1.
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

// emitter is the host.Emitter of one request. It sends events as notifications.
type emitter struct {
	server *server
	of     *request
	logger string // the name in log messages

	mu   sync.Mutex
	last float64 // progress sent last; it has to grow. Guarded by mu
	ends bool    // the end is known: last is a part of the total. Guarded by mu
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

// advance sends progress: to out of 100 if the end is known (ends), else one step more than before. It returns false if
// the client wants no progress, or if the progress has not grown.
func (e *emitter) advance(to float64, ends bool, message string) bool {
	of := e.of.current()
	e.mu.Lock()
	defer e.mu.Unlock() // held while the notification is sent, so that the numbers grow
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

// exact sends progress as an MCP server behind the host reports it.
func (e *emitter) exact(told protocol.Object) {
	of := e.of.current()
	e.mu.Lock()
	defer e.mu.Unlock() // held while the notification is sent
	if of.token == nil {
		return
	}
	if done, ok := told.Get("progress"); ok {
		e.last, _ = strconv.ParseFloat(string(done), 64) // the server sent a number
	}
	_, e.ends = told.Get("total")
	params := withLast([]byte("{}"), "progressToken", of.token)
	e.server.tell(of, notice(notifyProgress, withMembers(params, told, "progressToken")))
}

// Status implements host.Emitter.
func (e *emitter) Status(message string) { e.log("info", e.logger, message) }

// Log implements host.Emitter. A line of a program's output is also a step of progress.
func (e *emitter) Log(level, message, stream string) {
	logger := e.logger
	if stream != "" {
		logger += "/" + stream
		e.advance(0, false, message)
	}
	e.log(levelName(level), logger, message)
}

// levelName converts the level of a plugin to a level of MCP. An unknown level becomes info.
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

// logLine returns the line of a log message with further members in its params. data is JSON.
func logLine(level, logger string, data []byte, more protocol.Object) []byte {
	params := protocol.AppendString([]byte(`{"level":`), level)
	params = protocol.AppendString(append(params, `,"logger":`...), logger)
	params = append(append(append(params, `,"data":`...), data...), '}')
	return notice(notifyMessage, withMembers(params, more, "level", "logger", "data"))
}

// Pushed implements host.PushTaker. It passes notifications of an MCP server behind the host on to the client. Log
// messages have the server's id as logger.
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

// Artifact implements host.Emitter. MCP has no notification for files; the result of the call names them.
func (e *emitter) Artifact(string, string, []byte, bool) {}

// firstLook is how soon after a list the watch looks for changes. Each further look without a new list comes after
// twice the time, up to Options.Refresh.
const firstLook = 250 * time.Millisecond

// watch notifies the client when a list that it has seen has changed. It has to look by itself, because plugins learn
// of new tools and skills while they run and cannot report it.
type watch struct {
	server         *server
	tools, prompts *seenList
	poke           dialect.Bell // rings when the client has listed something
	goes           sync.WaitGroup
}

// digest is the hash of a list. Two lists with one digest are the same.
type digest = [sha256.Size]byte

// seenList is a list that the client may have seen.
type seenList struct {
	changed string                                 // the notification of a change
	list    func(context.Context) (*digest, error) // returns the digest of the list as it is now
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

// saw stores the digest of the list that the client gets.
func (l *seenList) saw(what *digest) {
	l.digest.Store(what)
	l.poke.Ring()
}

// digestOf returns the digest of a list, or nil if the list does not encode.
func digestOf(all any) *digest {
	raw, err := json.Marshal(all, json.Deterministic(true))
	if err != nil {
		return nil
	}
	sum := sha256.Sum256(raw)
	return &sum
}

// run looks for changes until ctx ends.
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

// look notifies the client if a list is not the one that the client has seen. It does so once for each change.
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
