package env

import (
	"context"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

// Environment is a kind of world in which episodes take place. Its methods may be called concurrently. It
// may implement Restorer.
type Environment interface {
	// Name returns the name that env_name uses.
	Name() string
	// Space returns its actions and states, which do not change. The plugin calls it whenever it needs
	// them, so it should be cheap after the first call.
	Space(ctx context.Context) (Space, error)
	// Reset begins an episode. Equal seeds and options make equal episodes. An error that is a
	// *protocol.Error, such as `reset_denied`, is the answer.
	Reset(ctx context.Context, r Reset) (World, error)
	// Close frees what the environment holds. All its worlds are closed before.
	Close(ctx context.Context) error
}

// Space is the answer to env/space/req.
type Space struct {
	Types  []string       // the action types, the usual one first; empty = actions have no type
	Action map[string]any // JSON Schema of an action, in both spellings; nil = an action is only one of Types
	State  map[string]any // JSON Schema of a state
	// Options is the JSON Schema of Reset.Options; nil = Reset itself checks them.
	Options map[string]any
}

// Reset has the parameters of a new episode.
type Reset struct {
	EpisodeID string
	Seed      int64
	Options   protocol.Object // valid until Reset returns
	// Push tells the agent about a change between steps; it fills in the episode and the step. It is safe
	// for concurrent use, and never blocks for long.
	Push func(*protocol.EnvStatePush)
}

// Action is what a step does. It fits the schema of the action space.
type Action struct {
	Type    string          // from "type" or "action_type"; "" = the space has no types
	Payload protocol.Object // from "payload", or all members except the type
	Whole   protocol.Object // as it was sent; valid until Step returns
}

// Outcome is the result of a step.
type Outcome struct {
	Reward    float64
	Done      bool           // the episode reached its end
	Truncated bool           // it was cut short
	Info      map[string]any // for the observation's metadata; may be nil
}

// World is one episode. The plugin calls one method at a time. It may implement Suggester, Saver and
// Observer.
type World interface {
	// Step takes one action. After an error that is a *protocol.Error, such as `unknown_action`, the
	// episode is unchanged; after any other error it has ended.
	Step(ctx context.Context, a Action) (Outcome, error)
	// AppendState appends what the agent sees now, as one JSON object.
	AppendState(ctx context.Context, dst []byte) ([]byte, error)
	// Render draws in a mode of Modes. The plugin passes the first mode in place of an unknown or empty
	// one.
	Render(ctx context.Context, mode string) (jsontext.Value, error)
	Modes() []string
	// Close frees what the episode holds.
	Close(ctx context.Context) error
}

// Suggester is a World that can suggest actions.
type Suggester interface {
	// Suggest returns actions in the form in which a step takes them, the best first.
	Suggest(ctx context.Context) ([]map[string]any, error)
}

// Quick is an Environment whose worlds need only microseconds for any call and never push: the plugin does
// not use other goroutines for them.
type Quick interface{ Quick() }

// Saver is a World whose episode can continue in another host. Its Environment is a Restorer.
type Saver interface {
	Save() (jsontext.Value, error)
}

// Restorer is an Environment that continues an episode from what a Saver saved.
type Restorer interface {
	Restore(ctx context.Context, r Reset, saved jsontext.Value) (World, error)
}

// Observer is a World that changes by itself. Observe updates its state for env/observe/req; without it
// AppendState may append the state after the last step.
type Observer interface {
	Observe(ctx context.Context) error
}

// Leaver is a Saver that has something outside of the host, such as a folder. Leave is called instead of
// Close when the episode was saved and may continue in another host: it frees what is in this host and
// leaves the rest for Restore.
type Leaver interface {
	Leave(ctx context.Context) error
}

// maxPushes is how many pushes of one episode may wait to be sent; beyond that the oldest are dropped.
const maxPushes = 256

// pushes sends the pushes of a world in order, without blocking it.
type pushes struct {
	plugin  *Plugin
	episode *episode
	feed    *host.Stream // of the reset; nil = nobody listens; set before the first push

	mu      sync.Mutex // guards the fields below
	waiting []*protocol.EnvStatePush
	sending bool // a goroutine sends
	dropped int
	closed  bool
}

func (p *Plugin) newPushes(e *episode) *pushes { return &pushes{plugin: p, episode: e} }

// add adds a push of the world, which may hold its own locks and may be in Step.
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

// send sends the waiting pushes.
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

// close ends the pushes; those that wait are still sent.
func (s *pushes) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.feed != nil && !s.sending {
		s.feed.Close()
	}
}
