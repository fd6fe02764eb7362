package mcp

import (
	"context"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
)

// rootState is what a server knows of the agent's roots. Servers ask for them when they
// are connected and keep the answer; there may be no agent yet, or another one later.
type rootState struct {
	client *sdk.Client   // of the connection there is
	last   *host.Session // which called the server last; nil = it is over
	stale  bool          // the server has roots that are not those of an agent, or of one that is gone
	tell   bool          // it is to be told that they have changed
}

// noteCaller notes the session of a call. A server that asked for roots before is told
// then that there are others.
func (s *server) noteCaller(ctx context.Context) {
	sess := host.SessionFrom(ctx)
	if sess == nil {
		return
	}
	s.mu.Lock()
	s.roots.last = sess
	wake := s.roots.stale
	if wake {
		s.roots.stale, s.roots.tell = false, true
	}
	s.mu.Unlock()
	if wake {
		s.signal()
	}
}

// forgetCaller notes the end of a session.
func (s *server) forgetCaller(sess *host.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sess != nil && s.roots.last == sess {
		s.roots.last, s.roots.stale = nil, true
	}
}

// noteGuess notes that the server got the workspace as its root, as there was no session
// to ask in.
func (s *server) noteGuess(asked context.Context) {
	if host.SessionFrom(asked) != nil {
		return
	}
	s.mu.Lock()
	s.roots.stale = true
	s.mu.Unlock()
}
