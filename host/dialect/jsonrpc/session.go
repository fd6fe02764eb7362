package jsonrpc

import (
	"cmp"
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// session is a session in memory. Its fields are guarded by Front.mu.
type session struct {
	entry
	changes  int              // of the entry
	pins     int              // who holds it, so that it stays in memory
	turn     *turn            // nil = it is idle
	queue    []*pending       // what comes after the turn
	commands int              // under way
	in       *dialect.Session // nil = not begun
}

// The states of a session.
const (
	statusIdle    = "idle"
	statusRunning = "running"
)

// maxTitle is how long a title is, in characters.
const maxTitle = 60

func (s *session) statusLocked() string {
	if s.turn != nil || s.commands > 0 {
		return statusRunning
	}
	return statusIdle
}

// describeLocked makes what the client is told of a session.
func (s *session) describeLocked() map[string]any {
	d := map[string]any{
		"session_id": s.ID, "title": s.Title, "model": s.Model, "status": s.statusLocked(), "queue_length": len(s.queue),
		"created_at": stampSeconds(s.Created), "updated_at": stampSeconds(s.Updated), "turn_id": nil,
	}
	if s.turn != nil {
		d["turn_id"] = s.turn.id
	}
	return d
}

func (f *Front) seconds() float64 { return float64(f.opts.Now().UnixMicro()) / 1e6 }

func stampSeconds(s float64) string { return stamp(time.UnixMicro(int64(s * 1e6))) }

// named is the parameters of a method on a session.
type named struct {
	SessionID string `json:"session_id"`
}

func (n named) of() string { return n.SessionID }

// onSession makes a method of what one does with a session and its parameters, of which
// the required ones must be there. The session stays in memory meanwhile.
func onSession[P interface{ of() string }](run func(*Front, context.Context, *call, *session, *P) (any, error), required ...string) func(*Front, context.Context, *call) (any, error) {
	required = append([]string{"session_id"}, required...)
	return taking(func(f *Front, ctx context.Context, c *call, req *P) (any, error) {
		s, err := f.get(ctx, (*req).of())
		if err != nil {
			return nil, err
		}
		defer f.unpin(s)
		return run(f, ctx, c, s, req)
	}, required...)
}

// taking makes a method of what one does with parameters, of which the required ones must be
// there.
func taking[P any](run func(*Front, context.Context, *call, *P) (any, error), required ...string) func(*Front, context.Context, *call) (any, error) {
	return func(f *Front, ctx context.Context, c *call) (any, error) {
		var req P
		if err := protocol.Decode(c.params, required, &req); err != nil {
			return nil, err
		}
		return run(f, ctx, c, &req)
	}
}

// get returns the session of a request, from the history where it is not in memory. It stays in
// memory until unpin.
func (f *Front) get(ctx context.Context, id string) (*session, error) {
	f.mu.Lock()
	s := f.sessions[id]
	if s != nil {
		s.pins++
	}
	f.mu.Unlock()
	if s != nil {
		return s, nil
	}
	e, found, err := f.history.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, jsonrpc.Params("session_id", "there is no session "+quoted(id)+"; session.create makes one, history.list lists them").With("code", "unknown_session")
	}
	return f.keep(e)
}

// quoted shows a name of the client in an error.
func quoted(name string) string { return string(protocol.AppendString(nil, dialect.Clip(name, 64))) }

// keep takes a session into memory, pinned.
func (f *Front) keep(e entry) (*session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sessions[e.ID]; s != nil {
		s.pins++
		return s, nil
	}
	if len(f.sessions) >= f.opts.MaxSessions && !f.forgetLocked() {
		return nil, protocol.Errorf(protocol.CodeOverloaded, "all of the %d sessions that there may be at once are busy", f.opts.MaxSessions)
	}
	s := &session{entry: e, pins: 1}
	f.sessions[e.ID] = s
	return s, nil
}

// forgetLocked takes the idle session out of memory that was not used for the longest
// time; false = all are busy.
func (f *Front) forgetLocked() bool {
	var oldest *session
	for _, s := range f.sessions {
		if s.pins == 0 && s.turn == nil && (oldest == nil || s.Updated < oldest.Updated) {
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	delete(f.sessions, oldest.ID)
	if oldest.in != nil {
		f.work.Go(oldest.in.End)
	}
	return true
}

func (f *Front) unpin(s *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.pins--
}

// closeSessions ends the sessions of the host's plugins.
func (f *Front) closeSessions() {
	f.mu.Lock()
	var open []*dialect.Session
	for _, s := range f.sessions {
		if s.in != nil {
			open = append(open, s.in)
		}
	}
	if f.inSession != nil {
		open = append(open, f.inSession)
	}
	f.mu.Unlock()
	for _, in := range open {
		in.End()
	}
}

// enter returns the context of a session for requests of the host's plugins; nil = what
// belongs to no session. It waits for plugins that do not know yet what they serve.
func (f *Front) enter(s *session) context.Context {
	f.awaitPlugins()
	f.mu.Lock()
	defer f.mu.Unlock()
	at := &f.inSession
	if s != nil {
		at = &s.in
	}
	if *at == nil {
		*at = dialect.BeginSession(f.working, cmp.Or(f.agent, f.client, nameless))
	}
	return (*at).Ctx
}

// awaitPlugins waits for plugins that do not know yet what they serve, once.
func (f *Front) awaitPlugins() { f.ready.Do(func() { dialect.AwaitPlugins(f.working) }) }

func sessionCreate(f *Front, ctx context.Context, c *call, req *struct {
	Title string `json:"title"`
	Model string `json:"model"`
}) (any, error) {
	now := f.seconds()
	e := entry{ID: uuid.NewString(), Title: titleOf(req.Title), Created: now, Updated: now}
	e.Titled = e.Title != ""
	if req.Model != "" {
		w, err := f.worker(req.Model)
		if err != nil {
			return nil, err
		}
		e.Model = w.Name
	}
	s, err := f.keep(e)
	if err != nil {
		return nil, err
	}
	defer f.unpin(s)
	if err := f.put(ctx, s, func(*entry) {}); err != nil {
		f.mu.Lock()
		delete(f.sessions, e.ID)
		f.mu.Unlock()
		return nil, err
	}
	c.then = func() { f.changed("sessions") }
	f.mu.Lock()
	defer f.mu.Unlock()
	return s.describeLocked(), nil
}

// titleOf makes a title of a text: its first line, cut.
func titleOf(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	line = strings.Join(strings.Fields(line), " ")
	if utf8.RuneCountInString(line) <= maxTitle {
		return line
	}
	return string([]rune(line)[:maxTitle-1]) + "…"
}

// recentMessages is how many of them session.get shows.
const recentMessages = 20

func sessionGet(f *Front, ctx context.Context, _ *call, s *session, _ *named) (any, error) {
	recent, total, err := f.history.messages(ctx, s.ID, recentMessages, -recentMessages)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	d := s.describeLocked()
	d["message_count"], d["messages"] = total, recent
	return d, nil
}

// The roles of messages.
const (
	roleUser      = "user"
	roleAssistant = "assistant"
	roleTool      = "tool"
)

// tellStatus tells the state that a session is in.
func (f *Front) tellStatus(s *session) {
	f.mu.Lock()
	d := map[string]any{"session_id": s.ID, "status": s.statusLocked(), "queue_length": len(s.queue), "title": s.Title}
	f.mu.Unlock()
	f.event(jsonrpc.SessionStatus, d)
}
