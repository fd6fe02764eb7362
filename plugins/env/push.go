package env

import (
	"sync"

	"a2e/host"
	"a2e/protocol"
)

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
func (s *pushes) add(push Push) {
	e := s.episode
	msg := &protocol.EnvStatePush{
		EpisodeID: e.id, StepID: int(e.steps.Load()), EventType: push.Event, Reason: push.Reason,
		Delta: push.Delta, Reward: push.Reward, RewardInfo: push.RewardInfo, Terminal: push.Terminal,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || e.over.Load() {
		return
	}
	if push.Terminal {
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
			s.plugin.Log.Warn().Str("plugin", s.plugin.name).Str("episode", e.id).Msg("the agent does not read the pushes of an episode; the oldest are dropped")
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
