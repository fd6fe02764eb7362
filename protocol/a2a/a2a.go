// Package a2a has the names of the Agent2Agent protocol (A2A) over HTTP that its server, in host/dialect/a2a, and
// its client, in plugins/multiagent/worker, share. Source: the specifications of A2A 1.0 and 0.3.
package a2a

// Paths of an agent.
const (
	PathRPC  = "/jsonrpc" // of this host's server; the card of another agent names its own
	PathCard = "/.well-known/agent-card.json"
)

// VersionHeader is the header in which a client of version 1.0 and later sends its version.
const VersionHeader = "A2A-Version"

// FleetExtension is the extension in the card of an agent that accepts a TASK_DISPATCH as the text of a message.
const FleetExtension = "urn:a2e:fleet:2.0"
