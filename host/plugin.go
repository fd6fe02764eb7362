package host

import (
	"context"
	"time"

	"a2e/protocol"
)

// Plugin serves the message types of one capability. A plugin may implement Starter, SlowCloser and SessionEnder as
// well. A plugin that wraps another one has a method Unwrap() Plugin, and need not pass these on.
type Plugin interface {
	// Info describes the plugin. The host reads its name and priority once, when it is
	// built, and the rest for each handshake.
	Info() PluginInfo
	// Routes lists what the plugin answers. It is read once, when the host is built.
	Routes() []Route
	// Close stops whatever the plugin started and waits for it, until ctx ends.
	Close(ctx context.Context) error
}

// PluginInfo is what a plugin says of itself; the handshake shows it to the agent.
type PluginInfo struct {
	Name       string // unique in one host
	Capability protocol.Capability
	Also       []protocol.Capability // what else it serves, such as the tools of an mcp plugin
	Priority   int                   // higher is asked first
	Exclusive  bool                  // answers its message types alone
	Metadata   map[string]any        // further entries for the handshake's metadata; may be nil
	Children   bool                  // it starts programs: the handshake says how they are confined
	Stored     bool                  // it serves nothing without the store
	Broken     string                // why it can serve nothing until somebody fixes that; "" = it can
}

// Describer is a plugin that adds to its Info what only a handshake shows and what takes time to find out: Metadata
// and Broken.
type Describer interface {
	Describe(info PluginInfo) PluginInfo
}

// Starter is a plugin that has work to do before the first request, or needs something of
// its host. Start must not wait for slow things: it runs before the handshake is answered.
type Starter interface {
	Start(ctx context.Context, s *Services) error
}

// SessionEnder is a plugin that keeps something for a session. EndSession is called once when the session ends:
// because of another handshake, even one that is then refused, or with the host, before Close. Streams of the
// session still take messages until the EndSession of all plugins has returned or ctx has ended; EndSession should
// return before that. ctx belongs to no request.
type SessionEnder interface {
	EndSession(ctx context.Context, s *Session)
}

// SlowCloser is a plugin whose Close may take longer than that of others, because what it ends needs time. A signal
// may cut that time.
type SlowCloser interface {
	CloseTimeout() time.Duration
}

// SaveTime is the CloseTimeout of plugins that write what they have in memory to the store.
const SaveTime = 5 * time.Second

// hostKey is the context key of the host.
type hostKey struct{}

// Emitter sends the events of one request, in order, before its answer. It is
// safe for concurrent use. It does nothing when the agent asked for no stream,
// and after the request was answered.
type Emitter interface {
	// Progress reports how far the work is, pct in 0..100.
	Progress(pct float64, message string)
	// Status reports one line of state.
	Status(message string)
	// Log passes on one line of output. stream is "stdout", "stderr" or "".
	Log(level, message, stream string)
	// Artifact passes on a piece of a file; the bytes go as base64.
	Artifact(name, mime string, chunk []byte, final bool)
	// Streaming reports whether anybody listens.
	Streaming() bool
}
