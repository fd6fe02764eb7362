package env

import (
	"context"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

// Environment is a world that episodes take place in. Its methods may be called at the
// same time. It may implement Restorer.
type Environment interface {
	// Name is what env_name calls it.
	Name() string
	// Space describes its actions and states. It does not change. The plugin asks whenever it
	// needs it: after the first answer it costs nothing.
	Space(ctx context.Context) (Space, error)
	// Reset begins an episode. Equal seeds and options give equal episodes. An error that is
	// a *protocol.Error is the answer, `reset_denied` say.
	Reset(ctx context.Context, r Reset) (World, error)
	// Close ends what the environment started. All its worlds were closed before.
	Close(ctx context.Context) error
}

// Space is what env/space/req answers.
type Space struct {
	Types  []string       // the action types, the usual one first; empty where actions have none
	Action map[string]any // JSON Schema of an action, in both spellings; nil = one of Types is all it takes
	State  map[string]any // JSON Schema of a state
	// Options is the JSON Schema of what Reset.Options may hold; nil = Reset looks at them.
	Options map[string]any
}

// Reset is how an episode begins.
type Reset struct {
	EpisodeID string
	Seed      *int64          // nil = any
	Options   protocol.Object // valid until Reset returns
	// Push tells the agent of a change that no step brought about; the episode and the step are
	// filled in. It is safe for concurrent use, and never blocks for long.
	Push func(*protocol.EnvStatePush)
}

// Action is what a step does. It fits the action space's schema.
type Action struct {
	Type    string          // of "type" or "action_type"; "" where the space has no types
	Payload protocol.Object // of "payload", or all members but the type's
	Whole   protocol.Object // as it came; valid until Step returns
}

// Outcome is what a step brought.
type Outcome struct {
	Reward    float64
	Done      bool           // the episode reached its end
	Truncated bool           // it was cut short
	Info      map[string]any // for the observation's metadata; may be nil
}

// World is one episode. The plugin calls one method at a time. It may implement Renderer,
// Suggester and Saver.
type World interface {
	// Step takes one action. After an error that is a *protocol.Error, such as
	// `unknown_action`, the episode is as it was; after any other it has ended.
	Step(ctx context.Context, a Action) (Outcome, error)
	// AppendState appends what the agent sees now, one JSON object.
	AppendState(ctx context.Context, dst []byte) ([]byte, error)
	// Close gives back what the episode holds.
	Close(ctx context.Context) error
}

// Renderer is a World that draws itself.
type Renderer interface {
	// Render draws in a mode of Modes; the first one stands for an unknown or empty mode.
	Render(ctx context.Context, mode string) (jsontext.Value, error)
	Modes() []string
}

// Suggester is a World that knows which actions look good.
type Suggester interface {
	// Suggest returns actions as a step takes them, the best first.
	Suggest(ctx context.Context) ([]map[string]any, error)
}

// Quick is an Environment whose worlds take microseconds for anything and never push: the
// plugin does not hand them to other goroutines.
type Quick interface{ Quick() }

// Saver is a World whose episode can go on in another host.
type Saver interface {
	Save() (jsontext.Value, error)
}

// Restorer is an Environment that takes up what a Saver gave.
type Restorer interface {
	Restore(ctx context.Context, r Reset, saved jsontext.Value) (World, error)
}

// Observer is a World that changes by itself. Observe looks anew, for env/observe/req,
// where AppendState may give what the last step brought.
type Observer interface {
	Observe(ctx context.Context) error
}

// Leaver is a Saver that has something outside of the host, such as a folder. Leave is
// called in place of Close when the episode was saved and is to go on in another host: it
// gives back what is in this one and leaves the rest to Restore.
type Leaver interface {
	Leave(ctx context.Context) error
}

// maxPushes is how many pushes of one episode may wait to be sent; then the oldest go.
const maxPushes = 256

// pushes sends what a world says between steps, in order, without holding it up.
type pushes struct {
	plugin  *Plugin
	episode *episode
	feed    *host.Stream // of the reset; nil = nobody listens. It is set before the first push.

	mu      sync.Mutex // guards the fields below
	waiting []*protocol.EnvStatePush
	sending bool // a goroutine sends
	dropped int
	closed  bool
}

func (p *Plugin) newPushes(e *episode) *pushes { return &pushes{plugin: p, episode: e} }

// add takes a push of the world, which may hold any lock of its own and may be in Step.
func (s *pushes) add(msg *protocol.EnvStatePush) {
	e := s.episode
	msg.EpisodeID, msg.StepID = e.id, int(e.steps.Load())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || e.over.Load() {
		return
	}
	if msg.Terminal {
		e.over.Store(true)
		e.dirty.Store(true)
		s.plugin.keep.poke()
	}
	if s.feed == nil {
		return
	}
	if len(s.waiting) >= maxPushes {
		s.waiting = s.waiting[1:]
		if s.dropped++; s.dropped == 1 {
			s.plugin.Log.Warn().Str("plugin", s.plugin.name).Str("episode", e.id).Msg("the agent does not read the " +
				"pushes of an episode; the oldest are dropped")
		}
	}
	s.waiting = append(s.waiting, msg)
	if !s.sending {
		s.sending = true
		s.plugin.tend(s.send)
	}
}

// send sends what waits.
func (s *pushes) send() {
	for {
		s.mu.Lock()
		if len(s.waiting) == 0 {
			s.sending = false
			if s.closed || s.episode.over.Load() {
				s.feed.Close()
			}
			s.mu.Unlock()
			return
		}
		msg := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.mu.Unlock()
		if err := s.feed.Send(protocol.TypeEnvStatePush, msg); err == host.ErrStreamClosed {
			s.mu.Lock()
			s.feed, s.waiting = nil, nil
			s.mu.Unlock()
			return
		} else if err != nil {
			s.plugin.Log.Warn().Err(err).Str("plugin", s.plugin.name).Msg("a push of the environment cannot be sent")
		}
	}
}

// close ends the pushes; what waits goes out.
func (s *pushes) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.feed != nil && !s.sending {
		s.feed.Close()
	}
}
