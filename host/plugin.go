package host

import (
	"context"

	"a2e/protocol"
)

// Plugin serves the message types of one capability. A plugin may implement
// Starter as well.
type Plugin interface {
	// Info describes the plugin. It is read once, when the host is built.
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
	Priority   int            // higher is asked first
	Exclusive  bool           // answers its message types alone
	Metadata   map[string]any // further entries for the handshake's metadata; may be nil
}

// Starter is a plugin that has work to do before the first request. Start must
// not wait for slow things: it runs before the handshake is answered.
type Starter interface {
	Start(ctx context.Context) error
}

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
	// Streaming tells whether anybody listens.
	Streaming() bool
}
